/* directory.c: the attempts of the launcher's supervisors: a directory of the manager, claimed by a
 * rename and opened.
 *
 * Knows: the names of its files. Must not know: their content.
 */
#include "supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static char supervised[NM_JOB_NAME_BYTES];
static char claimed[64];
static int attempt; /* its directory */

/* Below 0: an errno. */
static int open_in(int directory, const char *name, int flags)
{
    const int fd = openat(directory, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

/* Renames `free` to claim.PID.TICKS. Of all processes that try, one succeeds, so no attempt
   begins twice. The rename needs no room on the disk. false: another process has it. */
static bool claim(void)
{
    snprintf(claimed, sizeof claimed, "claim.%ld.%llu", (long)getpid(), nm_start_ticks(getpid()));
    return renameat(attempt, "free", attempt, claimed) == 0;
}

/* The name of the claim keeps the end: a rename needs no room, and not the blocks of the record. */
static bool witness(const char *outcome)
{
    char name[sizeof claimed + 64];
    snprintf(name, sizeof name, "%s.ended.%.48s", claimed, outcome);
    return renameat(attempt, claimed, attempt, name) == 0;
}

static struct nm_word running(const char *began)
{
    struct nm_word word;
    const int size = snprintf(word.bytes, sizeof word.bytes, "running %s %s", supervised, began);
    word.size = (size_t)size < sizeof word.bytes ? (size_t)size : sizeof word.bytes - 1;
    return word;
}

int nm_supervise_directory(int directory, const char *name, int manager, const char *scope)
{
    struct nm_files files = {
        .record = open_in(directory, "record", O_WRONLY),
        .witness = witness,
        .scope = scope,
        .is_inside = false};
    const int signals = nm_take_signals();
    if (signals < 0 || files.record < 0)
        /* not claimed: the manager sees this end and gives the attempt up */
        return NM_EXIT_UNRECORDED;
    attempt = directory;
    if (!claim())
        return NM_EXIT_NOT_OURS;
    snprintf(supervised, sizeof supervised, "%.*s", NM_JOB_NAME_BYTES - 1, name);
    files.order = open_in(directory, "order", O_RDONLY);
    files.log = open_in(directory, "log", O_WRONLY | O_APPEND);
    files.limit = open_in(directory, "limit", O_RDONLY);
    return nm_supervise(&files, signals, manager, running);
}
