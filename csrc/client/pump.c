/* pump.c: waiting: one thread at a time polls the socket for all; see session.h.
 *
 * Whoever waits is the pumper; the others wait for the word `events`. While a lease is held that is
 * a thread of our own, which
 * also beats: a native one (a Python thread starves behind the GIL), with all signals blocked,
 * started no earlier than that. On the UNIX socket it makes no system call but poll and futex while
 * the manager sends nothing: a program may have confined itself (seccomp) after its first use of
 * CUDA, to die at any other. Once the main thread has ended, the thread also reads /proc/self/stat
 * at each beat, and ends when it is the last one.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/session.h"

#define MOST_NS (3600 * NM_SECOND)
#define GRACE_NS (2 * NM_SECOND) /* a pumper that comes so late left by a longjmp */

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
    /* here, too: the others would wait for a pumper that is gone */
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

/* Without the lock: it may discharge. */
static void do_chore(void)
{
    void (*wanted)(void) = atomic_load(&chore);
    if (wanted != NULL)
        wanted();
}

static void *beat_for_ever(void *unused)
{
    (void)unused;
    /* it must not keep alive a process after its own threads have all ended */
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
    int error = nm_thread_start(beat_for_ever);
    if (error != 0) {
        char line[NM_LINE_BYTES];
        nm_session.thread = false;
        snprintf(line, sizeof line,
                 "no thread for the beats (%s): the manager may take this task for stalled",
                 strerror(error));
        nm_say_later(line);
    }
}
