/* ranges.c: the dma-buf of a range of device memory. Its descriptor keeps the memory after a free.
 *
 * Knows: linear memory and mappings.
 */
#include <unistd.h>

#include "sim/memory/exports.h"

enum { DMA_BUF = 1, PAGE_BYTES = 4096 };

/* The part that outlives a linear block: it is charged from the block's end on. */
static nm_physical *remains_of(nm_sim_block *block) {
    if (block->owner) return block->owner;
    nm_physical *physical = nm_object_new(NM_PHYSICAL, NULL);
    if (!physical) return NULL;
    physical->device = block->device;
    physical->bytes = block->bytes;
    physical->kind = NM_SIM_KIND_linear;
    physical->attachments = 1;
    block->owner = physical;
    return physical;
}

/* The descriptor keeps each mapping's memory. False: some byte is not mapped, or no memory is
   left. */
static bool keep_mappings(const nm_sim_block *block, uint64_t offset, uint64_t end) {
    for (uint32_t index = nm_mapping_from(block, offset); offset < end; index++) {
        if (index >= block->mapping_count || block->mappings[index].offset > offset) return false;
        if (!nm_export_keeps(block->mappings[index].physical, NULL)) return false;
        offset = block->mappings[index].offset + block->mappings[index].bytes;
    }
    return true;
}

static bool keep(nm_sim_block *block, uint64_t offset, uint64_t end) {
    if (block->use == NM_RESERVATION) return keep_mappings(block, offset, end);
    nm_physical *remains = remains_of(block);
    return remains && nm_export_keeps(remains, NULL);
}

static int export_range(uint64_t address, uint64_t bytes) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || (block->use != NM_LINEAR && block->use != NM_RESERVATION)) return -1;
    uint64_t offset = address - block->address;
    if (bytes > block->bytes - offset) return -1;
    nm_ticket ticket = nm_ticket_new(NM_TICKET_DMA_BUF, block->device, address, bytes);
    int descriptor = nm_export_open(&ticket);
    if (descriptor >= 0 && !keep(block, offset, offset + bytes)) {
        close(descriptor); /* with the memory that it keeps already */
        nm_exports_settle();
        return -1;
    }
    return descriptor;
}

NM_CU cuMemGetHandleForAddressRange(void *out, nm_cu_deviceptr address, size_t bytes, int type,
                                    unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || type != DMA_BUF || flags != 0 || bytes == 0 || (address | bytes) % PAGE_BYTES != 0)
        return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    int descriptor = export_range(address, bytes);
    NM_UNLOCK();
    if (descriptor < 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *(int *)out = descriptor;
    return NM_CUDA_SUCCESS;
}
