/* runner.c: registers with the manager, and forks a supervisor for each attempt that it is to
 * start; see runner.h.
 *
 * If the manager goes away, jobs go on, and the runner connects again until one answers.
 */
#include "runner/runner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

#include "base/prim.h"
#include "jobs/messages.h"

enum { FIRST_PAUSE_MS = 50, LAST_PAUSE_MS = 5000, STRAY_PAUSE_MS = 20, TURN_PACKETS = 32, WORDS_FORM = 2 };

static struct runner {
    int contact; /* -1: the manager is away */
    int signals;
    uint64_t rid;
    long long pause_ms, next_ms; /* the time of the next connect */
    bool dismissed;
    struct nm_children children;
} runner = {.contact = -1, .signals = -1};

static void leave(void)
{
    close(runner.contact);
    runner.contact = -1;
}

/* -- an attempt -- */

static void become_supervisor(const struct nm_named *named, const char *name)
{
    sigset_t none;
    leave();
    close(runner.signals);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    nm_set_title(name);
    exit(nm_run_attempt(named));
}

static void start(const struct nm_message *message)
{
    struct nm_named named = {.attempt = nm_message_number(message, NM_KEY_attempt, 0)};
    char name[NM_JOB_NAME_BYTES], why[NM_JOB_WHY_BYTES];
    pid_t pid = -1;
    nm_message_text(message, NM_KEY_job, named.job, sizeof named.job);
    snprintf(name, sizeof name, "%s/%llu", named.job, (unsigned long long)named.attempt);
    if (nm_children_has(&runner.children, name))
        return;
    if (nm_children_make_room(&runner.children))
        pid = fork();
    if (pid == 0)
        become_supervisor(&named, name);
    if (pid > 0) {
        nm_children_add(&runner.children, pid, name);
        return;
    }
    snprintf(why, sizeof why, NM_NO_SUPERVISOR_INSIDE, strerror(errno));
    nm_contact_fail(runner.contact, &named, why);
}

/* -- the manager -- */

static bool announce(void)
{
    struct nm_build build;
    runner.rid = nm_random() >> 12;
    nm_build_begin(&build, NM_VERB_RUNNER, 0);
    nm_build_number(&build, NM_KEY_rid, runner.rid);
    nm_build_number(&build, NM_KEY_form, WORDS_FORM);
    return nm_contact_send(runner.contact, &build);
}

static void lose(void)
{
    leave();
    runner.next_ms = nm_monotonic_ms() + runner.pause_ms;
    runner.pause_ms = runner.pause_ms * 2 < LAST_PAUSE_MS ? runner.pause_ms * 2 : LAST_PAUSE_MS;
}

static void look_for_manager(void)
{
    char fault[NM_FAULT_BYTES];
    runner.contact = nm_contact_open(fault);
    if (runner.contact < 0 || !announce())
        lose();
}

static void hear(const struct nm_message *message)
{
    switch (message->verb) {
    case NM_VERB_ACK: runner.pause_ms = FIRST_PAUSE_MS; break;
    case NM_VERB_START: start(message); break;
    case NM_VERB_DENY:
    case NM_VERB_DISMISS: runner.dismissed = true; break;
    default: break;
    }
}

static void read_manager(void)
{
    static struct nm_letter letter;
    for (unsigned count = 0; count < TURN_PACKETS && runner.contact >= 0 && !runner.dismissed;
         count++) {
        if (!nm_contact_receive(runner.contact, 0, &letter)) {
            if (errno != EAGAIN)
                lose();
            return;
        }
        hear(&letter.message);
        nm_letter_close(&letter);
    }
}

/* -- its life -- */

static void read_signals(void)
{
    struct signalfd_siginfo info;
    while (read(runner.signals, &info, sizeof info) == (ssize_t)sizeof info)
        runner.dismissed = runner.dismissed || info.ssi_signo == SIGTERM;
    nm_children_reap(&runner.children);
}

static int timeout(void)
{
    const bool waits = runner.contact < 0 && !runner.dismissed;
    const long long rest = runner.next_ms - nm_monotonic_ms();
    if (runner.children.strays)
        return STRAY_PAUSE_MS;
    return !waits ? -1 : rest < 0 ? 0 : (int)rest;
}

bool nm_runner_begin(char fault[NM_FAULT_BYTES])
{
    static struct nm_letter letter;
    sigset_t heard, all;
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigaddset(&heard, SIGTERM);
    sigfillset(&all);
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (sigprocmask(SIG_SETMASK, &all, NULL) != 0 ||
        (runner.signals = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        snprintf(fault, NM_FAULT_BYTES, NM_RUNNER_WITHOUT_SIGNALS, strerror(errno));
        return false;
    }
    if ((runner.contact = nm_contact_open(fault)) < 0)
        return false;
    snprintf(fault, NM_FAULT_BYTES, NM_RUNNER_UNANSWERED);
    if (!announce())
        return false;
    while (nm_contact_receive(runner.contact, NM_ANSWER_MS, &letter)) {
        nm_letter_close(&letter);
        if (letter.message.verb == NM_VERB_ACK)
            return true;
        if (letter.message.verb == NM_VERB_DENY) {
            nm_message_text(&letter.message, NM_KEY_reason, fault, NM_FAULT_BYTES);
            return false;
        }
    }
    return false;
}

int nm_runner_serve(void)
{
    runner.pause_ms = FIRST_PAUSE_MS;
    while (!runner.dismissed || runner.children.count > 0 || runner.children.strays) {
        struct pollfd ready[] = {{.fd = runner.signals, .events = POLLIN},
                                 {.fd = runner.contact, .events = POLLIN}};
        if (poll(ready, sizeof ready / sizeof *ready, timeout()) < 0)
            continue;
        if (ready[0].revents != 0 || runner.children.strays)
            read_signals();
        if (runner.contact >= 0 && ready[1].revents != 0)
            read_manager();
        if (runner.dismissed && runner.contact >= 0)
            leave();
        if (!runner.dismissed && runner.contact < 0 && nm_monotonic_ms() >= runner.next_ms)
            look_for_manager();
    }
    return 0;
}
