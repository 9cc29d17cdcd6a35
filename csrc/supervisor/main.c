/* main.c: the ways to start nodemgr-supervisor.
 *
 *   nodemgr-supervisor launcher JOBS FD [SCOPE]  for its parent, the manager at the end of FD
 *   nodemgr-supervisor launcher JOBS SOCKET [SCOPE]
 *                                             for any process of this user that connects to SOCKET,
 *                                             a path (the service nodemgr-jobs); each job has a
 *                                             cgroup below the directory SCOPE
 *   nodemgr-supervisor scope SCOPE            makes that directory by systemd
 *   nodemgr-supervisor keep SCOPE             keeps it, from inside
 *   nodemgr-supervisor end-all JOBS           ends all attempts, as the node goes down
 *   nodemgr-supervisor supervise DIRECTORY    one attempt, in the foreground
 */
#include "jobs/messages.h"
#include "supervisor/supervisor.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 64

static int fault(const char *path)
{
    fprintf(stderr, "nodemgr: " NM_PATH_NOT_USED "\n", path, strerror(errno));
    return 1;
}

/* A new socket in place of an old one, for its owner alone. */
static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const mode_t before = umask(0177);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    unlink(path);
    if (fd >= 0 && (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
                    listen(fd, BACKLOG) != 0)) {
        close(fd);
        fd = -1;
    }
    umask(before);
    return fd;
}

/* Forked by a manager, and made no child of it. The launcher outlives the manager, so it keeps
   neither its terminal nor its directory nor its stdout and stderr. */
static int serve_manager(const char *jobs, int fd, const char *scope)
{
    struct pollfd first = {.fd = fd, .events = POLLIN};
    char byte;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const pid_t child = fork();
    if (child != 0)
        _exit(child < 0);
    for (int each = 0; null >= 0 && each < 3; each++)
        dup2(null, each);
    nm_close_others(fd, false);
    setsid();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (chdir("/") != 0)
        return 1;
    /* a spare one enters the scope when its turn comes: the end of the scope ends all in it.
       Where the manager ends before, there is nothing to read */
    while (scope != NULL && poll(&first, 1, -1) < 0 && errno == EINTR)
        ;
    const bool is_asked = scope != NULL && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
    return nm_launch(fd, false, jobs, is_asked && nm_scope_enter(scope) ? scope : NULL);
}

int main(int argc, char *argv[])
{
    nm_keep_title(argc, argv);
    if ((argc == 4 || argc == 5) && strcmp(argv[1], "launcher") == 0) {
        const char *scope = argc == 5 ? argv[4] : NULL;
        if (isdigit((unsigned char)argv[3][0]))
            return serve_manager(argv[2], atoi(argv[3]), scope);
        int fd = listen_at(argv[3]);
        return fd < 0 ? fault(argv[3]) : nm_launch(fd, true, argv[2], scope);
    }
    if (argc == 3 && strcmp(argv[1], "scope") == 0)
        return nm_scope_make(argv[2]);
    if (argc == 3 && strcmp(argv[1], "keep") == 0)
        return nm_scope_keep(argv[2]);
    if (argc == 3 && strcmp(argv[1], "end-all") == 0)
        return nm_end_all(argv[2]);
    if (argc == 3 && strcmp(argv[1], "supervise") == 0) {
        int fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? fault(argv[2]) : nm_supervise_directory(fd, "-/-", -1, NULL);
    }
    fputs("nodemgr: " NM_NOT_BY_HAND "\n", stderr);
    return 2;
}
