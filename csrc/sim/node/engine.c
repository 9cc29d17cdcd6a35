/* engine.c: see engine.h.
 *
 * One step of a version ends at most NM_SIM_ENDS pieces and lists them. The times go into the
 * rings before the next version: each looker writes them first, by compare-and-swap from the
 * piece's pending mark, which no other use of that place in the ring has.
 */
#include "sim/node/engine.h"

#include <stddef.h>
#include <string.h>

#include "sim/node/node.h"

#define LOOK_EVERY_NS UINT64_C(1000000)

static nm_sim_engine *engine_of(const nm_sim_node *node, int device) {
    return &node->state->device[device].engine;
}

static nm_sim_ring_of ring_of;
static nm_sim_piece *ring_of(void *engine, uint32_t seat) {
    return ((nm_sim_engine *)engine)->seat[seat % NM_SIM_SEATS].ring;
}

static nm_sim_step step_to(const nm_sim_node *node, int device, uint64_t until_ns) {
    nm_sim_device *shared = &node->state->device[device];
    uint32_t slice_us = atomic_load_explicit(&shared->slice_us, memory_order_relaxed);
    uint32_t policy = atomic_load_explicit(&shared->scheduling, memory_order_relaxed);
    return (nm_sim_step){
        .rules = {.policy = policy < NM_SIM_POLICY_COUNT ? policy : NM_SIM_TIME_SLICING,
                  .slice_ns = (slice_us > 0 ? slice_us : 1) * UINT64_C(1000)},
        .ring_of = ring_of,
        .context = &shared->engine,
        .until_ns = until_ns,
        .seat = NM_SIM_NOT_RUNNING,
    };
}

/* ---- versions
   ----------------------------------------------------------------------------- */

static nm_sim_schedule *version_at(nm_sim_engine *engine, uint64_t present) {
    return &engine->seat[(present >> 1) % NM_SIM_SEATS].version[present & 1];
}

static void copy(nm_sim_schedule *to, const nm_sim_schedule *from) {
    memcpy(to, from, offsetof(nm_sim_schedule, ends));
    if (to->count > NM_SIM_SEATS) to->count = NM_SIM_SEATS;
    if (to->ended > NM_SIM_ENDS) to->ended = NM_SIM_ENDS;
    memcpy(to->ends, from->ends, to->ended * sizeof *to->ends);
    memcpy(to->runners, from->runners, to->count * sizeof *to->runners);
}

/* A copy of the present version, and its word. */
static uint64_t read_present(nm_sim_engine *engine, nm_sim_schedule *out) {
    for (;;) {
        uint64_t present = atomic_load_explicit(&engine->present, memory_order_acquire);
        copy(out, version_at(engine, present));
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&engine->present, memory_order_relaxed) == present) return present;
    }
}

/* Writes the ends of the last step into the rings. */
static void write_ends(nm_sim_engine *engine, nm_sim_schedule *schedule) {
    for (uint32_t each = 0; each < schedule->ended; each++) {
        const nm_sim_end *end = &schedule->ends[each];
        uint64_t pending = nm_sim_pending(end->index);
        atomic_compare_exchange_strong(
            &ring_of(engine, end->seat)[end->index % NM_SIM_PIECES].end, &pending, end->at_ns);
    }
    schedule->ended = 0;
}

/* The copy becomes the present version. False: there is another by now. */
static bool publish(nm_sim_place *place, uint64_t present, const nm_sim_schedule *schedule) {
    nm_sim_engine *engine = engine_of(place->node, place->device);
    bool ours = (present >> 1) % NM_SIM_SEATS == place->seat;
    uint64_t next = ((present >> 16) + 1) << 16 | place->seat << 1 | (ours ? !(present & 1) : 0);
    copy(version_at(engine, next), schedule);
    return atomic_compare_exchange_strong(&engine->present, &present, next);
}

/* ---- the dead
   ----------------------------------------------------------------------------- */

static void drop_gone(nm_sim_engine *engine, nm_sim_schedule *schedule) {
    for (uint32_t which = schedule->count; which-- > 0;) {
        const nm_sim_runner *runner = &schedule->runners[which];
        const nm_sim_seat *seat = &engine->seat[runner->seat % NM_SIM_SEATS];
        if (atomic_load_explicit(&seat->owner, memory_order_relaxed) != runner->owner)
            nm_sim_schedule_leave(schedule, which);
    }
}

static bool is_dead(const nm_sim_node *node, uint64_t owner) {
    int slot = (int)(owner & 0xffff) - 1;
    return slot < 0 || slot >= NM_SIM_SLOTS ||
           atomic_load(&node->state->slot_life[slot]) != owner >> 16 ||
           nm_sim_node_owner(node, slot) == 0;
}

static void free_if_dead(const nm_sim_node *node, nm_sim_seat *seat) {
    uint64_t owner = atomic_load(&seat->owner);
    if (owner != 0 && is_dead(node, owner))
        atomic_compare_exchange_strong(&seat->owner, &owner, 0);
}

/* At most once a millisecond, because it is a system call for each other process. */
static void look_for_dead(nm_sim_place *place, const nm_sim_schedule *schedule,
                          uint64_t until_ns) {
    if (until_ns < place->looked_ns + LOOK_EVERY_NS) return;
    nm_sim_engine *engine = engine_of(place->node, place->device);
    place->looked_ns = until_ns;
    for (uint32_t which = 0; which < schedule->count; which++) {
        uint32_t seat = schedule->runners[which].seat;
        if (seat != place->seat) free_if_dead(place->node, &engine->seat[seat % NM_SIM_SEATS]);
    }
}

void nm_sim_engine_leave(nm_sim_engine *engine, int slot) {
    for (uint32_t seat = 0; seat < NM_SIM_SEATS; seat++) {
        uint64_t owner = atomic_load(&engine->seat[seat].owner);
        if (owner != 0 && (int)(owner & 0xffff) - 1 == slot)
            atomic_compare_exchange_strong(&engine->seat[seat].owner, &owner, 0);
    }
}

/* ---- a process's seat
   ----------------------------------------------------------------------------- */

/* The numbers of this process's pieces are above all that were written here before: a late writer
   of an earlier process's end finds another mark. */
static void take(nm_sim_place *place, nm_sim_seat *seat) {
    place->head = place->next = atomic_load(&seat->next) + NM_SIM_PIECES;
    atomic_store(&seat->next, place->next);
}

bool nm_sim_engine_sit(nm_sim_place *place, nm_sim_node *node, int device) {
    nm_sim_engine *engine = engine_of(node, device);
    uint64_t life = atomic_load(&node->state->slot_life[node->slot]);
    uint64_t owner = life << 16 | (uint64_t)(node->slot + 1);
    for (uint32_t index = 0; index < 2 * NM_SIM_SEATS; index++) {
        nm_sim_seat *seat = &engine->seat[index % NM_SIM_SEATS];
        uint64_t seen = 0;
        if (index >= NM_SIM_SEATS) free_if_dead(node, seat); /* the second time around */
        if (!atomic_compare_exchange_strong(&seat->owner, &seen, owner)) continue;
        *place = (nm_sim_place){
            .node = node, .device = device, .seat = index % NM_SIM_SEATS, .owner = owner};
        take(place, seat);
        return true;
    }
    return false;
}

/* A copy of the present version, run to the end of `step`; it has the process's runner. False: the
   copy became the present version, and there is more to run. */
static bool run_once(nm_sim_place *place, const nm_sim_step *step, nm_sim_schedule *schedule,
                     uint64_t *present) {
    nm_sim_engine *engine = engine_of(place->node, place->device);
    *present = read_present(engine, schedule);
    write_ends(engine, schedule);
    look_for_dead(place, schedule, step->until_ns);
    drop_gone(engine, schedule);
    bool complete = nm_sim_schedule_run(schedule, step);
    nm_sim_schedule_join(schedule, place->seat, place->owner, place->next);
    if (!complete) publish(place, *present, schedule);
    return complete;
}

void nm_sim_engine_run(nm_sim_place *place, uint64_t until_ns, uint64_t index) {
    nm_sim_step step = step_to(place->node, place->device, until_ns);
    step.seat = place->seat;
    step.index = index;
    nm_sim_schedule schedule;
    uint64_t present;
    do {
        while (!run_once(place, &step, &schedule, &present)) {
        }
    } while (!publish(place, present, &schedule));
    write_ends(engine_of(place->node, place->device), &schedule);
    place->head = nm_sim_schedule_runner(&schedule, place->seat)->head;
}

uint64_t nm_sim_engine_add(nm_sim_place *place, uint64_t ready_ns, uint64_t duration_ns) {
    nm_sim_seat *seat = &engine_of(place->node, place->device)->seat[place->seat];
    uint64_t index = place->next;
    nm_sim_piece *piece = &seat->ring[index % NM_SIM_PIECES];
    if (duration_ns == 0) duration_ns = 1;
    atomic_store(&seat->next, index + 1);
    atomic_store_explicit(&piece->ready_ns, ready_ns, memory_order_relaxed);
    atomic_store_explicit(&piece->duration_ns, duration_ns, memory_order_relaxed);
    atomic_store_explicit(&piece->end, nm_sim_pending(index), memory_order_relaxed);
    nm_sim_step step = step_to(place->node, place->device, ready_ns);
    nm_sim_schedule schedule;
    nm_sim_runner *runner;
    uint64_t present;
    do {
        while (!run_once(place, &step, &schedule, &present)) {
        }
        runner = nm_sim_schedule_runner(&schedule, place->seat);
        if (runner->head == runner->tail) runner->left_ns = duration_ns;
        runner->tail = index + 1;
        runner->added++;
    } while (!publish(place, present, &schedule));
    write_ends(engine_of(place->node, place->device), &schedule);
    place->head = runner->head;
    place->next = index + 1;
    return index;
}

uint64_t nm_sim_engine_end(const nm_sim_place *place, uint64_t index) {
    nm_sim_engine *engine = engine_of(place->node, place->device);
    return atomic_load(&ring_of(engine, place->seat)[index % NM_SIM_PIECES].end);
}

uint64_t nm_sim_engine_expected_end(nm_sim_place *place, uint64_t index, uint64_t horizon_ns) {
    nm_sim_engine *engine = engine_of(place->node, place->device);
    nm_sim_step step = step_to(place->node, place->device, horizon_ns);
    step.seat = place->seat;
    step.index = index;
    nm_sim_schedule schedule;
    read_present(engine, &schedule);
    do schedule.ended = 0;
    while (!nm_sim_schedule_run(&schedule, &step));
    return schedule.now_ns < horizon_ns ? schedule.now_ns : horizon_ns;
}

/* ---- readers
   ----------------------------------------------------------------------------- */

void nm_sim_engine_look(nm_sim_node *node, int device, uint64_t now_ns, nm_sim_schedule *out) {
    nm_sim_engine *engine = engine_of(node, device);
    nm_sim_step step = step_to(node, device, now_ns);
    read_present(engine, out);
    for (uint32_t which = out->count; which-- > 0;) {
        if (is_dead(node, out->runners[which].owner)) nm_sim_schedule_leave(out, which);
    }
    do out->ended = 0;
    while (!nm_sim_schedule_run(out, &step));
}
