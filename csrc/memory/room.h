/* room.h: charging, and where the ledger has no room, charging again after what can be given back
 * has been.
 *
 * Knows: that pools and frees on their way may still give something back. Must not know: which
 * function allocates what.
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

/* These are nm_charge_take_here, nm_charge_take and nm_charge_resize in all else. */
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
