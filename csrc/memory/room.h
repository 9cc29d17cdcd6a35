/* room.h: charges that, when the ledger has no room, are tried again after everything unused was
 * given back.
 *
 * Knows: pools and pending frees may give something back. Must not know: which function allocates
 * what.
 */
#ifndef NM_ROOM_H
#define NM_ROOM_H

#include "account/charge.h"
#include "memory/pools.h"

/* After a refusal. */
static inline bool nm_made_room(const struct nm_charge *charge)
{
    return !charge->lost && nm_pools_give_up();
}

/* Otherwise as nm_charge_take_here, nm_charge_take and nm_charge_resize. */
static inline bool nm_take_here(struct nm_charge *charge, uint64_t bytes)
{
    return nm_charge_take_here(charge, bytes) ||
           (nm_made_room(charge) && nm_charge_take_here(charge, bytes));
}

static inline bool nm_take(struct nm_charge *charge, nm_cu_device device, uint64_t bytes)
{
    return nm_charge_take(charge, device, bytes) ||
           (nm_made_room(charge) && nm_charge_take(charge, device, bytes));
}

static inline bool nm_resize(struct nm_charge *charge, uint64_t bytes)
{
    return nm_charge_resize(charge, bytes) ||
           (nm_made_room(charge) && nm_charge_resize(charge, bytes));
}

#endif
