/* schedule.c: see schedule.h. */
#include "sim/node/schedule.h"

#include <string.h>

static const nm_sim_piece *head_of(const nm_sim_runner *runner, const nm_sim_step *step) {
    return &step->ring_of(step->context, runner->seat)[runner->head % NM_SIM_PIECES];
}

static bool is_runnable(const nm_sim_schedule *schedule, uint32_t which, const nm_sim_step *step) {
    const nm_sim_runner *runner = &schedule->runners[which];
    return runner->head < runner->tail &&
           atomic_load_explicit(&head_of(runner, step)->ready_ns, memory_order_relaxed) <=
               schedule->now_ns;
}

/* ---- figures
   ----------------------------------------------------------------------------- */

static void begin_period(nm_sim_busy *busy, bool follows) {
    busy->last_ns = follows ? busy->present_ns : 0;
    busy->present_ns = 0;
}

/* After `now_ns` has moved. */
static void note_period(nm_sim_schedule *schedule) {
    uint64_t period = schedule->now_ns / NM_SIM_PERIOD_NS;
    if (period == schedule->period) return;
    bool follows = period == schedule->period + 1;
    begin_period(&schedule->busy, follows);
    for (uint32_t which = 0; which < schedule->count; which++)
        begin_period(&schedule->runners[which].busy, follows);
    schedule->period = period;
}

static void count_busy(nm_sim_busy *busy, uint64_t span_ns) {
    busy->ever_ns += span_ns;
    busy->present_ns += span_ns;
}

/* ---- policies: the runner whose piece runs now; NM_SIM_NOT_RUNNING where none is ready
   ----------------------------------------------------------------------------- */

static uint32_t by_turns(nm_sim_schedule *schedule, const nm_sim_step *step) {
    uint32_t before = schedule->running, count = schedule->count;
    bool has_turn = before < count && schedule->now_ns < schedule->slice_end_ns;
    if (has_turn && is_runnable(schedule, before, step)) return before;
    for (uint32_t each = 0; each < count; each++) {
        uint32_t which = before < count ? (before + 1 + each) % count : each;
        if (!is_runnable(schedule, which, step)) continue;
        schedule->slice_end_ns = schedule->now_ns + step->rules.slice_ns;
        return which;
    }
    return NM_SIM_NOT_RUNNING;
}

static uint32_t first_ready(const nm_sim_schedule *schedule, const nm_sim_step *step) {
    if (schedule->running < schedule->count && is_runnable(schedule, schedule->running, step))
        return schedule->running;
    uint32_t first = NM_SIM_NOT_RUNNING;
    uint64_t first_ns = UINT64_MAX;
    for (uint32_t which = 0; which < schedule->count; which++) {
        if (!is_runnable(schedule, which, step)) continue;
        uint64_t ready_ns = atomic_load_explicit(
            &head_of(&schedule->runners[which], step)->ready_ns, memory_order_relaxed);
        if (ready_ns >= first_ns) continue;
        first = which;
        first_ns = ready_ns;
    }
    return first;
}

/* ---- running
   ----------------------------------------------------------------------------- */

static void begin_head(nm_sim_runner *runner, const nm_sim_step *step) {
    uint64_t duration_ns =
        atomic_load_explicit(&head_of(runner, step)->duration_ns, memory_order_relaxed);
    runner->left_ns = duration_ns > 0 ? duration_ns : 1;
}

static void end_head(nm_sim_schedule *schedule, nm_sim_runner *runner, const nm_sim_step *step) {
    schedule->ends[schedule->ended++] =
        (nm_sim_end){.seat = runner->seat, .index = runner->head, .at_ns = schedule->now_ns};
    runner->head++;
    if (runner->head < runner->tail) begin_head(runner, step);
    if (step->rules.policy == NM_SIM_FIFO) schedule->running = NM_SIM_NOT_RUNNING;
}

/* Nothing runs before this time. */
static uint64_t next_ready_ns(const nm_sim_schedule *schedule, const nm_sim_step *step) {
    uint64_t next_ns = step->until_ns;
    for (uint32_t which = 0; which < schedule->count; which++) {
        const nm_sim_runner *runner = &schedule->runners[which];
        if (runner->head == runner->tail) continue;
        uint64_t ready_ns =
            atomic_load_explicit(&head_of(runner, step)->ready_ns, memory_order_relaxed);
        if (ready_ns < next_ns) next_ns = ready_ns;
    }
    return next_ns;
}

static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

/* The time for which the running piece goes on before anything is to be decided. */
static uint64_t span_of(const nm_sim_schedule *schedule, const nm_sim_step *step) {
    uint64_t now_ns = schedule->now_ns;
    uint64_t end_ns = least(step->until_ns, (schedule->period + 1) * NM_SIM_PERIOD_NS);
    if (step->rules.policy == NM_SIM_TIME_SLICING) end_ns = least(end_ns, schedule->slice_end_ns);
    return least(schedule->runners[schedule->running].left_ns, end_ns - now_ns);
}

/* The piece that the step waits for has ended. */
static bool is_reached(nm_sim_schedule *schedule, const nm_sim_step *step) {
    const nm_sim_runner *awaited = nm_sim_schedule_runner(schedule, step->seat);
    return awaited && awaited->head > step->index;
}

bool nm_sim_schedule_run(nm_sim_schedule *schedule, const nm_sim_step *step) {
    note_period(schedule);
    if (schedule->count == 0) schedule->running = NM_SIM_NOT_RUNNING; /* in a new file it is 0 */
    bool reached = is_reached(schedule, step);
    while (schedule->now_ns < step->until_ns && !reached) {
        if (schedule->ended == NM_SIM_ENDS) return false;
        schedule->running = step->rules.policy == NM_SIM_FIFO ? first_ready(schedule, step)
                                                              : by_turns(schedule, step);
        if (schedule->running == NM_SIM_NOT_RUNNING) {
            schedule->now_ns = next_ready_ns(schedule, step);
            note_period(schedule);
            continue;
        }
        nm_sim_runner *runner = &schedule->runners[schedule->running];
        uint64_t span_ns = span_of(schedule, step);
        schedule->now_ns += span_ns;
        runner->left_ns -= span_ns;
        count_busy(&schedule->busy, span_ns);
        count_busy(&runner->busy, span_ns);
        if (runner->left_ns == 0) end_head(schedule, runner, step);
        note_period(schedule);
        reached = runner->seat == step->seat && runner->head > step->index;
    }
    return true;
}

/* ---- runners
   ----------------------------------------------------------------------------- */

nm_sim_runner *nm_sim_schedule_runner(nm_sim_schedule *schedule, uint32_t seat) {
    for (uint32_t which = 0; which < schedule->count; which++) {
        if (schedule->runners[which].seat == seat) return &schedule->runners[which];
    }
    return NULL;
}

nm_sim_runner *nm_sim_schedule_join(nm_sim_schedule *schedule, uint32_t seat, uint64_t owner,
                                    uint64_t next) {
    nm_sim_runner *runner = nm_sim_schedule_runner(schedule, seat);
    if (runner) return runner;
    runner = &schedule->runners[schedule->count++];
    *runner = (nm_sim_runner){.owner = owner, .head = next, .tail = next, .seat = seat};
    return runner;
}

void nm_sim_schedule_leave(nm_sim_schedule *schedule, uint32_t which) {
    schedule->count--;
    memmove(&schedule->runners[which], &schedule->runners[which + 1],
            (schedule->count - which) * sizeof *schedule->runners);
    if (schedule->running == which) schedule->running = NM_SIM_NOT_RUNNING;
    if (schedule->running != NM_SIM_NOT_RUNNING && schedule->running > which) schedule->running--;
}
