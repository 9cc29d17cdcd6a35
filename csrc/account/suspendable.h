/* suspendable.h: whether the driver can suspend this process, as far as its calls show it.
 *
 * Knows: managed memory that is not freed, memory shared with other processes. Must not know: the
 * functions that take it, the consequence.
 *
 * The manager reads it in the ledger, and then asks nothing of the driver: after a refusal by the
 * driver, the state of the process is not promised.
 */
#ifndef NM_SUSPENDABLE_H
#define NM_SUSPENDABLE_H

#include <stdint.h>

void nm_managed_taken(uint64_t address);
/* Before the address is free for another thread's allocation; any address. */
void nm_managed_freed(uint64_t address);
/* Exported or imported: so it stays to the end of the process. */
void nm_memory_shared(void);
/* In a forked child, before it has threads. */
void nm_suspendable_forget(void);

#endif
