/* claim.c: a supervisor asks the manager for its attempt, and gets the files; see runner.h. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/prim.h"
#include "jobs/messages.h"
#include "runner/runner.h"

enum { FIRST_PAUSE_MS = 50, LAST_PAUSE_MS = 5000 };

static struct nm_named claimed;

static struct nm_word running(const char *began)
{
    struct nm_build build;
    struct nm_word word = {.size = 0};
    (void)began; /* it is in the record; the manager has other numbers for these processes */
    nm_build_named(&build, NM_VERB_RUNNING, &claimed);
    const int size = nm_build_end(&build);
    if (size > 0 && (size_t)size <= sizeof word.bytes) {
        memcpy(word.bytes, build.packet, (size_t)size);
        word.size = (size_t)size;
    }
    return word;
}

/* One conversation. CLAIMED with the files; DENY; NONE: the manager is away, or does not answer. */
static enum nm_verb converse(int fd, struct nm_letter *letter)
{
    const uint64_t rid = nm_random() >> 12;
    struct nm_build build;
    nm_build_named(&build, NM_VERB_CLAIM, &claimed);
    nm_build_number(&build, NM_KEY_rid, rid);
    if (!nm_contact_send(fd, &build))
        return NM_VERB_NONE;
    while (nm_contact_receive(fd, NM_ANSWER_MS, letter)) {
        const enum nm_verb verb = letter->message.verb;
        if ((verb == NM_VERB_CLAIMED || verb == NM_VERB_DENY) &&
            nm_message_number(&letter->message, NM_KEY_rid, UINT64_MAX) == rid)
            return verb;
        nm_letter_close(letter);
    }
    return NM_VERB_NONE;
}

static int supervise(int fd, struct nm_letter *letter)
{
    const struct nm_files files = {
        .order = letter->fds[0],
        .record = letter->fds[1],
        .log = letter->fds[2],
        .limit = letter->fds[3],
        .is_inside = true,
    };
    const int signals = letter->fd_count == NM_LETTER_FDS ? nm_take_signals() : -1;
    if (signals >= 0)
        return nm_supervise(&files, signals, fd, running);
    nm_contact_fail(fd, &claimed,
                    letter->fd_count == NM_LETTER_FDS ? NM_NO_SIGNALS_INSIDE : NM_FILES_NOT_LET_IN);
    return NM_EXIT_UNRECORDED;
}

int nm_run_attempt(const struct nm_named *named)
{
    static struct nm_letter letter;
    char fault[NM_FAULT_BYTES];
    claimed = *named;
    for (int pause_ms = FIRST_PAUSE_MS;;
         pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS) {
        const int fd = nm_contact_open(fault);
        switch (fd < 0 ? NM_VERB_NONE : converse(fd, &letter)) {
        case NM_VERB_CLAIMED: return supervise(fd, &letter);
        case NM_VERB_DENY: return NM_EXIT_NOT_OURS;
        default: break;
        }
        if (fd >= 0)
            close(fd);
        poll(NULL, 0, pause_ms); /* the next manager knows the attempt's owner */
    }
}
