/* virtual.h: memory of cuMemCreate, and all that has left this process. See virtual.c. */
#ifndef NM_VIRTUAL_H
#define NM_VIRTUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "account/charge.h"

/* Frees the memory of exports after all their descriptors are closed. False: nothing. */
bool nm_virtual_settle(void);

/* What a pool holds has left this process by that handle. Returns a number for it: `number`
   again, or where that is 0 a new one. */
uint64_t nm_virtual_share(uint64_t number, const void *handle, int type);
/* What had that number (0: none) is gone here: its charge stays, and is not the caller's any
   more, while a handle is open. */
void nm_virtual_inherit(uint64_t number, struct nm_charge *charge);

/* In a forked child, before it has threads. */
void nm_virtual_forget(void);

#endif
