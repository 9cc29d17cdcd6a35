/* pools.h: stream-ordered memory. See pools.c. */
#ifndef NM_POOLS_H
#define NM_POOLS_H

#include <stdbool.h>

#include "base/abi.h"

struct nm_block;

/* Reads the reserve of each pool, and gives back the rest of its charge. */
void nm_pools_settle(void);
/* Before a refusal: makes pools give up unused memory. True if any did. */
bool nm_pools_give_up(void);
/* A pool's block that cuMemFree has freed. */
void nm_pool_freed_at_once(const struct nm_block *block);
/* The device was reset: it is unknown which of its pools still exist. */
void nm_pools_suspend(nm_cu_device device);
/* In a forked child, before it has threads. */
void nm_pools_forget(void);

#endif
