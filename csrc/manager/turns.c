/* turns.c: see turns.h. */
#include "manager/turns.h"

#include <stdatomic.h>
#include <stdbool.h>

_Static_assert(sizeof((struct nm_turns_watch *)0)->word == 8 * NM_LAUNCH_SLOTS,
               "one word for each slot");

#define SECOND_NS UINT64_C(1000000000)
#define LATE_NS SECOND_NS                 /* a figure may be this far ahead of the reading */
#define LONGEST_NS (86400 * SECOND_NS)    /* of the work in flight */
#define MOST_PER_NS 4                     /* of the used time: a part of it is estimated */
#define MOST_AHEAD_NS (10 * SECOND_NS)
#define FASTEST_TURN_NS 100               /* a hand-over takes longer */
#define BURST_TURNS 1000000
#define MOST_PER_USE (100 * NM_LAUNCH_SLOTS) /* virtual time: a share of 1 %, and all companions */
#define FASTEST_BEAT_NS 4000              /* the keeper comes each 50 us at most */
#define BURST_BEATS 1000000
#define EPOCH_BITS (64 - NM_TOKEN_EPOCH_SHIFT)

static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static uint32_t state_of(uint64_t word)
{
    return (uint32_t)(word >> NM_LAUNCH_STATE_SHIFT & 0xff);
}

static uint32_t class_of(uint64_t word)
{
    return (uint32_t)(word >> NM_LAUNCH_CLASS_SHIFT & 0xff);
}

/* The epoch counts modulo 2^48: a step back is a leap of nearly all of it. */
static bool is_token_wrong(const struct nm_turns_watch *watch, uint64_t token, uint64_t now_ns)
{
    if ((token & NM_TOKEN_SLOT_MASK) > NM_LAUNCH_SLOTS)
        return true;
    if (watch->at_ns == 0)
        return false;
    uint64_t epochs = ((token >> NM_TOKEN_EPOCH_SHIFT) - (watch->token >> NM_TOKEN_EPOCH_SHIFT)) &
                      ((UINT64_C(1) << EPOCH_BITS) - 1);
    return epochs > (now_ns - watch->at_ns) / FASTEST_TURN_NS + BURST_TURNS;
}

/* Bits of slots without this class, which were there at the last reading too: the class may just
   have changed. A process that has lost its slot may still set its bit. */
static uint64_t lasting_strays(struct nm_turns_watch *watch, const struct nm_launch_gate *gate,
                               uint64_t same)
{
    uint64_t bits = load(&gate->turns->urgent), strays = 0;
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++) {
        uint64_t word = load(&gate->shares->row[slot].word);
        if (bits >> slot & 1 && state_of(word) != NM_LAUNCH_FREE &&
            class_of(word) != NM_LAUNCH_LATENCY_SENSITIVE)
            strays |= UINT64_C(1) << slot;
    }
    uint64_t lasting = strays & watch->strays & same;
    watch->strays = strays;
    return lasting;
}

static uint64_t most_used_ns(uint64_t since_ns, uint64_t now_ns)
{
    return MOST_PER_NS * (now_ns - since_ns) + MOST_AHEAD_NS;
}

static bool is_figure_wrong(const struct nm_turns_row *row, uint64_t used_ns,
                            const struct nm_turns_watch *watch, uint32_t slot, uint64_t now_ns)
{
    uint64_t latest_ns = now_ns + LATE_NS;
    return used_ns < watch->used_ns[slot] ||
           used_ns > most_used_ns(watch->since_ns[slot], now_ns) ||
           load(&row->last_activity_ns) > latest_ns || load(&row->waiting_since_ns) > latest_ns ||
           load(&row->in_flight_ns) > LONGEST_NS;
}

/* Counts the beats of a process since it has the slot. One that claims to work in a loop beats
   faster than a keeper comes. */
static bool are_beats_wrong(const struct nm_turns_row *row, struct nm_turns_watch *watch,
                            uint32_t slot, uint64_t now_ns)
{
    uint32_t beat = atomic_load(&row->beat);
    watch->beats[slot] += beat - watch->beat[slot];
    watch->beat[slot] = beat;
    return watch->beats[slot] > (now_ns - watch->since_ns[slot]) / FASTEST_BEAT_NS + BURST_BEATS;
}

static bool is_virtual_beyond(const struct nm_turns_watch *watch, uint64_t virtual_ns,
                              uint64_t now_ns)
{
    return virtual_ns / MOST_PER_USE > most_used_ns(watch->began_ns, now_ns);
}

/* Virtual time grows by the use divided by a share, or to the floor, which others' has raised. */
static bool is_virtual_wrong(const struct nm_turns_watch *watch, uint32_t slot, uint64_t used_ns,
                             uint64_t virtual_ns, uint64_t now_ns)
{
    return virtual_ns < watch->virtual_ns[slot] ||
           virtual_ns - watch->virtual_ns[slot] < used_ns - watch->used_ns[slot] ||
           is_virtual_beyond(watch, virtual_ns, now_ns);
}

static bool is_stray(const struct nm_turns_row *row, uint32_t slot)
{
    uint64_t bait_ns = slot >= NM_LAUNCH_SLOTS - NM_BAIT_ROWS ? NM_BAIT_NS : 0;
    return load(&row->waiting_since_ns) != bait_ns || load(&row->virtual_ns) != 0 ||
           load(&row->in_flight_ns) != 0 || load(&row->gap_ns) != 0 || load(&row->used_ns) != 0 ||
           load(&row->last_activity_ns) != 0 || load(&row->launches) != 0 ||
           atomic_load(&row->beat) != 0 || atomic_load(&row->generation) != 0;
}

/* An nm_turns_fault of one slot with a process. */
static int check_row(const struct nm_turns_row *row, struct nm_turns_watch *watch, uint32_t slot,
                     uint64_t word, bool same, uint64_t now_ns)
{
    if (!same) {
        watch->used_ns[slot] = watch->virtual_ns[slot] = watch->beats[slot] = 0;
        watch->beat[slot] = 0;
        watch->since_ns[slot] = watch->at_ns != 0 ? watch->at_ns : now_ns;
    }
    if (atomic_load(&row->generation) != word >> NM_LAUNCH_GENERATION_SHIFT)
        return NM_TURNS_GENERATION;
    /* its owner writes it after the virtual time */
    uint64_t used_ns = atomic_load_explicit(&row->used_ns, memory_order_acquire);
    if (is_figure_wrong(row, used_ns, watch, slot, now_ns) ||
        are_beats_wrong(row, watch, slot, now_ns))
        return NM_TURNS_FIGURE;
    uint64_t virtual_ns = load(&row->virtual_ns);
    if (is_virtual_wrong(watch, slot, used_ns, virtual_ns, now_ns))
        return NM_TURNS_VIRTUAL;
    watch->used_ns[slot] = used_ns;
    watch->virtual_ns[slot] = virtual_ns;
    return NM_TURNS_OK;
}

/* A slot as the manager's word says: of a process, of none any more, or never given out. */
static int check_slot(const struct nm_launch_gate *gate, struct nm_turns_watch *watch,
                      uint32_t slot, bool is_same, uint64_t now_ns)
{
    const struct nm_turns_row *row = &gate->turns->row[slot];
    uint64_t word = watch->word[slot];
    if (state_of(word) != NM_LAUNCH_FREE)
        return check_row(row, watch, slot, word, is_same, now_ns);
    return word == 0 && is_stray(row, slot) ? NM_TURNS_STRAY : NM_TURNS_OK;
}

static bool is_floor_wrong(const struct nm_launch_gate *gate, struct nm_turns_watch *watch,
                           uint64_t now_ns)
{
    uint64_t floor_ns = load(&gate->turns->floor_ns), before_ns = watch->floor_ns;
    watch->floor_ns = floor_ns;
    return floor_ns < before_ns || is_virtual_beyond(watch, floor_ns, now_ns);
}

static int found(struct nm_turns_watch *watch, uint32_t slot, int fault)
{
    watch->slot = (int32_t)slot;
    return fault;
}

int nm_turns_check(const struct nm_launch_gate *gate, struct nm_turns_watch *watch, uint64_t now_ns)
{
    uint64_t token = load(&gate->turns->token), same = 0;
    int fault = NM_TURNS_OK;
    watch->slot = -1;
    if (watch->at_ns == 0)
        watch->began_ns = now_ns;
    if (is_token_wrong(watch, token, now_ns))
        fault = NM_TURNS_TOKEN;
    else if (is_floor_wrong(gate, watch, now_ns))
        fault = NM_TURNS_VIRTUAL;
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++) {
        uint64_t word = load(&gate->shares->row[slot].word), before = watch->word[slot];
        bool is_given = state_of(word) != NM_LAUNCH_FREE,
             is_same = is_given && state_of(before) != NM_LAUNCH_FREE &&
                       word >> NM_LAUNCH_GENERATION_SHIFT == before >> NM_LAUNCH_GENERATION_SHIFT;
        if (word == before)
            same |= UINT64_C(1) << slot;
        watch->word[slot] = word;
        int wrong = check_slot(gate, watch, slot, is_same, now_ns);
        if (wrong != NM_TURNS_OK && fault == NM_TURNS_OK)
            fault = found(watch, slot, wrong);
    }
    uint64_t strays = lasting_strays(watch, gate, same);
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS && fault == NM_TURNS_OK; slot++)
        if (strays >> slot & 1)
            fault = found(watch, slot, NM_TURNS_URGENT);
    watch->token = token;
    watch->at_ns = now_ns;
    return fault;
}

int nm_turns_holder(const struct nm_launch_gate *gate)
{
    return nm_token_slot(load(&gate->turns->token));
}

void nm_turns_retire(struct nm_launch_gate *gate)
{
    atomic_store(&gate->shares_writable->moved, 1);
    nm_launch_gate_wake(gate);
}
