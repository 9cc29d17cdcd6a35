/* pool_memory.c: the reserves of the process's pools on its devices.
 *
 * Knows: the reserve of a pool, the use of it, and when the pool gives it back. Must not know:
 * streams, graphs, handles.
 *
 * A pool takes memory from the device in whole granules when its reserve does not suffice. The next
 * synchronisation returns all above its release threshold. It packs perfectly.
 */
#include <unistd.h>

#include "sim/driver/driver.h"

static void note_highs(nm_pool *pool) {
    if (pool->reserved_high_bytes < pool->reserved_bytes)
        pool->reserved_high_bytes = pool->reserved_bytes;
    if (pool->used_high_bytes < pool->used_bytes) pool->used_high_bytes = pool->used_bytes;
}

static nm_cu_result grow(nm_pool *pool, uint64_t bytes) {
    uint64_t needed = nm_round_up(pool->used_bytes + bytes, NM_GRANULE_BYTES);
    if (pool->max_bytes && needed > pool->max_bytes) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (needed <= pool->reserved_bytes) return NM_CUDA_SUCCESS;
    if (pool->device >= 0) {
        nm_cu_result result =
            nm_charge(pool->device, NM_SIM_KIND_pool, needed - pool->reserved_bytes);
        if (result != NM_CUDA_SUCCESS) return result;
    }
    pool->reserved_bytes = needed;
    return NM_CUDA_SUCCESS;
}

void nm_pool_shrink(nm_pool *pool, uint64_t keep_bytes) {
    /* a threshold may be all ones: it is not rounded up */
    if (keep_bytes >= pool->reserved_bytes) return;
    uint64_t floor = nm_round_up(pool->used_bytes, NM_GRANULE_BYTES),
             kept = nm_round_up(keep_bytes, NM_GRANULE_BYTES);
    if (kept < floor) kept = floor;
    if (pool->reserved_bytes <= kept) return;
    if (pool->device >= 0)
        nm_give_back(pool->device, NM_SIM_KIND_pool, pool->reserved_bytes - kept);
    pool->reserved_bytes = kept;
}

void nm_pool_end_if_done(nm_pool *pool) {
    if (!pool->dying || pool->live_blocks > 0 || pool->exports > 0) return;
    nm_pool_shrink(pool, 0);
    if (pool->held > 0) close(pool->held);
    nm_object_free(pool);
}

nm_cu_result nm_pool_allocate(nm_pool *pool, nm_context *context, uint64_t bytes,
                              nm_cu_deviceptr *out) {
    if (bytes >= NM_SIM_MEMORY_LIMIT_BYTES) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    nm_cu_result result = grow(pool, bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    nm_sim_block *block = nm_block_new(NM_POOLED, bytes, NM_PITCH_BYTES, false);
    if (!block) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    block->device = (int8_t)pool->device;
    block->context = context;
    block->owner = pool;
    nm_list_add(&context->blocks, &block->link);
    pool->used_bytes += bytes;
    pool->live_blocks++;
    note_highs(pool);
    *out = block->address;
    return NM_CUDA_SUCCESS;
}

void nm_pool_give_back(nm_sim_block *block) {
    nm_pool *pool = block->owner;
    pool->used_bytes -= block->bytes;
    pool->live_blocks--;
    nm_pool_end_if_done(pool);
}

static nm_link pools; /* the process's, made by the program or by us */

nm_pool *nm_pool_new(int device) {
    nm_pool *pool = nm_object_new(NM_POOL, NULL);
    if (!pool) return NULL;
    if (!pools.next) nm_list_init(&pools);
    nm_list_add(&pools, &pool->object.link);
    pool->device = device;
    pool->location_type =
        device >= 0 ? NM_CU_MEM_LOCATION_TYPE_DEVICE : NM_CU_MEM_LOCATION_TYPE_HOST;
    for (int index = 0; index < 3; index++) pool->reuse[index] = 1;
    return pool;
}

void nm_pools_reset(void) { pools.next = NULL; }

void nm_pools_trim(int device) {
    if (!pools.next) return;
    for (nm_link *link = pools.next; link != &pools; link = link->next) {
        nm_pool *pool = NM_OF(link, nm_pool, object.link);
        if (pool->device == device) nm_pool_shrink(pool, pool->release_threshold_bytes);
    }
}

nm_pool *nm_default_pool(int device) {
    nm_pool **slot = &nm_the_driver.default_pool[device];
    if (!*slot) *slot = nm_pool_new(device);
    if (*slot) (*slot)->is_default = true;
    return *slot;
}

nm_pool *nm_current_pool(int device) {
    nm_pool *pool = nm_the_driver.current_pool[device];
    return pool ? pool : nm_default_pool(device);
}
