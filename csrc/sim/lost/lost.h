/* lost.h: a reader of the node outlives its file.
 *
 * Knows: SIGBUS at an address of a mapping. Must not know: the reader, the content.
 *
 * Each process that may write the file can truncate it. A reader's next access is then SIGBUS. The
 * mapping becomes a private one of zeros, which is no node (nm_sim_node_is_there). Every other
 * SIGBUS goes to the handler of before. For NVML and the control library, in the manager; not for
 * the driver: a program that computes keeps its own signals.
 */
#ifndef NM_SIM_LOST_H
#define NM_SIM_LOST_H

#include <stddef.h>

/* From now on, until nm_sim_forget. All mappings have one size. */
void nm_sim_outlive(void *mapping, size_t bytes);
/* Before it is unmapped. */
void nm_sim_forget(void *mapping);

#endif
