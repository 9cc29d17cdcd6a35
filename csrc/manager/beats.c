/* beats.c: see beats.h. */
#include "manager/beats.h"

#include <stdatomic.h>
#include <stdbool.h>

_Static_assert(sizeof((struct nm_beats *)0)->word == 8 * NM_LEDGER_SLOTS, "one word for each slot");

#define STATE_BITS 8
#define STATE_MASK ((UINT64_C(1) << STATE_BITS) - 1)

static bool is_alive(uint64_t state)
{
    return (state & STATE_MASK) == NM_SLOT_LIVE || (state & STATE_MASK) == NM_SLOT_STALLED;
}

/* Notes the slot's word; true if it has changed since the last reading. The first value in a new
   slot is no beat. */
static bool note_word(struct nm_beats *beats, uint32_t slot, uint64_t word, uint64_t state)
{
    uint64_t before = beats->state[slot], generation = state >> STATE_BITS;
    bool same_process = is_alive(before) && before >> STATE_BITS == generation;
    if (same_process && (word == beats->word[slot] || word >> NM_GENERATION_SHIFT != generation))
        return false;
    beats->word[slot] = word;
    return same_process;
}

static void look_at_live(struct nm_beats *beats, uint32_t slot, bool heard, uint64_t now_ns,
                         uint64_t silent_before_ns)
{
    if (heard)
        beats->heard_ns[slot] = now_ns;
    if (beats->heard_ns[slot] < silent_before_ns)
        beats->silent[beats->silent_count++] = slot;
    else if (beats->heard_ns[slot] < beats->oldest_ns)
        beats->oldest_ns = beats->heard_ns[slot];
}

void nm_beats_read(const struct nm_ledger *ledger, struct nm_beats *beats, uint64_t now_ns,
                   uint64_t silent_before_ns)
{
    uint32_t slots = nm_ledger_slots_used(ledger);
    beats->woken_count = beats->silent_count = 0;
    beats->oldest_ns = UINT64_MAX;
    for (uint32_t slot = 0; slot < slots; slot++) {
        uint64_t state =
            atomic_load_explicit(&ledger->limits->slot_state[slot], memory_order_relaxed);
        bool moved =
            is_alive(state) && note_word(beats, slot, nm_ledger_beat_word(ledger, slot), state);
        bool changed = state != beats->state[slot];
        beats->state[slot] = state;
        if ((state & STATE_MASK) == NM_SLOT_LIVE)
            look_at_live(beats, slot, moved || changed, now_ns, silent_before_ns);
        else if (moved)
            beats->woken[beats->woken_count++] = slot;
    }
}
