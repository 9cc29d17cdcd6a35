/* contexts.h: see contexts.c. */
#ifndef NM_CONTEXTS_H
#define NM_CONTEXTS_H

#include "charge.h"

/* For a block that has just been kept, if a context was ending since it was charged: that may be the calling thread's, ended after the
 * driver gave the memory and before the block was to be found. Then its charge goes back here. */
void nm_contexts_look_again(enum nm_block_kind kind, uint64_t key);
void nm_contexts_forget(void); /* in a forked child, before it has threads */

#endif
