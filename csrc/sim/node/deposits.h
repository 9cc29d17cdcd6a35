/* deposits.h: exported memory that outlives its exporter: the slot of a dead process keeps it while
 * the export is open.
 *
 * Knows: the table of deposits in the node's file, the locks of open exports. Must not know: how a
 * descriptor is passed on, the use of the memory.
 *
 * A container has node.state alone, without the second file: memory exported there ends with its
 * exporter.
 */
#ifndef NM_SIM_DEPOSITS_H
#define NM_SIM_DEPOSITS_H

#include "sim/node/node.h"

#define nm_sim_exports_suffix ".exports"

/* A number for a new export, and its descriptor; -1 if the file cannot be opened. The descriptor
 * has an open file description with a lock on the byte of that number, in a second file
 * (node.state.exports). The kernel drops the lock with the last copy. In the node's own file,
 * closing a copy would drop the process's slot. */
int nm_sim_export_open(const nm_sim_node *node, uint64_t *number);
/* Whether any process has a copy of that descriptor. */
bool nm_sim_export_is_open(const nm_sim_node *node, uint64_t number);

/* This process's memory `object` is kept by that export. Returns the deposit; -1 if the table is
 * full. */
int nm_sim_deposit_add(const nm_sim_node *node, uint64_t number, int device, uint64_t object,
                       uint64_t bytes);
/* -1: there is none. */
void nm_sim_deposit_drop(const nm_sim_node *node, int deposit);

/* For the slot of a dead process: drops the deposits whose export is closed. True: others are
   left. */
bool nm_sim_deposits_settle(const nm_sim_node *node, int slot);
/* The bytes of a slot on a device that open exports keep; each object counts once. */
uint64_t nm_sim_deposited_bytes(const nm_sim_node *node, int slot, int device);
bool nm_sim_has_deposit(const nm_sim_node *node, int slot);

#endif
