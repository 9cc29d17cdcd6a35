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
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { PASSES = 3 }; /* an attempt may begin while the others are read */

struct found {
    struct claim {
        pid_t pid;
        unsigned long long ticks;
    } * rows;
    size_t count, room;
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
            claim.pid = (pid_t)pid;
            add(found, claim);
        }
    }
    if (directory != NULL)
        closedir(directory);
}

/* Asks all, and waits for all. Returns how many there were. */
static size_t end_supervisors(const struct found *found)
{
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
        while (end.fd >= 0 && poll(&end, 1, -1) < 0 && errno == EINTR)
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
