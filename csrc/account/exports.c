/* exports.c: see exports.h. The kernel lists a set's files in /proc/self/fdinfo: a line for each,
 * with the word of its entry.
 */
#include "account/exports.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "account/blocks.h"
#include "base/prim.h"

enum { LOWEST_WITNESS = 40 };
/* the word of a pipe that is always in the set: a set without it is another one */
#define SENTINEL UINT64_MAX
#define EVERY_WITNESS 1     /* the owner of all witnesses */

static int set = -1, sentinel = -1;
static struct nm_file_id sentinel_id;
/* the block of an export belongs to the last sweep that found it */
static uint64_t last_serial, last_sweep;
static uint32_t exports;
static _Atomic uint32_t witnesses;

/* -- the set -- */

static bool enter(int fd, uint64_t word)
{
    struct epoll_event event = {.data.u64 = word};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool is_sentinel_ours(void)
{
    return sentinel >= 0 && nm_fd_is(sentinel, &sentinel_id);
}

/* The program may have closed the set, and have an epoll set of its own under that number, which
   must not be changed. Only the client's set has the pipe. */
static bool is_set_ours(void)
{
    struct epoll_event event = {.data.u64 = SENTINEL};
    return set >= 0 && is_sentinel_ours() && epoll_ctl(set, EPOLL_CTL_MOD, sentinel, &event) == 0;
}

static void close_set(void)
{
    if (is_set_ours())
        close(set);
    if (is_sentinel_ours())
        close(sentinel);
    set = sentinel = -1;
}

/* A pipe has an inode of its own; an eventfd has none. */
static int open_sentinel(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    close(ends[1]);
    return nm_fd_high(ends[0]);
}

static bool open_set(void)
{
    if (set >= 0)
        return is_set_ours();
    set = nm_fd_high(epoll_create1(EPOLL_CLOEXEC));
    sentinel = open_sentinel();
    if (set >= 0 && sentinel >= 0 && nm_fd_id(sentinel, &sentinel_id) && enter(sentinel, SENTINEL))
        return true;
    if (set >= 0)
        close(set);
    if (sentinel >= 0)
        close(sentinel);
    set = sentinel = -1;
    return false;
}

void nm_exports_add(int fd, uint64_t number)
{
    struct nm_block stale,
        block = {
            .kind = NM_BLOCK_EXPORT, .key = ++last_serial, .owner = last_sweep, .bytes = number};
    if (fd >= 0 && open_set() && enter(fd, block.key)) {
        nm_block_put(&block, &stale);
        exports++;
    }
}

/* -- the listing -- */

/* "tfd: 43 events: 19 data: 1f pos:0 ino:b sdev:c": the word after data; 0 without one. */
static uint64_t word_of(const char *line)
{
    const char *digit = strncmp(line, "tfd:", 4) == 0 ? strstr(line, "data:") : NULL;
    uint64_t word = 0;
    if (digit == NULL)
        return 0;
    for (digit += strlen("data:"); *digit == ' '; digit++) {
    }
    for (; (*digit >= '0' && *digit <= '9') || (*digit >= 'a' && *digit <= 'f'); digit++)
        word = word << 4 | (uint64_t)(*digit <= '9' ? *digit - '0' : *digit - 'a' + 10);
    return word;
}

/* Moves the export of that word to the present sweep. */
static void note_open(uint64_t word)
{
    struct nm_block block, stale;
    if (!nm_block_take(NM_BLOCK_EXPORT, word, &block))
        return;
    block.owner = last_sweep;
    nm_block_put(&block, &stale);
}

/* Reads lines from fd. False: the listing is of another set, or was cut off. */
static bool note_listed(int fd)
{
    char text[4096];
    size_t held = 0;
    bool ours = false;
    for (;;) {
        ssize_t got = read(fd, text + held, sizeof text - 1 - held);
        if (got <= 0)
            return got == 0 && ours;
        held += (size_t)got;
        text[held] = '\0';
        char *line = text;
        for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            uint64_t word = word_of(line);
            ours |= word == SENTINEL;
            note_open(word);
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
    }
}

static void (*tell_ended)(uint64_t number);

static void end_export(const struct nm_block *block)
{
    exports--;
    tell_ended(block->bytes);
}

void nm_exports_sweep(void (*ended)(uint64_t number))
{
    char path[64];
    if (exports == 0)
        return;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    int fd = nm_fd_high(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return;
    uint64_t before = last_sweep++;
    bool whole = note_listed(fd);
    close(fd);
    if (!whole) {
        nm_block_rename_owner(NM_BLOCK_EXPORT, before, last_sweep);
        return;
    }
    tell_ended = ended;
    nm_block_take_owned(NM_BLOCK_EXPORT, before, end_export);
}

/* -- witnesses -- */

/* The number of the copy, and its file: a program may close the copy, and get its number for
   another file. */
static uint64_t packed(int fd, const struct nm_file_id *id)
{
    return (uint64_t)fd << 32 | (uint32_t)id->inode;
}

/* A copy of fd; -1 if it would take a number of the last quarter, which is left to the program. */
static int copy_within_limit(int fd)
{
    struct rlimit limit;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_WITNESS);
    if (copy < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        (rlim_t)copy < limit.rlim_cur - limit.rlim_cur / 4)
        return copy;
    close(copy);
    return -1;
}

void nm_witness_hold(int fd, uint64_t key)
{
    struct nm_block stale, block = {.kind = NM_BLOCK_WITNESS, .key = key, .owner = EVERY_WITNESS};
    struct nm_file_id id;
    int copy = copy_within_limit(fd);
    if (copy < 0)
        return;
    if (!nm_fd_id(copy, &id) || !(block.bytes = packed(copy, &id), nm_block_put(&block, &stale))) {
        close(copy);
        return;
    }
    witnesses++;
}

static void close_witness(const struct nm_block *block)
{
    struct nm_file_id id;
    int fd = (int)(block->bytes >> 32);
    witnesses--;
    if (nm_fd_id(fd, &id) && packed(fd, &id) == block->bytes)
        close(fd);
}

void nm_witness_drop(uint64_t key)
{
    struct nm_block block;
    if (witnesses != 0 && nm_block_take(NM_BLOCK_WITNESS, key, &block))
        close_witness(&block);
}

/* The child's copies would keep imports that the parent has released. */
void nm_exports_forget(void)
{
    if (witnesses != 0)
        nm_block_take_owned(NM_BLOCK_WITNESS, EVERY_WITNESS, close_witness);
    close_set();
    exports = 0;
    witnesses = 0;
}
