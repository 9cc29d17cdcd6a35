/* talk.c: packets to the manager, when each is due, and what follows from silence; see session.h.
 *
 * Knows: the pending rows, reconnects, retries, beats, the policies for an absent manager. Must not
 * know: answers (answers.c), the threads that wait for them (session.c).
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client/messages.h"
#include "client/session.h"

#define NEVER UINT64_MAX
#define RETRY_FIRST_NS (200 * NM_MS) /* UDP: 0.2, 0.4, 0.8, 1.6, 1.6 ... s */
#define RETRY_MOST_NS (1600 * NM_MS)
#define NO_ROOM_NS (20 * NM_MS)      /* the socket's buffer is full */
#define BACKOFF_FIRST_NS (100 * NM_MS)
#define BACKOFF_MOST_NS NM_SECOND
/* connection refused: the time that a manager may take to start */
#define REFUSED_NS NM_SECOND
#define QUEUED_NS (30 * NM_SECOND)   /* the same for a process that was in the queue already */
#define TIMEOUT_MS 5000              /* if client.conf has none */
#define BEAT_MS 1000

/* -- connection -- */

void nm_drop_channel(void)
{
    if (!nm_session.pumping || nm_session.pump_fd != nm_session.channel.fd) {
        nm_channel_close(&nm_session.channel);
    } else if (nm_session.channel.fd >= 0) { /* the thread that polls it wakes up and closes it */
        nm_session.orphan_fd = nm_channel_abandon(&nm_session.channel);
    }
}

void nm_want(enum nm_pending row, uint64_t rid)
{
    nm_session.pending[row] = (struct nm_pending_row){
        .wanted = true, .rid = rid, .due_ns = 0, .interval_ns = RETRY_FIRST_NS};
}

void nm_done(enum nm_pending row)
{
    nm_session.pending[row].wanted = false;
    nm_wake();
}

uint64_t nm_fresh_rid(void)
{
    return nm_random() >> 12; /* below 2^52: exact as a number in every language */
}

void nm_say_all_again(void)
{
    for (unsigned i = 0; i < NM_PENDING_COUNT; i++) {
        nm_session.pending[i].due_ns = 0;
        nm_session.pending[i].interval_ns = RETRY_FIRST_NS;
    }
    nm_session.question.next = 0;
    nm_session.question.length = 0;
    if (nm_session.state == NODEMGR_HELD && !nm_session.pending[NM_REJOIN].wanted &&
        !nm_session.pending[NM_RELEASE].wanted)
        nm_want(NM_REJOIN, nm_fresh_rid());
}

/* Clients of a restarted manager must not reconnect at the same moment. */
static uint64_t jittered(uint64_t duration_ns)
{
    return duration_ns * 3 / 4 + nm_random() % (duration_ns / 2);
}

void nm_lost(const char *fault, uint64_t now_ns)
{
    nm_copy(nm_session.fault, sizeof nm_session.fault, fault);
    nm_drop_channel();
    nm_session.refused = true;
    if (nm_session.silent_since_ns == 0)
        nm_session.silent_since_ns = now_ns;
    nm_session.backoff_ns =
        nm_session.backoff_ns == 0 ? BACKOFF_FIRST_NS : nm_session.backoff_ns * 2;
    if (nm_session.backoff_ns > BACKOFF_MOST_NS)
        nm_session.backoff_ns = BACKOFF_MOST_NS;
    nm_session.retry_at_ns = now_ns + jittered(nm_session.backoff_ns);
}

/* The fault is this process's own: no manager that comes back would change it. */
static void cannot_ask(const char *fault)
{
    char line[NM_LINE_BYTES];
    snprintf(line, sizeof line, NM_NO_SOCKET, fault);
    nm_become_refused(line, false);
}

static bool connect_when_due(uint64_t now_ns)
{
    if (nm_session.channel.fd >= 0)
        return true;
    if (now_ns < nm_session.retry_at_ns)
        return false;
    /* a new manager may have another address; a missing file leaves the old one */
    if (nm_session.backoff_ns != 0)
        nm_conf_read(&nm_session.conf);
    char fault[sizeof nm_session.fault];
    if (nm_channel_open(&nm_session.channel, &nm_session.conf, fault, sizeof fault) !=
        NM_CHANNEL_OK) {
        nm_lost(fault, now_ns);
        if (nm_session.channel.forbidden && nm_underway() && ++nm_session.tries >= NM_MOST_TRIES)
            cannot_ask(fault);
        return false;
    }
    nm_session.opened_ns = now_ns;
    nm_say_all_again();
    if (nm_session.channel.udp && !nm_session.channel.has_epoch)
        nm_want(NM_HELLO, nm_fresh_rid());
    return true;
}

/* -- sending -- */

static const enum nm_verb verb_of[NM_PENDING_COUNT] = {
    [NM_HELLO] = NM_VERB_HELLO,     [NM_REJOIN] = NM_VERB_REJOIN,   [NM_CANCEL] = NM_VERB_CANCEL,
    [NM_ACQUIRE] = NM_VERB_ACQUIRE, [NM_RELEASE] = NM_VERB_RELEASE, [NM_ASK] = NM_VERB_ASK,
};

static const enum nm_key wish_key[] = {
#define NM_WISH(key, sign, variable, unit, least, most) NM_KEY_##key,
#include "wire/wishes.def"
#undef NM_WISH
};

static void build_acquire(struct nm_build *build)
{
    const struct nm_request *request = &nm_session.request;
    nm_build_text(build, NM_KEY_task, nm_session.task);
    if (request->has_gpus)
        nm_build_number(build, NM_KEY_gpus, request->gpus);
    if (request->gpus_max != 0)
        nm_build_number(build, NM_KEY_gpus_max, request->gpus_max);
    if (request->worker_gpu[0] != '\0')
        nm_build_text(build, NM_KEY_worker_gpu, request->worker_gpu);
    if (request->has_memory)
        nm_build_number(build, NM_KEY_memory, request->memory_bytes);
    if (request->has_memory && request->memory_max != 0)
        nm_build_number(build, NM_KEY_memory_max, request->memory_max);
    if (request->world > 0)
        nm_build_number(build, NM_KEY_world, request->world);
    if (request->has_wait)
        nm_build_number(build, NM_KEY_wait_ms, request->wait_ms);
    if (request->task_class[0] != '\0')
        nm_build_text(build, NM_KEY_class, request->task_class);
    for (int i = 0; i < NM_WISH_COUNT; i++)
        if (request->wish[i] != 0)
            nm_build_number(build, wish_key[i], request->wish[i]);
    if (nm_is_gated())
        nm_build_number(build, NM_KEY_gated, 1);
    if (request->starts)
        nm_build_number(build, NM_KEY_starts, 1);
    if (request->by_index)
        nm_build_text(build, NM_KEY_visible, "index");
    nm_build_text_cut(build, NM_KEY_command, request->command, NM_COMMAND_BYTES);
}

static void build_rejoin(struct nm_build *build)
{
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    nm_build_text(build, NM_KEY_task, nm_session.task);
    nm_build_text(build, NM_KEY_lease, nm_session.lease_name);
    if (lease != NULL && lease->ledger.limits_fd >= 0) {
        nm_build_number(build, NM_KEY_slot, lease->slot);
        nm_build_number(build, NM_KEY_generation, lease->generation);
    }
}

static void build_row(struct nm_build *build, enum nm_pending row)
{
    nm_build_begin(build, verb_of[row], nm_channel_reserve(&nm_session.channel));
    nm_build_number(build, NM_KEY_rid, nm_session.pending[row].rid);
    switch (row) {
    case NM_HELLO: nm_build_text(build, NM_KEY_env, nm_session.channel.env); break;
    case NM_ACQUIRE: build_acquire(build); break;
    case NM_REJOIN: build_rejoin(build); break;
    case NM_RELEASE: nm_build_text(build, NM_KEY_task, nm_session.task); break;
    case NM_ASK:
        nm_build_text(build, NM_KEY_what, nm_session.question.what);
        if (nm_session.question.argument[0] != '\0')
            nm_build_text_cut(build, NM_KEY_argument, nm_session.question.argument,
                              sizeof nm_session.question.argument);
        break;
    case NM_CANCEL:
    default: break;
    }
}

/* The ledger's files, if the program has not closed them. A restarted manager that asks for them
   recovers the charges from them. */
static int ledger_fds(int fds[2])
{
    /* as the manager of this connection has written it */
    nm_conf_read(&nm_session.conf);
    if (!nm_conf_is(&nm_session.conf, "ledger", "wanted"))
        return 0;
    if (nm_session.ledger.limits == NULL ||
        !nm_fd_is(nm_session.ledger.limits_fd, &nm_session.limits_id) ||
        !nm_fd_is(nm_session.ledger.usage_fd, &nm_session.usage_id))
        return 0;
    fds[0] = nm_session.ledger.limits_fd;
    fds[1] = nm_session.ledger.usage_fd;
    return 2;
}

static void sent(int result, struct nm_pending_row *row, uint64_t now_ns)
{
    if (result == NM_CHANNEL_LATER && !nm_session.channel.udp) {
        row->due_ns = now_ns + NO_ROOM_NS;
    } else if (!nm_session.channel.udp) {
        /* no packet is lost on the socket; a lost connection makes the row due again */
        row->due_ns = NEVER;
    } else {
        row->due_ns = now_ns + row->interval_ns;
        row->interval_ns =
            row->interval_ns * 2 < RETRY_MOST_NS ? row->interval_ns * 2 : RETRY_MOST_NS;
    }
    if (nm_session.channel.udp && nm_session.silent_since_ns == 0)
        nm_session.silent_since_ns = now_ns;
}

static bool may_send(enum nm_pending row)
{
    return nm_session.pending[row].wanted &&
           (row == NM_HELLO || !nm_session.channel.udp || nm_session.channel.has_epoch);
}

void nm_send_when_due(enum nm_pending which, uint64_t now_ns)
{
    struct nm_pending_row *row = &nm_session.pending[which];
    struct nm_build build;
    if (!may_send(which) || now_ns < row->due_ns || nm_session.channel.fd < 0)
        return;
    int fds[2], fd_count = which == NM_REJOIN ? ledger_fds(fds) : 0;
    /* a repeated question gets a new number, so that parts of two answers are never mixed */
    if (which == NM_ASK && nm_session.channel.udp) {
        row->rid = nm_fresh_rid();
        nm_session.question.next = 0;
        nm_session.question.length = 0;
    }
    build_row(&build, which);
    int result = nm_channel_send(&nm_session.channel, &build, fds, fd_count);
    sent(result, row, now_ns);
    if (result == NM_CHANNEL_LOST)
        nm_lost(strerror(errno), now_ns);
}

/* Beats are words in the ledger. They go on while the manager is away. */
static bool beats_in_ledger(void)
{
    return nm_session.state == NODEMGR_HELD && nm_is_in_ledger(atomic_load(&nm_held_lease));
}

static bool beats_by_packet(void)
{
    if (nm_session.channel.fd < 0 || nm_session.pending[NM_REJOIN].wanted ||
        (nm_session.channel.udp && !nm_session.channel.has_epoch))
        return false;
    return nm_session.state == NODEMGR_HELD ||
           (nm_session.state == NODEMGR_WAITING && nm_session.request.answered &&
            !nm_session.channel.udp);
}

static bool beats(void)
{
    return beats_in_ledger() || beats_by_packet();
}

void nm_set_beat(uint64_t beat_ms)
{
    nm_session.beat_ns = (beat_ms > 0 && beat_ms < NM_MAX_WAIT_MS ? beat_ms : BEAT_MS) * NM_MS;
}

static void send_beat(uint64_t now_ns)
{
    struct nm_build build;
    if (nm_session.channel.fd < 0)
        return;
    nm_build_begin(&build, NM_VERB_BEAT, nm_channel_reserve(&nm_session.channel));
    nm_build_text(&build, NM_KEY_task, nm_session.task);
    if (nm_session.state == NODEMGR_WAITING)
        nm_build_number(&build, NM_KEY_rid, nm_session.pending[NM_ACQUIRE].rid);
    else if (nm_session.channel.udp)
        nm_build_number(&build, NM_KEY_rid, nm_fresh_rid());
    if (nm_session.channel.udp && nm_session.silent_since_ns == 0)
        nm_session.silent_since_ns = now_ns;
    if (nm_channel_send(&nm_session.channel, &build, NULL, 0) == NM_CHANNEL_LOST)
        nm_lost(strerror(errno), now_ns);
}

/* With a beat, where it has changed: at most once a beat. A lost packet is made good by the next.
   The program that reports progress must allow sendmsg. */
static void send_progress(uint64_t now_ns)
{
    uint64_t done = nm_session.progress_done, total = nm_session.progress_total;
    struct nm_build build;
    if (nm_session.state != NODEMGR_HELD || !beats_by_packet() ||
        (done == nm_session.told_done && total == nm_session.told_total))
        return;
    nm_build_begin(&build, NM_VERB_PROGRESS, nm_channel_reserve(&nm_session.channel));
    nm_build_text(&build, NM_KEY_task, nm_session.task);
    nm_build_number(&build, NM_KEY_done, done);
    if (total != 0)
        nm_build_number(&build, NM_KEY_total, total);
    int result = nm_channel_send(&nm_session.channel, &build, NULL, 0);
    if (result == NM_CHANNEL_LOST) {
        nm_lost(strerror(errno), now_ns);
    } else if (result == NM_CHANNEL_OK) {
        nm_session.told_done = done;
        nm_session.told_total = total;
    }
}

void nm_beat(uint64_t now_ns)
{
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    nm_session.next_beat_ns = now_ns + nm_session.beat_ns;
    if (beats_in_ledger())
        nm_ledger_beat(&lease->ledger, lease->slot, lease->generation,
                       ++nm_session.beats |
                           (nm_session.unsuspendable ? NM_BEAT_UNSUSPENDABLE : 0));
    else
        send_beat(now_ns);
    send_progress(now_ns);
}

void nm_keep_place(uint64_t now_ns)
{
    struct nm_pending_row *row = &nm_session.pending[NM_ACQUIRE];
    /* over UDP the request itself is the beat, so that a lost grant is sent again */
    if (nm_session.channel.udp) {
        row->interval_ns = RETRY_FIRST_NS;
        row->due_ns = now_ns + nm_session.beat_ns;
    } else if (!nm_session.request.answered) {
        nm_session.next_beat_ns = now_ns + nm_session.beat_ns;
    }
}

/* -- silence -- */

static const char *policy(void)
{
    if (nm_conf_is(&nm_session.conf, "no_manager", "cpu"))
        return "cpu";
    return nm_conf_is(&nm_session.conf, "no_manager", "error") ? "error" : "wait";
}

static uint64_t wait_timeout_ns(void)
{
    uint64_t timeout_ns =
        nm_conf_number(&nm_session.conf, "timeout_ms", TIMEOUT_MS) % NM_MAX_WAIT_MS * NM_MS;
    if (nm_session.request.answered && strcmp(policy(), "wait") != 0)
        return QUEUED_NS;
    return nm_session.refused ? REFUSED_NS : timeout_ns;
}

static void away_while_asking(void)
{
    char line[NM_LINE_BYTES];
    const char *rule = policy();
    bool waits = strcmp(rule, "wait") == 0;
    snprintf(line, sizeof line, NM_MANAGER_NO_ANSWER, nm_session.channel.address,
             nm_session.refused ? nm_session.fault : NM_SILENCE,
             waits                      ? NM_THEN_WAITS
             : strcmp(rule, "cpu") == 0 ? NM_THEN_ON_CPU
                                        : NM_THEN_NO_GPU,
             rule);
    if (waits) {
        nm_session.trying = true;
        nm_change_state(NM_EVENT_NO_ANSWER, line);
    } else if (strcmp(rule, "cpu") == 0) {
        nm_become_cpu(NM_EVENT_CPU_INSTEAD, line);
    } else {
        nm_become_final(NM_EVENT_NO_ANSWER, line);
    }
}

static void away_while_held(void)
{
    char line[NM_LINE_BYTES];
    if (nm_session.told_away)
        return;
    nm_session.told_away = true;
    snprintf(line, sizeof line, NM_MANAGER_NO_ANSWER_WHILE_HELD, nm_session.channel.address,
             nm_session.refused ? nm_session.fault : NM_SILENCE);
    nm_say_later(line);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the silence is reported; NEVER while the manager answers. While it answers, the manager
   keeps the user's own limit. */
static uint64_t told_at_ns(void)
{
    if (nm_session.silent_since_ns == 0)
        return NEVER;
    if (nm_session.state == NODEMGR_HELD)
        return nm_session.told_away ? NEVER : nm_session.silent_since_ns + TIMEOUT_MS * NM_MS;
    return nm_underway() ? nm_session.silent_since_ns + wait_timeout_ns() : NEVER;
}

static uint64_t given_up_at_ns(void)
{
    if (nm_session.silent_since_ns == 0 || !nm_underway() || !nm_session.request.has_wait)
        return NEVER;
    return later(nm_session.request.deadline_ns, nm_session.silent_since_ns + REFUSED_NS);
}

static void give_up(void)
{
    char line[NM_LINE_BYTES];
    snprintf(line, sizeof line, NM_WAITED_FOR_MANAGER, (int)(nm_session.request.wait_ms / 1000),
             nm_session.channel.address);
    nm_become_refused(line, true);
}

static void mind_silence(uint64_t now_ns)
{
    if (now_ns >= given_up_at_ns())
        give_up();
    else if (now_ns < told_at_ns())
        return;
    else if (nm_session.state == NODEMGR_HELD)
        away_while_held();
    else
        away_while_asking();
}

/* Over UDP the manager may have moved, or the environment's key was renewed: both are read again
   in the middle of the timeout. */
static void look_again_in_silence(uint64_t now_ns)
{
    uint64_t half_ns =
        nm_conf_number(&nm_session.conf, "timeout_ms", TIMEOUT_MS) % NM_MAX_WAIT_MS * NM_MS / 2;
    if (!nm_session.channel.udp || nm_session.channel.fd < 0 || nm_session.silent_since_ns == 0)
        return;
    if (now_ns <
        later(nm_session.silent_since_ns, nm_session.opened_ns) + later(half_ns, RETRY_FIRST_NS))
        return;
    nm_drop_channel();
    nm_conf_read(&nm_session.conf);
    nm_session.retry_at_ns = now_ns;
}

/* -- due work -- */

void nm_step(void)
{
    uint64_t now_ns = nm_now_ns();
    if (!nm_busy()) {
        nm_drop_channel();
        return;
    }
    look_again_in_silence(now_ns);
    if (connect_when_due(now_ns))
        for (unsigned row = 0; row < NM_PENDING_COUNT; row++)
            nm_send_when_due((enum nm_pending)row, now_ns);
    if (beats() && now_ns >= nm_session.next_beat_ns)
        nm_beat(now_ns);
    mind_silence(now_ns);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t nm_next_due_ns(void)
{
    uint64_t due = NEVER;
    if (nm_session.channel.fd < 0)
        due = nm_busy() ? nm_session.retry_at_ns : NEVER;
    for (unsigned row = 0; row < NM_PENDING_COUNT && nm_session.channel.fd >= 0; row++)
        if (may_send((enum nm_pending)row))
            due = earlier(due, nm_session.pending[row].due_ns);
    if (beats())
        due = earlier(due, nm_session.next_beat_ns);
    /* in NO_MANAGER it is reported already; the line changes with each attempt */
    if (nm_session.state != NODEMGR_NO_MANAGER)
        due = earlier(due, told_at_ns());
    return earlier(due, given_up_at_ns());
}
