/* charge.h: from "this much memory on that device" to the ledger, and what the user is told.
 *
 * Knows: which row of the ledger a device is, the lease, the words of a refusal.
 * Must not know: which function allocates what (memory.c, virtual.c, pools.c).
 *
 * Order, everywhere: charge, then ask the driver, then give back if the driver refused. On a free:
 * the driver first, then give back. So the ledger never says less than the driver holds.
 */
#ifndef NM_CHARGE_H
#define NM_CHARGE_H

#include "account/blocks.h"
#include "base/abi.h"
#include "base/prim.h"

/* What was charged. row is -1 where nothing is to be charged: no lease of ours governs that
   memory. */
struct nm_charge {
    uint64_t bytes;
    uint64_t refused_bytes; /* the last request that was too much */
    /* that was current when nm_charge_take_here was called, and will own the block; 0: none */
    uint64_t context;
    uint32_t lease;
    uint32_t endings; /* nm_contexts_ending when this was taken */
    int row;
    bool lost; /* refused for want of a lease, not of room */
};

/* The device of the calling thread's current context; -1 where it has none (the driver's own
   answer will say so). */
nm_cu_device nm_current_device(void);

/* Charges bytes on the device of the calling thread's current context; on none where it has
 * none. False: refused; the caller makes room (room.h), answers nm_charge_refusal, or finds
 * another way. */
bool nm_charge_take_here(struct nm_charge *charge, uint64_t bytes);
/* The same on that device, -1: on none. */
bool nm_charge_take(struct nm_charge *charge, nm_cu_device device, uint64_t bytes);
/* Charges more or gives back, to `bytes` in all. False: refused, the charge is as it was. */
bool nm_charge_resize(struct nm_charge *charge, uint64_t bytes);
/* What is there already and cannot be undone: charged without a look at the limit, so that the
   next request is refused. */
void nm_charge_resize_anyway(struct nm_charge *charge, uint64_t bytes);
void nm_charge_give_back(struct nm_charge *charge);
/* CUDA_ERROR_OUT_OF_MEMORY, and once per process the reason in words. */
int nm_charge_refusal(const struct nm_charge *charge);

/* Raised by contexts.c before and after a context ends: odd meanwhile. */
NM_LOCAL extern _Atomic uint32_t nm_contexts_ending;

/* The charge goes with the block, or (no memory left for the table) stays until the process
   ends. */
void nm_charge_keep(const struct nm_charge *charge, enum nm_block_kind kind, uint64_t key,
                    uint64_t owner);
void nm_charge_give_back_block(const struct nm_block *block);

/* In a forked child, before it has threads: it holds nothing yet. */
void nm_charge_forget(void);

/* What a program may be told about a device. False: the driver's own figures hold. */
struct nm_figures {
    /* the quota, or what is used where that is more; not 0 where the GPU's size is known */
    uint64_t total_bytes;
    uint64_t used_bytes;  /* by all processes of the env; at most the total */
};
bool nm_figures_here(struct nm_figures *out); /* of the current context's device */
bool nm_figures_of_device(nm_cu_device device, struct nm_figures *out);
bool nm_figures_of_uuid(const char *uuid, struct nm_figures *out);

#endif
