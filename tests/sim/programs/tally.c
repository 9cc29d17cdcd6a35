/* tally.c: what a process leaves behind that dies between two instructions of a change to a sum,
 * and who mends it.
 *
 * Knows: the insides of node.c, which it includes: each death is acted out by doing the beginning
 * of an operation and not its end. Must not know: processes. Exit code 0, or 1 with the line of
 * what did not hold.
 */
#include "sim/node/deposits.c"
#include "sim/node/node.c"
#include "sim/node/partitions.c"

#include <stdio.h>

enum { DEAD = 3, OTHER = 7, THIRD = 9, LIMIT = 1000 };

#define HOLDS(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* without a file: nobody can hold a lock, so a slot that is taken is a dead one's */
static nm_sim_state state;
static nm_sim_node node = {.state = &state, .descriptor = -1, .slot = -1};
static nm_sim_tally tally;
static nm_sim_account accounts[NM_SIM_SLOTS];
static const nm_sim_sum sum = {&node, &tally, accounts, NM_SIM_IN_MEMORY, 0};

static bool change(int slot, int64_t delta, uint64_t limit)
{
    return add(&sum, slot, delta, limit);
}
static void drain_dead(void) { drain(&sum, DEAD); }
static uint64_t peak(void) { return nm_sim_tally_peak(&tally); }
static uint64_t bytes_of(int slot) { return nm_sim_account_bytes(&accounts[slot]); }

static void begin(void) {
    memset(&tally, 0, sizeof tally);
    memset(accounts, 0, sizeof accounts);
    atomic_store(&state.slots_high, DEAD + 1);
    atomic_store(&state.slot_taken[DEAD], 0);
    HOLDS(change(DEAD, 100, LIMIT));
    HOLDS(change(OTHER, 200, LIMIT));
}

/* An operation's first step. */
static uint64_t announce(int slot, int64_t delta) {
    uint64_t sequence =
        (atomic_load(&accounts[slot].share[NM_SIM_IN_MEMORY].applied) + 1) & SEQUENCE_MASK;
    atomic_store(&accounts[slot].share[NM_SIM_IN_MEMORY].announced,
                 ((uint64_t)delta << 14) | sequence);
    return sequence;
}

/* Its first two: the sum has changed, the slot's own books have not. */
static void announce_and_commit(int slot, int64_t delta) {
    uint64_t sequence = announce(slot, delta), word = atomic_load(&tally.word);
    settle(&sum, word);
    atomic_store(&tally.word,
                 (((word >> 24) + (uint64_t)delta) << 24) | ((uint64_t)slot << 14) | sequence);
}

static void all_is_mended(uint64_t others) {
    drain_dead();
    HOLDS(bytes_of(DEAD) == 0);
    HOLDS(bytes_of(OTHER) == others);
    HOLDS(nm_sim_tally_bytes(&tally) == others);
    drain_dead();
    HOLDS(nm_sim_tally_bytes(&tally) == others);
}

static void dead_after_announcing(int64_t delta) {
    begin();
    announce(DEAD, delta);
    all_is_mended(200);
    begin();
    announce(DEAD, delta);
    HOLDS(change(OTHER, 50, LIMIT));
    all_is_mended(250);
}

static void dead_after_committing(int64_t delta) {
    begin();
    announce_and_commit(DEAD, delta);
    HOLDS(nm_sim_tally_bytes(&tally) == (uint64_t)(300 + delta));
    all_is_mended(200);
    begin();
    announce_and_commit(DEAD, delta);
    HOLDS(change(OTHER, 50, LIMIT));
    HOLDS(bytes_of(DEAD) == (uint64_t)(100 + delta));
    HOLDS(change(OTHER, 50, LIMIT));
    HOLDS(nm_sim_tally_bytes(&tally) == (uint64_t)(400 + delta));
    all_is_mended(300);
}

/* The reaper, too, may die at either point; the next one finds a slot like any. */
static void dead_reapers(void) {
    begin();
    announce(DEAD, -100);
    all_is_mended(200);
    begin();
    announce_and_commit(DEAD, -100);
    HOLDS(change(OTHER, 1, LIMIT));
    all_is_mended(201);
}

/* A slot that was cleared is taken again: what the dead owner had announced must not count for
   the new one. */
static void a_new_owner(void) {
    begin();
    announce(DEAD, 500);
    drain_dead();
    HOLDS(change(DEAD, 10, LIMIT));
    HOLDS(change(OTHER, 10, LIMIT));
    HOLDS(bytes_of(DEAD) == 10);
    HOLDS(nm_sim_tally_bytes(&tally) == 220);
    all_is_mended(210);
}

static void a_refusal_changes_nothing(void) {
    begin();
    HOLDS(!change(DEAD, 701, LIMIT));
    HOLDS(change(OTHER, 1, LIMIT));
    HOLDS(!change(DEAD, 700, LIMIT));
    HOLDS(change(DEAD, 699, LIMIT));
    HOLDS(nm_sim_tally_bytes(&tally) == LIMIT && peak() == LIMIT);
    HOLDS(bytes_of(DEAD) == 799);
    all_is_mended(201);
    HOLDS(peak() == LIMIT);
}

/* A peak counts even if whoever made it died before he could note it. */
static void a_peak_of_the_dead(void) {
    begin();
    announce_and_commit(DEAD, 600);
    HOLDS(change(OTHER, -200, LIMIT));
    HOLDS(peak() == 900);
    all_is_mended(0);
}

/* Stopped between changing the sum and noting it, and running on when the peaks are those of a
   later time. */
static void a_sum_of_an_earlier_time(void) {
    begin();
    announce_and_commit(OTHER, 600);
    uint64_t highest = atomic_load(&tally.word);
    HOLDS(change(THIRD, 0, LIMIT));
    HOLDS(change(OTHER, -600, LIMIT));
    HOLDS(peak() == 900);
    reset_peak(&sum);
    HOLDS(peak() == 300);
    settle(&sum, highest);
    HOLDS(peak() == 300);
    HOLDS(change(OTHER, 50, LIMIT));
    HOLDS(peak() == 350);
}

/* Nobody has taken the dead out of the sum yet, and others have what they had. */
static void the_dead_make_no_peak(void) {
    begin();
    atomic_store(&state.slot_taken[DEAD], 1);
    HOLDS(change(OTHER, 50, LIMIT));
    HOLDS(nm_sim_tally_bytes(&tally) == 350 && peak() == 300);
    HOLDS(change(THIRD, 100, LIMIT));
    HOLDS(nm_sim_tally_bytes(&tally) == 450 && peak() == 350);
    reset_peak(&sum);
    HOLDS(peak() == 350);
}

/* Sequences are 14 bits long. */
static void sequences_wrap(void) {
    begin();
    for (int round = 0; round < 50000; round++) {
        HOLDS(change(DEAD, round % 2 ? -5 : 5, LIMIT));
        if (round % 3 == 0) HOLDS(change(THIRD, 0, LIMIT));
    }
    HOLDS(bytes_of(DEAD) == 100 && nm_sim_tally_bytes(&tally) == 300);
    all_is_mended(200);
}

static void the_largest_sums(void) {
    const int64_t most = (int64_t)NM_SIM_MEMORY_LIMIT_BYTES - 1;
    memset(&tally, 0, sizeof tally);
    memset(accounts, 0, sizeof accounts);
    HOLDS(change(NM_SIM_SLOTS - 1, most, (uint64_t)most));
    HOLDS(!change(0, 1, (uint64_t)most));
    HOLDS(nm_sim_tally_bytes(&tally) == (uint64_t)most);
    HOLDS(bytes_of(NM_SIM_SLOTS - 1) == (uint64_t)most);
    HOLDS(change(NM_SIM_SLOTS - 1, -most, 0));
    HOLDS(nm_sim_tally_bytes(&tally) == 0);
}

int main(void) {
    for (int64_t delta = -100; delta <= 100; delta += 50) {
        dead_after_announcing(delta);
        dead_after_committing(delta);
    }
    dead_reapers();
    a_new_owner();
    a_refusal_changes_nothing();
    a_peak_of_the_dead();
    a_sum_of_an_earlier_time();
    the_dead_make_no_peak();
    sequences_wrap();
    the_largest_sums();
    return 0;
}
