/* vmm.c: virtual memory management: physical memory, address ranges, and mappings.
 *
 * Knows: the references that keep physical memory alive. Must not know: contexts' lists, since this
 * memory belongs to no context.
 *
 * Physical memory lives until its last handle, mapping, sparse tile and multicast binding are gone.
 * It is charged to the device of its location, not of the current context.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/memory/exports.h"

enum { BINDINGS = 16 };

/* Memory of several devices that is written as one. It has none of its own, is mapped like any,
 * and keeps alive what is bound to it. */
typedef struct {
    nm_physical physical; /* first: a mapping does not ask which of the two it has */
    unsigned teams, joined;
    struct {
        nm_physical *physical;
        uint64_t offset, bytes;
    } bindings[BINDINGS];
} multicast;
_Static_assert(sizeof(multicast) <= NM_OBJECT_BYTES, "an object of the arena");

static void end_if_done(nm_physical *physical) {
    if (physical->handles > 0 || physical->attachments > 0) return;
    if (physical->charged) nm_give_back(physical->device, physical->kind, physical->bytes);
    if (physical->held > 0) close(physical->held);
    multicast *team = nm_object_of(physical, NM_MULTICAST);
    for (int index = 0; team && index < BINDINGS; index++) {
        if (team->bindings[index].physical) nm_physical_detach(team->bindings[index].physical);
    }
    nm_object_free(physical);
}

void nm_physical_detach(nm_physical *physical) {
    physical->attachments--;
    end_if_done(physical);
}

static nm_physical *physical_of(nm_cu_mem_handle handle) {
    return nm_object_of((void *)(uintptr_t)handle, NM_PHYSICAL);
}

static multicast *multicast_of(nm_cu_mem_handle handle) {
    return nm_object_of((void *)(uintptr_t)handle, NM_MULTICAST);
}

/* ---- physical memory
   ----------------------------------------------------------------------------- */

/* -1: on the host, where nothing is charged; -2: no location. */
static int location_device(const nm_cu_mem_location *location) {
    if (location->type == NM_CU_MEM_LOCATION_TYPE_DEVICE) {
        int device = nm_device_index(location->id);
        return device < 0 ? -2 : device;
    }
    return location->type >= NM_CU_MEM_LOCATION_TYPE_HOST &&
                   location->type <= NM_CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
               ? -1
               : -2;
}

static nm_cu_result create(nm_cu_mem_handle *out, size_t bytes,
                           const nm_cu_mem_allocation_prop *prop, int device) {
    nm_physical *physical = nm_object_new(NM_PHYSICAL, NULL);
    if (!physical) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    nm_cu_result result = device >= 0 ? nm_charge(device, NM_SIM_KIND_vmm, bytes) : NM_CUDA_SUCCESS;
    if (result != NM_CUDA_SUCCESS) {
        nm_object_free(physical);
        return result;
    }
    physical->device = device;
    physical->bytes = bytes;
    physical->prop = *prop;
    physical->handles = 1;
    physical->charged = device >= 0;
    physical->kind = NM_SIM_KIND_vmm;
    *out = (uintptr_t)physical;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemCreate(nm_cu_mem_handle *out, size_t bytes, const nm_cu_mem_allocation_prop *prop,
                  unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !prop || flags != 0 || bytes == 0 || bytes % NM_GRANULE_BYTES != 0)
        return NM_CUDA_ERROR_INVALID_VALUE;
    if (prop->type != NM_CU_MEM_ALLOCATION_TYPE_PINNED) return NM_CUDA_ERROR_INVALID_VALUE;
    int device = location_device(&prop->location);
    if (device == -2) return NM_CUDA_ERROR_INVALID_DEVICE;
    if (device >= 0) nm_delay(device);
    NM_LOCK();
    nm_cu_result result = create(out, bytes, prop, device);
    NM_UNLOCK();
    return result;
}

NM_CU cuMemGetAllocationGranularity(size_t *out, const nm_cu_mem_allocation_prop *prop,
                                    int option) {
    (void)option;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !prop) return NM_CUDA_ERROR_INVALID_VALUE;
    if (location_device(&prop->location) == -2) return NM_CUDA_ERROR_INVALID_DEVICE;
    *out = NM_GRANULE_BYTES;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemGetAllocationPropertiesFromHandle(nm_cu_mem_allocation_prop *out,
                                             nm_cu_mem_handle handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_physical *physical = physical_of(handle);
    if (out && physical) *out = physical->prop;
    NM_UNLOCK();
    return out && physical ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses
   ----------------------------------------------------------------------------- */

/* A requested address is a hint, and is not followed. */
NM_CU cuMemAddressReserve(nm_cu_deviceptr *out, size_t bytes, size_t alignment,
                          nm_cu_deviceptr hint, unsigned long long flags) {
    (void)hint;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    bool aligned = (alignment & (alignment - 1)) == 0;
    if (!out || bytes == 0 || bytes % NM_GRANULE_BYTES != 0 || !aligned || flags != 0)
        return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_sim_block *block = nm_block_new(
        NM_RESERVATION, bytes, alignment > NM_GRANULE_BYTES ? alignment : NM_GRANULE_BYTES, false);
    if (block) *out = block->address;
    NM_UNLOCK();
    return block ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuMemAddressFree(nm_cu_deviceptr address, size_t bytes) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_sim_block *block = nm_block_at(address);
    bool whole =
        block && block->use == NM_RESERVATION && block->address == address && block->bytes == bytes;
    bool empty = whole && block->mapping_count == 0;
    if (empty) nm_block_free(block);
    NM_UNLOCK();
    return empty ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- mappings
   ----------------------------------------------------------------------------- */

/* The reservation that holds all of the range, which must lie on granules; NULL where there is
   none. */
static nm_sim_block *reservation_of(uint64_t address, uint64_t bytes) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || block->use != NM_RESERVATION || bytes == 0 ||
        (address | bytes) % NM_GRANULE_BYTES != 0)
        return NULL;
    return bytes <= block->bytes - (address - block->address) ? block : NULL;
}

static bool room_for_mapping(nm_sim_block *block) {
    if (block->mapping_count < block->mapping_room) return true;
    uint32_t room = block->mapping_room ? block->mapping_room * 2 : 8;
    nm_mapping *mappings = realloc(block->mappings, room * sizeof *mappings);
    if (!mappings) return false;
    block->mappings = mappings;
    block->mapping_room = room;
    return true;
}

static nm_physical *mappable(nm_cu_mem_handle handle) {
    multicast *team = multicast_of(handle);
    return team ? &team->physical : physical_of(handle);
}

static nm_cu_result map(uint64_t address, uint64_t bytes, uint64_t memory_offset,
                        nm_physical *physical) {
    nm_sim_block *block = reservation_of(address, bytes);
    if (!block || !physical) return NM_CUDA_ERROR_INVALID_VALUE;
    if (memory_offset % NM_GRANULE_BYTES != 0 || memory_offset > physical->bytes ||
        bytes > physical->bytes - memory_offset)
        return NM_CUDA_ERROR_INVALID_VALUE;
    uint64_t offset = address - block->address;
    uint32_t index = nm_mapping_from(block, offset);
    if (index < block->mapping_count && block->mappings[index].offset < offset + bytes)
        return NM_CUDA_ERROR_ALREADY_MAPPED;
    if (!room_for_mapping(block)) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    nm_mapping *at = &block->mappings[index];
    memmove(at + 1, at, (block->mapping_count - index) * sizeof *at);
    *at = (nm_mapping){.offset = offset, .bytes = bytes, .physical = physical};
    block->mapping_count++;
    physical->attachments++;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemMap(nm_cu_deviceptr address, size_t bytes, size_t offset, nm_cu_mem_handle handle,
               unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_cu_result result = map(address, bytes, offset, mappable(handle));
    NM_UNLOCK();
    return result;
}

/* [first, end) of the mappings that make up the range exactly; an empty range where some byte is
 * not mapped, or a mapping would be cut. */
static void mappings_in(const nm_sim_block *block, uint64_t offset, uint64_t bytes, uint32_t *first,
                        uint32_t *end) {
    uint64_t at = offset;
    *first = *end = nm_mapping_from(block, offset);
    while (at < offset + bytes && *end < block->mapping_count &&
           block->mappings[*end].offset == at) {
        at += block->mappings[(*end)++].bytes;
    }
    if (at != offset + bytes) *end = *first;
}

static nm_cu_result unmap(uint64_t address, uint64_t bytes) {
    nm_sim_block *block = reservation_of(address, bytes);
    uint32_t first, end;
    if (!block) return NM_CUDA_ERROR_INVALID_VALUE;
    mappings_in(block, address - block->address, bytes, &first, &end);
    if (first == end) return NM_CUDA_ERROR_INVALID_VALUE;
    for (uint32_t index = first; index < end; index++) {
        nm_mapping *mapping = &block->mappings[index];
        if (mapping->kept) nm_block_forget_bytes(block->address + mapping->offset, mapping->bytes);
        nm_physical_detach(mapping->physical);
    }
    memmove(&block->mappings[first], &block->mappings[end],
            (block->mapping_count - end) * sizeof *block->mappings);
    block->mapping_count -= end - first;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemUnmap(nm_cu_deviceptr address, size_t bytes) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = unmap(address, bytes);
    nm_exports_settle();
    NM_UNLOCK();
    return result;
}

static nm_cu_result set_access(uint64_t address, uint64_t bytes, int access) {
    nm_sim_block *block = reservation_of(address, bytes);
    uint32_t first, end;
    if (!block) return NM_CUDA_ERROR_INVALID_VALUE;
    mappings_in(block, address - block->address, bytes, &first, &end);
    for (uint32_t index = first; index < end; index++) block->mappings[index].access = access;
    return first == end ? NM_CUDA_ERROR_INVALID_VALUE : NM_CUDA_SUCCESS;
}

NM_CU cuMemSetAccess(nm_cu_deviceptr address, size_t bytes, const nm_cu_mem_access_desc *descs,
                     size_t count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!descs || count == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    for (size_t index = 0; index < count; index++) {
        if (location_device(&descs[index].location) == -2) return NM_CUDA_ERROR_INVALID_DEVICE;
    }
    NM_LOCK();
    nm_cu_result result = set_access(address, bytes, descs[0].flags);
    NM_UNLOCK();
    return result;
}

/* With the mutex: the mapping under an address, NULL where nothing is mapped. */
static nm_mapping *mapping_at(uint64_t address) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || block->use != NM_RESERVATION) return NULL;
    uint32_t index = nm_mapping_from(block, address - block->address);
    bool mapped =
        index < block->mapping_count && block->mappings[index].offset <= address - block->address;
    return mapped ? &block->mappings[index] : NULL;
}

NM_CU cuMemGetAccess(unsigned long long *out, const nm_cu_mem_location *location,
                     nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !location || location_device(location) == -2) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_mapping *mapping = mapping_at(address);
    if (mapping) *out = (unsigned long long)mapping->access;
    NM_UNLOCK();
    return mapping ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMemRetainAllocationHandle(nm_cu_mem_handle *out, void *address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_mapping *mapping = mapping_at((uintptr_t)address);
    if (mapping && out) {
        mapping->physical->handles++;
        *out = (uintptr_t)mapping->physical;
    }
    NM_UNLOCK();
    return mapping && out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- across processes
   ----------------------------------------------------------------------------- */

NM_CU cuMemExportToShareableHandle(void *out, nm_cu_mem_handle handle, int type,
                                   unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_physical *physical = physical_of(handle);
    bool may = out && physical && flags == 0 &&
               type == NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
               (physical->prop.requested_handle_types & type);
    int descriptor = -1;
    if (may) {
        nm_ticket ticket =
            nm_ticket_new(NM_TICKET_PHYSICAL, physical->device, handle, physical->bytes);
        descriptor = nm_export_open(&ticket);
        if (descriptor >= 0 && !nm_export_keeps(physical, NULL)) close(descriptor), descriptor = -1;
    }
    NM_UNLOCK();
    if (!may) return NM_CUDA_ERROR_INVALID_VALUE;
    if (descriptor < 0) return NM_CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = descriptor;
    return NM_CUDA_SUCCESS;
}

/* Memory that this process exported and still has: it comes back under its own handle. */
static nm_physical *own_memory(const nm_ticket *ticket) {
    return (int)ticket->slot == nm_the_driver.node.slot ? physical_of(ticket->address) : NULL;
}

static nm_physical *imported(const nm_ticket *ticket, int descriptor) {
    nm_physical *physical = nm_object_new(NM_PHYSICAL, NULL);
    if (!physical) return NULL;
    physical->held = nm_export_hold(descriptor);
    physical->device = ticket->device;
    physical->bytes = ticket->bytes;
    physical->handles = 1;
    physical->prop = (nm_cu_mem_allocation_prop){
        .type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
        .requested_handle_types = NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {NM_CU_MEM_LOCATION_TYPE_DEVICE, nm_ordinal(ticket->device)},
    };
    return physical;
}

NM_CU cuMemImportFromShareableHandle(nm_cu_mem_handle *out, void *handle, int type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || type != NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return NM_CUDA_ERROR_INVALID_VALUE;
    nm_ticket ticket;
    if (!nm_ticket_import(&ticket, NM_TICKET_PHYSICAL, (int)(intptr_t)handle))
        return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_physical *physical = own_memory(&ticket);
    if (physical) physical->handles++;
    if (!physical) physical = imported(&ticket, (int)(intptr_t)handle);
    if (physical) *out = (uintptr_t)physical;
    NM_UNLOCK();
    return physical ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- multicast
   ----------------------------------------------------------------------------- */

NM_CU cuMulticastCreate(nm_cu_mem_handle *out, const nm_cu_multicast_object_prop *prop) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !prop || prop->flags != 0 || prop->num_devices == 0 || prop->size == 0 ||
        prop->size % NM_GRANULE_BYTES != 0)
        return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    multicast *created = nm_object_new(NM_MULTICAST, NULL);
    if (created) {
        created->physical.bytes = prop->size;
        created->physical.device = -1;
        created->physical.handles = 1;
        created->teams = prop->num_devices;
        *out = (uintptr_t)created;
    }
    NM_UNLOCK();
    return created ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuMulticastAddDevice(nm_cu_mem_handle handle, nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (nm_device_index(ordinal) < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    multicast *team = multicast_of(handle);
    bool may = team && team->joined < team->teams;
    if (may) team->joined++;
    NM_UNLOCK();
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

static nm_cu_result bind(multicast *team, uint64_t offset, nm_physical *physical, uint64_t bytes) {
    bool fits = team && physical && bytes > 0 && (offset | bytes) % NM_GRANULE_BYTES == 0 &&
                offset <= team->physical.bytes && bytes <= team->physical.bytes - offset &&
                bytes <= physical->bytes;
    if (!fits) return NM_CUDA_ERROR_INVALID_VALUE;
    for (int index = 0; index < BINDINGS; index++) {
        if (team->bindings[index].physical) continue;
        team->bindings[index].physical = physical;
        team->bindings[index].offset = offset;
        team->bindings[index].bytes = bytes;
        physical->attachments++;
        return NM_CUDA_SUCCESS;
    }
    return NM_CUDA_ERROR_MULTICAST_RESOURCE_FULL;
}

NM_CU cuMulticastBindMem(nm_cu_mem_handle handle, size_t offset, nm_cu_mem_handle memory,
                         size_t memory_offset, size_t bytes, unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (flags != 0 || memory_offset % NM_GRANULE_BYTES != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_cu_result result = bind(multicast_of(handle), offset, physical_of(memory), bytes);
    NM_UNLOCK();
    return result;
}
NM_CU cuMulticastBindMem_v2(nm_cu_mem_handle handle, nm_cu_device ordinal, size_t offset,
                            nm_cu_mem_handle memory, size_t memory_offset, size_t bytes,
                            unsigned long long flags) {
    if (nm_is_ready() && nm_device_index(ordinal) < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    return cuMulticastBindMem(handle, offset, memory, memory_offset, bytes, flags);
}

NM_CU cuMulticastBindAddr(nm_cu_mem_handle handle, size_t offset, nm_cu_deviceptr address,
                          size_t bytes, unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_mapping *mapping = mapping_at(address);
    nm_cu_result result =
        bind(multicast_of(handle), offset, mapping ? mapping->physical : NULL, bytes);
    NM_UNLOCK();
    return result;
}
NM_CU cuMulticastBindAddr_v2(nm_cu_mem_handle handle, nm_cu_device ordinal, size_t offset,
                             nm_cu_deviceptr address, size_t bytes, unsigned long long flags) {
    if (nm_is_ready() && nm_device_index(ordinal) < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    return cuMulticastBindAddr(handle, offset, address, bytes, flags);
}

/* Undoes one binding of `device` (-1: of any) at `offset`. */
static bool unbind(multicast *team, int device, uint64_t offset) {
    for (int index = 0; index < BINDINGS; index++) {
        nm_physical *physical = team->bindings[index].physical;
        if (!physical || team->bindings[index].offset != offset ||
            (device >= 0 && physical->device != device))
            continue;
        team->bindings[index].physical = NULL;
        nm_physical_detach(physical);
        return true;
    }
    return false;
}

NM_CU cuMulticastUnbind(nm_cu_mem_handle handle, nm_cu_device ordinal, size_t offset,
                        size_t bytes) {
    (void)bytes;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    multicast *team = multicast_of(handle);
    int device = nm_device_index(ordinal);
    bool undone = team && device >= 0 && unbind(team, device, offset);
    NM_UNLOCK();
    return undone ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMulticastGetGranularity(size_t *out, const nm_cu_multicast_object_prop *prop, int option) {
    (void)option;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !prop) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = NM_GRANULE_BYTES;
    return NM_CUDA_SUCCESS;
}

/* ---- the end of a handle
   ----------------------------------------------------------------------------- */

NM_CU cuMemRelease(nm_cu_mem_handle handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_physical *physical = mappable(handle);
    bool held = physical && physical->handles > 0;
    if (held) {
        physical->handles--;
        end_if_done(physical);
        nm_exports_settle();
    }
    NM_UNLOCK();
    return held ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
