/* suspendable.c: see suspendable.h. */
#include "account/suspendable.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "account/blocks.h"
#include "client/client.h"

static _Atomic uint32_t managed; /* allocations; those that ended with their context still count */
static _Atomic bool shared;

static void report(void)
{
    nm_client_set_unsuspendable(atomic_load(&managed) > 0 || atomic_load(&shared));
}

void nm_managed_taken(uint64_t address)
{
    struct nm_block mark = {.kind = NM_BLOCK_MANAGED, .key = address}, stale;
    if (!nm_block_put(&mark, &stale) || stale.kind == NM_BLOCK_MANAGED)
        return;
    if (atomic_fetch_add(&managed, 1) == 0)
        report();
}

void nm_managed_freed(uint64_t address)
{
    struct nm_block mark;
    if (atomic_load_explicit(&managed, memory_order_relaxed) == 0 ||
        !nm_block_take(NM_BLOCK_MANAGED, address, &mark))
        return;
    if (atomic_fetch_sub(&managed, 1) == 1)
        report();
}

void nm_memory_shared(void)
{
    if (!atomic_exchange(&shared, true))
        report();
}

void nm_suspendable_forget(void)
{
    atomic_store(&managed, 0);
    atomic_store(&shared, false);
}
