/* scope.c: the scope below which jobs have cgroups: systemd delegates it, and restarts of the
 * service nodemgr-jobs leave it alone.
 *
 * Knows: systemd-run, the place of the unified hierarchy. Must not know: jobs.
 *
 * The scope of a unit lives while a process is in it, and a cgroup with processes has no limits
 * below it. So one process that only sleeps is in a cgroup of its own there.
 */
#include "jobs/messages.h"
#include "supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HIERARCHY "/sys/fs/cgroup/cgroup.controllers"
#define KEEPER "Keeper" /* no name of an environment */

/* The scope ends before what a job needs to save its state: file systems, network, the users'
   sessions. Jobs may have as many processes as without a scope. */
int nm_scope_make(const char *scope)
{
    char unit[NM_LEAF_BYTES], program[PATH_MAX] = "";
    const char *slash = strrchr(scope, '/');
    if (access(HIERARCHY, F_OK) != 0 || access(scope, F_OK) == 0 || slash == NULL ||
        readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return 0; /* it is there, or the launcher reports that it cannot be */
    snprintf(unit, sizeof unit, "--unit=%.*s", (int)strcspn(slash + 1, "."), slash + 1);
    execlp("systemd-run", "systemd-run", "--quiet", "--scope", "--collect", "--slice=system.slice",
           unit, "--property=Delegate=yes", "--property=TasksMax=infinity",
           "--property=After=local-fs.target remote-fs.target network-online.target "
           "systemd-user-sessions.service nss-user-lookup.target",
           program, "keep", scope, (char *)NULL);
    return 1;
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
    for (;;)
        pause();
}
