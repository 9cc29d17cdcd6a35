/* charge.h: charges of memory on a device to the ledger, and the line about a refusal.
 *
 * Knows: the row of the ledger for a device, the lease. Must not know: which function allocates
 * what (memory.c, virtual.c, pools.c).
 *
 * The order is always: charge, call the driver, and give back if the driver refused. A free calls
 * the driver first. So the ledger never has less than the driver holds.
 */
#ifndef NM_CHARGE_H
#define NM_CHARGE_H

#include "account/blocks.h"
#include "base/abi.h"
#include "base/prim.h"
#include "client/client.h"

/* A charge. row is -1 if nothing is charged: the memory belongs to no lease. */
struct nm_charge {
    uint64_t bytes;
    uint64_t refused_bytes; /* the last request that was too large */
    /* the current context of nm_charge_take_here, which will own the block; 0: none */
    uint64_t context;
    uint32_t lease;
    uint32_t endings; /* nm_contexts_ending at that time */
    int row;
    bool lost; /* refused because the lease is lost, not for lack of room */
};

/* The device of the calling thread's current context; -1 without one (the driver then reports
   it). */
nm_cu_device nm_current_device(void);

/* The ledger's row of the current context's GPU, or a negative number. */
int nm_charge_row_here(const struct nm_lease *lease);

/* Charges bytes on the device of the calling thread's current context, if there is one. False:
   refused; the caller makes room (room.h), or returns nm_charge_refusal. */
bool nm_charge_take_here(struct nm_charge *charge, uint64_t bytes);
/* The same on a given device; -1: on none. */
bool nm_charge_take(struct nm_charge *charge, nm_cu_device device, uint64_t bytes);
/* Changes the charge to `bytes` in all. False: refused, and the charge stays. */
bool nm_charge_resize(struct nm_charge *charge, uint64_t bytes);
/* For memory that exists and stays: charged without the limit, so that the next request is
   refused. */
void nm_charge_resize_anyway(struct nm_charge *charge, uint64_t bytes);
void nm_charge_give_back(struct nm_charge *charge);
/* CUDA_ERROR_OUT_OF_MEMORY; writes the reason to stderr once per process. */
int nm_charge_refusal(const struct nm_charge *charge);

/* Raised by contexts.c before and after a context ends: odd meanwhile. */
NM_LOCAL extern _Atomic uint32_t nm_contexts_ending;

/* Keeps the charge with the block. If no memory is left for the table, the charge stays until
   the process ends. */
void nm_charge_keep(const struct nm_charge *charge, enum nm_block_kind kind, uint64_t key,
                    uint64_t owner);
void nm_charge_give_back_block(const struct nm_block *block);

/* In a forked child, before it has threads: it holds nothing yet. */
void nm_charge_forget(void);

/* A device's figures for the program. False: the driver's own figures hold. */
struct nm_figures {
    /* the quota, or what the task named for itself; the use if it is more; not 0 if the GPU's size
       is known */
    uint64_t total_bytes;
    uint64_t used_bytes;  /* by all processes that share the total; at most the total */
};
bool nm_figures_here(struct nm_figures *out); /* of the current context's device */
bool nm_figures_of_device(nm_cu_device device, struct nm_figures *out);
bool nm_figures_of_uuid(const char *uuid, struct nm_figures *out);

#endif
