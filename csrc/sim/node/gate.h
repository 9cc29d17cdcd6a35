/* gate.h: whether the kernel keeps this process from a GPU's device node.
 *
 * Knows: /dev/nvidiaN, as drivers name it. Must not know: the process that shut the gate.
 *
 * A simulated GPU needs no node; without one it is not shut. A container behind a device gate has
 * nodes without a driver: the kernel reports no such device where the gate is open, and refuses
 * where it is shut. A driver skips a node that it may not open.
 */
#ifndef NM_SIM_GATE_H
#define NM_SIM_GATE_H

#include <stdbool.h>

/* Of the node's GPU of this index, now. */
bool nm_gate_is_shut(int index);

#endif
