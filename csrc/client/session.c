/* session.c: see session.h. */
#include "client/session.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct nm_session nm_session = {
    .channel = {.fd = -1},
    .ledger = {.limits_fd = -1, .usage_fd = -1},
    .private_ledger = {.limits_fd = -1, .usage_fd = -1},
    .pump_fd = -1,
    .orphan_fd = -1,
};

_Atomic(const struct nm_lease *) nm_held_lease;
static _Atomic bool prepared;

/* A child has its parent's memory, but neither its threads nor its lease. Descriptors are
   closed, never shut down: the parent uses them. */
static void become_child(void)
{
    uint32_t number = nm_session.lease_number, next = nm_session.lease_next;
    atomic_store(&nm_held_lease, NULL);
    nm_channel_close(&nm_session.channel);
    struct nm_ledger ledger = nm_session.ledger;
    struct nm_file_id limits_id = nm_session.limits_id, usage_id = nm_session.usage_id;
    memset(&nm_session, 0, sizeof nm_session);
    nm_channel_init(&nm_session.channel);
    nm_session.ledger = ledger;
    nm_session.limits_id = limits_id;
    nm_session.usage_id = usage_id;
    nm_session.private_ledger.limits_fd = nm_session.private_ledger.usage_fd = -1;
    nm_session.pump_fd = nm_session.orphan_fd = -1;
    nm_session.lease_number = number;
    nm_session.lease_next = nm_session.lease_first = next;
    nm_fork_mark();
}

static void prepare(void)
{
    if (atomic_exchange(&prepared, true))
        return;
    nm_say_prepare();
    nm_fork_mark();
    pthread_atfork(NULL, NULL, become_child);
}

/* A thread that is cancelled while it holds the lock would leave it held for ever; nodemgr_poll
   is where it may be. */
void nm_enter(void)
{
    int cancel_state;
    prepare();
    if (nm_forked()) /* by a clone of its own making, without the handlers */
        become_child();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    nm_lock(&nm_session.lock);
    nm_session.cancel_state = cancel_state;
}

/* What was to be said is said without the lock: stderr may be slow. */
void nm_leave(void)
{
    char saying[NM_SAYINGS][NM_LINE_BYTES];
    unsigned count = nm_session.sayings;
    if (count > 0)
        memcpy(saying, nm_session.saying, sizeof saying);
    nm_session.sayings = 0;
    int cancel_state = nm_session.cancel_state;
    atomic_fetch_add(&nm_session.speaking, 1);
    nm_unlock(&nm_session.lock);
    for (unsigned i = 0; i < count; i++)
        nm_say("%s", saying[i]);
    atomic_fetch_sub(&nm_session.speaking, 1);
    pthread_setcancelstate(cancel_state, NULL);
}

void nm_say_later(const char *text)
{
    if (nm_session.sayings < NM_SAYINGS)
        nm_copy(nm_session.saying[nm_session.sayings++], NM_LINE_BYTES, text);
}

void nm_wake(void)
{
    atomic_fetch_add(&nm_session.events, 1);
    nm_word_wake(&nm_session.events);
}

/* Each event's row of transitions.def; a bit for each state before. */
static const struct {
    unsigned before;
    enum nodemgr_state after;
} transitions[] = {
#define S(state) | (1u << NODEMGR_##state)
#define NM_TRANSITION(event, from, to, reason) [NM_EVENT_##event] = {0 from, NODEMGR_##to},
#include "client/transitions.def"
};

static bool is_allowed(enum nm_event event)
{
    return (transitions[event].before & (1u << nm_session.state)) != 0;
}

enum nodemgr_state nm_next_state(enum nm_event event)
{
    return is_allowed(event) ? transitions[event].after : nm_session.state;
}

/* An error of this library: the program goes on as it was, and its user can report it. */
static void refuse(enum nm_event event)
{
    char line[160];
    snprintf(line, sizeof line,
             "internal error: event %d in state %d of the client was ignored; please report it",
             (int)event, (int)nm_session.state);
    if (!nm_session.told_refusal)
        nm_say_later(line);
    nm_session.told_refusal = true;
}

void nm_change_state(enum nm_event event, const char *line)
{
    enum nodemgr_state state = nm_next_state(event);
    char fresh[NM_LINE_BYTES];
    if (!is_allowed(event)) {
        refuse(event);
        return;
    }
    nm_copy(fresh, sizeof fresh, line);
    nm_printable(fresh);
    if (nm_session.state == state && strcmp(nm_session.line, fresh) == 0)
        return;
    nm_session.state = state;
    nm_copy(nm_session.line, sizeof nm_session.line, fresh);
    nm_session.changes++;
    nm_wake();
}

bool nm_underway(void)
{
    return nm_session.state == NODEMGR_WAITING ||
           (nm_session.state == NODEMGR_NO_MANAGER && nm_session.trying);
}

bool nm_busy(void)
{
    if (nm_session.state == NODEMGR_HELD || nm_underway())
        return true;
    for (unsigned i = 0; i < NM_PENDING_COUNT; i++)
        if (nm_session.pending[i].wanted && i != NM_HELLO)
            return true;
    return false;
}

void nm_stop_asking(void)
{
    nm_session.pending[NM_ACQUIRE].wanted = nm_session.pending[NM_CANCEL].wanted =
        nm_session.pending[NM_REJOIN].wanted = false;
    nm_session.trying = false;
}

static void publish(const char *name, const char *value)
{
    const char *now = nm_env_get(name);
    if (now == NULL || strcmp(now, value) != 0) /* each publication leaks a little */
        nm_env_publish(name, value);
}

void nm_publish_visible(const char *value)
{
    nm_copy(nm_session.original.published, sizeof nm_session.original.published, value);
    publish("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    publish("CUDA_VISIBLE_DEVICES", value);
    publish("NODEMGR_VISIBLE", value);
}

void nm_become_cpu(enum nm_event event, const char *line)
{
    nm_stop_asking();
    if (!nm_session.request.wish.hidden)
        nm_publish_visible("");
    nm_change_state(event, line);
}

void nm_become_final(enum nm_event event, const char *line)
{
    nm_stop_asking();
    nm_change_state(event, line);
}

void nm_become_refused(const char *reason, bool waited)
{
    char line[NM_LINE_BYTES];
    if (!nm_conf_is(&nm_session.conf, "no_gpu", "cpu")) {
        nm_become_final(NM_EVENT_REFUSED, reason);
        return;
    }
    nm_session.waited_in_vain = nm_session.waited_in_vain || waited;
    snprintf(line, sizeof line, "%.800s; the program goes on on the CPU (no_gpu=cpu)", reason);
    nm_become_cpu(NM_EVENT_CPU_INSTEAD, line);
}

bool nm_is_prepared(void)
{
    return atomic_load(&prepared);
}
