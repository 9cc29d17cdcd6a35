/* keeper.c: the thread of a gated process that polls events, and beats; see gpu_gate.h.
 *
 * Knows: when each gate wants its next visit. Must not know: the reason.
 *
 * It sleeps while no gate has the token, work in flight, or an urgent bit. It wakes once a second
 * then, to end with the program's last thread. It launches nothing.
 */
#include "hooks/interpose.h"
#include "launch/gpu_gate.h"

#define REST_NS (1000000 * NM_US)
enum { CAPTURE_MODE_RELAXED = 2 };

static _Atomic bool running, resting;
static _Atomic uint32_t calls;

static uint64_t visit_all(void)
{
    uint64_t least_ns = REST_NS;
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        struct nm_gpu_gate *gate = nm_gate_at(row);
        uint64_t sleep_ns = gate != NULL ? nm_turn_tend(gate, nm_now_ns()) : REST_NS;
        least_ns = sleep_ns < least_ns ? sleep_ns : least_ns;
    }
    return least_ns;
}

static void *keep(void *unused)
{
    (void)unused;
    struct nm_thread thread = {0};
    int mode = CAPTURE_MODE_RELAXED; /* of this thread: its queries end no capture */
    nm_real_cuThreadExchangeStreamCaptureMode(&mode);
    while (!thread.last) {
        uint32_t seen = atomic_load(&calls);
        uint64_t sleep_ns = visit_all();
        if (sleep_ns == REST_NS) {
            atomic_store(&resting, true);
            if (visit_all() == REST_NS) /* a launch may have come before it saw the flag */
                nm_word_wait(&calls, seen, REST_NS);
            atomic_store(&resting, false);
        } else {
            nm_nap_ns(sleep_ns);
        }
        nm_thread_look(&thread);
    }
    atomic_store(&running, false);
    if (!nm_thread_leave())
        nm_thread_end(&thread);
    return NULL;
}

/* A process that can start no thread goes on: its waiting threads poll for themselves, and its
   idle token is taken by the others. */
void nm_keeper_wake(void)
{
    if (!atomic_load_explicit(&running, memory_order_relaxed) && !atomic_exchange(&running, true) &&
        nm_thread_start(keep, 0) != 0)
        atomic_store(&running, false);
    if (!atomic_load(&resting))
        return;
    atomic_fetch_add(&calls, 1);
    nm_word_wake(&calls);
}

void nm_keeper_forget(void)
{
    atomic_store(&running, false);
    atomic_store(&resting, false);
}
