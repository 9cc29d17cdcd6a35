/* beater.c: COUNT processes of one env that each ask for a GPU and beat, for bench/beats.py. Made by the bench itself.
 *
 *   beater SOCKET COUNT PERIOD_US FIRST      FIRST: number of the first token
 *
 * Prints one line when all of them hold a lease; ends them all when its stdin closes.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* One process: asks, tells the parent, beats. */
static void live(const char *path, int number, long period_us, int ready)
{
    char packet[1300], token[33];
    int fd = connect_to(path), size;
    snprintf(token, sizeof token, "%032x", (unsigned)number);
    size = snprintf(packet, sizeof packet, "NODEMGR/1 ACQUIRE\nrid=%d\ntask=%s\ngpus=1\ncommand=beater\n", number, token);
    if (send(fd, packet, (size_t)size, 0) != size)
        _exit(2);
    do {
        ssize_t got = recv(fd, packet, sizeof packet - 1, 0);
        if (got <= 0)
            _exit(3);
        packet[got] = '\0';
    } while (strncmp(packet, "NODEMGR/1 GRANT", 15) != 0);
    if (write(ready, "x", 1) != 1)
        _exit(4);
    close(ready);
    size = snprintf(packet, sizeof packet, "NODEMGR/1 BEAT\ntask=%s\n", token);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        if (send(fd, packet, (size_t)size, 0) != size)
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
