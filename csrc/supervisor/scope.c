/* scope.c: the scope below which jobs have cgroups: systemd delegates it, and restarts of the
 * service nodemgr-jobs leave it alone. The scope of an ordinary user is delegated by the user's own
 * systemd.
 *
 * Knows: systemd-run, the place of the unified hierarchy. Must not know: jobs.
 *
 * The scope of a unit lives while a process is in it, and a cgroup with processes has no limits
 * below it. So one process that only sleeps is in a cgroup of its own there. In an ordinary user's
 * scope that is the launcher: a process that is not in the user's own part of the hierarchy may not
 * start others there.
 */
#include "jobs/messages.h"
#include "supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIERARCHY "/sys/fs/cgroup/cgroup.controllers"
#define KEEPER "Keeper" /* no name of an environment */
#define ENTER_TRIES 5
#define ENTER_PAUSE_MS 200
#define BRIDGE_S 10 /* an ordinary user's launcher is in the scope by then */

/* The scope ends before what a job needs to save its state: file systems, network, the users'
   sessions, and after the service, which ends the jobs. The order is the scope's own property: a
   file of a unit that names the scope keeps an ended one in systemd's memory, and no other can be
   made. Jobs may have as many processes as without a scope. An end for lack of memory ends that
   job alone: systemd would end the scope and all jobs at the first one that it sees. */
static void make(const char *scope, const char *unit, const char *program, const char *policy)
{
    char before[NM_LEAF_BYTES], own[64];
    if (geteuid() != 0) {
        snprintf(own, sizeof own, "/run/user/%lld", (long long)geteuid());
        setenv("XDG_RUNTIME_DIR", own, true); /* a launcher has no variables */
        execlp("systemd-run", "systemd-run", "--user", "--quiet", "--scope", "--collect",
               "--slice=app.slice", unit, "--property=Delegate=yes", "--property=TasksMax=infinity",
               policy, program, "keep", scope, (char *)NULL);
        _exit(1);
    }
    snprintf(before, sizeof before, "--property=Before=%s.service", strchr(unit, '=') + 1);
    execlp("systemd-run", "systemd-run", "--quiet", "--scope", "--collect", "--slice=system.slice",
           unit, before, "--property=Delegate=yes", "--property=TasksMax=infinity",
           "--property=After=local-fs.target remote-fs.target network-online.target "
           "systemd-user-sessions.service nss-user-lookup.target",
           policy, program, "keep", scope, (char *)NULL);
    _exit(1);
}

/* False: an ordinary user's systemd hangs. Jobs do not wait for it. */
static bool has_ended(pid_t child)
{
    struct pollfd ended = {.fd = -1, .events = POLLIN};
    int count = 1;
    if (geteuid() != 0)
        ended.fd = (int)syscall(SYS_pidfd_open, child, 0);
    while (ended.fd >= 0 && (count = poll(&ended, 1, BRIDGE_S * 1000)) < 0 && errno == EINTR)
        ;
    if (count == 0)
        kill(child, SIGKILL);
    if (ended.fd >= 0)
        close(ended.fd);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return count != 0;
}

int nm_scope_make(const char *scope)
{
    /* where systemd knows no policy of a scope, it does not watch for such ends, mostly */
    static const char *const policies[] = {"--property=OOMPolicy=continue",
                                           "--property=MemoryAccounting=no"};
    char unit[NM_LEAF_BYTES], program[PATH_MAX] = "";
    const char *slash = strrchr(scope, '/');
    if (access(HIERARCHY, F_OK) != 0 || slash == NULL ||
        readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return 0; /* the launcher reports that there is none */
    snprintf(unit, sizeof unit, "--unit=%.*s", (int)strcspn(slash + 1, "."), slash + 1);
    for (size_t index = 0; index < 2 && access(scope, F_OK) != 0; index++) {
        const pid_t child = fork();
        if (child == 0)
            make(scope, unit, program, policies[index]);
        if (child > 0 && !has_ended(child))
            return NM_SCOPE_HANGS;
    }
    return access(scope, F_OK) != 0;
}

bool nm_scope_enter(const char *scope)
{
    bool is_in = false;
    int made = 0;
    /* systemd makes no other while it takes an ended one away */
    for (int tries = 0; tries < ENTER_TRIES && !is_in && made != NM_SCOPE_HANGS; tries++) {
        if (tries > 0)
            poll(NULL, 0, ENTER_PAUSE_MS);
        made = nm_scope_make(scope);
        const int directory = made != 0 ? -1 : open(scope, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        is_in = directory >= 0 && nm_leaf_write(directory, KEEPER "/cgroup.procs", "0");
        if (directory >= 0)
            close(directory);
    }
    return is_in;
}

int nm_scope_keep(const char *scope)
{
    const int directory = open(scope, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t child;
    if (directory < 0 || (mkdirat(directory, KEEPER, 0755) != 0 && errno != EEXIST) ||
        !nm_leaf_write(directory, KEEPER "/cgroup.procs", "0")) {
        fprintf(stderr, "nodemgr: " NM_NO_SCOPE "\n", scope, strerror(errno));
        return 1;
    }
    nm_leaf_enable(directory);
    child = fork();
    if (child != 0)
        return child < 0;
    setsid();
    nm_close_others(-1, false);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    prctl(PR_SET_NAME, "nodemgr-scope");
    if (geteuid() != 0)
        return sleep(BRIDGE_S) != 0;
    for (;;)
        pause();
}
