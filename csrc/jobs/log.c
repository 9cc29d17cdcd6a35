/* log.c: the output of a job. The job writes to a pipe, and a process, the keeper, copies the pipe
 * to the log file.
 *
 * Knows: the pipe, the log file, its limit on the disk. Must not know: the content, the readers of
 * the file.
 *
 * No process of the job has the file open, so none can reserve blocks in it, or write after the
 * end. The keeper is a process of its own, since a read from a pipe can block for ever even with
 * O_NONBLOCK: a writer whose memory is served by a file system in user space holds the pipe's mutex
 * meanwhile. The supervisor must not wait for that, nor for a slow disk.
 */
#include "jobs/jobs.h"
#include "jobs/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum {
    HEAD_PARTS = 8, /* this part of the limit is for the beginning */
    /* and this for the newest output; the rest lets the log grow until the next cut */
    TAIL_PARTS = 2,
    CHUNK_BYTES = 65536,
    LINE_BYTES = 320,    /* of a message of ours in the log */
    END_WAIT_MS = 10000, /* for the keeper, which may wait for the disk */
};

enum { OUTPUT, FILE_END, CONTROL }; /* the keeper's descriptors */

static struct keeper {
    long long most_bytes;
    /* written since the last check of the size; the next check is due after that many */
    long long unseen_bytes, next_look_bytes;
    long long lost_bytes;                    /* dropped since the disk last took a write */
    int error;                               /* the reason */
    bool is_silent;                          /* every write end of the pipe is closed */
} keeper;

/* -- room -- */

static void begin_anew(void)
{
    char line[LINE_BYTES];
    int size =
        snprintf(line, sizeof line, "nodemgr: " NM_OUTPUT_BEGINS_ANEW "\n", keeper.most_bytes);
    if (ftruncate(FILE_END, 0) == 0 && write(FILE_END, line, (size_t)size) < 0)
        return; /* a full disk: the line is lost, not the room */
}

static void cut(long long size, long long room)
{
    const long long from =
        (keeper.most_bytes / HEAD_PARTS + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
    const long long to = (size - keeper.most_bytes / TAIL_PARTS) / CHUNK_BYTES * CHUNK_BYTES;
    if (to <= from ||
        fallocate(FILE_END, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from) == 0)
        return;
    /* otherwise the next check may succeed */
    if (errno == EOPNOTSUPP || errno == ENOSYS || room > 2 * keeper.most_bytes)
        begin_anew();
}

/* Called before the next chunk can make the log larger than its limit. Punches a hole in the
 * middle: the beginning and the newest output stay where they are. On a file system without
 * holes the log begins anew, with one line about it. */
static void look_at_room(void)
{
    struct stat status;
    long long rest;
    if (keeper.most_bytes <= 0 || keeper.unseen_bytes < keeper.next_look_bytes)
        return;
    keeper.unseen_bytes = 0;
    keeper.next_look_bytes = CHUNK_BYTES;
    if (!nm_file_status(FILE_END, &status))
        return;
    const long long room =
        status.st_blocks * 512ll < status.st_size ? status.st_blocks * 512ll : status.st_size;
    rest = keeper.most_bytes - room - 2 * CHUNK_BYTES;
    if (rest < 0)
        cut(status.st_size, room);
    else if (rest > CHUNK_BYTES)
        keeper.next_look_bytes = rest;
}

/* -- from the pipe to the file -- */

/* Returns how many of the bytes the disk did not take. They are dropped, so that the job never
   waits for room. */
static size_t keep(const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t count = write(FILE_END, bytes, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            keeper.error = errno;
            return size;
        }
        keeper.unseen_bytes += count;
        bytes += count;
        size -= (size_t)count;
    }
    return 0;
}

/* Writes one line about the dropped bytes. false: the disk does not take it either. */
static bool tell_loss(void)
{
    char line[LINE_BYTES];
    const int size = snprintf(line, sizeof line, "\nnodemgr: " NM_OUTPUT_LOST "\n",
                              keeper.lost_bytes, strerror(keeper.error));
    if (keep(line, (size_t)size) > 0)
        return false;
    keeper.lost_bytes = 0;
    return true;
}

/* Up to `most` bytes of the output; returns how many, 0: none now. */
static size_t take(size_t most)
{
    static char bytes[CHUNK_BYTES];
    const ssize_t size = read(OUTPUT, bytes, most < sizeof bytes ? most : sizeof bytes);
    if (size == 0)
        keeper.is_silent = true;
    if (size <= 0)
        return 0;
    if (keeper.lost_bytes > 0 && !tell_loss())
        keeper.lost_bytes += size;
    else
        keeper.lost_bytes += (long long)keep(bytes, (size_t)size);
    look_at_room();
    return (size_t)size;
}

static void take_rest(void)
{
    int rest = 0;
    if (ioctl(OUTPUT, FIONREAD, &rest) != 0)
        return;
    for (size_t count; rest > 0 && (count = take((size_t)rest)) > 0; rest -= (int)count)
        ;
}

/* The keeper's loop. It ends when the supervisor asks for it or is gone. Then it reads only the
 * bytes in the pipe at that moment: a process outside of the job may hold the write end for
 * ever. */
static _Noreturn void serve(void)
{
    for (;;) {
        struct pollfd ready[] = {{.fd = keeper.is_silent ? -1 : OUTPUT, .events = POLLIN},
                                 {.fd = CONTROL, .events = POLLIN}};
        if (poll(ready, sizeof ready / sizeof *ready, -1) < 0)
            continue;
        if (ready[1].revents != 0)
            break;
        take(CHUNK_BYTES);
    }
    take_rest();
    if (keeper.lost_bytes > 0)
        tell_loss();
    _exit(0);
}

/* -- the supervisor's side -- */

/* In a container it has the job's user, whose processes must not reach its descriptors
   (PR_SET_DUMPABLE). */
static _Noreturn void become_keeper(int output, int file, int control, long long most_bytes)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    /* All three are above 2: the supervisor has its own 0, 1 and 2 open. */
    if (dup2(output, OUTPUT) != OUTPUT || dup2(file, FILE_END) != FILE_END ||
        dup2(control, CONTROL) != CONTROL)
        _exit(1);
    nm_close_others(-1, false);
    fcntl(OUTPUT, F_SETFL, O_NONBLOCK);
    prctl(PR_SET_NAME, "nodemgr-log");
    keeper.most_bytes = most_bytes;
    serve();
}

/* A child without an exit signal: a wait() for the job's process does not find it, and its end
   raises no SIGCHLD. */
static pid_t fork_unseen(void)
{
    return (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, 0);
}

int nm_log_begin(struct nm_log *log, int file, long long most_bytes)
{
    int output[2], control[2];
    if (pipe2(output, O_CLOEXEC) != 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) {
        close(output[0]);
        close(output[1]);
        return -1;
    }
    log->keeper = fork_unseen();
    if (log->keeper == 0)
        become_keeper(output[0], file, control[1], most_bytes);
    close(output[0]);
    close(control[1]);
    log->control = control[0];
    if (log->keeper > 0)
        return output[1];
    close(output[1]);
    return -1;
}

void nm_log_end(struct nm_log *log)
{
    struct pollfd gone = {.fd = log->control, .events = POLLIN};
    if (log->control < 0)
        return;
    if (log->keeper > 0) {
        shutdown(log->control, SHUT_WR);
        if (poll(&gone, 1, END_WAIT_MS) == 0)
            kill(log->keeper, SIGKILL); /* the log does not change after the end is recorded */
        else
            waitpid(log->keeper, NULL, __WCLONE);
    }
    close(log->control);
    log->control = -1;
}
