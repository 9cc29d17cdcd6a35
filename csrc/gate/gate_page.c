/* gate_page.c: the two files of a launch gate, and the manager's part of them; see gate.h. */
#include <string.h>
#include <sys/mman.h>

#include "base/prim.h"
#include "base/sealed_file.h"
#include "gate/gate.h"

#define SHARES_MAGIC UINT64_C(0x3145524148534d4e) /* "NMSHARE1" */
#define TURNS_MAGIC UINT64_C(0x31534e5255544d4e)  /* "NMTURNS1" */
#define WINDOW_NS UINT64_C(1000000)
#define TURN_NS UINT64_C(10000000)
#define GENERATION_MASK 0xffffu
#define MOST_NS (UINT64_C(1) << 62) /* of a figure that a client wrote */

_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "one word, no lock");
_Static_assert((int)NM_LAUNCH_GATE_ERRNO == NM_SEALED_ERRNO &&
                   (int)NM_LAUNCH_GATE_SIZE == NM_SEALED_SIZE &&
                   (int)NM_LAUNCH_GATE_SEALS == NM_SEALED_SEALS,
               "a fault of a file is returned as it is");
_Static_assert(sizeof(struct nm_shares) == 64 + 16 * NM_LAUNCH_SLOTS, "layout of version 1");
_Static_assert(sizeof(struct nm_turns_row) == 128, "two cache lines");
_Static_assert(offsetof(struct nm_turns, urgent) == 64, "a cache line of its own");
_Static_assert(offsetof(struct nm_turns, row) == 128, "layout of version 1");

static const struct {
    int fault;
    const char *text;
} faults[] = {
    {NM_LAUNCH_GATE_OK, "no fault"},
    {NM_LAUNCH_GATE_ERRNO, "a system call failed"},
    {NM_LAUNCH_GATE_SIZE, "a file of another size than a launch gate's"},
    {NM_LAUNCH_GATE_SEALS, "seals are missing"},
    {NM_LAUNCH_GATE_FORMAT, "not a launch gate, or one of another version"},
    {NM_LAUNCH_GATE_RANGE, "no such slot, share, class or state"},
};

const char *nm_launch_gate_fault_text(int fault)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i].fault == fault)
            return faults[i].text;
    return "unknown fault";
}

/* -- files -- */

/* Only shares decides: a client could write into the head of turns. */
static bool is_gate(const struct nm_shares *shares)
{
    return shares->magic == SHARES_MAGIC && shares->version == NM_LAUNCH_GATE_VERSION &&
           shares->slots == NM_LAUNCH_SLOTS;
}

static void forget(struct nm_launch_gate *gate)
{
    memset(gate, 0, sizeof *gate);
    gate->shares_fd = gate->turns_fd = -1;
}

void nm_launch_gate_unmap(struct nm_launch_gate *gate)
{
    nm_sealed_unmap(gate->shares, sizeof *gate->shares, gate->shares_fd);
    nm_sealed_unmap(gate->turns, sizeof *gate->turns, gate->turns_fd);
    forget(gate);
}

static int fail(struct nm_launch_gate *gate, int fault)
{
    nm_launch_gate_unmap(gate);
    return fault;
}

static int create_shares(struct nm_launch_gate *gate)
{
    void *address;
    gate->shares_fd =
        nm_sealed_create("nodemgr-shares", sizeof(struct nm_shares), NM_SEALS_OWNED, &address);
    if (gate->shares_fd < 0)
        return NM_LAUNCH_GATE_ERRNO;
    gate->shares = gate->shares_writable = address;
    gate->shares_writable->magic = SHARES_MAGIC;
    gate->shares_writable->version = NM_LAUNCH_GATE_VERSION;
    gate->shares_writable->slots = NM_LAUNCH_SLOTS;
    atomic_store(&gate->shares_writable->window_ns, WINDOW_NS);
    atomic_store(&gate->shares_writable->turn_ns, TURN_NS);
    return NM_LAUNCH_GATE_OK;
}

static int create_turns(struct nm_launch_gate *gate)
{
    void *address;
    gate->turns_fd =
        nm_sealed_create("nodemgr-turns", sizeof(struct nm_turns), NM_SEALS_SHARED, &address);
    if (gate->turns_fd < 0)
        return NM_LAUNCH_GATE_ERRNO;
    gate->turns = address;
    gate->turns->magic = TURNS_MAGIC;
    gate->turns->version = NM_LAUNCH_GATE_VERSION;
    gate->turns->slots = NM_LAUNCH_SLOTS;
    for (uint32_t number = NM_LAUNCH_SLOTS - NM_BAIT_ROWS; number < NM_LAUNCH_SLOTS; number++)
        atomic_store(&gate->turns->row[number].waiting_since_ns, NM_BAIT_NS);
    return NM_LAUNCH_GATE_OK;
}

int nm_launch_gate_create(struct nm_launch_gate *gate)
{
    forget(gate);
    if (create_shares(gate) != NM_LAUNCH_GATE_OK || create_turns(gate) != NM_LAUNCH_GATE_OK)
        return fail(gate, NM_LAUNCH_GATE_ERRNO);
    return NM_LAUNCH_GATE_OK;
}

int nm_launch_gate_map_client(struct nm_launch_gate *gate, int shares_fd, int turns_fd)
{
    forget(gate);
    int fault = nm_sealed_check(shares_fd, sizeof(struct nm_shares), NM_SEALS_OWNED);
    if (fault == NM_SEALED_OK)
        fault = nm_sealed_check(turns_fd, sizeof(struct nm_turns), NM_SEALS_SHARED);
    if (fault != NM_SEALED_OK)
        return fault;
    gate->shares = nm_sealed_map(shares_fd, sizeof(struct nm_shares), PROT_READ);
    gate->turns = nm_sealed_map(turns_fd, sizeof(struct nm_turns), PROT_READ | PROT_WRITE);
    if (gate->shares == NULL || gate->turns == NULL)
        return fail(gate, NM_LAUNCH_GATE_ERRNO);
    if (!is_gate(gate->shares))
        return fail(gate, NM_LAUNCH_GATE_FORMAT);
    gate->shares_fd = shares_fd;
    gate->turns_fd = turns_fd;
    return NM_LAUNCH_GATE_OK;
}

/* -- slots -- */

static bool is_valid(const struct nm_launch_slot *slot)
{
    return slot->share <= 100 && slot->klass <= NM_LAUNCH_BEST_EFFORT &&
           slot->state > NM_LAUNCH_FREE && slot->state <= NM_LAUNCH_FENCED;
}

static struct nm_launch_slot read_row(const struct nm_shares *shares, uint32_t number)
{
    uint64_t word = atomic_load_explicit(&shares->row[number].word, memory_order_acquire);
    return (struct nm_launch_slot){
        .generation = (uint32_t)(word >> NM_LAUNCH_GENERATION_SHIFT),
        .share = (uint32_t)(word & 0xff),
        .klass = (uint32_t)(word >> NM_LAUNCH_CLASS_SHIFT & 0xff),
        .state = (uint32_t)(word >> NM_LAUNCH_STATE_SHIFT & 0xff),
        .group = atomic_load_explicit(&shares->row[number].group, memory_order_relaxed),
    };
}

static void write_row(struct nm_shares *shares, uint32_t number, const struct nm_launch_slot *slot)
{
    uint64_t word = (uint64_t)(slot->generation & GENERATION_MASK) << NM_LAUNCH_GENERATION_SHIFT |
                    (uint64_t)slot->state << NM_LAUNCH_STATE_SHIFT |
                    (uint64_t)slot->klass << NM_LAUNCH_CLASS_SHIFT | slot->share;
    atomic_store(&shares->row[number].group, slot->group);
    atomic_store(&shares->row[number].word, word);
}

static void empty_turns_row(struct nm_turns_row *row, uint32_t generation)
{
    atomic_store(&row->generation, generation);
    _Atomic uint64_t *const figures[] = {&row->virtual_ns,  &row->in_flight_ns,
                                         &row->gap_ns,      &row->used_ns,
                                         &row->launches,    &row->last_activity_ns,
                                         &row->waiting_since_ns};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        atomic_store(figures[i], 0);
    atomic_store(&row->beat, 0);
}

int nm_launch_gate_give(struct nm_launch_gate *gate, const struct nm_launch_slot *slot)
{
    if (!is_valid(slot))
        return NM_LAUNCH_GATE_RANGE;
    for (uint32_t number = 0; number < NM_LAUNCH_SLOTS; number++) {
        struct nm_launch_slot fresh = read_row(gate->shares, number);
        if (fresh.state != NM_LAUNCH_FREE)
            continue;
        uint32_t generation = fresh.generation % GENERATION_MASK + 1; /* 0: never given out */
        empty_turns_row(&gate->turns->row[number], generation);
        fresh = *slot;
        fresh.generation = generation;
        write_row(gate->shares_writable, number, &fresh);
        return (int)number;
    }
    return -1;
}

static void wake_row(struct nm_turns_row *row)
{
    atomic_fetch_add(&row->wake, 1);
    nm_shared_word_wake(&row->wake);
}

int nm_launch_gate_set(struct nm_launch_gate *gate, uint32_t number,
                       const struct nm_launch_slot *slot)
{
    if (number >= NM_LAUNCH_SLOTS || !is_valid(slot))
        return NM_LAUNCH_GATE_RANGE;
    struct nm_launch_slot fresh = *slot, old = read_row(gate->shares, number);
    if (old.state == NM_LAUNCH_FREE)
        return NM_LAUNCH_GATE_RANGE;
    fresh.generation = old.generation;
    write_row(gate->shares_writable, number, &fresh);
    if (old.state != fresh.state)
        wake_row(&gate->turns->row[number]);
    return NM_LAUNCH_GATE_OK;
}

void nm_launch_gate_wake(struct nm_launch_gate *gate)
{
    for (uint32_t number = 0; number < NM_LAUNCH_SLOTS; number++)
        if (read_row(gate->shares, number).state != NM_LAUNCH_FREE)
            wake_row(&gate->turns->row[number]);
}

/* Takes the token from a slot whose process has ended. */
static void take_token(struct nm_launch_gate *gate, uint32_t number)
{
    uint64_t token = atomic_load(&gate->turns->token);
    if (nm_token_slot(token) == (int)number &&
        atomic_compare_exchange_strong(&gate->turns->token, &token, nm_token_after(token, -1)))
        nm_launch_gate_wake(gate);
}

int nm_launch_gate_clear(struct nm_launch_gate *gate, uint32_t number)
{
    if (number >= NM_LAUNCH_SLOTS)
        return NM_LAUNCH_GATE_RANGE;
    struct nm_launch_slot none = {.generation = read_row(gate->shares, number).generation};
    write_row(gate->shares_writable, number, &none);
    atomic_fetch_and(&gate->turns->urgent, ~(UINT64_C(1) << number));
    take_token(gate, number);
    return NM_LAUNCH_GATE_OK;
}

int nm_launch_gate_slot(const struct nm_launch_gate *gate, uint32_t number,
                        struct nm_launch_slot *slot)
{
    if (number >= NM_LAUNCH_SLOTS)
        return NM_LAUNCH_GATE_RANGE;
    *slot = read_row(gate->shares, number);
    return NM_LAUNCH_GATE_OK;
}

static uint64_t figure(const _Atomic uint64_t *word)
{
    uint64_t value = atomic_load_explicit(word, memory_order_relaxed);
    return value < MOST_NS ? value : MOST_NS;
}

int nm_launch_gate_use(const struct nm_launch_gate *gate, uint32_t number,
                       struct nm_launch_use *use)
{
    memset(use, 0, sizeof *use);
    if (number >= NM_LAUNCH_SLOTS)
        return NM_LAUNCH_GATE_RANGE;
    const struct nm_turns_row *row = &gate->turns->row[number];
    if (atomic_load(&row->generation) != read_row(gate->shares, number).generation)
        return NM_LAUNCH_GATE_OK;
    use->used_ns = figure(&row->used_ns);
    use->in_flight_ns = figure(&row->in_flight_ns);
    use->last_activity_ns = figure(&row->last_activity_ns);
    use->launches = figure(&row->launches);
    use->waiting_since_ns = figure(&row->waiting_since_ns);
    return NM_LAUNCH_GATE_OK;
}

/* -- the gate as a whole -- */

void nm_launch_gate_beat(struct nm_launch_gate *gate, uint64_t now_ns)
{
    atomic_store(&gate->shares_writable->beat_ns, now_ns);
}

void nm_launch_gate_tune(struct nm_launch_gate *gate, uint64_t window_ns, int spatial)
{
    atomic_store(&gate->shares_writable->window_ns, window_ns);
    atomic_store(&gate->shares_writable->spatial, spatial != 0);
}
