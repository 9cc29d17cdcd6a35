/* beater.c: COUNT processes of one env that each ask for a GPU and beat, for bench/beats.py. Made
 * by the bench itself.
 *
 * A grant that brings a ledger is beaten for there, as the client does (csrc/ledger/ledger.h); one
 * without, by a packet each time.
 *
 *   beater SOCKET COUNT PERIOD_US FIRST      FIRST: number of the first token
 *
 * Prints one line when all of them hold a lease; ends them all when its stdin closes.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS_AT (8 * 16 * 1024 + 64) /* in the usage file: struct nm_usage */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

/* The next packet, and the two files that came with it. */
static ssize_t receive(int fd, char *packet, size_t size, int files[2])
{
    char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = {.iov_base = packet, .iov_len = size - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    files[0] = files[1] = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(2 * sizeof(int)))
        memcpy(files, CMSG_DATA(header), 2 * sizeof(int));
    packet[got > 0 ? got : 0] = '\0';
    return got;
}

static unsigned long field(const char *packet, const char *name)
{
    const char *found = strstr(packet, name);
    return found != NULL ? strtoul(found + strlen(name), NULL, 10) : 0;
}

/* The word of the process that was granted this; NULL: there is no ledger. */
static _Atomic uint64_t *word_of(const char *packet, const int files[2])
{
    off_t size = files[1] >= 0 ? lseek(files[1], 0, SEEK_END) : 0;
    if (size <= 0)
        return NULL;
    char *usage = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, files[1], 0);
    if (usage == MAP_FAILED)
        _exit(6);
    return (_Atomic uint64_t *)(usage + WORDS_AT + 8 * field(packet, "\nslot="));
}

/* One process: asks, tells the parent, beats. */
static void live(const char *path, int number, long period_us, int ready)
{
    char packet[1300], token[33];
    int fd = connect_to(path), size, files[2];
    snprintf(token, sizeof token, "%032x", (unsigned)number);
    size = snprintf(packet, sizeof packet,
                    "NODEMGR/1 ACQUIRE\nrid=%d\ntask=%s\ngpus=1\ncommand=beater\n", number, token);
    if (send(fd, packet, (size_t)size, 0) != size)
        _exit(2);
    do {
        if (receive(fd, packet, sizeof packet, files) <= 0)
            _exit(3);
    } while (strncmp(packet, "NODEMGR/1 GRANT", 15) != 0);
    if (write(ready, "x", 1) != 1)
        _exit(4);
    close(ready);
    _Atomic uint64_t *word = word_of(packet, files);
    uint64_t next_word = (uint64_t)field(packet, "\ngeneration=") << 48;
    size = snprintf(packet, sizeof packet, "NODEMGR/1 BEAT\ntask=%s\n", token);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        if (word != NULL)
            atomic_store(word, ++next_word);
        else if (send(fd, packet, (size_t)size, 0) != size)
            _exit(5);
        next.tv_nsec += period_us % 1000000 * 1000;
        next.tv_sec += period_us / 1000000 + next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR)
            ;
    }
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 64;
    int count = atoi(argv[2]), first = atoi(argv[4]), ready[2];
    long period_us = atol(argv[3]);
    pid_t *child = calloc((size_t)count, sizeof *child);
    char byte;
    if (child == NULL || pipe(ready) != 0)
        return 1;
    for (int i = 0; i < count; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            close(ready[0]);
            live(argv[1], first + i, period_us, ready[1]);
        }
        if (child[i] < 0)
            perror("fork");
    }
    close(ready[1]);
    int held = 0;
    while (read(ready[0], &byte, 1) == 1)
        held++;
    printf("%d\n", held);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    for (int i = 0; i < count; i++)
        if (child[i] > 0)
            kill(child[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    return 0;
}
