/* gate_wait.c: a thread that waits in the launch gate, or for the memory of a suspended process; see
 * gpu_gate.h.
 *
 * Knows: how long to spin and to sleep, signals, the line of a long wait. Must not know: the
 * order of processes.
 */
#include "client/client.h"
#include "client/messages.h"
#include "launch/gpu_gate.h"

#define MS (1000 * NM_US)
#define SPIN_NS (50 * NM_US)
#define LONG_SLEEP_NS (10 * MS) /* the manager wakes a closed or suspended process */
#define LINE_NS (2000 * MS)
#define LEAVE_NS (5 * MS)       /* from then on, other threads of Python run */
#define SIGNALS_NS (20 * MS)
#define ASK_AGAIN_NS (5000 * MS)
#define LEAST_NAP_NS (20 * NM_US)
#define LATE_NAP_NS (200 * NM_US) /* where work takes longer than was expected */

static struct nm_launch_host host;

void nm_launch_set_host(const struct nm_launch_host *wanted)
{
    host = *wanted;
}

/* One wait, as the program sees it. */
struct pause {
    struct nm_turn_wait turn;
    uint64_t signals_ns; /* when it last asked for signals */
    struct nm_interrupt interrupt;
    void *left; /* of the host */
    uint64_t asked_ns; /* when it last asked for the resumption, or came for its work alone */
    bool told;
};

static void sleep_on(struct nm_gpu_gate *gate, uint32_t seen, uint64_t timeout_ns)
{
    nm_shared_word_wait(&nm_own_row(gate)->wake, seen, timeout_ns);
}

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Sleeps while the GPU has enough work of this process, and spins at the end of it. */
static void nap(struct nm_gpu_gate *gate, bool is_drain, uint64_t now_ns)
{
    uint64_t until_ns = atomic_load(&gate->until_ns);
    uint64_t in_flight_ns = atomic_load(&gate->in_flight_ns);
    uint64_t nap_ns = 0;
    if (until_ns > now_ns + NM_LEAD_NS)
        nap_ns = until_ns - now_ns - NM_LEAD_NS;
    else if (now_ns > until_ns + SPIN_NS)
        nap_ns = (now_ns - until_ns) / 4;
    uint64_t most_ns = is_drain ? in_flight_ns - in_flight_ns / 8 : in_flight_ns / 2;
    if (nap_ns > most_ns + LEAST_NAP_NS)
        nap_ns = most_ns + LEAST_NAP_NS;
    if (nap_ns > LEAST_NAP_NS)
        nm_nap_ns(nap_ns);
    else
        relax();
}

/* The line of a closed gate names the reason of the manager. */
static void say_closed(uint64_t word)
{
    if (nm_word_state(word) == NM_LAUNCH_PAUSED)
        nm_say(NM_GATE_PAUSED, (int)nm_word_share(word));
    else if (nm_word_has_share(word))
        nm_say(NM_GATE_STALLED);
    else
        nm_say(NM_GATE_CLOSED);
}

static void say(enum nm_answer answer, uint64_t word)
{
    if (answer == NM_WAIT_SUSPENDED)
        nm_say(NM_GATE_SUSPENDED);
    else if (answer == NM_WAIT_CLOSED)
        say_closed(word);
    else
        nm_say(NM_GATE_BUSY);
}

/* Work that seldom comes: the interpreter lock, signals, the line. False: the wait ends. */
static bool attend(struct pause *pause, enum nm_answer answer, uint64_t word, uint64_t now_ns)
{
    uint64_t waited_ns = now_ns - pause->turn.began_ns;
    if (waited_ns > SIGNALS_NS && now_ns - pause->signals_ns > SIGNALS_NS) {
        pause->signals_ns = now_ns;
        if (host.interrupted != NULL && host.interrupted(&pause->interrupt))
            return false;
    }
    if (waited_ns > LEAVE_NS && pause->left == NULL && host.leave != NULL)
        pause->left = host.leave();
    if (waited_ns > LINE_NS && !pause->told) {
        pause->told = true;
        say(answer, word);
    }
    return true;
}

static void begin(struct nm_gpu_gate *gate, struct pause *pause, uint64_t now_ns)
{
    if (pause->turn.began_ns == 0) {
        pause->turn.began_ns = now_ns;
        atomic_fetch_add(&gate->waiters, 1);
    }
    /* again at each turn: another process may have cleared it */
    if (atomic_load_explicit(&nm_own_row(gate)->waiting_since_ns, memory_order_relaxed) == 0)
        atomic_store(&nm_own_row(gate)->waiting_since_ns, now_ns);
}

/* A starved process passes without the token, and still wants it. Without its flag the holder would
   take the next turn, too. One launch alone sets no flag: it may be the last for a while. */
static void end(struct nm_gpu_gate *gate, struct pause *pause)
{
    bool is_last = pause->turn.began_ns != 0 && atomic_fetch_sub(&gate->waiters, 1) == 1;
    if (pause->turn.starved && atomic_load(&gate->in_flight_ns) > 0)
        atomic_store(&nm_own_row(gate)->waiting_since_ns, pause->turn.last_ns);
    else if (is_last)
        atomic_store(&nm_own_row(gate)->waiting_since_ns, 0);
    if (pause->left != NULL && host.enter_again != NULL)
        host.enter_again(pause->left);
}

/* For the resumption; again, since the manager may have ended meanwhile. */
static void ask_again(struct pause *pause, uint64_t now_ns)
{
    if (pause->asked_ns != 0 && now_ns - pause->asked_ns <= ASK_AGAIN_NS)
        return;
    pause->asked_ns = now_ns;
    nm_client_ask_resume();
}

static void wait_once(struct nm_gpu_gate *gate, struct pause *pause, enum nm_answer answer,
                      uint32_t seen, uint64_t now_ns)
{
    uint64_t look_ns = nm_turn_look_ns(gate, &pause->turn, now_ns);
    bool is_for_own_work = answer == NM_WAIT_WINDOW || answer == NM_WAIT_DRAIN ||
                           (pause->turn.starved && atomic_load(&gate->in_flight_ns) > 0);
    if (answer == NM_WAIT_SUSPENDED)
        ask_again(pause, now_ns);
    if (answer == NM_WAIT_CLOSED || answer == NM_WAIT_SUSPENDED)
        sleep_on(gate, seen, LONG_SLEEP_NS);
    else if (is_for_own_work)
        nap(gate, answer == NM_WAIT_DRAIN, now_ns);
    else if (look_ns < NM_SOON_NS && now_ns - pause->turn.began_ns < SPIN_NS)
        relax();
    else
        sleep_on(gate, seen, look_ns);
}

int nm_turn_await(struct nm_gpu_gate *gate, uint64_t room_ns)
{
    struct pause pause = {0};
    enum nm_answer answer;
    bool goes_on = true;
    for (;;) {
        uint32_t seen = atomic_load(&nm_own_row(gate)->wake);
        bool is_first = pause.turn.began_ns == 0;
        if (!is_first && atomic_load(&gate->in_flight_ns) > 0) {
            nm_meter_close(gate, NULL, false, true);
            nm_meter_poll(gate);
        }
        uint64_t now_ns = nm_now_ns();
        answer = nm_turn_ask(gate, &pause.turn, room_ns, now_ns);
        if (answer == NM_PASS || answer == NM_REFUSED || !goes_on)
            break;
        begin(gate, &pause, now_ns);
        if (is_first) /* its own work may have ended: it looks before it waits */
            continue;
        goes_on = attend(&pause, answer, nm_own_word(gate), now_ns);
        if (goes_on)
            wait_once(gate, &pause, answer, seen, now_ns);
        nm_gate_here(); /* a restarted manager has given fresh pages: the wait goes on there */
    }
    end(gate, &pause);
    return answer == NM_PASS ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_NOT_PERMITTED;
}

/* -- the wait of a suspended process, which needs no gate -- */

void nm_hold_sleep(uint64_t timeout_ns)
{
    const _Atomic uint32_t *word = atomic_load(&nm_hold_word);
    uint32_t seen = atomic_load(word);
    if (seen != NM_NOT_HELD)
        nm_shared_word_wait((_Atomic uint32_t *)word, seen, timeout_ns);
}

static bool is_held(enum nm_purpose purpose)
{
    enum nm_hold hold = nm_hold();
    return purpose == NM_FOR_MEMORY ? hold != NM_NOT_HELD : hold == NM_HELD;
}

int nm_hold_await(enum nm_purpose purpose)
{
    uint64_t now_ns = nm_now_ns();
    struct pause pause = {.turn.began_ns = now_ns};
    bool goes_on = true;
    if (purpose == NM_FOR_WORK)
        pause.asked_ns = now_ns;
    for (; goes_on && is_held(purpose); now_ns = nm_now_ns()) {
        goes_on = attend(&pause, NM_WAIT_SUSPENDED, 0, now_ns);
        if (goes_on) {
            ask_again(&pause, now_ns);
            nm_hold_sleep(LONG_SLEEP_NS);
        }
    }
    if (pause.left != NULL && host.enter_again != NULL)
        host.enter_again(pause.left);
    return goes_on ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_NOT_PERMITTED;
}
