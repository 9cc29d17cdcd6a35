/* gate.h: does the kernel keep this process from a GPU's device node?
 *
 * Knows: /dev/nvidiaN, as drivers name it. Must not know: the process that shut it.
 *
 * A simulated GPU needs no node, and where there is none nothing is shut. A container that is
 * behind a device gate has nodes without a driver behind them: where the gate is open the kernel
 * finds no such device, where it is shut it says so. A driver passes over what it may not open.
 */
#ifndef NM_SIM_GATE_H
#define NM_SIM_GATE_H

#include <stdbool.h>

/* Of the node's GPU of this index, now. */
bool nm_gate_is_shut(int index);

#endif
