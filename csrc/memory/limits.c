/* limits.c: the memory that raised limits of a context take.
 *
 * Knows: the device memory for a value of a limit. Must not know: the ledger, the lease (charge.h),
 * when a context ends (contexts.c gives back its blocks).
 *
 * The heap of malloc in kernels and the buffer of printf are as large as their limits; each thread
 * that a GPU can hold has a stack. The default values are part of the context's estimate: only the
 * rest is charged here, before the call of the driver.
 */
#include "account/charge.h"
#include "hooks/interpose.h"
#include "memory/contexts.h"
#include "memory/room.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

static uint64_t threads_of_current_device(void)
{
    int multiprocessors = 0, threads = 0;
    nm_cu_device device = nm_current_device();
    if (nm_real_cuDeviceGetAttribute(&multiprocessors, NM_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                     device) != SUCCESS ||
        nm_real_cuDeviceGetAttribute(
            &threads, NM_CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != SUCCESS)
        return 0;
    return (uint64_t)multiprocessors * (uint64_t)threads;
}

/* Device memory for one unit of the limit; 0: none. */
static uint64_t unit_bytes(int limit)
{
    if (limit == NM_CU_LIMIT_STACK_SIZE)
        return threads_of_current_device();
    return limit == NM_CU_LIMIT_MALLOC_HEAP_SIZE || limit == NM_CU_LIMIT_PRINTF_FIFO_SIZE;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* Handles are addresses: their four upper bits are free for the limit. */
static uint64_t key_of(uint64_t context, int limit)
{
    return context << 4 | (uint64_t)limit;
}

/* Adds the charge to the earlier one of this limit. */
static void keep_raised(const struct nm_charge *charge, int limit)
{
    uint64_t key = key_of(charge->context, limit);
    struct nm_block before;
    struct nm_charge all = *charge;
    if (charge->row < 0)
        return;
    if (nm_block_take(NM_BLOCK_LIMIT, key, &before) && before.lease == charge->lease)
        all.bytes += before.bytes;
    nm_contexts_keep(&all, NM_BLOCK_LIMIT, key);
}

static void give_back_lowered(uint64_t bytes, uint64_t key)
{
    struct nm_block block, rest, stale;
    if (!nm_block_take(NM_BLOCK_LIMIT, key, &block))
        return;
    rest = block;
    rest.bytes = bytes < block.bytes ? block.bytes - bytes : 0;
    block.bytes -= rest.bytes;
    nm_charge_give_back_block(&block);
    if (rest.bytes != 0)
        nm_block_put(&rest, &stale);
}

int nm_hook_cuCtxSetLimit(int limit, size_t value)
{
    struct nm_charge charge;
    size_t before = 0;
    uint64_t unit = unit_bytes(limit);
    if (unit == 0 || nm_real_cuCtxGetLimit(&before, limit) != SUCCESS)
        return nm_real_cuCtxSetLimit(limit, value);
    if (!nm_take_here(&charge, value > before ? product(value - before, unit) : 0))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuCtxSetLimit(limit, value);
    if (result != SUCCESS)
        nm_charge_give_back(&charge);
    else if (value > before)
        keep_raised(&charge, limit);
    else
        give_back_lowered(product(before - value, unit), key_of(charge.context, limit));
    return result;
}
