/* down.c: ends all jobs on the node before it goes down.
 *
 * Knows: the claims below the jobs' directory, supervisors as processes. Must not know: how a
 * supervisor ends its job.
 *
 * The supervisors may be those of a launcher that is gone, so they are found by their claims. Each
 * gives its job the grace of any end, and records that the node went down.
 */
#include "supervisor/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PASSES = 3,            /* an attempt may begin while the others are read */
    FACTS_BYTES = 1024,    /* of an order hold all but the user's own text */
    RELUCTANCE_MS = 30000, /* beyond its grace, for processes that do not end */
};

struct found {
    struct claim {
        pid_t pid;
        unsigned long long ticks;
    } * rows;
    size_t count, room;
    long long most_ms; /* the longest time that a job of them has to end */
};

/* The process itself, also when its number is used again; -1: it has ended. */
static int open_process(struct claim claim)
{
    const int fd = (int)syscall(SYS_pidfd_open, claim.pid, 0);
    if (fd >= 0 && nm_start_ticks(claim.pid) == claim.ticks)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void add(struct found *found, struct claim claim)
{
    if (found->count == found->room) {
        const size_t room = found->room * 2 + 64;
        struct claim *rows = realloc(found->rows, room * sizeof *rows);
        if (rows == NULL)
            return;
        found->rows = rows;
        found->room = room;
    }
    found->rows[found->count++] = claim;
}

static DIR *open_below(int parent, const char *name)
{
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && directory == NULL)
        close(fd);
    return directory;
}

/* A number of the order in the directory of an attempt; 0: it has none. The user's own entries begin
   with other keys. */
static long long number_of(int attempt, const char *key)
{
    char text[FACTS_BYTES];
    const int fd = openat(attempt, "order", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    long long number = 0;
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    for (ssize_t at = 0; at < size && number == 0; at += (ssize_t)strlen(text + at) + 1)
        if (strncmp(text + at, key, strlen(key)) == 0)
            number = strtoll(text + at + strlen(key), NULL, 10);
    return number;
}

/* depth 2: jobs; 1: attempts of a job; 0: the files of an attempt. */
static void read_claims(DIR *directory, int depth, struct found *found)
{
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        struct claim claim;
        long pid;
        char more;
        if (entry->d_name[0] == '.')
            continue;
        if (depth > 0) {
            read_claims(open_below(dirfd(directory), entry->d_name), depth - 1, found);
        } else if (sscanf(entry->d_name, "claim.%ld.%llu%c", &pid, &claim.ticks, &more) == 2) {
            const int attempt = dirfd(directory);
            const long long end_ms =
                number_of(attempt, "signal_ms=") + number_of(attempt, "grace_ms=");
            claim.pid = (pid_t)pid;
            add(found, claim);
            found->most_ms = end_ms > found->most_ms ? end_ms : found->most_ms;
        }
    }
    if (directory != NULL)
        closedir(directory);
}

/* Asks all, and waits for all, as long as their orders give them time. Returns how many there were. */
static size_t end_supervisors(const struct found *found)
{
    const long long until_ms = nm_monotonic_ms() + found->most_ms + RELUCTANCE_MS;
    size_t living = 0;
    for (size_t index = 0; index < found->count; index++) {
        const int process = open_process(found->rows[index]);
        if (process < 0)
            continue;
        living += syscall(SYS_pidfd_send_signal, process, SIGTERM, NULL, 0) == 0;
        close(process);
    }
    for (size_t index = 0; living > 0 && index < found->count; index++) {
        struct pollfd end = {.fd = open_process(found->rows[index]), .events = POLLIN};
        long long left_ms = until_ms - nm_monotonic_ms();
        left_ms = left_ms < 0 ? 0 : left_ms < INT_MAX ? left_ms : INT_MAX;
        while (end.fd >= 0 && poll(&end, 1, (int)left_ms) < 0 && errno == EINTR)
            ;
        if (end.fd >= 0)
            close(end.fd);
    }
    return living;
}

int nm_end_all(const char *jobs)
{
    for (int pass = 0; pass < PASSES; pass++) {
        struct found found = {0};
        size_t living;
        read_claims(open_below(AT_FDCWD, jobs), 2, &found);
        living = end_supervisors(&found);
        free(found.rows);
        if (living == 0)
            break;
    }
    return 0;
}
