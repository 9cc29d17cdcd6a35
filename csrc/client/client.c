/* client.c: the functions of client.h. Each takes the session's lock, calls the session's files,
 * and leaves it.
 */
#include "client/client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/messages.h"
#include "client/session.h"

#define ANSWER_NS (NM_SECOND / 2) /* limit for the answer to a CANCEL or RELEASE */
#ifndef NM_WORD_S
#define NM_WORD_S 1
#endif
#define WORD_NS (NM_WORD_S * NM_SECOND) /* limit for the manager's reason for a lost lease */
#define STALLED_NS \
    (3 * NM_SECOND) /* limit for the manager to see a stalled slot; it checks once a second */
#define LOOK_NS (20 * NM_MS)      /* only the slot itself shows that it is live again */
#define EXIT_LOCK_NS (100 * NM_MS) /* on a busy machine the holder of the lock may not be running */

static _Atomic(int (*)(void)) python_waiter;

/* -- for Python -- */

int nodemgr_abi(void)
{
    return 1;
}

int nodemgr_managed(void)
{
    nm_enter();
    bool managed = nm_conf_read(&nm_session.conf);
    nm_leave();
    return managed;
}

int nodemgr_setting(const char *key, char *out, size_t size)
{
    nm_enter();
    int length =
        nm_conf_read(&nm_session.conf) ? nm_conf_get(&nm_session.conf, key, out, size) : -1;
    nm_leave();
    return length;
}

static int told(enum nodemgr_state state, char *line, size_t size)
{
    if (line != NULL)
        nm_copy(line, size, nm_session.line);
    nm_leave();
    return (int)state;
}

static int begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command,
                 bool starts)
{
    nm_enter();
    if (nm_session.state != NODEMGR_HELD && !nm_underway()) {
        if (nm_conf_read(&nm_session.conf))
            nm_start_request(gpus, memory_bytes, wait_ms, command, starts);
        else
            nm_change_state(NM_EVENT_UNMANAGED, "");
    } else if (nm_session.state == NODEMGR_HELD) {
        nm_start_thread(); /* if no thread could be started before */
    }
    return told(nm_session.state, NULL, 0);
}

int nodemgr_begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    return begin(gpus, memory_bytes, wait_ms, command, false);
}

int nodemgr_begin_program(const char *command)
{
    return begin(-1, -1, -1, command, true);
}

int nodemgr_timed_out(void)
{
    nm_enter();
    bool timed_out = nm_session.timed_out;
    nm_leave();
    return timed_out;
}

int nodemgr_poll(int timeout_ms, char *line, size_t size)
{
    uint64_t end_ns = nm_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * NM_MS;
    bool interrupted = false;
    nm_enter();
    uint32_t seen = nm_session.changes;
    for (bool due = false; !due && !interrupted && nm_underway() && nm_session.changes == seen;
         due = nm_now_ns() >= end_ns)
        interrupted = !nm_pump(end_ns);
    int state = told(nm_session.state, line, size);
    pthread_testcancel();
    return state;
}

int nodemgr_cancel(void)
{
    nm_enter();
    if (nm_underway()) {
        uint64_t rid = nm_session.pending[NM_ACQUIRE].rid;
        bool heard = nm_session.channel.fd >= 0;
        nm_become_final(NM_EVENT_CANCELLED, "");
        if (heard) {
            nm_want(NM_CANCEL, rid);
            nm_await_answer(NM_CANCEL, ANSWER_NS);
        }
        nm_step();
    }
    return told(nm_session.state, NULL, 0);
}

int nodemgr_release(void)
{
    nm_enter();
    if (nm_session.state == NODEMGR_HELD) {
        nm_hold_lease(NULL);
        nm_want(NM_RELEASE, nm_fresh_rid());
        nm_become_final(NM_EVENT_RELEASED, "");
        nm_await_answer(NM_RELEASE, ANSWER_NS);
        nm_step();
    }
    return told(nm_session.state, NULL, 0);
}

int nodemgr_state(char *line, size_t size)
{
    nm_enter();
    return told(nm_session.state, line, size);
}

/* Of the environment; of a task that named its memory, its own. */
static uint64_t limit_of(const struct nm_lease *lease, uint32_t row)
{
    uint64_t limit, used;
    nm_ledger_look(&lease->ledger, row, lease->slot, lease->generation, &limit, &used);
    return limit;
}

static size_t put_figure(char *out, size_t size, size_t used, const char *name,
                         uint64_t (*figure)(const struct nm_lease *, uint32_t),
                         const struct nm_lease *lease)
{
    for (uint32_t i = 0; i < lease->gpu_count && used < size; i++) {
        uint64_t value =
            figure != NULL ? figure(lease, lease->gpu[i].row) : lease->gpu[i].row;
        used += (size_t)snprintf(out + used, size - used, "%s%s%llu", i == 0 ? name : "",
                                 i == 0 ? "=" : ",", (unsigned long long)value);
    }
    return used < size ? used + (size_t)snprintf(out + used, size - used, "\n") : used;
}

int nodemgr_lease(char *out, size_t size)
{
    char env[65] = "";
    nm_enter();
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    size_t used = 0;
    if (lease != NULL) {
        nm_conf_get(&nm_session.conf, "env", env, sizeof env);
        used = (size_t)snprintf(out, size, "lease=%s\ntask=%s\nenv=%s\nvisible=%s\nenforced=%d\n",
                                nm_session.lease_name, nm_session.task, env, nm_session.visible,
                                lease->ledger.limits_writable == NULL);
        for (uint32_t i = 0; i < lease->gpu_count && used < size; i++)
            used += (size_t)snprintf(out + used, size - used, "%s%s%s", i == 0 ? "gpus=" : ",",
                                     lease->gpu[i].uuid, i + 1 == lease->gpu_count ? "\n" : "");
        if (used < size)
            used = put_figure(out, size, used, "rows", NULL, lease);
        if (used < size)
            used = put_figure(out, size, used, "limits", limit_of, lease);
    }
    nm_leave();
    return lease != NULL && used < size ? (int)used : -1;
}

int nodemgr_ask(const char *what, const char *argument, char *out, size_t size, int timeout_ms)
{
    return nodemgr_ask_file(what, argument, out, size, timeout_ms, NULL);
}

int nodemgr_ask_file(const char *what, const char *argument, char *out, size_t size, int timeout_ms,
                     int *fd)
{
    uint64_t timeout_ns = (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * NM_MS,
             end_ns = nm_now_ns() + timeout_ns;
    struct nm_question *question = &nm_session.question;
    if (fd != NULL)
        *fd = -1;
    if (size == 0)
        return -1;
    nm_copy(out, size, NM_NO_ANSWER);
    nm_enter();
    while (question->busy && nm_now_ns() < end_ns)
        nm_pump(end_ns);
    if (question->busy || !nm_conf_read(&nm_session.conf)) {
        nm_leave();
        return -1;
    }
    *question = (struct nm_question){.busy = true, .out = out, .size = size, .fd = fd};
    nm_copy(question->what, sizeof question->what, what);
    nm_copy(question->argument, sizeof question->argument, argument != NULL ? argument : "");
    if (nm_session.channel.fd < 0 && !nm_underway() && nm_session.state != NODEMGR_HELD)
        nm_session.retry_at_ns = 0;
    uint32_t given_back = nm_session.given_back;
    if (strcmp(question->what, "release") == 0 &&
        strcmp(question->argument, nm_session.lease_name) == 0)
        nm_session.given_back = nm_session.lease_number;
    nm_want(NM_ASK, nm_fresh_rid());
    do /* once in any case: the thread may have lost the processor for longer than the timeout */
        nm_pump(end_ns);
    while (nm_session.pending[NM_ASK].wanted && nm_now_ns() < end_ns);
    bool answered = !nm_session.pending[NM_ASK].wanted && !question->failed;
    int length = answered ? (int)question->length : -1;
    if (!answered || strstr(out, "\"error\"") != NULL)
        nm_session.given_back = given_back;
    if (nm_session.pending[NM_ASK].wanted)
        nm_copy(out, size, NM_NO_ANSWER);
    nm_session.pending[NM_ASK].wanted = false;
    question->busy = false;
    question->out = NULL;
    question->fd = NULL;
    nm_step();
    nm_wake();
    nm_leave();
    return length;
}

void nodemgr_set_waiter(int (*waiter)(void))
{
    atomic_store(&python_waiter, waiter);
}

int (*nm_client_waiter(void))(void)
{
    return atomic_load(&python_waiter);
}

void nodemgr_progress(uint64_t done, uint64_t total)
{
    nm_enter();
    nm_session.progress_done = done;
    nm_session.progress_total = total;
    nm_leave();
}

void nodemgr_publish_env(const char *name, const char *value)
{
    nm_env_publish(name, value);
}

int nodemgr_is_stderr(int adopt)
{
    if (adopt != 0)
        nm_say_adopt();
    return nm_say_is_stderr();
}

/* -- for the shim -- */

/* The ledger has the slot as stalled (this process was stopped) or fenced. The process beats,
   and waits until the slot is live again, or until the reason for the loss has come. */
static void await_word(const struct nm_lease *lease, int state)
{
    nm_enter();
    uint64_t now_ns = nm_now_ns(), end_ns = now_ns + (state == NM_STALLED ? STALLED_NS : WORD_NS);
    if (nm_session.told_lost == lease->number)
        end_ns = 0; /* the reason is known */
    else
        nm_beat(now_ns);
    while (atomic_load(&nm_held_lease) == lease &&
           nm_ledger_slot_state(&lease->ledger, lease->slot, lease->generation) == state &&
           (now_ns = nm_now_ns()) < end_ns)
        nm_pump(now_ns + LOOK_NS);
    nm_leave();
}

int nm_client_charge(uint32_t row, uint64_t bytes, uint32_t *number)
{
    const struct nm_lease *lease = nm_client_lease();
    int result = lease != NULL
                     ? nm_ledger_reserve(&lease->ledger, row, lease->slot, lease->generation, bytes)
                     : NM_FENCED;
    if (lease != NULL && (result == NM_STALLED || result == NM_FENCED)) {
        await_word(lease, result);
        lease = nm_client_lease();
        result = lease != NULL
                     ? nm_ledger_reserve(&lease->ledger, row, lease->slot, lease->generation, bytes)
                     : NM_FENCED;
    }
    *number = lease != NULL ? lease->number : 0;
    return result;
}

void nm_client_discharge(uint32_t number, uint32_t row, uint64_t bytes)
{
    const struct nm_lease *lease = nm_client_lease();
    if (lease != NULL && lease->number == number) {
        nm_ledger_release(&lease->ledger, row, lease->slot, lease->generation, bytes);
        return;
    }
    if (nm_forked())
        return;
    nm_enter();
    const struct nm_lease *earlier = nm_lease_numbered(number);
    if (earlier != NULL)
        nm_ledger_release(&earlier->ledger, row, earlier->slot, earlier->generation, bytes);
    nm_leave();
}

void nm_client_tell_lost(void)
{
    nm_enter();
    nm_tell_lost();
    nm_leave();
}

/* -- the end -- */

static pid_t reporting_process;

static void report_status(int status, void *socket)
{
    unsigned char byte = (unsigned char)status;
    if (getpid() == reporting_process)
        send((int)(intptr_t)socket, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int nodemgr_report_status(int fd)
{
    reporting_process = getpid();
    return on_exit(report_status, (void *)(intptr_t)fd);
}

/* Over UDP the packet is sent several times, since an exit does not wait for the answer. If all
   are lost, the manager ends the lease by its timeout. */
static void say_release(void)
{
    enum { TIMES_OVER_UDP = 3 };
    nm_want(NM_RELEASE, nm_fresh_rid());
    for (int time = 0; time < (nm_session.channel.udp ? TIMES_OVER_UDP : 1); time++) {
        nm_session.pending[NM_RELEASE].due_ns = 0;
        nm_send_when_due(NM_RELEASE, nm_now_ns());
    }
}

/* Report a normal exit if the kernel does not: a lease over UDP, a request that waits. On the
 * UNIX socket a holder sends nothing. The kernel reports its death when its memory is gone, and
 * a program that has confined itself (seccomp) would die at a sendmsg. */
__attribute__((destructor)) static void say_goodbye(void)
{
    const struct nm_lease *lease = atomic_load(&nm_held_lease);
    if (!nm_is_prepared() || nm_forked() || !nm_lock_within(&nm_session.lock, EXIT_LOCK_NS))
        return;
    bool open = nm_session.channel.fd >= 0,
         held = nm_session.state == NODEMGR_HELD && lease != NULL;
    if (open && held && nm_session.channel.udp) {
        say_release();
        nm_session.pending[NM_REJOIN].wanted = false;
        nm_session.state = nm_next_state(NM_EVENT_RELEASED); /* no beat comes after this */
    } else if (open && nm_underway()) {
        nm_want(NM_CANCEL, nm_session.pending[NM_ACQUIRE].rid);
        nm_send_when_due(NM_CANCEL, nm_now_ns());
    }
    nm_unlock(&nm_session.lock);
    for (uint64_t end_ns = nm_now_ns() + EXIT_LOCK_NS;
         atomic_load(&nm_session.speaking) > 0 && nm_now_ns() < end_ns;)
        /* give a thread that reports a refused allocation time to write its line */
        nm_pause_ns(NM_MS);
}
