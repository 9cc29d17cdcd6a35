/* exports.h: memory that an open descriptor keeps alive, as a real driver's exported handles and
 * dma-bufs.
 *
 * Knows: the objects of each exported descriptor, and when its last copy in any process was closed,
 * by a file's lock (deposits.h). Must not know: the ticket in a descriptor (tickets.h).
 *
 * A real driver frees at that moment; this one frees at the next call of its process. Physical
 * memory and dma-bufs may outlive their process; an exported pool's memory ends with it.
 */
#ifndef NM_SIM_EXPORTS_H
#define NM_SIM_EXPORTS_H

#include "sim/memory/tickets.h"

/* All of these with the mutex held. */

/* A descriptor with that ticket in it, which refers to nothing yet; -1 where there are none
   left. */
int nm_export_open(const nm_ticket *ticket);
/* The latest descriptor keeps that object. False: no memory is left. */
bool nm_export_keeps(nm_physical *physical, nm_pool *pool);
bool nm_exports_any(void); /* without the mutex */

/* The ticket in a descriptor, which may be any. */
bool nm_export_read(nm_ticket *ticket, int descriptor);
/* The descriptor by which an import holds the memory; it may close the exported one. */
int nm_export_hold(int descriptor);

#endif
