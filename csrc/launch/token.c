/* token.c: the order of the processes on a GPU: one token, virtual time, priority; see gpu_gate.h.
 *
 * Knows: the words of both pages. Must not know: events, threads that wait.
 *
 * The holder of the token launches alone, for a turn that its share decides. Then the token goes to
 * the waiting process with the least virtual time (GPU time divided by share). Words of other
 * processes may be false: they can delay a process, and each delay has an end (nm_turn_ask).
 */
#include "hooks/interpose.h"
#include "launch/gpu_gate.h"

#define MS (1000 * NM_US)
#define LEAST_TURN_NS (1 * MS)
#define IDLE_NS (200 * NM_US)        /* without work in flight: the token may be taken */
#define IDLE_MOST_NS (5 * MS)
#define LEASE_NS (20 * MS)           /* without a beat of the holder: fenced by the epoch */
#define STUCK_NS (25 * MS)           /* without progress of the holder: one launch passes */
#define OWED_NS ((int64_t)(15 * MS)) /* of the own share: by no word of others */
#define OWED_URGENT_NS ((int64_t)(20 * MS))
#define OWED_LEAST_NS (-(int64_t)(40 * MS)) /* waits behind kernels of 20 ms are usual */
#define CREDIT_MOST_NS ((int64_t)(20 * MS))
#define CREDIT_LEAST_NS (-(int64_t)(100 * MS))
#define CREDIT_AGAIN_NS ((int64_t)(3 * MS))
#define DRAINED_NS (20 * NM_US)      /* in flight at a hand-over */
#define ENDING_NS (10 * NM_US)
#define DRAIN_LIMIT_NS (5 * MS)
#define RESTING_NS (1 * MS)          /* a process that comes back has no credit */
#define BACKFILL_NS (200 * NM_US)
#define BESIDE_NS (1 * MS)           /* in flight beside the holder's work, which it makes longer */
#define RELEASE_NS (10 * MS)
#define MANAGER_NS (2000 * MS)
#define URGENT_KEEP_NS (200 * NM_US)
#define TEND_NS (100 * NM_US)
#define BEAT_NS (1 * MS)
#define LOOK_MOST_NS (4 * MS) /* between two looks at work that should last longer */
#define KEEP_NS (20 * MS)
#define MOST_VIRTUAL_NS (UINT64_C(1) << 62)
enum { ACTIVE_MOST = NM_LAUNCH_SLOTS, FORCED_MOST = 3 };

/* -- the other processes -- */

static const struct nm_shares *shares_of(const struct nm_gpu_gate *gate)
{
    return atomic_load_explicit(&gate->shares, memory_order_relaxed);
}

static struct nm_turns *turns_of(const struct nm_gpu_gate *gate)
{
    return atomic_load_explicit(&gate->turns, memory_order_relaxed);
}

static uint64_t word_at(const struct nm_gpu_gate *gate, uint32_t slot)
{
    return atomic_load_explicit(&shares_of(gate)->row[slot].word, memory_order_acquire);
}

static uint64_t group_at(const struct nm_gpu_gate *gate, uint32_t slot)
{
    return atomic_load_explicit(&shares_of(gate)->row[slot].group, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* A slot whose process may launch now. */
static bool is_open(const struct nm_gpu_gate *gate, uint32_t slot)
{
    uint64_t word = word_at(gate, slot);
    const struct nm_turns_row *row = &turns_of(gate)->row[slot];
    return nm_word_state(word) == NM_LAUNCH_OPEN &&
           atomic_load_explicit(&row->generation, memory_order_relaxed) ==
               word >> NM_LAUNCH_GENERATION_SHIFT;
}

/* The processes that are active beside this one. */
struct scene {
    uint64_t shares;     /* sum of the shares of their tasks, and of the own one */
    uint32_t companions; /* of the own task, with this process */
    int next;            /* waits for the token with the least virtual time, or -1 */
    uint64_t next_virtual_ns;
};

static bool add_group(uint64_t *groups, uint32_t *count, uint64_t group)
{
    for (uint32_t i = 0; i < *count; i++)
        if (groups[i] == group)
            return false;
    groups[(*count)++] = group;
    return true;
}

static void survey(const struct nm_gpu_gate *gate, struct scene *scene)
{
    uint32_t own = atomic_load(&gate->slot), count = 1;
    uint64_t groups[ACTIVE_MOST] = {group_at(gate, own)};
    *scene = (struct scene){.shares = nm_word_share(nm_own_word(gate)), .companions = 1,
                            .next = -1, .next_virtual_ns = UINT64_MAX};
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++) {
        const struct nm_turns_row *row = &turns_of(gate)->row[slot];
        bool waits = get(&row->waiting_since_ns) != 0;
        if (slot == own || (!waits && get(&row->in_flight_ns) == 0) || !is_open(gate, slot))
            continue;
        if (group_at(gate, slot) == groups[0])
            scene->companions++;
        else if (add_group(groups, &count, group_at(gate, slot)))
            scene->shares += nm_word_share(word_at(gate, slot));
        if (waits && get(&row->virtual_ns) < scene->next_virtual_ns) {
            scene->next = (int)slot;
            scene->next_virtual_ns = get(&row->virtual_ns);
        }
    }
}

uint64_t nm_turn_urgent_bits(const struct nm_gpu_gate *gate)
{
    return atomic_load_explicit(&turns_of(gate)->urgent, memory_order_relaxed) &
           ~(UINT64_C(1) << atomic_load_explicit(&gate->slot, memory_order_relaxed));
}

/* The bits that count: of latency-sensitive processes of other tasks. */
static uint64_t closing_bits(const struct nm_gpu_gate *gate)
{
    uint64_t bits = nm_turn_urgent_bits(gate), closing = 0;
    uint32_t own = atomic_load(&gate->slot);
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS && bits >> slot != 0; slot++)
        if ((bits >> slot & 1) != 0 && is_open(gate, slot) &&
            nm_word_class(word_at(gate, slot)) == NM_LAUNCH_LATENCY_SENSITIVE &&
            group_at(gate, slot) != group_at(gate, own))
            closing |= UINT64_C(1) << slot;
    return closing;
}

bool nm_turn_is_disturbed(const struct nm_gpu_gate *gate)
{
    uint32_t own = atomic_load(&gate->slot);
    if (nm_turn_urgent_bits(gate) != 0)
        return true;
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        if (slot != own && word_at(gate, slot) != 0 &&
            get(&turns_of(gate)->row[slot].in_flight_ns) != 0 && is_open(gate, slot))
            return true;
    return false;
}

uint32_t nm_turn_others(const struct nm_gpu_gate *gate)
{
    uint32_t own = atomic_load(&gate->slot), count = 0;
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        count += slot != own && word_at(gate, slot) != 0 && is_open(gate, slot);
    return count;
}

uint64_t nm_turn_intrusions(const struct nm_gpu_gate *gate)
{
    return get(&turns_of(gate)->intrusions);
}

static void wake(struct nm_turns_row *row)
{
    atomic_fetch_add(&row->wake, 1);
    nm_shared_word_wake(&row->wake);
}

static void wake_waiting(const struct nm_gpu_gate *gate)
{
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        if (get(&turns_of(gate)->row[slot].waiting_since_ns) != 0 && is_open(gate, slot))
            wake(&turns_of(gate)->row[slot]);
}

static bool do_others_wait(const struct nm_gpu_gate *gate)
{
    uint32_t own = atomic_load(&gate->slot);
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        if (slot != own && get(&turns_of(gate)->row[slot].waiting_since_ns) != 0 &&
            is_open(gate, slot))
            return true;
    return false;
}

/* -- virtual time, with the lock -- */

static void set_virtual(struct nm_gpu_gate *gate, uint64_t virtual_ns)
{
    gate->virtual_ns = virtual_ns;
    atomic_store_explicit(&nm_own_row(gate)->virtual_ns, virtual_ns, memory_order_relaxed);
}

/* Use before a wait delays a pass without the token by OWED_LEAST_NS at most. One piece that is
   longer counts whole: a kernel of 600 ms would be repaid in 40. */
static void repay(struct nm_gpu_gate *gate, int64_t used_ns, int64_t own_ns)
{
    int64_t least_ns = -own_ns < OWED_LEAST_NS ? -own_ns : OWED_LEAST_NS;
    if (gate->owed_ns < least_ns)
        return;
    gate->owed_ns -= used_ns;
    if (gate->owed_ns < least_ns)
        gate->owed_ns = least_ns;
}

void nm_turn_charge(struct nm_gpu_gate *gate, uint64_t used_ns, uint64_t own_ns)
{
    uint64_t share = nm_word_share(nm_own_word(gate));
    gate->used_ns += used_ns;
    gate->turn_used_ns += used_ns;
    gate->forced = 0;
    repay(gate, (int64_t)used_ns, (int64_t)own_ns);
    gate->credit_ns -= (int64_t)own_ns;
    if (gate->credit_ns < CREDIT_LEAST_NS)
        gate->credit_ns = CREDIT_LEAST_NS;
    set_virtual(gate, gate->virtual_ns + used_ns * 100 * gate->companions / share);
    /* after the virtual time: the manager sees no use without it */
    atomic_store_explicit(&nm_own_row(gate)->used_ns, gate->used_ns, memory_order_release);
}

/* Whether latency-sensitive work has had its share of the time: it has no priority then, and takes
   turns as all others do. Time in which no other process wants the GPU is all its own. */
static bool has_spent(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    bool wanted = do_others_wait(gate) || nm_turn_is_disturbed(gate);
    uint64_t percent = wanted ? nm_word_share(nm_own_word(gate)) : 100;
    uint64_t parts = wanted ? 100 * gate->companions : 100;
    if (gate->credit_at_ns == 0)
        gate->credit_ns = CREDIT_MOST_NS;
    else if (now_ns > gate->credit_at_ns)
        gate->credit_ns += (int64_t)((now_ns - gate->credit_at_ns) * percent / parts);
    if (gate->credit_ns > CREDIT_MOST_NS)
        gate->credit_ns = CREDIT_MOST_NS;
    gate->credit_at_ns = now_ns;
    int64_t in_flight_ns = (int64_t)atomic_load(&gate->in_flight_ns);
    gate->spent = gate->credit_ns < in_flight_ns + (gate->spent ? CREDIT_AGAIN_NS : 0);
    return gate->spent && wanted;
}

/* A process that comes back from a pause, or is new, begins where the others are. */
static void join(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    uint64_t floor_ns = get(&turns_of(gate)->floor_ns);
    bool rested = atomic_load(&gate->in_flight_ns) == 0 && now_ns > gate->done_ns + RESTING_NS;
    if (rested && floor_ns < MOST_VIRTUAL_NS && gate->virtual_ns < floor_ns)
        set_virtual(gate, floor_ns);
}

static void raise_floor(struct nm_gpu_gate *gate)
{
    uint64_t floor_ns = get(&turns_of(gate)->floor_ns);
    while (floor_ns < gate->virtual_ns &&
           !atomic_compare_exchange_weak(&turns_of(gate)->floor_ns, &floor_ns, gate->virtual_ns))
        ;
}

/* -- a turn, with the lock -- */

static void size_turn(struct nm_gpu_gate *gate, const struct scene *scene)
{
    uint64_t turn_ns = get(&shares_of(gate)->turn_ns) * nm_word_share(nm_own_word(gate)) /
                       scene->shares / scene->companions;
    gate->turn_ns = turn_ns > LEAST_TURN_NS ? turn_ns : LEAST_TURN_NS;
    gate->companions = scene->companions;
    gate->turn_used_ns = 0;
    gate->over_since_ns = 0;
}

static void begin_turn(struct nm_gpu_gate *gate, uint64_t token)
{
    struct scene scene;
    survey(gate, &scene);
    size_turn(gate, &scene);
    raise_floor(gate);
    gate->my_token = token;
    atomic_fetch_add_explicit(&nm_own_row(gate)->beat, 1, memory_order_relaxed);
    atomic_store(&gate->held_token, token);
    nm_keeper_wake();
}

static void lose_turn(struct nm_gpu_gate *gate)
{
    atomic_store(&gate->held_token, NM_NO_TOKEN);
    gate->my_token = NM_NO_TOKEN;
    gate->over_since_ns = 0;
}

/* Gives the token to that slot, or to none (-1). */
static void hand_over(struct nm_gpu_gate *gate, int slot)
{
    uint64_t token = gate->my_token;
    lose_turn(gate);
    if (atomic_compare_exchange_strong(&turns_of(gate)->token, &token,
                                       nm_token_after(token, slot)) &&
        slot >= 0)
        wake(&turns_of(gate)->row[slot]);
}

static bool holds(struct nm_gpu_gate *gate)
{
    if (gate->my_token == NM_NO_TOKEN)
        return false;
    if (atomic_load(&turns_of(gate)->token) == gate->my_token)
        return true;
    lose_turn(gate);
    return false;
}

/* With the lock. Priority ends with the work, or with the credit. A process whose pauses are short
   keeps it for a while: work of others that began in each of them would delay it. */
static void clear_urgent(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    uint64_t keep_ns = atomic_load(&gate->short_gaps) > 128 ? URGENT_KEEP_NS : 0;
    if (!atomic_load(&gate->urgent))
        return;
    bool spent = has_spent(gate, now_ns);
    if (!spent && (atomic_load(&gate->in_flight_ns) != 0 || now_ns - gate->done_ns < keep_ns))
        return;
    atomic_store(&gate->urgent, false);
    atomic_fetch_and(&turns_of(gate)->urgent, ~(UINT64_C(1) << atomic_load(&gate->slot)));
    if (!spent && atomic_load(&gate->in_flight_ns) != 0) { /* a launch came meanwhile */
        atomic_fetch_or(&turns_of(gate)->urgent, UINT64_C(1) << atomic_load(&gate->slot));
        atomic_store(&gate->urgent, true);
    } else {
        wake_waiting(gate);
    }
}

void nm_turn_check(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    struct scene scene;
    uint64_t in_flight_ns = atomic_load(&gate->in_flight_ns);
    clear_urgent(gate, now_ns);
    if (!holds(gate) ||
        (gate->over_since_ns == 0 && gate->turn_used_ns + in_flight_ns < gate->turn_ns))
        return;
    survey(gate, &scene);
    uint64_t share = nm_word_share(nm_own_word(gate));
    uint64_t ahead_ns = gate->virtual_ns + in_flight_ns * 100 * scene.companions / share;
    if (scene.next < 0 || scene.next_virtual_ns >= ahead_ns) { /* the next turn is its own again */
        if (gate->over_since_ns != 0 || gate->turn_used_ns >= gate->turn_ns) {
            size_turn(gate, &scene);
            raise_floor(gate);
            atomic_store(&gate->held_token, gate->my_token);
        }
        return;
    }
    if (gate->over_since_ns == 0) {
        gate->over_since_ns = now_ns;
        atomic_store(&gate->held_token, NM_NO_TOKEN);
    }
    uint64_t draining_ns = now_ns - gate->over_since_ns;
    bool late = draining_ns > DRAIN_LIMIT_NS && draining_ns > 2 * in_flight_ns;
    if (late && in_flight_ns > DRAINED_NS)
        nm_meter_raise_estimates(gate);
    if (late || in_flight_ns <= DRAINED_NS)
        hand_over(gate, scene.next);
}

/* -- a launch asks -- */

/* The state of the slot. Sets the word with which the next launches pass. */
static enum nm_answer ask_state(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    uint64_t word = nm_own_word(gate), beat_ns = get(&shares_of(gate)->beat_ns);
    if (gate->manager_beat_ns != beat_ns || gate->manager_seen_ns == 0) {
        gate->manager_beat_ns = beat_ns;
        gate->manager_seen_ns = now_ns;
    }
    bool without_manager = now_ns - gate->manager_seen_ns > MANAGER_NS;
    uint32_t state = nm_word_state(word);
    atomic_store(&gate->open_word, state == NM_LAUNCH_OPEN ? word : 0);
    atomic_store(&gate->without_turns, atomic_load(&shares_of(gate)->spatial) != 0);
    if (state == NM_LAUNCH_FENCED)
        return NM_REFUSED;
    if (state == NM_LAUNCH_SUSPENDED)
        return NM_WAIT_SUSPENDED;
    bool is_closed = state == NM_LAUNCH_CLOSED || state == NM_LAUNCH_PAUSED;
    return is_closed && !without_manager ? NM_WAIT_CLOSED : NM_PASS;
}

/* Bits of a process that no longer beats are cleared: it was killed or stopped. */
static bool is_closed_by_others(struct nm_gpu_gate *gate, struct nm_turn_wait *wait,
                                uint64_t now_ns)
{
    uint64_t bits = closing_bits(gate);
    uint32_t beats = 0;
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS && bits >> slot != 0; slot++)
        if ((bits >> slot & 1) != 0)
            beats += atomic_load_explicit(&turns_of(gate)->row[slot].beat, memory_order_relaxed);
    if (bits == 0 || gate->owed_ns > OWED_URGENT_NS)
        return false;
    if (wait->urgent_ns == 0 || wait->urgent_beats != beats) {
        wait->urgent_beats = beats;
        wait->urgent_ns = now_ns;
    } else if (now_ns - wait->urgent_ns > LEASE_NS) {
        atomic_fetch_and(&turns_of(gate)->urgent, ~bits);
        return false;
    }
    return true;
}

/* Notes changes of the holder's words. */
static void watch(const struct nm_turns_row *row, struct nm_turn_wait *wait, uint64_t token,
                  uint64_t now_ns)
{
    uint64_t used_ns = get(&row->used_ns), launches = get(&row->launches);
    uint32_t beat = atomic_load_explicit(&row->beat, memory_order_relaxed);
    bool other = wait->token != token || wait->progress_ns == 0;
    if (other || wait->used_ns != used_ns)
        wait->progress_ns = now_ns;
    if (other || wait->beat != beat)
        wait->beat_ns = now_ns;
    if (other || wait->launches != launches || get(&row->in_flight_ns) != 0)
        wait->idle_since_ns = now_ns;
    wait->token = token;
    wait->used_ns = used_ns;
    wait->launches = launches;
    wait->beat = beat;
}

/* Takes the token from a holder that has no use for it. It goes to the waiting process with the
   least virtual time. */
static bool take(struct nm_gpu_gate *gate, uint64_t token)
{
    struct scene scene;
    survey(gate, &scene);
    uint32_t own = atomic_load(&gate->slot);
    bool yields = scene.next >= 0 && scene.next_virtual_ns < gate->virtual_ns &&
                  scene.next != nm_token_slot(token);
    uint64_t fresh = nm_token_after(token, yields ? scene.next : (int)own);
    if (!atomic_compare_exchange_strong(&turns_of(gate)->token, &token, fresh))
        return false;
    if (yields)
        wake(&turns_of(gate)->row[scene.next]);
    else
        begin_turn(gate, fresh);
    return !yields;
}

/* How long the holder may be without work before this process takes the token. A process that has
   had more than the holder waits longer, in proportion to the work that it would bring. */
static uint64_t idle_limit(const struct nm_gpu_gate *gate, const struct nm_turns_row *holder,
                           uint64_t estimate_ns)
{
    uint64_t more_ns = estimate_ns / 4 < IDLE_MOST_NS ? estimate_ns / 4 : IDLE_MOST_NS;
    return gate->virtual_ns > get(&holder->virtual_ns) ? IDLE_NS + more_ns : IDLE_NS;
}

/* How long the holder may be without progress. The own long kernel is repaid first: it would begin
   again in each kernel of the holder that takes 25 ms. */
static uint64_t stuck_limit(const struct nm_gpu_gate *gate)
{
    int64_t debt_ns = OWED_LEAST_NS - gate->owed_ns;
    return debt_ns > 0 ? STUCK_NS + (uint64_t)debt_ns : STUCK_NS;
}

/* A launch into a gap of the holder, without the token. */
static bool fits_gap(const struct nm_gpu_gate *gate, const struct nm_turns_row *holder,
                     uint64_t estimate_ns)
{
    uint64_t gap_ns = get(&holder->gap_ns);
    return get(&holder->in_flight_ns) == 0 && atomic_load(&gate->in_flight_ns) == 0 &&
           estimate_ns <= BACKFILL_NS && 2 * estimate_ns <= gap_ns;
}

/* The end of the work in flight should be near: a launch now leaves the GPU without a pause. */
static bool is_ending(const struct nm_gpu_gate *gate, uint64_t now_ns)
{
    uint64_t until_ns = get(&gate->until_ns);
    return until_ns > now_ns && until_ns - now_ns < ENDING_NS;
}

static bool has_room(const struct nm_gpu_gate *gate, uint64_t room_ns, uint64_t most_ns)
{
    uint64_t in_flight_ns = atomic_load(&gate->in_flight_ns);
    uint64_t window_ns = atomic_load(&gate->window_ns);
    return in_flight_ns == 0 ||
           in_flight_ns + room_ns <= (window_ns < most_ns ? window_ns : most_ns);
}

static enum nm_answer ask_turn(struct nm_gpu_gate *gate, struct nm_turn_wait *wait,
                               uint64_t room_ns, uint64_t now_ns)
{
    uint64_t token = atomic_load(&turns_of(gate)->token);
    int holder = nm_token_slot(token);
    if (holder == (int)atomic_load(&gate->slot)) {
        if (token != gate->my_token)
            begin_turn(gate, token);
        nm_turn_check(gate, now_ns);
        return gate->my_token != token        ? NM_WAIT_TURN
               : gate->over_since_ns == 0 ? NM_PASS
                                          : NM_WAIT_DRAIN;
    }
    if (holder < 0 || !is_open(gate, (uint32_t)holder))
        return take(gate, token) ? NM_PASS : NM_WAIT_TURN;
    struct nm_turns_row *row = &turns_of(gate)->row[holder];
    watch(row, wait, token, now_ns);
    bool dead = now_ns - wait->beat_ns > LEASE_NS;
    if (dead) /* a waiting flag of a stopped process must not attract the token again */
        atomic_store(&row->waiting_since_ns, 0);
    uint64_t idle_ns = idle_limit(gate, row, room_ns);
    if (dead || now_ns - wait->idle_since_ns > idle_ns)
        return take(gate, token) ? NM_PASS : NM_WAIT_TURN;
    wait->starved = now_ns - wait->progress_ns > stuck_limit(gate) || gate->owed_ns > OWED_NS;
    if (wait->starved && has_room(gate, room_ns, BESIDE_NS)) {
        wait->progress_ns = now_ns;
        atomic_fetch_add(&turns_of(gate)->intrusions, 1);
        return NM_PASS;
    }
    bool fits = fits_gap(gate, row, room_ns);
    if (fits)
        atomic_fetch_add(&turns_of(gate)->intrusions, 1);
    return fits ? NM_PASS : NM_WAIT_TURN;
}

/* The bound of work in flight. Work that waits for a later launch never completes: then one more
   launch passes, and each further one after four times the time, until some work completes: kernels
   of unknown length would pile up. */
static bool fits_window(struct nm_gpu_gate *gate, struct nm_turn_wait *wait, uint64_t room_ns,
                        uint64_t now_ns)
{
    uint64_t in_flight_ns = atomic_load(&gate->in_flight_ns);
    atomic_store(&gate->window_ns, get(&shares_of(gate)->window_ns));
    if (has_room(gate, room_ns, UINT64_MAX) || is_ending(gate, now_ns))
        return true;
    if (wait->own_progress_ns == 0 || wait->own_in_flight_ns != in_flight_ns) {
        wait->own_in_flight_ns = in_flight_ns;
        wait->own_progress_ns = now_ns;
    }
    uint64_t limit_ns = 2 * in_flight_ns + 2 * MS;
    if (in_flight_ns < STUCK_NS && (limit_ns > STUCK_NS || nm_meter_guesses(gate)))
        limit_ns = STUCK_NS;
    if (now_ns - wait->own_progress_ns <= limit_ns << 2 * gate->forced)
        return false;
    if (gate->forced < FORCED_MOST)
        gate->forced++;
    return true;
}

static void owe(struct nm_gpu_gate *gate, struct nm_turn_wait *wait, uint64_t now_ns)
{
    if (wait->last_ns != 0 && wait->for_others)
        gate->owed_ns += (int64_t)((now_ns - wait->last_ns) * nm_word_share(nm_own_word(gate)) /
                                   100 / gate->companions);
    if (gate->owed_ns > 2 * OWED_NS)
        gate->owed_ns = 2 * OWED_NS;
    wait->last_ns = now_ns;
}

static enum nm_answer ask(struct nm_gpu_gate *gate, struct nm_turn_wait *wait,
                          uint64_t room_ns, uint64_t now_ns)
{
    uint64_t word = nm_own_word(gate);
    if (word >> NM_LAUNCH_GENERATION_SHIFT != gate->generation ||
        nm_word_state(word) == NM_LAUNCH_FREE || atomic_load(&shares_of(gate)->moved) != 0)
        return nm_word_state(word) == NM_LAUNCH_FENCED ? NM_REFUSED : NM_PASS;
    enum nm_answer answer = ask_state(gate, now_ns);
    if (answer != NM_PASS)
        return answer;
    if (wait->last_ns == 0)
        join(gate, now_ns);
    owe(gate, wait, now_ns);
    if (nm_word_class(word) == NM_LAUNCH_LATENCY_SENSITIVE && !has_spent(gate, now_ns)) {
        atomic_fetch_or(&turns_of(gate)->urgent, UINT64_C(1) << atomic_load(&gate->slot));
        atomic_store(&gate->urgent, true);
        nm_keeper_wake();
        return NM_PASS;
    }
    if (is_closed_by_others(gate, wait, now_ns))
        return NM_WAIT_URGENT;
    if (!atomic_load(&gate->without_turns))
        answer = ask_turn(gate, wait, room_ns, now_ns);
    if (answer != NM_PASS)
        return answer;
    return fits_window(gate, wait, room_ns, now_ns) ? NM_PASS : NM_WAIT_WINDOW;
}

enum nm_answer nm_turn_ask(struct nm_gpu_gate *gate, struct nm_turn_wait *wait,
                           uint64_t room_ns, uint64_t now_ns)
{
    nm_lock(&gate->lock);
    wait->starved = false;
    enum nm_answer answer = ask(gate, wait, room_ns, now_ns);
    wait->for_others = answer == NM_WAIT_URGENT || answer == NM_WAIT_TURN;
    nm_unlock(&gate->lock);
    return answer;
}

/* The time until a look at work that should last so long: no longer than a full window. */
static uint64_t look_after(const struct nm_gpu_gate *gate, uint64_t lasts_ns)
{
    uint64_t window_ns = get(&shares_of(gate)->window_ns);
    uint64_t most_ns = window_ns < LOOK_MOST_NS ? window_ns : LOOK_MOST_NS;
    uint64_t ns = lasts_ns < most_ns ? lasts_ns : most_ns;
    return ns > BEAT_NS ? ns : BEAT_NS;
}

uint64_t nm_turn_look_ns(const struct nm_gpu_gate *gate, const struct nm_turn_wait *wait,
                         uint64_t now_ns)
{
    int holder = nm_token_slot(atomic_load(&turns_of(gate)->token));
    uint64_t lease_end_ns = wait->beat_ns + LEASE_NS;
    if (!wait->for_others || nm_turn_urgent_bits(gate) != 0 || holder < 0 ||
        lease_end_ns < now_ns)
        return BEAT_NS;
    const struct nm_turns_row *row = &turns_of(gate)->row[holder];
    uint64_t in_flight_ns = get(&row->in_flight_ns);
    if (in_flight_ns == 0 && get(&row->waiting_since_ns) != 0) /* it is about to launch */
        in_flight_ns = NM_SOON_NS;
    uint64_t left_ns = lease_end_ns - now_ns;
    return look_after(gate, in_flight_ns < left_ns ? in_flight_ns : left_ns);
}

/* -- the keeper's visit -- */

/* With the lock: a holder without work gives the token away, at once if another process waits. */
static void rest(struct nm_gpu_gate *gate, uint64_t now_ns, bool others_wait)
{
    struct scene scene;
    uint64_t idle_ns = atomic_load(&gate->in_flight_ns) == 0 ? now_ns - gate->done_ns : 0;
    if (!holds(gate) || atomic_load(&gate->waiters) != 0 ||
        idle_ns < (others_wait ? IDLE_NS : RELEASE_NS))
        return;
    survey(gate, &scene);
    hand_over(gate, scene.next);
}

/* How long the keeper may sleep while the process is active. A thread that waits in the gate, or
   for the end of its work, looks at the events itself; the keeper comes after it. */
static uint64_t next_visit(const struct nm_gpu_gate *gate, uint64_t now_ns, bool others_wait)
{
    uint64_t until_ns = get(&gate->until_ns), span_ns = TEND_NS;
    if (atomic_load(&gate->waiters) != 0)
        return look_after(gate, LOOK_MOST_NS);
    if (!others_wait && !atomic_load(&gate->urgent))
        return BEAT_NS;
    if (atomic_load(&gate->in_flight_ns) != 0)
        span_ns = until_ns > now_ns ? until_ns - now_ns + TEND_NS / 2
                                    : TEND_NS / 2 + (now_ns - until_ns) / 4;
    return span_ns < BEAT_NS ? span_ns : BEAT_NS;
}

uint64_t nm_turn_tend(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    struct nm_turns_row *row = nm_own_row(gate);
    bool active = atomic_load(&gate->held_token) != NM_NO_TOKEN || atomic_load(&gate->urgent) ||
                  atomic_load(&gate->in_flight_ns) != 0 || gate->my_token != NM_NO_TOKEN;
    if (!active && atomic_load(&gate->waiters) != 0)
        return look_after(gate, LOOK_MOST_NS);
    if (!active) /* a wake-up costs the next launch more than some visits cost */
        return now_ns - gate->done_ns < KEEP_NS ? BEAT_NS : UINT64_MAX;
    atomic_fetch_add_explicit(&row->beat, 1, memory_order_relaxed);
    if (get(&row->launches) != gate->meter.seen_launches)
        atomic_store_explicit(&row->last_activity_ns, now_ns, memory_order_relaxed);
    nm_meter_poll(gate);
    nm_meter_retire_quiet(gate, now_ns);
    bool others_wait = do_others_wait(gate);
    if (nm_lock_within(&gate->lock, 0)) {
        now_ns = nm_now_ns();
        clear_urgent(gate, now_ns);
        rest(gate, now_ns, others_wait);
        nm_unlock(&gate->lock);
    }
    return next_visit(gate, nm_now_ns(), others_wait);
}
