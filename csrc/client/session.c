/* session.c: the session, its lock and states, forks, waiting threads; see session.h. */
#include "client/messages.h"
#include "client/session.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST_NS (3600 * NM_SECOND)
#define GRACE_NS (2 * NM_SECOND) /* a thread that comes later has left by a longjmp */

struct nm_session nm_session = {
    .channel = {.fd = -1},
    .ledger = {.limits_fd = -1, .usage_fd = -1},
    .private_ledger = {.limits_fd = -1, .usage_fd = -1},
    .pump_fd = -1,
    .orphan_fd = -1,
};

_Atomic(const struct nm_lease *) nm_held_lease;
static const _Atomic uint32_t no_hold;
const _Atomic uint32_t *_Atomic nm_hold_word = &no_hold;
static _Atomic bool prepared;

void nm_hold_lease(const struct nm_lease *lease)
{
    atomic_store(&nm_held_lease, lease);
    atomic_store(&nm_hold_word,
                 lease != NULL ? &lease->ledger.limits->slot_hold[lease->slot] : &no_hold);
}

/* A child has its parent's memory, but not its threads or its lease. Its descriptors are closed
   and not shut down, since the parent uses them. */
static void become_child(void)
{
    uint32_t number = nm_session.lease_number, next = nm_session.lease_next;
    nm_hold_lease(NULL);
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

/* A thread must not be cancelled while it holds the lock. nodemgr_poll is the point where a
   cancellation takes effect. */
void nm_enter(void)
{
    int cancel_state;
    prepare();
    if (nm_forked()) /* a raw clone runs no handler */
        become_child();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    nm_lock(&nm_session.lock);
    nm_session.cancel_state = cancel_state;
}

/* The lines are written without the lock: stderr may be slow. */
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

/* One row for each event of transitions.def; one bit for each state before. */
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

/* An error in this library. The program goes on, and the user is asked to report it. */
static void refuse(enum nm_event event)
{
    char line[160];
    snprintf(line, sizeof line, NM_WRONG_EVENT, (int)event, (int)nm_session.state);
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
    if (now == NULL || strcmp(now, value) != 0) /* each publication leaks a few bytes */
        nm_env_publish(name, value);
}

void nm_publish_visible(const char *value)
{
    nm_copy(nm_session.original.published, sizeof nm_session.original.published, value);
    publish("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    publish("CUDA_VISIBLE_DEVICES", value);
    publish("NODEMGR_VISIBLE", value);
}

void nm_publish_threads(uint64_t percent)
{
    static const char mps[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", mark[] = "NODEMGR_THREADS";
    const char *now = nm_env_get(mps), *ours = nm_env_get(mark);
    char value[24];
    uint64_t wished;
    bool users = now != NULL && (ours == NULL || strcmp(now, ours) != 0);
    if (percent == 0 || percent > 100 ||
        (users && nm_number(now, strlen(now), &wished) && wished > 0 && wished < percent))
        return;
    snprintf(value, sizeof value, "%u", (unsigned)percent);
    publish(mps, value);
    publish(mark, value);
}

void nm_become_cpu(enum nm_event event, const char *line)
{
    nm_stop_asking();
    if (!nm_session.request.hidden)
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
    nm_session.timed_out = waited;
    if (!nm_conf_is(&nm_session.conf, "no_gpu", "cpu")) {
        nm_become_final(NM_EVENT_REFUSED, reason);
        return;
    }
    nm_session.waited_in_vain = nm_session.waited_in_vain || waited;
    snprintf(line, sizeof line, NM_ON_THE_CPU, reason);
    nm_become_cpu(NM_EVENT_CPU_INSTEAD, line);
}

bool nm_is_prepared(void)
{
    return atomic_load(&prepared);
}

/* -- waiting: one thread at a time polls the socket, the others wait for the word `events` -- */

/* While a lease is held, the polling thread is the beating one: native, since a Python thread
 * waits for the GIL, and with all signals blocked. It starts with the lease. On the UNIX socket
 * it makes no system call but poll and futex while the manager sends nothing, since a program
 * may confine itself (seccomp) after its first use of CUDA. Only when the main thread has ended
 * does it read /proc/self/stat at each beat, to end as the last thread. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int whole_ms(uint64_t duration_ns)
{
    return (int)(duration_ns / NM_MS + (duration_ns % NM_MS != 0));
}

static bool wait_for_the_pumper(uint64_t until_ns)
{
    uint32_t seen = atomic_load(&nm_session.events);
    uint64_t now_ns = nm_now_ns();
    nm_leave();
    bool uninterrupted =
        until_ns <= now_ns || nm_word_wait(&nm_session.events, seen, until_ns - now_ns);
    nm_enter();
    return uninterrupted;
}

bool nm_pump(uint64_t until_ns)
{
    nm_step();
    uint64_t now_ns = nm_now_ns(),
             wake_ns = earlier(earlier(until_ns, nm_next_due_ns()), now_ns + MOST_NS);
    uint64_t timeout_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    if (nm_session.pumping && now_ns < nm_session.pump_until_ns)
        return wait_for_the_pumper(earlier(wake_ns, nm_session.pump_until_ns));
    uint32_t token = ++nm_session.pump_token;
    struct pollfd ready = {.fd = nm_session.channel.fd, .events = POLLIN}; /* -1 is ignored */
    nm_session.pumping = true;
    nm_session.pump_fd = ready.fd;
    nm_session.pump_until_ns = now_ns + timeout_ns + GRACE_NS;
    int cancel_state = nm_session.cancel_state;
    /* also here: a cancelled thread would leave the others without a polling thread */
    nm_session.cancel_state = PTHREAD_CANCEL_DISABLE;
    nm_leave();
    int count = poll(&ready, 1, whole_ms(timeout_ns));
    bool interrupted = count < 0 && errno == EINTR;
    nm_enter();
    nm_session.cancel_state = cancel_state;
    if (nm_session.pump_token != token || !nm_session.pumping)
        return !interrupted;
    nm_session.pumping = false;
    if (nm_session.orphan_fd >= 0)
        close(nm_session.orphan_fd);
    nm_session.orphan_fd = nm_session.pump_fd = -1;
    if (count > 0)
        nm_receive_all();
    if (nm_session.state == NODEMGR_HELD)
        nm_start_thread();
    nm_step();
    nm_wake();
    return !interrupted;
}

void nm_await_answer(enum nm_pending row, uint64_t timeout_ns)
{
    uint64_t end_ns = nm_now_ns() + timeout_ns;
    while (nm_session.pending[row].wanted && nm_now_ns() < end_ns)
        nm_pump(end_ns);
    nm_session.pending[row].wanted = false;
}

static void (*_Atomic chore)(void);

void nm_client_set_chore(void (*wanted)(void))
{
    atomic_store(&chore, wanted);
}

/* Called without the lock, since it may discharge. */
static void do_chore(void)
{
    void (*wanted)(void) = atomic_load(&chore);
    if (wanted != NULL)
        wanted();
}

static void *beat_for_ever(void *unused)
{
    (void)unused;
    /* the thread must not keep the process alive once all threads of the program have ended */
    struct nm_thread thread = {0};
    nm_enter();
    while (nm_session.state == NODEMGR_HELD && !thread.last) {
        nm_pump(UINT64_MAX);
        nm_leave();
        do_chore();
        nm_thread_look(&thread);
        nm_enter();
    }
    nm_session.thread = false;
    nm_leave();
    nm_thread_end(&thread);
    return NULL;
}

void nm_start_thread(void)
{
    if (nm_session.thread)
        return;
    nm_session.thread = true;
    int error = nm_thread_start(beat_for_ever, 0);
    if (error != 0) {
        char line[NM_LINE_BYTES];
        nm_session.thread = false;
        snprintf(line, sizeof line, NM_NO_BEATING_THREAD, strerror(error));
        nm_say_later(line);
    }
}
