/* below.c: all processes below this one, by the tree of parents in /proc.
 *
 * A process whose parent dies becomes a child of the nearest subreaper above it. The launcher and
 * the supervisor are subreapers, so no process leaves the tree, even if it changes its session or
 * group. Signals go through pidfds after a second check of the start time: a reused PID is not hit.
 */
#include "jobs/jobs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct seen {
    pid_t pid, parent;
    unsigned long long ticks;
    enum { UNKNOWN, BELOW, SPARED } place;
};

struct census {
    struct seen *rows;
    size_t count, room;
};

/* The words after the command's name in /proc/PID/stat, from 1 on: state, parent, ... */
enum { PARENT = 2, START = 20 };

/* The name may have any bytes. A zombie counts, since other threads of it may run. */
static bool read_stat(pid_t pid, pid_t *parent, unsigned long long *ticks)
{
    char path[64], text[1024], *word, *rest;
    long long up = 0, start = 0;
    ssize_t size;
    int fd, number = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return false;
    text[size] = 0;
    if ((word = strrchr(text, ')')) == NULL)
        return false;
    for (word = strtok_r(word + 1, " ", &rest); word != NULL && ++number <= START;
         word = strtok_r(NULL, " ", &rest))
        if ((number == PARENT && !nm_job_number(word, INT_MAX, &up)) ||
            (number == START && !nm_job_number(word, LLONG_MAX, &start)))
            return false;
    *parent = (pid_t)up;
    *ticks = (unsigned long long)start;
    return number > START;
}

unsigned long long nm_start_ticks(pid_t pid)
{
    pid_t parent;
    unsigned long long ticks;
    return read_stat(pid, &parent, &ticks) ? ticks : 0;
}

unsigned long nm_audit_session(pid_t pid)
{
    char path[64], text[32] = "";
    long long number;
    int fd;
    snprintf(path, sizeof path, "/proc/%ld/sessionid", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof text - 1) <= 0 || !nm_job_number(text, UINT_MAX, &number) ||
        number == UINT_MAX /* no session */)
        number = 0;
    close(fd);
    return (unsigned long)number;
}

static bool add(struct census *census, struct seen row)
{
    if (census->count == census->room) {
        size_t room = census->room == 0 ? 512 : census->room * 2;
        struct seen *rows = realloc(census->rows, room * sizeof *rows);
        if (rows == NULL)
            return false;
        census->rows = rows;
        census->room = room;
    }
    census->rows[census->count++] = row;
    return true;
}

static bool count_all(struct census *census)
{
    const struct dirent *entry;
    bool is_whole = true;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return false;
    while (is_whole && (entry = readdir(proc)) != NULL) {
        struct seen row = {
            .pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atol(entry->d_name) : 0};
        if (row.pid > 0 && read_stat(row.pid, &row.parent, &row.ticks))
            is_whole = add(census, row);
    }
    closedir(proc);
    return is_whole;
}

static int by_pid(const void *left, const void *right)
{
    const pid_t one = ((const struct seen *)left)->pid, other = ((const struct seen *)right)->pid;
    return (one > other) - (one < other);
}

static bool is_among(pid_t pid, const pid_t *pids, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (pids[index] == pid)
            return true;
    return false;
}

/* A child may come before its parent: repeats until nothing changes. */
static void place_all(struct census *census, struct nm_spared spared)
{
    const pid_t top = getpid();
    bool changes = true;
    qsort(census->rows, census->count, sizeof *census->rows, by_pid);
    while (changes) {
        changes = false;
        for (size_t index = 0; index < census->count; index++) {
            struct seen *row = &census->rows[index];
            const struct seen key = {.pid = row->parent}, *parent;
            if (row->place != UNKNOWN)
                continue;
            if (row->parent == top)
                row->place = is_among(row->pid, spared.trees, spared.tree_count) ? SPARED : BELOW;
            else if ((parent = bsearch(&key, census->rows, census->count, sizeof key, by_pid)) !=
                     NULL)
                row->place = parent->place;
            changes = changes || row->place != UNKNOWN;
        }
    }
}

/* 0, or an errno. */
static int send_signal(const struct seen *row, int number)
{
    int error = 0;
#ifdef SYS_pidfd_open
    int fd = (int)syscall(SYS_pidfd_open, row->pid, 0);
    if (fd >= 0) {
        if (nm_start_ticks(row->pid) != row->ticks)
            error = ESRCH;
        else if (syscall(SYS_pidfd_send_signal, fd, number, NULL, 0) != 0)
            error = errno;
        close(fd);
        return error;
    }
    if (errno == ESRCH)
        return ESRCH;
#endif
    return kill(row->pid, number) == 0 ? error : errno;
}

struct nm_swept nm_signal_below(int number, struct nm_spared spared)
{
    struct census census = {0};
    struct nm_swept swept = {0, 0};
    if (!count_all(&census) || census.count == 0) {
        free(census.rows);
        return (struct nm_swept){-1, 0};
    }
    place_all(&census, spared);
    for (size_t index = 0; index < census.count; index++) {
        const struct seen *row = &census.rows[index];
        int error;
        if (row->place != BELOW || row->pid == spared.alone)
            continue;
        error = send_signal(row, number);
        swept.found += error != ESRCH;
        swept.refused += error == EPERM;
        if (error == 0 && number == SIGTERM)
            send_signal(row, SIGCONT); /* a stopped process takes no other signal */
    }
    free(census.rows);
    return swept;
}
