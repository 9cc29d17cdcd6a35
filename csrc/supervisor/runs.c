/* runs.c: the cgroups of commands of `nodemgr run`: SCOPE/ENV/run-NUMBER. Their processes are the
 * user's own, which nothing here ends.
 *
 * Knows: the process behind a pidfd, the kernel's word that a cgroup is empty. Must not know: the
 * source of a request, the reason of a limit.
 */
#include "jobs/messages.h"
#include "supervisor/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define PREFIX "run-" /* no name of a job has a dash */

bool nm_run_is_leaf(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash != NULL && strncmp(slash + 1, PREFIX, sizeof PREFIX - 1) == 0;
}

/* The process of a pidfd; 0: it has ended, is in a container, or this is no pidfd. */
static long pid_behind(int pidfd)
{
    char path[64], line[256];
    long pid = 0, inside;
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "Pid:", 4) == 0)
            pid = strtol(line + 4, NULL, 10);
        if (strncmp(line, "NSpid:", 6) == 0 && sscanf(line + 6, "%*d %ld", &inside) == 1)
            pid = 0; /* it has another number inside */
    }
    if (file != NULL)
        fclose(file);
    return pid > 0 ? pid : 0;
}

static void watch(int events, int leaf)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d/cgroup.events", leaf);
    inotify_add_watch(events, path, IN_MODIFY);
}

const char *nm_run_enter(int leaf, int pidfd, int events)
{
    char number[32];
    const long pid = pidfd < 0 ? 0 : pid_behind(pidfd);
    if (pid == 0)
        return NM_NOT_A_RUN;
    snprintf(number, sizeof number, "%ld", pid);
    watch(events, leaf);
    if (nm_leaf_write(leaf, "cgroup.procs", number))
        return NULL;
    return errno == EACCES ? NM_NOT_DELEGATED : strerror(errno);
}

static void sweep_env(int env, int events)
{
    DIR *entries = env < 0 ? NULL : fdopendir(env);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0 ||
            unlinkat(env, entry->d_name, AT_REMOVEDIR) == 0 || errno != EBUSY)
            continue;
        const int leaf =
            openat(env, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        watch(events, leaf);
        if (leaf >= 0)
            close(leaf);
    }
    if (entries != NULL)
        closedir(entries);
}

void nm_run_sweep(const char *scope, int events)
{
    char told[4096];
    DIR *envs = opendir(scope);
    const struct dirent *entry;
    while (read(events, told, sizeof told) > 0)
        ;
    while (envs != NULL && (entry = readdir(envs)) != NULL)
        if (nm_leaf_is_name(entry->d_name, true))
            sweep_env(openat(dirfd(envs), entry->d_name,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                      events);
    if (envs != NULL)
        closedir(envs);
}
