/* engine.c: the order of kernels on a simulated device, at exact times, and the steps between which
 * a process may die.
 *
 * Knows: the insides of engine.c, which it includes; processes are seats of one program, and live
 * while `alive` says so. Must not know: CUDA. Exit code 0, or 1 with the line of what did not hold.
 */
#include "sim/node/engine.c"
#include "sim/node/models.c"
#include "sim/node/schedule.c"

#include <stdio.h>
#include <stdlib.h>

#define HOLDS(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

enum { US = 1000, MS = 1000000, PROCESSES = 4 };
#define FOREVER UINT64_MAX

static nm_sim_state state;
static nm_sim_node nodes[PROCESSES];
static nm_sim_place places[PROCESSES];
static bool alive[PROCESSES];

int nm_sim_node_owner(const nm_sim_node *node, int slot) {
    (void)node;
    return alive[slot] ? slot + 100 : 0;
}

static void begin(nm_sim_policy policy) {
    memset(&state, 0, sizeof state);
    state.device_count = 1;
    atomic_store(&state.device[0].scheduling, policy);
    atomic_store(&state.device[0].slice_us, 2000);
    for (int process = 0; process < PROCESSES; process++) {
        atomic_store(&state.slot_life[process], 1);
        nodes[process] = (nm_sim_node){.state = &state, .descriptor = -1, .slot = process};
        alive[process] = true;
        HOLDS(nm_sim_engine_sit(&places[process], &nodes[process], 0));
    }
}

static uint64_t add(int process, uint64_t ready_ns, uint64_t duration_ns) {
    return nm_sim_engine_add(&places[process], ready_ns, duration_ns);
}
static void run(int process, uint64_t until_ns) {
    nm_sim_engine_run(&places[process], until_ns, FOREVER);
}
static uint64_t end_of(int process, uint64_t index) {
    return nm_sim_engine_end(&places[process], index);
}
static bool has_ended(int process, uint64_t index) { return index < places[process].head; }

/* ---- order
   ----------------------------------------------------------------------------- */

static void one_process_runs_in_order(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t first = add(0, 10 * US, 100 * US), second = add(0, 20 * US, 50 * US);
    uint64_t late = add(0, 300 * US, 5 * US);
    run(0, 100 * US);
    HOLDS(!has_ended(0, late));
    run(0, 1 * MS);
    HOLDS(end_of(0, first) == 110 * US);
    HOLDS(end_of(0, second) == 160 * US);
    HOLDS(end_of(0, late) == 305 * US);
}

static void processes_take_turns(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t one = add(0, 0, 5 * MS), other = add(1, 0, 5 * MS);
    run(0, 20 * MS);
    run(1, 20 * MS);
    HOLDS(end_of(0, one) == 9 * MS);
    HOLDS(end_of(1, other) == 10 * MS);
}

static void a_turn_ends_where_nothing_is_left(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t small = add(0, 0, 1 * MS), large = add(1, 0, 4 * MS), third = add(2, 0, 3 * MS);
    for (int process = 0; process < 3; process++) run(process, 20 * MS);
    HOLDS(end_of(0, small) == 1 * MS);
    HOLDS(end_of(1, large) == 7 * MS);
    HOLDS(end_of(2, third) == 8 * MS);
}

static void fifo_runs_each_to_its_end(void) {
    begin(NM_SIM_FIFO);
    uint64_t one = add(0, 0, 50 * MS), other = add(1, 1 * MS, 1 * MS);
    uint64_t next = add(0, 2 * MS, 1 * MS);
    run(0, 90 * MS);
    run(1, 90 * MS);
    HOLDS(end_of(0, one) == 50 * MS);
    HOLDS(end_of(1, other) == 51 * MS);
    HOLDS(end_of(0, next) == 52 * MS);
}

/* Whoever looks, and how often, changes nothing. */
static void looks_change_nothing(nm_sim_policy policy) {
    static uint64_t seen[2][3][40];
    for (int often = 0; often < 2; often++) {
        begin(policy);
        uint64_t made[3][40];
        for (int number = 0; number < 40; number++) {
            for (int process = 0; process < 3; process++) {
                uint64_t now_ns = (uint64_t)(1 + number * 300 + process * 70) * US;
                if (often)
                    for (int look = 0; look < 3; look++) run((process + look) % 3, now_ns - look);
                made[process][number] = add(process, now_ns, (uint64_t)(process * 200 + 7) * US);
            }
        }
        for (int process = 0; process < 3; process++) {
            run(process, 100 * MS);
            for (int number = 0; number < 40; number++)
                seen[often][process][number] = end_of(process, made[process][number]);
        }
    }
    HOLDS(memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
}

static void a_run_stops_at_the_awaited_end(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t first = add(0, 0, 5 * MS), second = add(0, 0, 5 * MS);
    HOLDS(nm_sim_engine_expected_end(&places[0], first, 50 * MS) == 5 * MS);
    HOLDS(nm_sim_engine_expected_end(&places[0], second, 50 * MS) == 10 * MS);
    HOLDS(nm_sim_engine_expected_end(&places[0], second, 8 * MS) == 8 * MS);
    nm_sim_engine_run(&places[0], 50 * MS, first);
    uint64_t copied = add(0, 5 * MS, 1 * MS); /* not after 50 ms */
    run(0, 50 * MS);
    HOLDS(end_of(0, copied) == 11 * MS);
}

static void a_full_queue_ends_in_order(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t first = places[0].next;
    for (int number = 0; number < NM_SIM_PIECES; number++) add(0, 0, 10 * US);
    run(0, 100 * MS);
    for (uint64_t number = 0; number < NM_SIM_PIECES; number++)
        HOLDS(end_of(0, first + number) == (number + 1) * 10 * US);
}

static void utilisation_is_of_whole_periods(void) {
    begin(NM_SIM_TIME_SLICING);
    nm_sim_schedule seen;
    add(0, NM_SIM_PERIOD_NS, NM_SIM_PERIOD_NS / 4);
    add(1, NM_SIM_PERIOD_NS, NM_SIM_PERIOD_NS / 2);
    nm_sim_engine_look(&nodes[2], 0, 2 * NM_SIM_PERIOD_NS - 1, &seen);
    HOLDS(seen.busy.last_ns == 0);
    nm_sim_engine_look(&nodes[2], 0, 2 * NM_SIM_PERIOD_NS + 1, &seen);
    HOLDS(seen.busy.last_ns == NM_SIM_PERIOD_NS / 4 * 3);
    HOLDS(nm_sim_schedule_runner(&seen, places[0].seat)->busy.last_ns == NM_SIM_PERIOD_NS / 4);
    nm_sim_engine_look(&nodes[2], 0, 4 * NM_SIM_PERIOD_NS, &seen);
    HOLDS(seen.busy.last_ns == 0 && seen.busy.ever_ns == NM_SIM_PERIOD_NS / 4 * 3);
}

/* ---- deaths
   ----------------------------------------------------------------------------- */

static void the_queue_of_the_dead_vanishes(void) {
    begin(NM_SIM_FIFO);
    add(0, 0, 100000 * (uint64_t)MS);
    uint64_t waiting = add(1, 1 * MS, 1 * MS);
    run(1, 10 * MS);
    HOLDS(!has_ended(1, waiting));
    alive[0] = false;
    run(1, 20 * MS);
    run(1, 30 * MS);
    HOLDS(has_ended(1, waiting));
    HOLDS(end_of(1, waiting) <= 21 * MS);
    nm_sim_schedule seen;
    nm_sim_engine_look(&nodes[2], 0, 30 * MS, &seen);
    HOLDS(!nm_sim_schedule_runner(&seen, places[0].seat));
}

/* The dead one had published the end of the other's piece, and not yet written it. */
static void an_end_that_the_dead_published_is_written_by_the_next(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t piece = add(1, 0, 1 * MS);
    nm_sim_step step = step_to(&nodes[0], 0, 5 * MS);
    nm_sim_schedule schedule;
    uint64_t present;
    HOLDS(run_once(&places[0], &step, &schedule, &present));
    HOLDS(publish(&places[0], present, &schedule));
    HOLDS(end_of(1, piece) == nm_sim_pending(piece));
    alive[0] = false;
    run(1, 6 * MS);
    HOLDS(end_of(1, piece) == 1 * MS);
}

/* Nothing of a step that was not published is seen. */
static void an_overtaken_step_is_void(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t piece = add(1, 0, 10 * MS);
    nm_sim_step step = step_to(&nodes[0], 0, 50 * MS);
    nm_sim_schedule schedule;
    uint64_t present;
    HOLDS(run_once(&places[0], &step, &schedule, &present));
    uint64_t other = add(2, 1 * MS, 10 * MS);
    HOLDS(!publish(&places[0], present, &schedule));
    run(1, 50 * MS);
    run(2, 50 * MS);
    HOLDS(end_of(1, piece) == 18 * MS);
    HOLDS(end_of(2, other) == 20 * MS);
}

/* A stopped process wakes up and writes an end into a ring that is another's by now. */
static void a_late_end_misses_the_next_owner(void) {
    begin(NM_SIM_TIME_SLICING);
    uint64_t piece = add(1, 0, 1 * MS);
    nm_sim_step step = step_to(&nodes[0], 0, 5 * MS);
    nm_sim_schedule late;
    uint64_t present;
    HOLDS(run_once(&places[0], &step, &late, &present));
    HOLDS(publish(&places[0], present, &late));
    alive[1] = false;
    nm_sim_engine_leave(&state.device[0].engine, 1);
    alive[1] = true;
    atomic_fetch_add(&state.slot_life[1], 1);
    HOLDS(nm_sim_engine_sit(&places[1], &nodes[1], 0));
    uint64_t fresh = 0;
    while (fresh % NM_SIM_PIECES != piece % NM_SIM_PIECES || fresh <= piece) {
        fresh = add(1, 5 * MS, 1 * MS);
        run(1, 5 * MS);
    }
    write_ends(&state.device[0].engine, &late);
    HOLDS(end_of(1, fresh) == nm_sim_pending(fresh));
}

static void the_seats_of_the_dead_are_taken(void) {
    begin(NM_SIM_TIME_SLICING);
    nm_sim_place place;
    for (int taken = PROCESSES; taken < NM_SIM_SEATS; taken++)
        HOLDS(nm_sim_engine_sit(&place, &nodes[1], 0));
    HOLDS(!nm_sim_engine_sit(&place, &nodes[2], 0));
    alive[3] = false;
    HOLDS(nm_sim_engine_sit(&place, &nodes[2], 0));
    HOLDS(place.seat == places[3].seat);
}

int main(void) {
    one_process_runs_in_order();
    processes_take_turns();
    a_turn_ends_where_nothing_is_left();
    fifo_runs_each_to_its_end();
    looks_change_nothing(NM_SIM_TIME_SLICING);
    looks_change_nothing(NM_SIM_FIFO);
    a_run_stops_at_the_awaited_end();
    a_full_queue_ends_in_order();
    utilisation_is_of_whole_periods();
    the_queue_of_the_dead_vanishes();
    an_end_that_the_dead_published_is_written_by_the_next();
    an_overtaken_step_is_void();
    a_late_end_misses_the_next_owner();
    the_seats_of_the_dead_are_taken();
    return 0;
}
