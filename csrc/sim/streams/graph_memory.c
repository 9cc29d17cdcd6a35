/* graph_memory.c: the memory that a device holds for all graphs of the process.
 *
 * Knows: live allocations, granules. Must not know: graphs, launches.
 *
 * A device's graph memory grows to the need of launches, in granules, and shrinks at a trim. A real
 * driver has the same rules, and its own packing.
 */
#include <stdlib.h>

#include "sim/streams/graphs.h"

nm_graph_memory *nm_graph_memory_of(int device) {
    nm_graph_memory *memory = &nm_the_driver.graph_memory[device];
    if (!memory->live.next) nm_list_init(&memory->live);
    return memory;
}

nm_cu_result nm_graph_memory_reserve(int device, uint64_t bytes) {
    nm_graph_memory *memory = nm_graph_memory_of(device);
    uint64_t needed = nm_round_up(bytes, NM_GRANULE_BYTES);
    if (needed <= memory->reserved_bytes) return NM_CUDA_SUCCESS;
    nm_cu_result result = nm_charge(device, NM_SIM_KIND_graph, needed - memory->reserved_bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    memory->reserved_bytes = needed;
    if (memory->reserved_high_bytes < needed) memory->reserved_high_bytes = needed;
    return NM_CUDA_SUCCESS;
}

static void trim(int device) {
    nm_graph_memory *memory = nm_graph_memory_of(device);
    uint64_t kept = nm_round_up(memory->used_bytes, NM_GRANULE_BYTES);
    if (memory->reserved_bytes <= kept) return;
    nm_give_back(device, NM_SIM_KIND_graph, memory->reserved_bytes - kept);
    memory->reserved_bytes = kept;
}

static void release_if_unused(nm_allocation *memory) {
    if (memory->references > 0 || memory->block->live) return;
    nm_block_free(memory->block);
    free(memory);
}

void nm_allocation_drop(nm_allocation *memory) {
    memory->references--;
    release_if_unused(memory);
}

void nm_allocation_begin(nm_allocation *memory) {
    nm_sim_block *block = memory->block;
    block->live = true;
    if (block->device < 0) return;
    nm_graph_memory *held = nm_graph_memory_of(block->device);
    held->used_bytes += block->bytes;
    if (held->used_high_bytes < held->used_bytes) held->used_high_bytes = held->used_bytes;
    nm_list_add(&held->live, &memory->live);
}

void nm_allocation_end(nm_allocation *memory) {
    nm_sim_block *block = memory->block;
    if (!block->live) return;
    block->live = false;
    if (block->device < 0) return;
    nm_graph_memory_of(block->device)->used_bytes -= block->bytes;
    nm_list_remove(&memory->live);
}

void nm_graph_block_free(nm_sim_block *block) {
    nm_allocation *memory = block->owner;
    nm_allocation_end(memory);
    release_if_unused(memory);
}

void nm_graphs_reset(int device) {
    nm_graph_memory *memory = nm_graph_memory_of(device);
    while (!nm_list_empty(&memory->live))
        nm_graph_block_free(NM_OF(memory->live.next, nm_allocation, live)->block);
    trim(device);
}

/* ---- as the program sees it
   ----------------------------------------------------------------------------- */

NM_CU cuDeviceGraphMemTrim(nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    trim(device);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

static uint64_t *figure(nm_graph_memory *memory, int attribute) {
    switch (attribute) {
    case NM_CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return &memory->used_bytes;
    case NM_CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return &memory->used_high_bytes;
    case NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return &memory->reserved_bytes;
    case NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return &memory->reserved_high_bytes;
    default: return NULL;
    }
}

NM_CU cuDeviceGetGraphMemAttribute(nm_cu_device ordinal, int attribute, void *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    const uint64_t *found = out ? figure(nm_graph_memory_of(device), attribute) : NULL;
    if (found) *(uint64_t *)out = *found;
    NM_UNLOCK();
    return found ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* Only the high-water marks, and only back to the present. */
NM_CU cuDeviceSetGraphMemAttribute(nm_cu_device ordinal, int attribute, void *value) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    bool high = attribute == NM_CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ||
                attribute == NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!value || !high || *(uint64_t *)value != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *figure(nm_graph_memory_of(device), attribute) =
        *figure(nm_graph_memory_of(device), attribute - 1);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}
