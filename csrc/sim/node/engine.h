/* engine.h: the kernels of all processes on one simulated device, in the node's file.
 *
 * Knows: seats (a process's ring of pieces on the device), versions of the schedule. Must not know:
 * CUDA, streams.
 *
 * No thread runs the device. The schedule is decided up to a time; every process that looks at the
 * device decides it on to that moment. The looker copies the present version, runs it on
 * (schedule.h), and makes its copy the present one by compare-and-swap of one word. Two lookers
 * that begin with the same version decide the same ends. So a process killed or stopped between
 * any two instructions loses nothing and blocks no other. The queue of a killed process vanishes
 * when its death is seen: at once by a process that joins, within 10 ms by one that waits.
 */
#ifndef NM_SIM_ENGINE_H
#define NM_SIM_ENGINE_H

#include "sim/node/schedule.h"

/* A version belongs to the seat that published it. A seat writes to the one of its two that is not
   the present one. */
typedef struct {
    _Atomic uint64_t owner; /* slot + 1 | its life << 16; 0: free */
    _Atomic uint64_t next;  /* no piece at or above this was ever written */
    nm_sim_schedule version[2];
    nm_sim_piece ring[NM_SIM_PIECES];
} nm_sim_seat;

/* present = serial << 16 | seat << 1 | which of its versions */
typedef struct {
    _Atomic uint64_t present;
    nm_sim_seat seat[NM_SIM_SEATS];
} nm_sim_engine;

typedef struct nm_sim_node nm_sim_node;

/* This process's seat at a device. */
typedef struct {
    nm_sim_node *node;
    int device;
    uint32_t seat;
    uint64_t owner;
    uint64_t head, next; /* the pieces of this process that may not have ended */
    uint64_t looked_ns; /* when the others were last found alive */
} nm_sim_place;

/* False: all seats are those of living processes. */
bool nm_sim_engine_sit(nm_sim_place *place, nm_sim_node *node, int device);

/* Decides the schedule up to `until_ns`, or to the end of the process's piece `index`. The ends of
   the pieces below place->head can be read then. */
void nm_sim_engine_run(nm_sim_place *place, uint64_t until_ns, uint64_t index);

/* One more piece at the end of the queue, ready at `ready_ns`; the schedule is decided up to then.
   Returns its number. The caller keeps the queue within NM_SIM_PIECES. */
uint64_t nm_sim_engine_add(nm_sim_place *place, uint64_t ready_ns, uint64_t duration_ns);

/* When an ended piece ended. */
uint64_t nm_sim_engine_end(const nm_sim_place *place, uint64_t index);

/* The end of a piece if nothing is added, at most `horizon_ns`. */
uint64_t nm_sim_engine_expected_end(nm_sim_place *place, uint64_t index, uint64_t horizon_ns);

/* The schedule at `now_ns`, without the dead; the node is not changed. For readers without a
   seat. */
void nm_sim_engine_look(nm_sim_node *node, int device, uint64_t now_ns, nm_sim_schedule *out);

/* The slot of a runner. */
static inline int nm_sim_runner_slot(const nm_sim_runner *runner) {
    return (int)(runner->owner & 0xffff) - 1;
}

/* The process of a slot has ended: its seats are free. */
void nm_sim_engine_leave(nm_sim_engine *engine, int slot);

#endif
