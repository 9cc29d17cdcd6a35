/* schedule.h: the order in which the kernels of all processes run on one simulated device.
 *
 * Knows: pieces of work, runners (processes with a queue of pieces), the two policies. Pure: the
 * next schedule follows from the last one, the pieces and a time. Must not know: processes, shared
 * memory, clocks.
 *
 * One piece runs at a time, as fast as if it were alone. Time slicing: the runners take turns; a
 * turn ends after a slice, also within a piece, or when the runner has nothing to run. FIFO: the
 * piece that was launched first runs to its end. A switch takes no time.
 */
#ifndef NM_SIM_SCHEDULE_H
#define NM_SIM_SCHEDULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    NM_SIM_SEATS = 64,   /* processes with a queue on one device */
    NM_SIM_PIECES = 1024, /* of a process's queue on a device */
    NM_SIM_ENDS = 32,    /* pieces that one step of a schedule may end */
};
#define NM_SIM_NOT_RUNNING UINT32_MAX /* no enumerator: that would make all of its enum unsigned */
#define NM_SIM_PERIOD_NS UINT64_C(250000000) /* of the figures of utilisation */

typedef enum { NM_SIM_TIME_SLICING, NM_SIM_FIFO, NM_SIM_POLICY_COUNT } nm_sim_policy;

typedef struct {
    nm_sim_policy policy;
    uint64_t slice_ns;
} nm_sim_rules;

/* One kernel in a runner's queue. `end` is nm_sim_pending(index) until the kernel has ended, then
   the time. */
typedef struct {
    _Atomic uint64_t ready_ns;
    _Atomic uint64_t duration_ns;
    _Atomic uint64_t end;
} nm_sim_piece;

static inline uint64_t nm_sim_pending(uint64_t index) { return UINT64_C(1) << 63 | index; }

/* Time that was spent on kernels: ever, in the present period, and in the one before. */
typedef struct {
    uint64_t ever_ns;
    uint64_t present_ns;
    uint64_t last_ns;
} nm_sim_busy;

/* A process's queue: the pieces [head, tail) of its seat's ring. */
typedef struct {
    uint64_t owner; /* the seat's owner when this was made: another means that it is gone */
    uint64_t head, tail;
    uint64_t left_ns; /* of the piece at the head */
    nm_sim_busy busy;
    uint32_t seat;
    uint32_t added; /* pieces ever */
} nm_sim_runner;

typedef struct {
    uint32_t seat;
    uint32_t unused;
    uint64_t index;
    uint64_t at_ns;
} nm_sim_end;

typedef struct {
    uint64_t now_ns; /* all before this is decided */
    uint64_t slice_end_ns;
    uint64_t period; /* the number of the present one, from the clock's zero */
    nm_sim_busy busy;
    uint32_t running; /* a runner; NM_SIM_NOT_RUNNING */
    uint32_t count;
    uint32_t ended; /* in this step: the next one begins with none */
    uint32_t unused;
    nm_sim_end ends[NM_SIM_ENDS];
    nm_sim_runner runners[NM_SIM_SEATS];
} nm_sim_schedule;

/* The ring of a seat. */
typedef nm_sim_piece *nm_sim_ring_of(void *context, uint32_t seat);

/* Goes on to `until_ns`, or to the end of a piece of `seat` with at least that index, or until
   `ends` is full, whichever is first. False: `ends` is full, and there is more to do. */
typedef struct {
    nm_sim_rules rules;
    nm_sim_ring_of *ring_of;
    void *context;
    uint64_t until_ns;
    uint32_t seat; /* NM_SIM_NOT_RUNNING: none */
    uint64_t index;
} nm_sim_step;
bool nm_sim_schedule_run(nm_sim_schedule *schedule, const nm_sim_step *step);

/* The runner of a seat; NULL without one. */
nm_sim_runner *nm_sim_schedule_runner(nm_sim_schedule *schedule, uint32_t seat);
/* The runner of a seat, made where there is none: an empty queue that begins at `next`. */
nm_sim_runner *nm_sim_schedule_join(nm_sim_schedule *schedule, uint32_t seat, uint64_t owner,
                                    uint64_t next);
/* The runner and its queue vanish; its turn ends. */
void nm_sim_schedule_leave(nm_sim_schedule *schedule, uint32_t which);

#endif
