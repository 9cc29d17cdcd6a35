/* contexts.h: see contexts.c. */
#ifndef NM_CONTEXTS_H
#define NM_CONTEXTS_H

#include <stdatomic.h>

#include "account/charge.h"

/* For a block that has just been kept, if a context was ending since the charge. The thread's
 * own context may have ended after the driver gave the memory and before the block was in the
 * table: its charge then goes back here. */
void nm_contexts_look_again(enum nm_block_kind kind, uint64_t key);
/* Keeps a block of the context that was current at the charge: it ends with that context. */
static inline void nm_contexts_keep(const struct nm_charge *charge, enum nm_block_kind kind,
                                    uint64_t key)
{
    nm_charge_keep(charge, kind, key, charge->context);
    uint32_t endings = atomic_load_explicit(&nm_contexts_ending, memory_order_relaxed);
    if (endings != charge->endings || endings % 2 != 0)
        nm_contexts_look_again(kind, key);
}
void nm_contexts_forget(void); /* in a forked child, before it has threads */

#endif
