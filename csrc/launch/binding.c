/* binding.c: the gate of each GPU of the lease, and a launch's way through it; see gpu_gate.h.
 *
 * Knows: the lease, the current context's GPU. Must not know: the order of processes.
 *
 * A launch that need not wait reads three words of the pages, one estimate, and the clock: a pause
 * of the program must not be charged.
 */
#include <string.h>

#include "account/charge.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "launch/gpu_gate.h"

enum { SUCCESS = NM_CUDA_SUCCESS };
#define PAUSE_NS (20 * NM_US)
#define URGENT_LOOK_NS (1000 * NM_US) /* with more in flight, each launch asks for its credit */

static struct nm_gpu_gate gates[NM_LEDGER_ROWS]; /* by ledger row */
static _Atomic(const struct nm_lease *) bound;   /* the lease whose gates they are */
static _Atomic uint32_t bound_count;
static _Atomic uint32_t only_row; /* of the first GPU */
static struct nm_lock binding;

bool nm_gates_bound(void)
{
    return atomic_load_explicit(&bound_count, memory_order_relaxed) > 0;
}

struct nm_gpu_gate *nm_gate_at(uint32_t row)
{
    return atomic_load_explicit(&gates[row].shares, memory_order_acquire) != NULL ? &gates[row]
                                                                                  : NULL;
}

/* A confirmed lease keeps its slot and its figures. */
static void bind_gate(struct nm_gpu_gate *gate, const struct nm_lease_gpu *gpu)
{
    nm_lock(&gate->lock);
    uint64_t word = gpu->gate.shares->row[gpu->launch_slot].word;
    if (gate->turns != gpu->gate.turns || gate->slot != gpu->launch_slot ||
        gate->generation != word >> NM_LAUNCH_GENERATION_SHIFT) {
        const struct nm_turns_row *row = &gpu->gate.turns->row[gpu->launch_slot];
        gate->generation = (uint32_t)(word >> NM_LAUNCH_GENERATION_SHIFT);
        gate->virtual_ns = atomic_load(&row->virtual_ns);
        gate->used_ns = atomic_load(&row->used_ns);
        gate->my_token = NM_NO_TOKEN;
        gate->over_since_ns = gate->manager_seen_ns = 0;
        gate->companions = 1;
        gate->owed_ns = 0;
        gate->bound_ns = nm_now_ns() - gate->used_ns;
        gate->credit_at_ns = 0;
        gate->spent = false;
        atomic_store(&gate->urgent, false);
    }
    atomic_store(&gate->held_token, NM_NO_TOKEN);
    atomic_store(&gate->open_word, 0);
    atomic_store(&gate->slot, gpu->launch_slot);
    atomic_store(&gate->turns, gpu->gate.turns);
    atomic_store(&gate->shares, gpu->gate.shares);
    nm_unlock(&gate->lock);
}

/* GPUs of another lease keep their state, which no launch reaches. */
static void bind(const struct nm_lease *lease)
{
    uint32_t count = 0;
    nm_lock(&binding);
    for (uint32_t i = 0; i < lease->gpu_count; i++)
        if (lease->gpu[i].gate.shares != NULL) {
            bind_gate(&gates[lease->gpu[i].row], &lease->gpu[i]);
            count++;
        }
    atomic_store(&only_row, lease->gpu[0].row);
    atomic_store(&bound_count, count);
    atomic_store(&bound, lease);
    nm_unlock(&binding);
}

/* The lease whose gates are bound, or NULL. */
static inline const struct nm_lease *bound_lease(void)
{
    const struct nm_lease *lease = nm_client_lease();
    if (lease != NULL && lease != atomic_load_explicit(&bound, memory_order_acquire))
        bind(lease);
    return lease != NULL && nm_gates_bound() ? lease : NULL;
}

struct nm_gpu_gate *nm_gate_here(void)
{
    const struct nm_lease *lease = bound_lease();
    if (lease == NULL)
        return NULL;
    if (lease->gpu_count == 1)
        return &gates[atomic_load_explicit(&only_row, memory_order_relaxed)];
    int row = nm_charge_row_here(lease);
    return row >= 0 ? nm_gate_at((uint32_t)row) : NULL;
}

/* -- a launch -- */

static inline bool passes(const struct nm_gpu_gate *gate, uint64_t room_ns)
{
    uint64_t word = nm_own_word(gate);
    const struct nm_turns *turns = atomic_load_explicit(&gate->turns, memory_order_relaxed);
    if (word != atomic_load_explicit(&gate->open_word, memory_order_relaxed))
        return false;
    uint64_t in_flight_ns = atomic_load_explicit(&gate->in_flight_ns, memory_order_relaxed);
    if (nm_word_class(word) == NM_LAUNCH_LATENCY_SENSITIVE &&
        atomic_load_explicit(&gate->urgent, memory_order_relaxed))
        return in_flight_ns < URGENT_LOOK_NS;
    if (!atomic_load_explicit(&gate->without_turns, memory_order_relaxed) &&
        atomic_load_explicit(&turns->token, memory_order_relaxed) !=
            atomic_load_explicit(&gate->held_token, memory_order_relaxed))
        return false;
    return nm_turn_urgent_bits(gate) == 0 &&
           (in_flight_ns == 0 ||
            in_flight_ns + room_ns <=
                atomic_load_explicit(&gate->window_ns, memory_order_relaxed));
}

/* The gap before this launch, in which the GPU had no work of this process. */
static void note_gap(struct nm_gpu_gate *gate, struct nm_turns_row *row)
{
    uint64_t now_ns = nm_now_ns(), done_ns = gate->done_ns;
    uint64_t gap_ns = done_ns != 0 && now_ns > done_ns ? now_ns - done_ns : 0;
    uint64_t usual_ns = atomic_load_explicit(&row->gap_ns, memory_order_relaxed);
    usual_ns = usual_ns < gap_ns ? usual_ns + (gap_ns - usual_ns) / 4
                                 : usual_ns - (usual_ns - gap_ns) / 4;
    atomic_store_explicit(&row->gap_ns, usual_ns, memory_order_relaxed);
    uint32_t short_gaps = atomic_load_explicit(&gate->short_gaps, memory_order_relaxed);
    short_gaps = short_gaps - short_gaps / 8 + (gap_ns < NM_SHORT_GAP_NS ? 32 : 0);
    atomic_store_explicit(&gate->short_gaps, short_gaps, memory_order_relaxed);
}

/* Notes when the work in flight should end, with this launch. True: without it, it may have
   ended. */
static bool expect(struct nm_gpu_gate *gate, uint64_t estimate_ns)
{
    uint64_t now_ns = atomic_load_explicit(&gate->launched_ns, memory_order_relaxed),
             until_ns = atomic_load_explicit(&gate->until_ns, memory_order_relaxed);
    atomic_store_explicit(&gate->until_ns, (until_ns > now_ns ? until_ns : now_ns) + estimate_ns,
                          memory_order_relaxed);
    return until_ns < now_ns + PAUSE_NS;
}

static void enter(struct nm_gpu_gate *gate, struct nm_launch *launch)
{
    struct nm_turns_row *row = nm_own_row(gate);
    uint64_t before_ns = atomic_fetch_add(&gate->in_flight_ns, launch->estimate_ns);
    uint64_t launches =
        atomic_fetch_add_explicit(&gate->launches, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&row->in_flight_ns, before_ns + launch->estimate_ns,
                          memory_order_relaxed);
    atomic_store_explicit(&row->launches, launches, memory_order_relaxed);
    bool empty = expect(gate, launch->estimate_ns) || before_ns == 0;
    if (empty && (launch->per_thread ||
                  atomic_load_explicit(&gate->open_stream, memory_order_relaxed) != launch->stream))
        nm_meter_begin(gate, launch);
    if (before_ns == 0) {
        note_gap(gate, row);
        nm_keeper_wake();
    }
}

/* After a pause in which all work should have ended, a piece must not go on: its time would include
   the pause. A new piece needs to know whether it begins on an empty GPU, unless much work should
   be ahead of it and the window is far. */
static void settle_pause(struct nm_gpu_gate *gate)
{
    uint64_t in_flight_ns = atomic_load_explicit(&gate->in_flight_ns, memory_order_relaxed);
    uint64_t now_ns = nm_now_ns(),
             before_ns = atomic_load_explicit(&gate->launched_ns, memory_order_relaxed);
    atomic_store_explicit(&gate->launched_ns, now_ns, memory_order_relaxed);
    bool opens = atomic_load_explicit(&gate->open_pieces, memory_order_relaxed) == 0;
    bool paused = now_ns - before_ns > in_flight_ns + PAUSE_NS;
    bool far = 2 * in_flight_ns < atomic_load_explicit(&gate->window_ns, memory_order_relaxed) &&
               atomic_load_explicit(&gate->until_ns, memory_order_relaxed) > now_ns + PAUSE_NS;
    if (in_flight_ns == 0 || (!paused && (!opens || far)))
        return;
    nm_meter_poll(gate);
    if (!opens && paused)
        nm_meter_drop(gate, NULL, true);
}

int nm_launch_begin(struct nm_launch *launch, const void *function, uint64_t blocks,
                    nm_cu_stream stream, bool per_thread)
{
    struct nm_gpu_gate *gate = nm_gate_here();
    launch->gate = NULL;
    if (gate == NULL)
        return SUCCESS;
    if (nm_is_captured(stream, per_thread))
        return SUCCESS;
    *launch = (struct nm_launch){.stream = stream, .per_thread = per_thread && stream == NULL};
    launch->kernel = nm_estimate_of(function, blocks);
    launch->estimate_ns = nm_estimate_ns(launch->kernel);
    uint64_t room_ns = nm_estimate_room_ns(launch->kernel);
    settle_pause(gate);
    if (!passes(gate, room_ns)) {
        int result = nm_turn_await(gate, room_ns);
        if (result != SUCCESS)
            return result;
        atomic_store_explicit(&gate->launched_ns, nm_now_ns(), memory_order_relaxed);
    }
    enter(gate, launch);
    launch->gate = gate;
    return SUCCESS;
}

void nm_launch_end(struct nm_launch *launch, int result)
{
    if (launch->gate == NULL)
        return;
    if (result == SUCCESS)
        nm_meter_add(launch->gate, launch);
    else
        nm_meter_withdraw(launch->gate, launch);
}

/* -- calls that wait, and ends -- */

void nm_launch_before_wait(nm_cu_stream stream, bool per_thread, bool all)
{
    struct nm_gpu_gate *gate = nm_gates_bound() && !nm_forked() ? nm_gate_here() : NULL;
    if (gate != NULL)
        nm_meter_close(gate, stream, per_thread && stream == NULL, all);
}

int nm_launch_after_wait(int result)
{
    struct nm_gpu_gate *gate = nm_gates_bound() && !nm_forked() ? nm_gate_here() : NULL;
    if (gate != NULL && atomic_load(&gate->in_flight_ns) > 0)
        nm_meter_poll(gate);
    return result;
}

void nm_launch_note_copy(void)
{
    struct nm_gpu_gate *gate = nm_client_gated() && !nm_forked() ? nm_gate_here() : NULL;
    if (gate != NULL)
        atomic_store_explicit(&nm_own_row(gate)->last_activity_ns, nm_now_ns(),
                              memory_order_relaxed);
}

void nm_launch_forget_events(void)
{
    for (uint32_t row = 0; nm_gates_bound() && !nm_forked() && row < NM_LEDGER_ROWS; row++)
        if (nm_gate_at(row) != NULL)
            nm_meter_forget(&gates[row]);
}

void nm_launch_forget(void)
{
    memset(gates, 0, sizeof gates);
    atomic_store(&bound, NULL);
    atomic_store(&bound_count, 0);
    memset(&binding, 0, sizeof binding);
    nm_away_forget();
    nm_captures_forget();
    nm_keeper_forget();
}
