/* pools.h: stream-ordered memory. See pools.c. */
#ifndef NM_POOLS_H
#define NM_POOLS_H

#include <stdbool.h>

#include "base/abi.h"

struct nm_block;

/* Looks at what each pool holds now, and gives back what it no longer does. */
void nm_pools_settle(void);
/* Before anything is refused: the pools first let go of what they hold unused. True where that
   was anything. */
bool nm_pools_give_up(void);
/* A pool's block that cuMemFree has freed. */
void nm_pool_freed_at_once(const struct nm_block *block);
/* The device was reset: it is unknown which of its pools are still there. */
void nm_pools_suspend(nm_cu_device device);
/* In a forked child, before it has threads. */
void nm_pools_forget(void);

#endif
