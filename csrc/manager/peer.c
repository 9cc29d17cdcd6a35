/* peer.c: see peer.h. */
#include "manager/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* fields of /proc/PID/stat, counted after the name */
enum { STAT_BYTES = 1024, PARENT_FIELD = 1, START_FIELD = 19 };

/* -- /proc/PID/stat -- */

struct process_facts {
    int32_t parent;
    uint64_t start_ticks;
};

/* A process may have any name, ") R 1" too: the name ends at the last bracket. */
static bool read_facts(const char *text, struct process_facts *facts)
{
    const char *at = strrchr(text, ')');
    for (int field = 0; at != NULL && field <= START_FIELD; field++) {
        at = strchr(at + 1, ' ');
        if (at != NULL && field == PARENT_FIELD)
            facts->parent = (int32_t)strtol(at + 1, NULL, 10);
        if (at != NULL && field == START_FIELD)
            facts->start_ticks = strtoull(at + 1, NULL, 10);
    }
    return at != NULL;
}

/* 0, or -errno; -ESRCH: there is no such process. */
static int look_at(int32_t pid, struct process_facts *facts)
{
    char path[32], text[STAT_BYTES];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ESRCH;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return -ESRCH;
    text[length] = '\0';
    return read_facts(text, facts) ? 0 : -ESRCH;
}

int nm_ancestors(int32_t pid, int32_t *out)
{
    struct process_facts facts = {.parent = pid};
    int count = 0;
    while (count < NM_ANCESTORS && facts.parent != 1 && look_at(facts.parent, &facts) == 0 &&
           facts.parent != 0)
        out[count++] = facts.parent;
    return count;
}

/* -- a socket's peer -- */

static int name_peer(int fd, struct nm_peer *peer)
{
    struct ucred ucred = {0};
    socklen_t size = sizeof ucred;
    int error = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &ucred, &size) == 0 ? 0 : -errno;
    peer->pid = ucred.pid;
    peer->uid = (int32_t)ucred.uid;
    peer->gid = (int32_t)ucred.gid;
    return error;
}

int nm_peer_credentials(int fd, struct nm_peer *peer)
{
    socklen_t size = sizeof peer->group;
    int error = name_peer(fd, peer);
    if (error != 0)
        return error;
    peer->group_count = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->group, &size) == 0
                            ? (int32_t)(size / sizeof *peer->group)
                            : -1;
    return 0;
}

int nm_peer_accept(int listener, struct nm_peer *peer)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
    if (fd < 0)
        return -errno;
    int error = setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0
                    ? nm_peer_credentials(fd, peer)
                    : -errno;
    if (error == 0)
        return fd;
    close(fd);
    return error;
}

/* The socket's own pidfd names the peer itself. Before Linux 6.5, and for a peer that was
   reaped, there is only the PID. */
static int peer_pidfd(int fd, int32_t pid)
{
    int pidfd;
    socklen_t size = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0)
        pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return pidfd >= 0 ? pidfd : -errno;
}

static bool has_ended(int pidfd)
{
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    return poll(&ended, 1, 0) != 0;
}

int nm_peer_identify(int fd, struct nm_peer *peer)
{
    struct process_facts facts = {0};
    int error = name_peer(fd, peer);
    if (error != 0 || peer->pid <= 0)
        return error != 0 ? error : -ESRCH;
    int pidfd = peer_pidfd(fd, peer->pid);
    if (pidfd < 0)
        return pidfd;
    error = look_at(peer->pid, &facts);
    /* alive after the read of /proc: both are of the same process */
    if (error == 0 && has_ended(pidfd))
        error = -ESRCH;
    if (error != 0) {
        close(pidfd);
        return error;
    }
    peer->pidfd = pidfd;
    peer->start_ticks = facts.start_ticks;
    return 0;
}
