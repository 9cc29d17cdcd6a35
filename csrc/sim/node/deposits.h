/* deposits.h: exported memory that outlives its exporter: the slot of a dead process keeps the
 * memory while the export is open.
 *
 * Knows: the table of deposits in the node's file, and the locks that show which exports are open.
 * Must not know: how a descriptor is handed on, what the memory is for.
 *
 * Each export has a number. Its descriptor carries an open file description with a lock on the byte
 * of that number, in a second file beside the node's (node.state.exports, made with it). The kernel
 * drops the lock with the last copy, in whichever process. A lock in the node's own file would not
 * do: closing a copy would drop the process's slot. A container is shown node.state alone: memory
 * that is exported there ends with its exporter.
 */
#ifndef NM_SIM_DEPOSITS_H
#define NM_SIM_DEPOSITS_H

#include "sim/node/node.h"

#define nm_sim_exports_suffix ".exports"

/* A number for a new export, and the descriptor to hand on with it; -1 where the file cannot be
 * opened. */
int nm_sim_export_open(const nm_sim_node *node, uint64_t *number);
/* Has any process a copy of that descriptor? */
bool nm_sim_export_is_open(const nm_sim_node *node, uint64_t number);

/* This process's memory `object` is kept by that export. Returns the deposit; -1 if the table is
 * full. */
int nm_sim_deposit_add(const nm_sim_node *node, uint64_t number, int device, uint64_t object,
                       uint64_t bytes);
/* -1: there is none. */
void nm_sim_deposit_drop(const nm_sim_node *node, int deposit);

/* For the slot of a dead process: drops the deposits whose export is closed. True: others are
 * left. */
bool nm_sim_deposits_settle(const nm_sim_node *node, int slot);
/* What open exports keep of a slot's memory on a device; each object counts once. */
uint64_t nm_sim_deposited_bytes(const nm_sim_node *node, int slot, int device);
bool nm_sim_has_deposit(const nm_sim_node *node, int slot);

#endif
