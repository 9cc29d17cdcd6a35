/* guest.c: a program without Python, with the client compiled in: what the shim sees of it.
   Orders on stdin, an answer a line. */
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"

#define THREADS 4

static void charge(uint32_t row, uint64_t bytes)
{
    uint32_t number = 0;
    int result = nm_client_charge(row, bytes, &number);
    printf("%d %" PRIu32 "\n", result, number);
}

static void lease(void)
{
    const struct nm_lease *held = nm_client_lease();
    if (held == NULL)
        printf("none\n");
    else
        printf("%" PRIu32 " %" PRIu32 " %" PRIu32 " %s %d\n", held->slot, held->generation,
               held->gpu_count, held->gpu[0].uuid, nm_client_row(held, held->gpu[0].uuid));
}

static void *hammer(void *rounds)
{
    for (int i = 0; i < *(int *)rounds; i++) {
        uint32_t number;
        if (nm_client_charge(0, 4096, &number) == NM_OK)
            nm_client_discharge(number, 0, 4096);
        if (i % 64 == 0)
            nodemgr_state(NULL, 0);
    }
    return NULL;
}

static void threads(int rounds)
{
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, hammer, &rounds);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    printf("done\n");
}

static void child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        uint32_t number = 1;
        int result = nm_client_charge(0, 1, &number);
        /* what a destructor in the child would do with its parent's memory */
        nm_client_discharge(1, 0, UINT64_MAX);
        _exit(result == NM_FENCED && nm_client_lease() == NULL ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
}

static bool never(void)
{
    return false;
}

static void *poll_slowly(void *unused)
{
    char line[64];
    while (nodemgr_poll(10, line, sizeof line) == NODEMGR_WAITING)
        ;
    return unused;
}

/* Threads that wait are cancelled wherever they are. */
static void cancel_threads(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, poll_slowly, NULL);
        usleep((useconds_t)(i * 37 % 1000));
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    printf("%d\n", nodemgr_state(NULL, 0));
}

static void load(struct sock_filter *code, size_t count)
{
    struct sock_fprog program = {.len = (unsigned short)count, .filter = code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    printf("%ld\n",
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

#define CALL BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define IF_THEN(call, answer) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, answer)
#define ALWAYS(answer) BPF_STMT(BPF_RET | BPF_K, answer)

/* All threads: from here on who sends dies. */
static void send_no_more(void)
{
    struct sock_filter code[] = {
        CALL,
        IF_THEN(SYS_sendmsg, SECCOMP_RET_KILL_PROCESS),
        IF_THEN(SYS_sendto, SECCOMP_RET_KILL_PROCESS),
        ALWAYS(SECCOMP_RET_ALLOW),
    };
    load(code, sizeof code / sizeof *code);
}

/* All threads: waiting and what this program itself needs, nothing more. */
static void only_wait(void)
{
    struct sock_filter code[] = {
        CALL,
        IF_THEN(SYS_futex, SECCOMP_RET_ALLOW),
        IF_THEN(SYS_ppoll, SECCOMP_RET_ALLOW),
#ifdef SYS_poll
        IF_THEN(SYS_poll, SECCOMP_RET_ALLOW),
#endif
        IF_THEN(SYS_restart_syscall, SECCOMP_RET_ALLOW),
        IF_THEN(SYS_read, SECCOMP_RET_ALLOW),
        IF_THEN(SYS_write, SECCOMP_RET_ALLOW),
        IF_THEN(SYS_exit_group, SECCOMP_RET_ALLOW),
        ALWAYS(SECCOMP_RET_KILL_PROCESS),
    };
    load(code, sizeof code / sizeof *code);
}

static void on_signal(int number)
{
    (void)number;
}

static void obey(const char *order)
{
    uint64_t a = 0, b = 0, c = 0;
    char name[32] = "";
    int count = sscanf(order, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64, name, &a, &b, &c);
    (void)count;
    if (strcmp(name, "acquire") == 0)
        printf("%d\n", nm_client_acquire_blocking(never));
    else if (strcmp(name, "begin") == 0)
        printf("%d\n", nodemgr_begin(-1, -1, -1, "guest"));
    else if (strcmp(name, "state") == 0)
        printf("%d\n", nodemgr_state(NULL, 0));
    else if (strcmp(name, "release") == 0)
        printf("%d\n", nodemgr_release());
    else if (strcmp(name, "charge") == 0)
        charge((uint32_t)a, b);
    else if (strcmp(name, "discharge") == 0)
        nm_client_discharge((uint32_t)a, (uint32_t)b, c), printf("ok\n");
    else if (strcmp(name, "tell_lost") == 0)
        nm_client_tell_lost(), printf("ok\n");
    else if (strcmp(name, "lease") == 0)
        lease();
    else if (strcmp(name, "threads") == 0)
        threads((int)a);
    else if (strcmp(name, "fork") == 0)
        child();
    else if (strcmp(name, "cancel_threads") == 0)
        cancel_threads((int)a);
    else if (strcmp(name, "exec") == 0)
        execl("/proc/self/exe", "guest", (char *)NULL);
    else if (strcmp(name, "send_no_more") == 0)
        send_no_more();
    else if (strcmp(name, "only_wait") == 0)
        only_wait();
    else if (strcmp(name, "handle") == 0)
        signal(SIGINT, on_signal), printf("ok\n");
    else
        printf("unknown order %s\n", name);
}

int main(void)
{
    char order[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(order, sizeof order, stdin) != NULL)
        obey(order);
    return 0;
}
