/* virtual.h: memory of cuMemCreate, and all exported memory. See virtual.c. */
#ifndef NM_VIRTUAL_H
#define NM_VIRTUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "account/charge.h"

/* Gives back the memory of exports whose descriptors are all closed. False: none. */
bool nm_virtual_settle(void);

/* A pool was exported by that handle. Returns its number: `number` again, or a new one for 0. */
uint64_t nm_virtual_share(uint64_t number, const void *handle, int type);
/* The pool with that number (0: none) is gone here. Its charge stays while a handle is open, and
   no longer belongs to the caller. */
void nm_virtual_inherit(uint64_t number, struct nm_charge *charge);

/* In a forked child, before it has threads. */
void nm_virtual_forget(void);

#endif
