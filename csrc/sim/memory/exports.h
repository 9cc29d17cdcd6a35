/* exports.h: memory that an open descriptor keeps alive, as a real driver's exported handles and
 * dma-bufs do.
 *
 * Knows: which objects each exported descriptor refers to, and when its last copy in any process
 * was closed.
 * Must not know: what a ticket in a descriptor says (tickets.h).
 *
 * The kernel's word is used: a file's lock goes with its last descriptor, wherever that is closed
 * (deposits.h). A real driver frees at that moment. This one looks when its process calls it next.
 * Physical memory and dma-bufs may outlive their process; what an exported pool holds ends with it.
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
/* What an import holds the memory by: another descriptor than the exported one, which it may
   close. */
int nm_export_hold(int descriptor);

#endif
