/* supervise.c: one attempt of a job, from its claim to its end.
 *
 * Knows: the open files of the attempt, its processes, the monotonic clock (the wall clock is only
 * recorded). Must not know: its starter, the origin of its files, whether a manager lives.
 *
 * The manager sends signals (jobs.h). The supervisor answers by `record`, by one packet when the
 * job runs, and by its own end, when no process of the job is left.
 */
#include "jobs/jobs.h"
#include "jobs/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    REST_GRACE_MS = 5000,
    FIRST_KILL_PAUSE_MS = 20,
    LAST_KILL_PAUSE_MS = 5000,
    RECORD_FIRST_PAUSE_MS = 1000,
    RECORD_LAST_PAUSE_MS = 60000,
    LOOK_PAUSE_MS = 1000 /* the kernel tells of no use below the limit */
};

enum phase { RUNS, ASKED, ALL_ASKED, KILLED };

struct attempt {
    const struct nm_files *files;
    struct nm_order order;
    struct nm_log log;
    int leaf; /* its cgroup; -1: none */
    long long env_ooms;
    int log_file;       /* of a job whose memory is limited; -1: none, or its line is written */
    long long look_ms;  /* when its memory is looked at next */
    int signals;
    int report;   /* the child's end closes when it executes the job's program; -1: closed */
    int manager;  /* -1: told, or no manager to tell */
    nm_running_word *running_word;
    struct nm_word word; /* for the manager, when the job runs; empty: not yet */
    pid_t main;   /* 0: never forked, or waited for */
    bool began;   /* the job's program was executed */
    bool alone;   /* no process is left */
    int status;   /* of main, in wait's form; -1: none */
    enum nm_cause cause;
    char why[NM_JOB_WHY_BYTES];
    enum phase phase;
    long long started_ms, limit_ms; /* limit_ms -1: none */
    long long warned_ms, ask_ms;    /* the order's signal was sent; TERM is due; -1: not so */
    long long all_ms, kill_ms, pause_ms;
};

/* CLOCK_REALTIME for people, CLOCK_BOOTTIME for durations. */
static long long clock_ns(clockid_t clock)
{
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* -- the record -- */

/* Writes a line at its fixed place. The manager has allocated the file, so a full disk does not
   matter. */
static bool write_line(const struct attempt *attempt, int line, const char *text)
{
    char room[NM_RECORD_LINE_BYTES];
    size_t length = strlen(text);
    if (length > sizeof room - 3)
        length = sizeof room - 3;
    memset(room, ' ', sizeof room);
    for (size_t index = 0; index < length; index++)
        room[index] = (unsigned char)text[index] < ' ' || text[index] == 127 ? '?' : text[index];
    room[sizeof room - 2] = '.'; /* the line is complete */
    room[sizeof room - 1] = '\n';
    return pwrite(attempt->files->record, room, sizeof room, (off_t)line * NM_RECORD_LINE_BYTES) ==
           (ssize_t)sizeof room;
}

static void say_why(struct attempt *attempt, const char *why, enum nm_cause cause)
{
    if (attempt->why[0] == 0) { /* the first reason stays */
        snprintf(attempt->why, sizeof attempt->why, "%s", why);
        attempt->cause = cause;
    }
}

/* -- ending -- */

static void ask_all(struct attempt *attempt, long long now)
{
    const struct nm_spared spared = {
        .alone = attempt->phase == ASKED ? attempt->main : 0,
        .trees = &attempt->log.keeper,
        .tree_count = 1,
    };
    if (attempt->phase == RUNS)
        attempt->kill_ms = now + (attempt->order.grace_ms < REST_GRACE_MS ? attempt->order.grace_ms
                                                                          : REST_GRACE_MS);
    attempt->phase = ALL_ASKED;
    nm_signal_below(SIGTERM, spared);
}

static void ask(struct attempt *attempt, const char *why, enum nm_cause cause)
{
    if (attempt->phase != RUNS)
        return;
    say_why(attempt, why, cause);
    attempt->kill_ms = nm_monotonic_ms() + attempt->order.grace_ms;
    attempt->all_ms = attempt->kill_ms - attempt->order.grace_ms / 2;
    attempt->phase = ASKED;
    if (attempt->main != 0) {
        kill(attempt->main, attempt->began ? SIGTERM : SIGKILL);
        kill(attempt->main, SIGCONT);
    }
}

/* Sends the order's signal. */
static void send_warning(struct attempt *attempt, long long now)
{
    attempt->warned_ms = now;
    kill(attempt->main, (int)attempt->order.signal);
    kill(attempt->main, SIGCONT);
}

/* Ends the job by its signal, and TERM later. A container that is stopped leaves no time for
   both. */
static void end_warned(struct attempt *attempt, const char *why, enum nm_cause cause)
{
    if (attempt->order.signal == 0 || !attempt->began || attempt->main == 0 ||
        (attempt->files->is_inside && cause == NM_NODE_DOWN)) {
        ask(attempt, why, cause);
        return;
    }
    if (attempt->phase != RUNS || attempt->ask_ms >= 0)
        return;
    say_why(attempt, why, cause);
    if (attempt->warned_ms < 0)
        send_warning(attempt, nm_monotonic_ms());
    attempt->ask_ms = attempt->warned_ms + attempt->order.signal_ms;
}

/* The earlier of two times, -1: never. */
static long long earlier(long long one, long long other)
{
    return one < 0 || (other >= 0 && other < one) ? other : one;
}

/* When the time limit, its signal or TERM after another signal is due. */
static long long next_due(const struct attempt *attempt)
{
    const long long limit_ms =
        attempt->limit_ms < 0 ? -1 : attempt->started_ms + attempt->limit_ms;
    if (limit_ms >= 0 && attempt->order.signal != 0 && attempt->began && attempt->warned_ms < 0)
        return limit_ms > attempt->order.signal_ms ? limit_ms - attempt->order.signal_ms : 0;
    return earlier(limit_ms, attempt->ask_ms);
}

static void insist(struct attempt *attempt, long long now)
{
    struct nm_swept swept;
    attempt->pause_ms = attempt->phase == KILLED ? attempt->pause_ms * 2 : FIRST_KILL_PAUSE_MS;
    if (attempt->pause_ms > LAST_KILL_PAUSE_MS)
        attempt->pause_ms = LAST_KILL_PAUSE_MS;
    attempt->phase = KILLED;
    attempt->kill_ms = now + attempt->pause_ms;
    nm_leaf_kill(attempt->leaf);
    swept = nm_signal_below(SIGKILL,
                            (struct nm_spared){.trees = &attempt->log.keeper, .tree_count = 1});
    if (swept.found > 0 && swept.found == swept.refused) {
        say_why(attempt, NM_OTHERS_GO_ON, NM_OWN);
        attempt->alone = true;
    }
}

/* Writes one line when little is left; returns when to look again, -1: not any more. */
static long long look_at_memory(struct attempt *attempt, long long now)
{
    char line[NM_JOB_WHY_BYTES];
    if (attempt->log_file < 0)
        return -1;
    if (now < attempt->look_ms)
        return attempt->look_ms;
    attempt->look_ms = now + LOOK_PAUSE_MS;
    if (!nm_leaf_nearly_full(attempt->leaf, &attempt->order, line))
        return attempt->look_ms;
    if (write(attempt->log_file, line, strlen(line)) < 0)
        return attempt->look_ms; /* the disk may take it later */
    close(attempt->log_file);
    attempt->log_file = -1;
    return -1;
}

/* Does what is due; returns when to call again, -1: not by time. To end a job: TERM to its
 * process; after half the grace, or when that has ended, TERM to all below; after the grace KILL
 * to all below, repeated until none is left. If the job's process ended by itself, the rest gets
 * REST_GRACE_MS. */
static long long act(struct attempt *attempt)
{
    long long now = nm_monotonic_ms();
    if (attempt->phase == RUNS && attempt->main == 0)
        ask_all(attempt, now);
    if (attempt->phase == RUNS && attempt->limit_ms >= 0 &&
        now >= attempt->started_ms + attempt->limit_ms)
        ask(attempt, NM_TIME_LIMIT, NM_OVER_TIME);
    if (attempt->phase == RUNS && attempt->ask_ms >= 0 && now >= attempt->ask_ms)
        ask(attempt, NM_SUPERVISOR_ASKED, NM_NODE_DOWN); /* the first reason stands already */
    if (attempt->phase == RUNS && next_due(attempt) >= 0 && now >= next_due(attempt))
        send_warning(attempt, now);
    if (attempt->phase == ASKED && (attempt->main == 0 || now >= attempt->all_ms))
        ask_all(attempt, now);
    if (attempt->phase >= ALL_ASKED && now >= attempt->kill_ms)
        insist(attempt, now);
    if (attempt->phase == RUNS)
        return earlier(next_due(attempt), look_at_memory(attempt, now));
    return attempt->phase == ASKED ? attempt->all_ms : attempt->kill_ms;
}

/* -- events -- */

static void read_limit(struct attempt *attempt)
{
    char text[NM_LIMIT_BYTES + 1] = "", *end;
    const long long before_ms = attempt->limit_ms;
    attempt->limit_ms = -1;
    if (pread(attempt->files->limit, text, NM_LIMIT_BYTES, 0) <= 0 ||
        (end = strchr(text, '\n')) == NULL)
        return;
    *end = 0;
    if (!nm_job_number(text, 1ll << 50, &attempt->limit_ms))
        attempt->limit_ms = -1;
    if (attempt->ask_ms < 0 && attempt->limit_ms != before_ms)
        attempt->warned_ms = -1; /* a later limit has a signal of its own */
}

static void reap(struct attempt *attempt)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == attempt->main) {
            attempt->main = 0;
            attempt->status = status;
        }
    attempt->alone = attempt->alone || (pid < 0 && errno == ECHILD);
}

static void read_signals(struct attempt *attempt)
{
    struct signalfd_siginfo info;
    while (read(attempt->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == NM_JOB_ASKS)
            ask(attempt, NM_WITHDRAWN, NM_OWN);
        else if (info.ssi_signo == SIGTERM)
            end_warned(attempt, NM_SUPERVISOR_ASKED, NM_NODE_DOWN);
        else if (info.ssi_signo == NM_JOB_WARNS)
            end_warned(attempt, NM_WITHDRAWN, NM_OWN);
        else if (info.ssi_signo == NM_JOB_LIMIT)
            read_limit(attempt);
    }
    reap(attempt);
}

/* The child executed its program, or reports why it could not. */
static void read_report(struct attempt *attempt)
{
    struct nm_failure failure;
    char text[128];
    unsigned long audit;
    ssize_t size = read(attempt->report, &failure, sizeof failure);
    if (size < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    close(attempt->report);
    attempt->report = -1;
    if (size == (ssize_t)sizeof failure) {
        char why[NM_JOB_WHY_BYTES] = "";
        enum nm_cause cause = nm_failure_words(&attempt->order, failure, why);
        say_why(attempt, why, cause);
        return;
    }
    attempt->began = true;
    audit = nm_audit_session(attempt->main);
    audit = audit == nm_audit_session(getpid()) ? 0 : audit; /* not the job's own */
    snprintf(text, sizeof text, "started %lld:%lld %ld %llu %lu", clock_ns(CLOCK_REALTIME),
             clock_ns(CLOCK_BOOTTIME), (long)attempt->main, nm_start_ticks(attempt->main), audit);
    write_line(attempt, 0, text);
    attempt->word = attempt->running_word(text + sizeof "started");
}

/* Sends one packet. If the manager does not read it, it waits; the manager finds the same in the
   record. */
static void tell(struct attempt *attempt)
{
    if (send(attempt->manager, attempt->word.bytes, attempt->word.size,
             MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
        (errno == EAGAIN || errno == EINTR))
        return;
    close(attempt->manager);
    attempt->manager = -1;
}

/* The timeout for poll until then. */
static int timeout(long long then_ms)
{
    long long pause = then_ms - nm_monotonic_ms();
    if (then_ms < 0)
        return -1;
    return pause < 0 ? 0 : pause > INT_MAX ? INT_MAX : (int)pause;
}

static void watch(struct attempt *attempt)
{
    while (!attempt->alone || attempt->report >= 0) {
        /* alone: no process holds the other end of the report */
        const long long next = attempt->alone ? 0 : act(attempt);
        struct pollfd ready[] = {
            {.fd = attempt->signals, .events = POLLIN},
            {.fd = attempt->report, .events = POLLIN},
            {.fd = attempt->word.size > 0 ? attempt->manager : -1, .events = POLLOUT},
        };
        if (poll(ready, sizeof ready / sizeof *ready, timeout(next)) < 0)
            continue;
        if (ready[1].revents != 0)
            read_report(attempt);
        if (ready[2].revents != 0)
            tell(attempt);
        if (ready[0].revents != 0)
            read_signals(attempt);
    }
}

/* -- the end is written down -- */

/* Whether the supervisor was asked to end and the job has ended: how it ended is then not
   needed. */
static bool is_dismissed(const struct attempt *attempt)
{
    struct signalfd_siginfo info;
    bool dismissed = false;
    while (read(attempt->signals, &info, sizeof info) == (ssize_t)sizeof info)
        dismissed = dismissed || info.ssi_signo == NM_JOB_ASKS || info.ssi_signo == SIGTERM ||
                    info.ssi_signo == NM_JOB_WARNS;
    return dismissed;
}

/* The line in short: "ended WALL:BOOT 4 - 0 WHY" as WALL:BOOT.4.-.0 */
static void outcome_of(const char *text, char outcome[64])
{
    size_t size = 0, words = 1;
    for (text += sizeof "ended"; words <= 4 && size < 63; text++) {
        words += *text == ' ';
        outcome[size++] = *text == ' ' ? '.' : *text;
    }
    outcome[size - 1] = 0; /* in place of the last point */
}

/* Only this process knows the end. While it is recorded nowhere, the attempt goes on and writes
 * again, since the disk may recover. Otherwise the manager would take the attempt for lost and
 * start it again. The witness is the second place: the name of the claim becomes
 * claim.PID.TICKS.ended.WALL:BOOT.EXIT.SIGNAL.HOPELESS (csrc/supervisor/directory.c). */
static int write_end(const struct attempt *attempt)
{
    char text[NM_RECORD_LINE_BYTES], outcome[64], exit_code[16] = "-", number[16] = "-";
    struct pollfd signals = {.fd = attempt->signals, .events = POLLIN};
    if (attempt->status >= 0 && WIFEXITED(attempt->status))
        snprintf(exit_code, sizeof exit_code, "%d", WEXITSTATUS(attempt->status));
    else if (attempt->status >= 0 && WIFSIGNALED(attempt->status))
        snprintf(number, sizeof number, "%d", WTERMSIG(attempt->status));
    snprintf(text, sizeof text, "ended %lld:%lld %s %s %d %s", clock_ns(CLOCK_REALTIME),
             clock_ns(CLOCK_BOOTTIME), exit_code, number, (int)attempt->cause, attempt->why);
    outcome_of(text, outcome);
    bool dismissed = is_dismissed(attempt); /* asked while it ended by itself */
    for (int pause_ms = RECORD_FIRST_PAUSE_MS;;
         pause_ms = pause_ms * 2 < RECORD_LAST_PAUSE_MS ? pause_ms * 2 : RECORD_LAST_PAUSE_MS) {
        if (write_line(attempt, 1, text) && fsync(attempt->files->record) == 0)
            return 0;
        if (attempt->files->witness != NULL && attempt->files->witness(outcome))
            return 0;
        if (dismissed)
            return NM_EXIT_UNRECORDED;
        poll(&signals, 1, pause_ms);
        dismissed = is_dismissed(attempt);
    }
}

/* -- beginning -- */

int nm_take_signals(void)
{
    sigset_t heard, blocked;
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigaddset(&heard, SIGTERM);
    sigaddset(&heard, NM_JOB_ASKS);
    sigaddset(&heard, NM_JOB_LIMIT);
    sigaddset(&heard, NM_JOB_WARNS);
    sigfillset(&blocked); /* no other signal ends the supervisor of a job */
    signal(SIGCHLD, SIG_DFL);
    return sigprocmask(SIG_SETMASK, &blocked, NULL) == 0
               ? signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK)
               : -1;
}

/* -1: errno. */
static int begin_log(struct attempt *attempt)
{
    const int file = attempt->files->log;
    struct stat status;
    int output;
    errno = file < 0 ? -file : EINVAL;
    if (file < 0 || !nm_file_status(file, &status) ||
        !(attempt->files->is_inside ? S_ISFIFO(status.st_mode) : S_ISREG(status.st_mode)))
        return -1;
    output = nm_log_begin(&attempt->log, file,
                          attempt->files->is_inside ? 0 : attempt->order.log_bytes);
    for (char *const *limit = attempt->order.limits; output >= 0 && *limit != NULL; limit++)
        if (strncmp(*limit, "memory.max ", 11) == 0)
            attempt->log_file = fcntl(file, F_DUPFD_CLOEXEC, 3);
    close(file);
    if (output >= 0 && !attempt->files->is_inside && geteuid() == 0 &&
        fchown(output, attempt->order.uid, attempt->order.gid) != 0) {
        close(output); /* the pipe must be the user's, so that the job can open /dev/stdout again */
        return -1;
    }
    return output;
}

/* Forks the job's process in its leaf; again where another process removed the empty leaf. */
static pid_t fork_in_leaf(struct attempt *attempt)
{
    const struct nm_order *order = &attempt->order;
    const bool has_leaf = order->leaf != NULL && attempt->files->scope != NULL;
    for (int tries = 0; has_leaf && tries < 2; tries++) {
        pid_t pid;
        if (attempt->leaf >= 0)
            close(attempt->leaf);
        attempt->leaf = nm_leaf_make(attempt->files->scope, order);
        attempt->env_ooms = nm_leaf_env_ooms(attempt->files->scope, order->leaf);
        if ((pid = nm_leaf_fork(attempt->leaf)) >= 0)
            return pid;
    }
    return fork();
}

static bool begin(struct attempt *attempt)
{
    int ends[2];
    const pid_t self = getpid();
    const int output = begin_log(attempt);
    if (output < 0)
        return false;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        close(output);
        return false;
    }
    attempt->report = ends[0];
    attempt->started_ms = nm_monotonic_ms();
    attempt->main = fork_in_leaf(attempt);
    if (attempt->main == 0) {
        const struct nm_failure failure = nm_become(&attempt->order, output, self);
        _exit(write(ends[1], &failure, sizeof failure) == (ssize_t)sizeof failure ? 0 : 1);
    }
    close(ends[1]);
    close(output);
    return attempt->main > 0;
}

static void prepare(struct attempt *attempt)
{
    char why[NM_JOB_WHY_BYTES] = "";
    if (!nm_order_read(attempt->files, &attempt->order, why))
        say_why(attempt, why, NM_NOT_STARTED);
    else if (read_limit(attempt), begin(attempt))
        return;
    else {
        snprintf(why, sizeof why, NM_PROCESS_NOT_STARTED, strerror(errno));
        say_why(attempt, why, NM_NOT_STARTED);
    }
    attempt->main = 0;
    attempt->alone = true;
    if (attempt->report >= 0)
        close(attempt->report);
    attempt->report = -1;
}

static bool is_well(const struct attempt *attempt)
{
    return attempt->status >= 0 && WIFEXITED(attempt->status) && WEXITSTATUS(attempt->status) == 0;
}

/* Reads the kernel's counts before the leaf goes. */
static void read_leaf(struct attempt *attempt)
{
    const char *scope = attempt->files->scope, *leaf = attempt->order.leaf;
    char text[NM_JOB_WHY_BYTES] = "";
    if (attempt->leaf < 0)
        return;
    if (attempt->began && attempt->why[0] == 0 && !is_well(attempt) &&
        nm_leaf_out_of_memory(attempt->leaf, &attempt->order,
                              nm_leaf_env_ooms(scope, leaf) > attempt->env_ooms, text))
        say_why(attempt, text, NM_HOST_MEMORY);
    nm_leaf_figures(attempt->leaf, text, sizeof text);
    write_line(attempt, 2, text);
    nm_leaf_end(scope, leaf, attempt->leaf);
}

int nm_supervise(const struct nm_files *files, int signals, int manager,
                 nm_running_word *running_word)
{
    struct attempt attempt = {
        .files = files,
        .log.control = -1,
        .signals = signals,
        .report = -1,
        .manager = manager,
        .running_word = running_word,
        .status = -1,
        .leaf = -1,
        .log_file = -1,
        .warned_ms = -1,
        .ask_ms = -1,
    };
    int end;
    setsid();
    prctl(PR_SET_NAME, "nodemgr-job");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prepare(&attempt);
    watch(&attempt);
    if (!attempt.began)
        attempt.status = -1; /* of the forked child, not of the job's program */
    if (attempt.warned_ms >= 0 && attempt.status >= 0 && WIFSIGNALED(attempt.status) &&
        WTERMSIG(attempt.status) == attempt.order.signal)
        say_why(&attempt, NM_TIME_LIMIT, NM_OVER_TIME); /* it did not handle the signal */
    read_leaf(&attempt);
    if (attempt.log_file >= 0)
        close(attempt.log_file);
    nm_log_end(&attempt.log);
    end = write_end(&attempt);
    if (attempt.manager >= 0)
        close(attempt.manager);
    return end;
}
