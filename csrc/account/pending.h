/* pending.h: linear memory that was freed in the order of a stream: it stays charged until the
 * stream has reached the free.
 *
 * Knows: events. Must not know: the ledger (charge.h), pools.
 */
#ifndef NM_PENDING_H
#define NM_PENDING_H

#include <stdbool.h>

#include "base/abi.h"
#include "hooks/interpose.h"

struct nm_block;

/* The driver has accepted the free on this stream. */
void nm_pending_add(const struct nm_block *block, nm_cu_stream stream,
                    nm_type_cuEventRecord *record);
/* Gives back the frees that their streams have reached. True if there was one. */
bool nm_pending_settle(void);
/* The context ends, and its streams with it. */
void nm_pending_end(uint64_t context);
/* In a forked child, before it has threads. */
void nm_pending_forget(void);

#endif
