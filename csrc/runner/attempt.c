/* attempt.c: one attempt in a container: claims it, has a child supervise it, and passes on to the
 * manager how it begins, what it prints and how it ends; see runner.h.
 *
 * The manager hands out no file. The child's record, limit and log are memory and a pipe of this
 * process. Each word carries a number and is said again on the next connection until the manager
 * has acknowledged it; one word is under way at a time. While no manager answers, this process
 * goes on emptying the pipe.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/prim.h"
#include "jobs/messages.h"
#include "runner/runner.h"

enum { FIRST_PAUSE_MS = 50, LAST_PAUSE_MS = 5000 };

enum said { NOTHING, CLAIM, BEGIN, OUTPUT, END };

static struct attempt {
    struct nm_named named;
    struct nm_output output;
    int contact, sheet; /* -1: the manager is away */
    long long pause_ms, next_ms;
    enum said said; /* the word whose answer is awaited */
    uint64_t rid, said_until;
    int signals, record, limit;
    int pipe, told; /* from the keeper, and from the supervisor; -1: closed */
    pid_t supervisor; /* 0: not forked; -1: waited for */
    char began[NM_JOB_WHY_BYTES];
    bool is_begin_known, is_over, is_sheet_full;
    int code, asked; /* asked: the signal that came before the supervisor was forked; 0: none */
} self = {.contact = -1, .sheet = -1, .pipe = -1, .told = -1, .signals = -1, .record = -1,
          .limit = -1};

static void finish(int code)
{
    self.is_over = true;
    self.code = code;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* -- the supervisor -- */

static struct nm_word running(const char *began)
{
    struct nm_word word;
    const int size = snprintf(word.bytes, sizeof word.bytes, "started %s", began);
    word.size = (size_t)size < sizeof word.bytes ? (size_t)size : sizeof word.bytes - 1;
    return word;
}

static void write_limit(uint64_t limit_ms)
{
    char text[NM_LIMIT_BYTES + 1];
    snprintf(text, sizeof text, "%-*s", NM_LIMIT_BYTES, "");
    if (limit_ms != UINT64_MAX)
        snprintf(text, sizeof text, "%llu\n", (unsigned long long)limit_ms);
    if (pwrite(self.limit, text, NM_LIMIT_BYTES, 0) == NM_LIMIT_BYTES && self.supervisor > 0)
        kill(self.supervisor, NM_JOB_LIMIT);
}

/* In the child. It ends with this process, which alone can pass its end on. */
static _Noreturn void supervise(int order, int log, int told, pid_t parent)
{
    const struct nm_files files = {
        .order = order, .record = self.record, .log = log, .limit = self.limit, .is_inside = true};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(NM_EXIT_UNRECORDED);
    close(self.signals);
    close(self.contact);
    close(self.pipe);
    close(self.told);
    const int signals = nm_take_signals();
    exit(signals < 0 ? NM_EXIT_UNRECORDED : nm_supervise(&files, signals, told, running));
}

static bool fork_supervisor(int order)
{
    int log[2], told[2];
    const pid_t parent = getpid();
    if (pipe2(log, O_CLOEXEC) != 0)
        return false;
    self.pipe = log[0];
    fcntl(self.pipe, F_SETFL, O_NONBLOCK);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, told) == 0) {
        self.told = told[0];
        self.supervisor = fork();
        if (self.supervisor == 0)
            supervise(order, log[1], told[1], parent);
        close(told[1]);
    }
    if (self.supervisor > 0 && self.asked != 0)
        kill(self.supervisor, self.asked);
    close(log[1]);
    return self.supervisor > 0;
}

static void start(struct nm_letter *letter)
{
    const char *why = NULL;
    if (letter->fd_count != NM_LETTER_FDS)
        why = NM_FILES_NOT_LET_IN;
    else if (self.signals < 0)
        why = NM_NO_SIGNALS_INSIDE;
    else {
        self.record = nm_memfd("nodemgr-record");
        self.limit = nm_memfd("nodemgr-limit");
        write_limit(nm_message_number(&letter->message, NM_KEY_limit_ms, UINT64_MAX));
        if (self.record < 0 || self.limit < 0 ||
            !nm_output_begin(&self.output,
                             nm_message_number(&letter->message, NM_KEY_size, 0)) ||
            !fork_supervisor(letter->fds[0]))
            why = NM_FILES_NOT_LET_IN;
    }
    if (why != NULL) {
        nm_contact_fail(self.contact, &self.named, why);
        finish(NM_EXIT_UNRECORDED);
    }
}

static void read_signals(void)
{
    struct signalfd_siginfo info;
    while (read(self.signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGTERM || info.ssi_signo == NM_JOB_ASKS ||
            info.ssi_signo == NM_JOB_WARNS) {
            self.asked = (int)info.ssi_signo;
            if (self.supervisor > 0)
                kill(self.supervisor, self.asked);
        }
    if (self.supervisor > 0 && waitpid(self.supervisor, NULL, WNOHANG) == self.supervisor)
        self.supervisor = -1;
}

static void read_output(void)
{
    static char bytes[NM_PIECE_BYTES];
    const ssize_t size = read(self.pipe, bytes, sizeof bytes);
    if (size > 0)
        nm_output_add(&self.output, bytes, (size_t)size);
    else if (size == 0)
        close_one(&self.pipe);
}

static void read_told(void)
{
    const ssize_t size = recv(self.told, self.began, sizeof self.began - 1, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    self.began[size > 0 ? size : 0] = 0;
    close_one(&self.told); /* it is one packet */
}

/* -- the manager -- */

static void lose(void)
{
    close_one(&self.contact);
    close_one(&self.sheet);
    self.said = NOTHING;
    self.next_ms = nm_monotonic_ms() + self.pause_ms;
    self.pause_ms = self.pause_ms * 2 < LAST_PAUSE_MS ? self.pause_ms * 2 : LAST_PAUSE_MS;
}

static void say(enum said what, struct nm_build *build)
{
    self.rid = nm_random() >> 12;
    nm_build_number(build, NM_KEY_rid, self.rid);
    self.said = what;
    if (!nm_contact_send(self.contact, build))
        lose();
}

static void look_for_manager(void)
{
    char fault[NM_FAULT_BYTES];
    struct nm_build build;
    self.contact = nm_contact_open(fault);
    nm_build_named(&build, NM_VERB_CLAIM, &self.named);
    if (self.contact < 0)
        lose();
    else
        say(CLAIM, &build);
}

/* The line of the record with the end; false: the supervisor was killed before it wrote one. */
static bool read_end(char *line)
{
    ssize_t size = pread(self.record, line, NM_RECORD_LINE_BYTES, NM_RECORD_LINE_BYTES);
    if (size != NM_RECORD_LINE_BYTES)
        return false;
    for (size -= 2; size > 0 && line[size - 1] == ' '; size--)
        ;
    line[size] = 0;
    return true;
}

/* The next word, if none is under way and there is one. */
static void say_next(void)
{
    struct nm_build build;
    char line[NM_RECORD_LINE_BYTES];
    const char *bytes;
    uint64_t at;
    const size_t size = nm_output_next(&self.output, &bytes, &at);
    self.is_sheet_full = false;
    if (self.sheet < 0 || self.said != NOTHING)
        return;
    if (self.began[0] != 0 && !self.is_begin_known) {
        nm_build_named(&build, NM_VERB_RUNNING, &self.named);
        nm_build_text(&build, NM_KEY_text, self.began);
        say(BEGIN, &build);
    } else if (size > 0) {
        self.is_sheet_full = pwrite(self.sheet, bytes, size, 0) != (ssize_t)size;
        if (self.is_sheet_full)
            return;
        nm_build_named(&build, NM_VERB_OUTPUT, &self.named);
        nm_build_number(&build, NM_KEY_at, at);
        nm_build_number(&build, NM_KEY_size, size);
        self.said_until = at + size;
        say(OUTPUT, &build);
    } else if (self.supervisor < 0 && self.pipe < 0) {
        if (!read_end(line)) {
            finish(NM_EXIT_UNRECORDED);
            return;
        }
        nm_build_named(&build, NM_VERB_ENDED, &self.named);
        nm_build_text_cut(&build, NM_KEY_text, line, NM_PACKET_BYTES - NM_FAULT_BYTES);
        say(END, &build);
    }
}

static void acknowledged(void)
{
    if (self.said == BEGIN)
        self.is_begin_known = true;
    else if (self.said == OUTPUT)
        nm_output_taken(&self.output, self.said_until);
    else if (self.said == END)
        finish(0);
    self.said = NOTHING;
}

static void claimed(struct nm_letter *letter)
{
    self.said = NOTHING;
    self.pause_ms = FIRST_PAUSE_MS;
    if (self.supervisor == 0)
        start(letter);
    else
        write_limit(nm_message_number(&letter->message, NM_KEY_limit_ms, UINT64_MAX));
    if (self.is_over)
        return;
    if (letter->fd_count != NM_LETTER_FDS) {
        lose();
        return;
    }
    self.sheet = letter->fds[--letter->fd_count];
    nm_output_taken(&self.output, nm_message_number(&letter->message, NM_KEY_at, 0));
}

static void hear(struct nm_letter *letter)
{
    const struct nm_message *message = &letter->message;
    const bool is_ours = self.said != NOTHING &&
                         nm_message_number(message, NM_KEY_rid, UINT64_MAX) == self.rid;
    if (message->verb == NM_VERB_LIMIT)
        write_limit(nm_message_number(message, NM_KEY_limit_ms, UINT64_MAX));
    else if (message->verb == NM_VERB_CLAIMED && is_ours && self.said == CLAIM)
        claimed(letter);
    else if (message->verb == NM_VERB_ACK && is_ours)
        acknowledged();
    else if (message->verb == NM_VERB_DENY && is_ours) {
        if (self.supervisor <= 0 && self.said == CLAIM) /* it is another's, or over */
            finish(NM_EXIT_NOT_OURS);
        lose();
    }
}

static void read_manager(void)
{
    static struct nm_letter letter;
    while (self.contact >= 0 && !self.is_over) {
        if (!nm_contact_receive(self.contact, 0, &letter)) {
            if (errno != EAGAIN)
                lose();
            return;
        }
        hear(&letter);
        nm_letter_close(&letter);
    }
}

/* -- its life -- */

static int timeout(void)
{
    const long long pause = self.next_ms - nm_monotonic_ms();
    if (self.contact >= 0)
        return self.is_sheet_full ? LAST_PAUSE_MS : -1; /* memory may be there later */
    return pause < 0 ? 0 : (int)pause;
}

static void pass(void)
{
    struct pollfd ready[] = {{.fd = self.signals, .events = POLLIN},
                             {.fd = self.pipe, .events = POLLIN},
                             {.fd = self.told, .events = POLLIN},
                             {.fd = self.contact, .events = POLLIN}};
    if (poll(ready, sizeof ready / sizeof *ready, timeout()) < 0)
        return;
    if (ready[0].revents != 0)
        read_signals();
    if (ready[1].revents != 0)
        read_output();
    if (ready[2].revents != 0)
        read_told();
    if (ready[3].revents != 0)
        read_manager();
    if (self.contact < 0 && !self.is_over && nm_monotonic_ms() >= self.next_ms)
        look_for_manager();
    if (!self.is_over)
        say_next();
}

int nm_run_attempt(const struct nm_named *named)
{
    prctl(PR_SET_NAME, "nodemgr-attempt");
    self.named = *named;
    self.pause_ms = FIRST_PAUSE_MS;
    self.signals = nm_take_signals();
    look_for_manager();
    while (!self.is_over)
        pass();
    return self.code;
}
