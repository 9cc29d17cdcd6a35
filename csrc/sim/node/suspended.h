/* suspended.h: processes whose calls of the driver wait, and whose device memory is away.
 *
 * Knows: the state of each slot, the lock by which one caller at a time changes it, and the move of
 * a slot's charges. Must not know: CUDA's calls and errors.
 *
 * A caller may die between any two steps: each operation can be done again from any of its steps.
 * A slot's kind_bytes keep the memory that the process has; its charges are what it takes up.
 */
#ifndef NM_SIM_SUSPENDED_H
#define NM_SIM_SUSPENDED_H

#include "sim/node/node.h"

/* NM_SIM_LOCKING: new calls wait; calls that wait for work, and the work, go on. */
typedef enum {
    NM_SIM_RUNNING,
    NM_SIM_LOCKED,
    NM_SIM_SUSPENDED,
    NM_SIM_LOCKING,
} nm_sim_process_state;

/* The slot of a living process; -1 without one. */
int nm_sim_slot_of(nm_sim_node *node, int pid);

/* One process at a time: waits for the others. One thread at a time in each. -1: not possible. */
int nm_sim_suspension_begin(const nm_sim_node *node, int slot);
void nm_sim_suspension_end(int descriptor);

/* In the process itself. Enters a call; false: it has to wait. `going_on`: a call that has waited
   for work, or the work. */
bool nm_sim_enter(const nm_sim_node *node, bool going_on);
void nm_sim_leave(const nm_sim_node *node);
/* Sleeps until the state may have changed. */
void nm_sim_wait_outside(const nm_sim_node *node);

/* False: the state is another one by now. */
bool nm_sim_change_process_state(const nm_sim_node *node, int slot, nm_sim_process_state before,
                                 nm_sim_process_state after);
/* No call and no work of the process is under way. */
bool nm_sim_is_quiet(nm_sim_node *node, int slot);

/* The host memory of a checkpoint lies in the suspended process, and so in its cgroup. */
/* In the process itself, once: a range of addresses without memory. Without one, or where the
   caller may not write into the process, checkpoints take no host memory. */
void nm_sim_reserve_host(const nm_sim_node *node);
/* Puts memory behind so many bytes of the process's range. False: there is none. */
bool nm_sim_take_host(const nm_sim_node *node, int slot, uint64_t bytes);
/* In the process itself, in a call after its resume: gives that memory back. */
void nm_sim_drop_host(const nm_sim_node *node);

/* Bytes of a slot on all devices, of all kinds or of one. */
uint64_t nm_sim_slot_bytes(const nm_sim_node *node, int slot, const nm_sim_kind *kind);
/* Takes the slot's charges away. */
void nm_sim_take_out(nm_sim_node *node, int slot);
/* Charges them again. False, with nothing charged: a device has no room. */
bool nm_sim_put_back(nm_sim_node *node, int slot);

#endif
