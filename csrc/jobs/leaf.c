/* leaf.c: a job's cgroup (version 2) below a scope that is delegated to the launcher:
 * SCOPE/ENV/JOB.ATTEMPT.
 *
 * Knows: the files of a cgroup. Must not know: attempts, why a limit has its value.
 *
 * Where the kernel refuses something, the job runs without it: a leaf is never a reason not to
 * start a job.
 */
#include "jobs/jobs.h"
#include "jobs/messages.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REMOVE_TRIES = 20,
    REMOVE_PAUSE_MS = 100,
    MOST_VALUE_BYTES = 64,
    MOST_FILE_BYTES = 4096,
    GROWTH_PARTS = 16, /* one part above its use is left to a cgroup whose limit is lowered below */
    NEARLY_FULL_PERCENT = 95,
    MOST_DEPTH = 64
};

bool nm_leaf_is_name(const char *name, bool is_env)
{
    size_t slashes = 0;
    for (size_t index = 0; name[index] != 0; index++) {
        const bool is_first = index == 0 || name[index - 1] == '/';
        slashes += name[index] == '/';
        if (!isalnum((unsigned char)name[index]) &&
            (is_first || strchr("._-/", name[index]) == NULL))
            return false;
    }
    return strlen(name) < NM_LEAF_BYTES && name[0] != 0 && name[strlen(name) - 1] != '/' &&
           slashes == (is_env ? 0 : 1);
}

bool nm_leaf_write(int leaf, const char *file, const char *value)
{
    const int fd = openat(leaf, file, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    const size_t size = strlen(value);
    bool is_written;
    if (fd < 0)
        return false;
    is_written = write(fd, value, size) == (ssize_t)size;
    close(fd);
    return is_written;
}

void nm_leaf_enable(int directory)
{
    static const char *const controllers[] = {"+cpu", "+memory", "+pids", "+io"};
    for (size_t index = 0; index < sizeof controllers / sizeof *controllers; index++)
        nm_leaf_write(directory, "cgroup.subtree_control", controllers[index]);
}

static int open_below(int parent, const char *name, bool make)
{
    int fd;
    if (make && parent >= 0)
        mkdirat(parent, name, 0755);
    fd = parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parent >= 0)
        close(parent);
    return fd;
}

int nm_leaf_open(const char *scope, const char *name, bool make)
{
    char env[NM_LEAF_BYTES];
    const char *slash = strchrnul(name, '/');
    int fd = open(scope, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(env, sizeof env, "%.*s", (int)(slash - name), name);
    fd = open_below(fd, env, make);
    if (fd >= 0 && make)
        nm_leaf_enable(fd);
    return *slash == 0 ? fd : open_below(fd, slash + 1, make);
}

int nm_leaf_make(const char *scope, const struct nm_order *order)
{
    char env[NM_LEAF_BYTES];
    const int leaf = nm_leaf_open(scope, order->leaf, true);
    int above;
    snprintf(env, sizeof env, "%.*s", (int)strcspn(order->leaf, "/"), order->leaf);
    above = leaf < 0 ? -1 : nm_leaf_open(scope, env, false);
    for (char *const *limit = order->env_limits; above >= 0 && *limit != NULL; limit++)
        nm_leaf_limit(above, *limit);
    for (char *const *limit = order->limits; leaf >= 0 && *limit != NULL; limit++)
        nm_leaf_limit(leaf, *limit);
    if (above >= 0)
        close(above);
    return leaf;
}

static void read_file(int leaf, const char *file, char *text, size_t size)
{
    const int fd = leaf < 0 ? -1 : openat(leaf, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const ssize_t count = fd < 0 ? 0 : read(fd, text, size - 1);
    text[count > 0 ? count : 0] = 0;
    if (fd >= 0)
        close(fd);
}

/* The number after `key` at the begin of a line of `file`, or (no key) of the file; 0: none. */
static long long number_in(int leaf, const char *file, const char *key)
{
    char text[MOST_FILE_BYTES];
    const size_t size = strlen(key);
    read_file(leaf, file, text, sizeof text);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, size) == 0)
            return strtoll(line + size, NULL, 10);
    }
    return 0;
}

/* A limit below the present use would have the kernel end a job at once: the limit is lowered to a
   little more than the use, and a later order lowers it further. */
static bool write_memory(int leaf, const char *value)
{
    char step[32];
    long long bytes;
    const long long used = number_in(leaf, "memory.current", "");
    const long long present = number_in(leaf, "memory.max", "");
    if (!nm_job_number(value, LLONG_MAX, &bytes) || used <= bytes)
        return nm_leaf_write(leaf, "memory.max", value);
    snprintf(step, sizeof step, "%lld", used + used / GROWTH_PARTS);
    if (present == 0 || used + used / GROWTH_PARTS < present)
        nm_leaf_write(leaf, "memory.max", step);
    errno = EBUSY;
    return false;
}

bool nm_leaf_limit(int leaf, const char *limit)
{
    char file[MOST_VALUE_BYTES];
    const char *space = strchr(limit, ' ');
    if (space == NULL || space - limit >= (ptrdiff_t)sizeof file)
        return false;
    snprintf(file, sizeof file, "%.*s", (int)(space - limit), limit);
    if (strcmp(file, "memory.max") == 0)
        return write_memory(leaf, space + 1);
    return strchr(file, '/') == NULL && nm_leaf_write(leaf, file, space + 1);
}

long long nm_leaf_env_ooms(const char *scope, const char *name)
{
    char env[NM_LEAF_BYTES];
    long long count;
    int fd;
    snprintf(env, sizeof env, "%.*s", (int)strcspn(name, "/"), name);
    fd = nm_leaf_open(scope, env, false);
    count = number_in(fd, "memory.events.local", "oom ");
    if (fd >= 0)
        close(fd);
    return count;
}

static const char *in_units(long long *bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; *bytes % 1024 == 0 && unit + 1 < sizeof units / sizeof *units; unit++)
        *bytes /= 1024;
    return units[unit];
}

/* The job's own: the cgroup's is higher while the GPU memory of its task is in host memory. */
static long long own_limit(const struct nm_order *order)
{
    for (char *const *limit = order->limits; *limit != NULL; limit++)
        if (strncmp(*limit, "memory.max ", 11) == 0)
            return strtoll(*limit + 11, NULL, 10);
    return 0;
}

bool nm_leaf_nearly_full(int leaf, const struct nm_order *order, char line[NM_JOB_WHY_BYTES])
{
    long long limit = own_limit(order);
    const long long more = number_in(leaf, "memory.max", "") - limit;
    /* the kernel takes the page cache back before it ends a process */
    const long long used = number_in(leaf, "memory.current", "") -
                           number_in(leaf, "memory.stat", "inactive_file ") - (more > 0 ? more : 0);
    if (limit <= 0 || used < limit / 100 * NEARLY_FULL_PERCENT)
        return false;
    const char *unit = in_units(&limit);
    snprintf(line, NM_JOB_WHY_BYTES, "\nnodemgr: " NM_NEARLY_OVER_MEMORY "\n",
             (long long)NEARLY_FULL_PERCENT, limit, unit);
    return true;
}

bool nm_leaf_out_of_memory(int leaf, const struct nm_order *order, bool is_of_env,
                           char why[NM_JOB_WHY_BYTES])
{
    long long limit = own_limit(order);
    if (number_in(leaf, "memory.events", "oom_kill ") == 0)
        return false;
    if (limit > 0 && number_in(leaf, "memory.events", "oom ") > 0) {
        const char *unit = in_units(&limit);
        snprintf(why, NM_JOB_WHY_BYTES, NM_OVER_HOST_MEMORY, limit, unit);
    } else
        snprintf(why, NM_JOB_WHY_BYTES, "%s", is_of_env ? NM_OVER_ENV_MEMORY : NM_OVER_NODE_MEMORY);
    return true;
}

/* The sum over all devices: `8:0 rbytes=1 wbytes=2 rios=3 ...` */
static long long io_bytes(int leaf, const char *key)
{
    char text[MOST_FILE_BYTES];
    long long sum = 0;
    read_file(leaf, "io.stat", text, sizeof text);
    for (const char *word = strstr(text, key); word != NULL; word = strstr(word + 1, key))
        sum += strtoll(word + strlen(key), NULL, 10);
    return sum;
}

void nm_leaf_figures(int leaf, char *text, size_t size)
{
    snprintf(text, size, "used %lld %lld %lld %lld", number_in(leaf, "cpu.stat", "usage_usec "),
             number_in(leaf, "memory.peak", ""), io_bytes(leaf, " rbytes="),
             io_bytes(leaf, " wbytes="));
}

pid_t nm_leaf_fork(int leaf)
{
    /* struct clone_args of the kernel, which older headers lack */
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
            set_tid_size, cgroup;
    } args = {.flags = 0x200000000ull, .exit_signal = SIGCHLD, .cgroup = (uint64_t)leaf};
    /* begins there: a move of a process takes milliseconds */
    pid_t pid = leaf < 0 ? -1 : (pid_t)syscall(435 /* clone3 */, &args, sizeof args);
    if (pid >= 0 || (leaf >= 0 && errno == ENODEV)) /* it was removed meanwhile */
        return pid;
    pid = fork();
    if (pid == 0 && leaf >= 0)
        nm_leaf_write(leaf, "cgroup.procs", "0");
    return pid;
}

void nm_leaf_kill(int leaf)
{
    if (leaf >= 0)
        nm_leaf_write(leaf, "cgroup.kill", "1");
}

/* The kernel removes no cgroup with a process or with one below it. */
static void remove_empty(int parent, int depth)
{
    DIR *entries = parent < 0 ? NULL : fdopendir(parent);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
            continue;
        if (depth > 0)
            remove_empty(openat(parent, entry->d_name,
                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                         depth - 1);
        unlinkat(parent, entry->d_name, AT_REMOVEDIR);
    }
    if (entries != NULL)
        closedir(entries);
}

bool nm_leaf_remove(const char *scope, const char *name)
{
    const char *slash = strchr(name, '/');
    char env[NM_LEAF_BYTES];
    int fd, error;
    snprintf(env, sizeof env, "%.*s", (int)(slash - name), name);
    if ((fd = nm_leaf_open(scope, env, false)) < 0)
        return true;
    error = unlinkat(fd, slash + 1, AT_REMOVEDIR) == 0 ? 0 : errno;
    if (error == EBUSY) { /* the job may have made cgroups below its own */
        remove_empty(openat(fd, slash + 1, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                     MOST_DEPTH);
        error = unlinkat(fd, slash + 1, AT_REMOVEDIR) == 0 ? 0 : errno;
    }
    close(fd);
    return error != EBUSY;
}

void nm_leaf_end(const char *scope, const char *name, int leaf)
{
    char text[MOST_VALUE_BYTES];
    struct pollfd events = {.events = POLLPRI};
    if (leaf < 0)
        return;
    nm_leaf_kill(leaf);
    events.fd = openat(leaf, "cgroup.events", O_RDONLY | O_CLOEXEC);
    for (int tries = 0; tries < REMOVE_TRIES && !nm_leaf_remove(scope, name); tries++)
        if (events.fd >= 0 && pread(events.fd, text, sizeof text, 0) > 0)
            poll(&events, 1, REMOVE_PAUSE_MS); /* the file changes when it is empty */
    if (events.fd >= 0)
        close(events.fd);
    close(leaf);
}

void nm_leaf_sweep(const char *scope)
{
    remove_empty(open(scope, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 1);
}
