/*
 * log.c: what a job writes is bounded while it runs, and the job never waits for that.
 *
 * Knows: the log's descriptor, how much of it the disk holds. Must not know: what is in it, who reads it.
 *
 * Of a log that takes more room than it may, the middle is given back to the disk: its beginning and its newest part stay where
 * they are, so whoever writes or reads goes on undisturbed (a reader sees a hole). A file system without holes is told so in one
 * line of the log, which begins anew. The room counts, not the length: the log is the user's, who can make it any length.
 */
#include "jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    GROWING_PAUSE_MS = 1000,
    SILENT_PAUSE_MS = 5000,
    HEAD_PARTS = 8, /* this part of the room stays to the beginning */
    TAIL_PARTS = 2, /* and this to what is newest; the rest lets the log grow until the next cut */
    STEP_BYTES = 65536
};

static void begin_anew(const struct nm_log *log)
{
    char line[160];
    int size = snprintf(line, sizeof line,
                        "nodemgr: the output so far was dropped: it passed the %lld bytes of job_log_bytes, "
                        "and this file system cannot drop the middle alone\n",
                        log->most_bytes);
    if (ftruncate(log->fd, 0) == 0 && write(log->fd, line, (size_t)size) < 0)
        return; /* a full disk: the line is lost, not the room */
}

static void cut(const struct nm_log *log, long long size, long long room)
{
    const long long from = (log->most_bytes / HEAD_PARTS + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    const long long to = (size - log->most_bytes / TAIL_PARTS) / STEP_BYTES * STEP_BYTES;
    if (to <= from || fallocate(log->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from) == 0)
        return;
    if (errno == EOPNOTSUPP || errno == ENOSYS || room > 2 * log->most_bytes) /* else it may be better at the next look */
        begin_anew(log);
}

long long nm_log_look(struct nm_log *log)
{
    const long long now = nm_monotonic_ms();
    struct stat status;
    long long room;
    if (log->fd < 0 || log->most_bytes <= 0)
        return -1;
    if (now < log->next_ms)
        return log->next_ms;
    log->next_ms = now + SILENT_PAUSE_MS;
    if (!nm_file_status(log->fd, &status))
        return log->next_ms;
    if (status.st_size != log->seen_bytes)
        log->next_ms = now + GROWING_PAUSE_MS;
    log->seen_bytes = status.st_size;
    room = status.st_blocks * 512ll;
    if (room > status.st_size)
        room = status.st_size; /* what is kept ready behind the end is no output */
    if (room > log->most_bytes)
        cut(log, status.st_size, room);
    return log->next_ms;
}

void nm_log_close(struct nm_log *log)
{
    log->next_ms = 0;
    nm_log_look(log);
    close(log->fd);
    log->fd = -1;
}
