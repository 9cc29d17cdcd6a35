/* last_thread.c: programs whose main thread ends before the process does.
 *
 *   last_thread SCENARIO   The exit status and the output are those of the process without nodemgr.
 *   worker   main calls pthread_exit; a worker ends after it
 *   alone    main calls pthread_exit and is the only thread of the program
 *   late     main calls pthread_exit; a worker uses CUDA for the first time after that
 *   code     main ends by the system call, with 3
 *   killed   main confines itself (strict seccomp) and is killed by the next system call
 *   works    as worker, but the worker goes on until the end of the input, then calls exit(7)
 */
#include <alloca.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int cuInit(unsigned);

enum { HANDLER_STACK_BYTES = 1 << 20 };

static pthread_t first;

static void say(const char *text)
{
    ssize_t ignored = write(STDOUT_FILENO, text, strlen(text));
    (void)ignored;
}

static void at_exit(void)
{
    sigset_t blocked;
    volatile char *stack = alloca(HANDLER_STACK_BYTES);
    for (size_t i = 0; i < HANDLER_STACK_BYTES; i += 4096)
        stack[i] = 1;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    say(sigismember(&blocked, SIGTERM) ? "handler, blocked\n" : "handler\n");
}

static void use_cuda(void)
{
    say(cuInit(0) == 0 ? "cuInit 0\n" : "cuInit failed\n");
}

static void *worker(void *unused)
{
    pthread_join(first, NULL);
    say("worker\n");
    return unused;
}

static void *late(void *unused)
{
    pthread_join(first, NULL);
    use_cuda();
    return unused;
}

static void *works(void *unused)
{
    char byte;
    pthread_join(first, NULL);
    say("works\n");
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    exit(7);
    return unused;
}

static void leave_to(void *(*body)(void *))
{
    pthread_t thread;
    if (body != NULL && pthread_create(&thread, NULL, body, NULL) != 0)
        exit(9);
    if (body != NULL)
        pthread_detach(thread);
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    first = pthread_self();
    atexit(at_exit);
    if (strcmp(scenario, "late") == 0)
        leave_to(late);
    use_cuda();
    if (strcmp(scenario, "worker") == 0)
        leave_to(worker);
    if (strcmp(scenario, "works") == 0)
        leave_to(works);
    if (strcmp(scenario, "alone") == 0)
        leave_to(NULL);
    if (strcmp(scenario, "code") == 0)
        syscall(SYS_exit, 3);
    if (strcmp(scenario, "killed") == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0)
        syscall(SYS_getpid);
    return 2;
}
