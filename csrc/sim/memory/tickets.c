/* tickets.c: memory that crosses processes: tickets, CUDA IPC, external memory.
 *
 * Knows: the exporter is charged. Must not know: pools and physical memory (pools.c, vmm.c make
 * tickets of their own).
 *
 * Contents are not shared, only addresses: kernels compute nothing, so no process would read them.
 */
#include "sim/memory/tickets.h"

#include <string.h>
#include <unistd.h>

#include "sim/memory/exports.h"
#include "sim/node/deposits.h"

static const char ticket_magic[4] = "tkt";

nm_ticket nm_ticket_new(nm_ticket_use use, int device, uint64_t address, uint64_t bytes) {
    nm_sim_node *node = &nm_the_driver.node;
    nm_ticket ticket = {
        .use = use,
        .slot = (uint32_t)node->slot,
        .device = device,
        .life = atomic_load(&node->state->slot_life[node->slot]),
        .address = address,
        .bytes = bytes,
    };
    atomic_store(&node->state->slot_shares[node->slot], 1);
    memcpy(ticket.magic, ticket_magic, sizeof ticket.magic);
    memcpy(ticket.node, node->state->device[0].uuid, sizeof ticket.node);
    return ticket;
}

static bool is_living(const nm_ticket *ticket) {
    return nm_sim_node_owner(&nm_the_driver.node, (int)ticket->slot) != 0;
}

/* Of this node, and of a slot that is still its maker's. */
static bool is_known(const nm_ticket *ticket, nm_ticket_use use) {
    nm_sim_node *node = &nm_the_driver.node;
    if (memcmp(ticket->magic, ticket_magic, sizeof ticket->magic) != 0 || ticket->use != use)
        return false;
    if (memcmp(ticket->node, node->state->device[0].uuid, sizeof ticket->node) != 0) return false;
    if (ticket->slot >= NM_SIM_SLOTS || ticket->device < -1 ||
        ticket->device >= (int)node->state->device_count)
        return false;
    return ticket->life == atomic_load(&node->state->slot_life[ticket->slot]);
}

bool nm_ticket_valid(const nm_ticket *ticket, nm_ticket_use use, bool foreign) {
    if (foreign && (int)ticket->slot == nm_the_driver.node.slot) return false;
    return is_known(ticket, use) && is_living(ticket);
}

bool nm_ticket_import(nm_ticket *ticket, nm_ticket_use use, int descriptor) {
    if (!nm_export_read(ticket, descriptor) || !is_known(ticket, use)) return false;
    return is_living(ticket) || nm_sim_has_deposit(&nm_the_driver.node, (int)ticket->slot);
}

uint64_t nm_import(nm_context *context, int device, uint64_t bytes, void *owner) {
    nm_sim_block *block = nm_block_new(NM_IMPORTED, bytes, NM_PITCH_BYTES, false);
    if (!block) return 0;
    block->device = (int8_t)device;
    block->context = context;
    block->owner = owner;
    nm_list_add(&context->blocks, &block->link);
    atomic_store(&nm_the_driver.node.state->slot_shares[nm_the_driver.node.slot], 1);
    return block->address;
}

/* ---- CUDA IPC
   ----------------------------------------------------------------------------- */

NM_CU cuIpcGetMemHandle(nm_cu_ipc_mem_handle *out, nm_cu_deviceptr address) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at(address);
    if (!out || !block || block->use != NM_LINEAR) {
        result = NM_CUDA_ERROR_INVALID_VALUE;
    } else {
        nm_ticket ticket =
            nm_ticket_new(NM_TICKET_IPC_MEMORY, block->device, block->address, block->bytes);
        memcpy(out, &ticket, sizeof ticket);
    }
    NM_UNLOCK();
    return result;
}

NM_CU cuIpcOpenMemHandle_v2(nm_cu_deviceptr *out, nm_cu_ipc_mem_handle handle, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || flags != NM_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    if (!nm_ticket_valid(&ticket, NM_TICKET_IPC_MEMORY, false) || ticket.device < 0)
        return NM_CUDA_ERROR_INVALID_HANDLE;
    if ((int)ticket.slot == nm_the_driver.node.slot) return NM_CUDA_ERROR_INVALID_CONTEXT;
    NM_LOCK();
    uint64_t address = nm_import(context, ticket.device, ticket.bytes, NULL);
    NM_UNLOCK();
    if (address == 0) return NM_CUDA_ERROR_MAP_FAILED;
    *out = address;
    return NM_CUDA_SUCCESS;
}
NM_CU cuIpcOpenMemHandle(nm_cu_deviceptr *out, nm_cu_ipc_mem_handle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(out, handle, flags);
}

NM_CU cuIpcCloseMemHandle(nm_cu_deviceptr address) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    nm_sim_block *block = nm_block_at(address);
    bool open = block && block->use == NM_IMPORTED && !block->owner && block->address == address;
    if (open) nm_memory_release(block);
    NM_UNLOCK();
    return open ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- external memory
   ----------------------------------------------------------------------------- */

typedef struct {
    nm_object object;
    int device;
    uint64_t bytes;
} external_memory;

/* Its maker (a graphics driver, say) is charged. As with the real one, the driver owns the
   descriptor from here. */
NM_CU cuImportExternalMemory(nm_cu_external_memory *out,
                             const nm_cu_external_memory_handle_desc *desc) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || !desc || desc->size == 0 ||
        (desc->flags & ~(unsigned)NM_CUDA_EXTERNAL_MEMORY_DEDICATED))
        return NM_CUDA_ERROR_INVALID_VALUE;
    bool opaque = desc->type == NM_CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    if (!opaque && desc->type != NM_CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD)
        return NM_CUDA_ERROR_NOT_SUPPORTED;
    if (desc->handle.fd < 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    external_memory *memory = nm_object_new(NM_EXTERNAL_MEMORY, context);
    if (memory) {
        memory->device = context->device;
        memory->bytes = desc->size;
        *out = memory;
        if (opaque) close(desc->handle.fd);
    }
    NM_UNLOCK();
    return memory ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuExternalMemoryGetMappedBuffer(nm_cu_deviceptr *out, nm_cu_external_memory handle,
                                      const nm_cu_external_memory_buffer_desc *desc) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    external_memory *memory = nm_object_of(handle, NM_EXTERNAL_MEMORY);
    bool inside = memory && out && desc && desc->flags == 0 && desc->size > 0 &&
                  desc->offset <= memory->bytes && desc->size <= memory->bytes - desc->offset;
    /* A mapped buffer is freed by cuMemFree: the external memory is its owner. */
    uint64_t address = inside ? nm_import(context, memory->device, desc->size, memory) : 0;
    NM_UNLOCK();
    if (address == 0) return memory ? NM_CUDA_ERROR_INVALID_VALUE : NM_CUDA_ERROR_INVALID_HANDLE;
    *out = address;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDestroyExternalMemory(nm_cu_external_memory handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    external_memory *memory = nm_object_of(handle, NM_EXTERNAL_MEMORY);
    if (memory) nm_object_free(memory);
    NM_UNLOCK();
    return memory ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
