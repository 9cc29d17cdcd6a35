/* virtual.c: memory of cuMemCreate. It is charged until its last handle, mapping and export is
 * gone.
 *
 * Knows: handles, mappings, tiles of sparse arrays, bindings to multicast objects, exports, and the
 * physical allocation of each. Must not know: the ledger, the lease (charge.h).
 *
 * An import is an allocation without a charge: its exporter is charged, and a witness (exports.h)
 * shows it that the import lives. Exported linear memory and pools move their charge to an
 * allocation here when they are freed.
 */
#include "memory/virtual.h"

#include <stdatomic.h>
#include <string.h>

#include "account/charge.h"
#include "account/exports.h"
#include "account/suspendable.h"
#include "base/prim.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "memory/room.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

/* Guards all of these, except a read of last_number. It is held from the driver's call to the
 * entry in the table, since a freed handle or address may at once be another thread's.
 * cuMemCreate, the slowest call, does not hold it. */
static struct nm_lock lock;
/* of a physical allocation; 0: there was none, and nothing to check */
static _Atomic uint64_t last_number;
/* addresses and sizes of all mappings, by a bitwise or: its lowest bit divides them all */
static uint64_t alignment_seen;
static uint64_t longest_mapping;     /* bytes */
static _Atomic uint32_t lingering;   /* allocations that only exports keep */
static uint32_t ranges;              /* linear blocks whose charge has moved here */
static uint64_t next_sweep_ns;

void nm_virtual_forget(void)
{
    memset(&lock, 0, sizeof lock);
    alignment_seen = longest_mapping = next_sweep_ns = 0;
    lingering = ranges = 0;
    nm_exports_forget();
}

static bool is_idle(void)
{
    return atomic_load_explicit(&last_number, memory_order_relaxed) == 0;
}

static uint64_t new_number(void)
{
    return atomic_fetch_add(&last_number, 1) + 1;
}

/* -- references, with the lock held -- */

static void put(const struct nm_block *block)
{
    struct nm_block stale;
    nm_block_put(block, &stale);
}

#define EXPORT_ONE \
    (UINT64_C(1) << 32) /* exports are counted above the references in this process */

static bool lingers(uint64_t references)
{
    return references != 0 && (uint32_t)references == 0;
}

static void end_memory(const struct nm_block *memory);

static void change(uint64_t number, uint64_t by)
{
    struct nm_block memory;
    if (!nm_block_take(NM_BLOCK_MEMORY, number, &memory))
        return;
    lingering -= lingers(memory.owner);
    memory.owner += by;
    lingering += lingers(memory.owner);
    if (memory.owner != 0)
        put(&memory);
    else
        end_memory(&memory);
}

static void refer(uint64_t number)
{
    change(number, 1);
}

static void unrefer(uint64_t number)
{
    change(number, -UINT64_C(1));
}

static void end_binding(const struct nm_block *binding)
{
    unrefer(binding->bytes);
}

/* The charge returns to its linear block, if that lives. A new allocation at its address has a
   charge of its own. */
static bool went_back_to_block(const struct nm_block *memory)
{
    struct nm_block base, range;
    if (ranges == 0 || !nm_block_take(NM_BLOCK_BASE, memory->key, &base))
        return false;
    ranges--;
    if (!nm_block_take(NM_BLOCK_RANGE, base.bytes, &range))
        return false;
    if (range.owner == memory->key)
        return nm_block_change_bytes(NM_BLOCK_LINEAR, base.bytes, 0, memory->bytes);
    put(&range);
    return false;
}

/* Imports, multicast objects and groups of mappings have no bytes of their own; their witnesses
   and bindings end with them. */
static void end_memory(const struct nm_block *memory)
{
    if (memory->bytes == 0) {
        nm_witness_drop(memory->key);
        nm_block_take_owned(NM_BLOCK_BINDING, memory->key, end_binding);
    } else if (!went_back_to_block(memory)) {
        nm_charge_give_back_block(memory);
    }
}

/* The program holds the handle one more time. */
static void hold(nm_cu_mem_handle handle, uint64_t number)
{
    struct nm_block held = {.kind = NM_BLOCK_HANDLE, .key = handle, .owner = number};
    nm_block_take(NM_BLOCK_HANDLE, handle, &held);
    held.bytes++;
    put(&held);
    refer(number);
}

static void unhold(nm_cu_mem_handle handle)
{
    struct nm_block held;
    if (!nm_block_take(NM_BLOCK_HANDLE, handle, &held))
        return;
    if (--held.bytes > 0)
        put(&held);
    unrefer(held.owner);
}

/* -- exports -- */

static void end_export(uint64_t number)
{
    change(number, -EXPORT_ONE);
}

/* With the lock held. The listing takes time for each open export: it gets at most a sixteenth
   of the time, unless `now`. */
static void sweep(bool now)
{
    uint64_t start_ns = nm_now_ns();
    if (!now && start_ns < next_sweep_ns)
        return;
    nm_exports_sweep(end_export);
    uint64_t end_ns = nm_now_ns();
    next_sweep_ns = end_ns + 16 * (end_ns - start_ns);
}

/* Most descriptors are closed before the memory is released. */
static void leave(void)
{
    if (lingering != 0)
        sweep(false);
    nm_unlock(&lock);
}

bool nm_virtual_settle(void)
{
    uint32_t before = lingering;
    if (before == 0)
        return false;
    nm_lock(&lock);
    sweep(true);
    bool fewer = lingering < before;
    nm_unlock(&lock);
    return fewer;
}

/* For the beating thread, which must not wait for another thread's call of the driver under the
   lock. */
static void settle_now_and_then(void)
{
    if (lingering == 0 || !nm_lock_within(&lock, 0))
        return;
    sweep(true);
    nm_unlock(&lock);
}

/* With the lock held: the memory was exported by a descriptor (-1: by a handle whose end is
   never known). */
static void export(uint64_t number, int fd)
{
    change(number, EXPORT_ONE);
    nm_exports_add(fd, number);
    nm_client_set_chore(settle_now_and_then);
}

/* An allocation without bytes. */
static uint64_t enter_empty(void)
{
    uint64_t number = new_number();
    put(&(struct nm_block){.kind = NM_BLOCK_MEMORY, .key = number});
    return number;
}

static int exported_fd(const void *handle, int type)
{
    return type == NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *(const int *)handle : -1;
}

uint64_t nm_virtual_share(uint64_t number, const void *handle, int type)
{
    struct nm_block memory;
    nm_lock(&lock);
    if (number == 0 || !nm_block_get(NM_BLOCK_MEMORY, number, &memory)) {
        number = enter_empty();
        refer(number);
    }
    export(number, exported_fd(handle, type));
    nm_unlock(&lock);
    return number;
}

void nm_virtual_inherit(uint64_t number, struct nm_charge *charge)
{
    struct nm_block memory;
    if (number == 0)
        return;
    nm_lock(&lock);
    sweep(true);
    if (nm_block_take(NM_BLOCK_MEMORY, number, &memory)) {
        if (memory.owner >= EXPORT_ONE && charge->row >= 0) {
            memory.bytes = charge->bytes;
            memory.lease = charge->lease;
            memory.row = (uint8_t)charge->row;
            charge->bytes = 0;
        }
        put(&memory);
        unrefer(number);
    }
    nm_unlock(&lock);
}

/* -- handles -- */

/* The device of the memory, not the current one. */
static nm_cu_device device_of(const nm_cu_mem_allocation_prop *prop)
{
    return prop != NULL && prop->location.type == NM_CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id
                                                                                 : -1;
}

int nm_hook_cuMemCreate(nm_cu_mem_handle *handle, size_t bytes,
                        const nm_cu_mem_allocation_prop *prop, unsigned long long flags)
{
    struct nm_charge charge;
    if (!nm_take(&charge, device_of(prop), bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemCreate(handle, bytes, prop, flags);
    if (result != SUCCESS)
        nm_charge_give_back(&charge);
    if (result != SUCCESS || charge.row < 0)
        return result;
    nm_lock(&lock);
    uint64_t number = new_number();
    nm_charge_keep(&charge, NM_BLOCK_MEMORY, number, 0);
    hold(*handle, number);
    nm_unlock(&lock);
    return result;
}

int nm_hook_cuMemRelease(nm_cu_mem_handle handle)
{
    if (is_idle())
        return nm_real_cuMemRelease(handle);
    nm_lock(&lock);
    int result = nm_real_cuMemRelease(handle);
    if (result == SUCCESS)
        unhold(handle);
    leave();
    return result;
}

int nm_hook_cuMemExportToShareableHandle(void *shared, nm_cu_mem_handle handle, int type,
                                         unsigned long long flags)
{
    struct nm_block held;
    if (is_idle())
        return nm_real_cuMemExportToShareableHandle(shared, handle, type, flags);
    nm_lock(&lock);
    int result = nm_real_cuMemExportToShareableHandle(shared, handle, type, flags);
    if (result == SUCCESS && nm_block_get(NM_BLOCK_HANDLE, handle, &held))
        export(held.owner, exported_fd(shared, type));
    nm_unlock(&lock);
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

/* With the lock held. */
static void note_import(nm_cu_mem_handle handle, int fd)
{
    struct nm_block held;
    if (nm_block_get(NM_BLOCK_HANDLE, handle, &held)) {
        hold(handle, held.owner); /* this process's own memory, imported under its own handle */
        return;
    }
    uint64_t number = enter_empty();
    nm_witness_hold(fd, number);
    hold(handle, number);
}

int nm_hook_cuMemImportFromShareableHandle(nm_cu_mem_handle *handle, void *shared, int type)
{
    nm_lock(&lock);
    int result = nm_real_cuMemImportFromShareableHandle(handle, shared, type);
    if (result == SUCCESS && type == NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        note_import(*handle, (int)(intptr_t)shared);
    nm_unlock(&lock);
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

/* -- mappings -- */

static uint64_t step(void)
{
    uint64_t lowest = alignment_seen & -alignment_seen;
    return lowest != 0 ? lowest : 1;
}

/* The mapping that contains the address. Mappings are found by their first byte, so this
   searches downwards. */
static bool mapping_at(uint64_t address, struct nm_block *mapping)
{
    uint64_t first = address & -step();
    for (uint64_t down = 0; down < longest_mapping && down <= first; down += step())
        if (nm_block_get(NM_BLOCK_MAPPING, first - down, mapping))
            return address - mapping->key < mapping->bytes;
    return false;
}

int nm_hook_cuMemRetainAllocationHandle(nm_cu_mem_handle *handle, void *address)
{
    struct nm_block known;
    if (is_idle())
        return nm_real_cuMemRetainAllocationHandle(handle, address);
    nm_lock(&lock);
    int result = nm_real_cuMemRetainAllocationHandle(handle, address);
    if (result == SUCCESS &&
        (nm_block_get(NM_BLOCK_HANDLE, *handle, &known) || mapping_at((uintptr_t)address, &known)))
        hold(*handle, known.owner);
    nm_unlock(&lock);
    return result;
}

int nm_hook_cuMemMap(nm_cu_deviceptr address, size_t bytes, size_t offset, nm_cu_mem_handle handle,
                     unsigned long long flags)
{
    struct nm_block held;
    if (is_idle())
        return nm_real_cuMemMap(address, bytes, offset, handle, flags);
    nm_lock(&lock);
    int result = nm_real_cuMemMap(address, bytes, offset, handle, flags);
    if (result == SUCCESS && nm_block_get(NM_BLOCK_HANDLE, handle, &held)) {
        alignment_seen |= address | bytes;
        longest_mapping = bytes > longest_mapping ? bytes : longest_mapping;
        put(&(struct nm_block){
            .kind = NM_BLOCK_MAPPING, .key = address, .owner = held.owner, .bytes = bytes});
        refer(held.owner);
    }
    nm_unlock(&lock);
    return result;
}

/* A range may have many mappings, and gaps for imports: the steps meet the first byte of each
   mapping in the table. */
int nm_hook_cuMemUnmap(nm_cu_deviceptr address, size_t bytes)
{
    struct nm_block mapping;
    if (is_idle())
        return nm_real_cuMemUnmap(address, bytes);
    nm_lock(&lock);
    int result = nm_real_cuMemUnmap(address, bytes);
    if (result == SUCCESS)
        alignment_seen |= address;
    for (uint64_t done = 0; result == SUCCESS && done < bytes;) {
        bool found = nm_block_take(NM_BLOCK_MAPPING, address + done, &mapping);
        if (found)
            unrefer(mapping.owner);
        done += found ? mapping.bytes : step();
    }
    leave();
    return result;
}

/* -- multicast objects -- */

/* One number made of several. Two places with the same number would only end one charge early. */
static uint64_t mixed(const uint64_t *parts, size_t count)
{
    uint64_t number = 0;
    for (size_t i = 0; i < count; i++)
        number = (number ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ number >> 29;
    return number;
}

static uint64_t enter_multicast(nm_cu_mem_handle handle)
{
    uint64_t number = enter_empty();
    hold(handle, number);
    return number;
}

int nm_hook_cuMulticastCreate(nm_cu_mem_handle *handle, const nm_cu_multicast_object_prop *prop)
{
    nm_lock(&lock);
    int result = nm_real_cuMulticastCreate(handle, prop);
    if (result == SUCCESS)
        enter_multicast(*handle);
    nm_unlock(&lock);
    return result;
}

/* The key of a binding. The older calls name no device, so the row of the memory stands for it. */
static uint64_t binding_key(uint64_t object, int row, uint64_t offset)
{
    return mixed((const uint64_t[]){object, (uint64_t)row, offset}, 3);
}

/* After a bind, with the lock held. An object of another process is entered at its first
   binding. */
static void note_binding(nm_cu_mem_handle handle, uint64_t offset, uint64_t number)
{
    struct nm_block held, memory;
    if (!nm_block_get(NM_BLOCK_MEMORY, number, &memory))
        return;
    uint64_t object =
        nm_block_get(NM_BLOCK_HANDLE, handle, &held) ? held.owner : enter_multicast(handle);
    put(&(struct nm_block){.kind = NM_BLOCK_BINDING,
                           .key = binding_key(object, memory.row, offset),
                           .owner = object,
                           .bytes = number});
    refer(number);
}

static int end_bind(int result, nm_cu_mem_handle handle, size_t offset, nm_cu_mem_handle memory)
{
    struct nm_block held;
    if (result == SUCCESS && nm_block_get(NM_BLOCK_HANDLE, memory, &held))
        note_binding(handle, offset, held.owner);
    nm_unlock(&lock);
    return result;
}

static int end_bind_address(int result, nm_cu_mem_handle handle, size_t offset,
                            nm_cu_deviceptr address)
{
    struct nm_block mapping;
    if (result == SUCCESS && mapping_at(address, &mapping))
        note_binding(handle, offset, mapping.owner);
    nm_unlock(&lock);
    return result;
}

int nm_hook_cuMulticastBindMem(nm_cu_mem_handle handle, size_t offset, nm_cu_mem_handle memory,
                               size_t memory_offset, size_t bytes, unsigned long long flags)
{
    nm_lock(&lock);
    return end_bind(nm_real_cuMulticastBindMem(handle, offset, memory, memory_offset, bytes, flags),
                    handle, offset, memory);
}

int nm_hook_cuMulticastBindMem_v2(nm_cu_mem_handle handle, nm_cu_device device, size_t offset,
                                  nm_cu_mem_handle memory, size_t memory_offset, size_t bytes,
                                  unsigned long long flags)
{
    nm_lock(&lock);
    int result =
        nm_real_cuMulticastBindMem_v2(handle, device, offset, memory, memory_offset, bytes, flags);
    return end_bind(result, handle, offset, memory);
}

int nm_hook_cuMulticastBindAddr(nm_cu_mem_handle handle, size_t offset, nm_cu_deviceptr address,
                                size_t bytes, unsigned long long flags)
{
    nm_lock(&lock);
    return end_bind_address(nm_real_cuMulticastBindAddr(handle, offset, address, bytes, flags),
                            handle, offset, address);
}

int nm_hook_cuMulticastBindAddr_v2(nm_cu_mem_handle handle, nm_cu_device device, size_t offset,
                                   nm_cu_deviceptr address, size_t bytes, unsigned long long flags)
{
    nm_lock(&lock);
    int result = nm_real_cuMulticastBindAddr_v2(handle, device, offset, address, bytes, flags);
    return end_bind_address(result, handle, offset, address);
}

int nm_hook_cuMulticastUnbind(nm_cu_mem_handle handle, nm_cu_device device, size_t offset,
                              size_t bytes)
{
    struct nm_block held, binding;
    struct nm_charge there;
    nm_charge_take(&there, device, 0);
    nm_lock(&lock);
    int result = nm_real_cuMulticastUnbind(handle, device, offset, bytes);
    if (result == SUCCESS && there.row >= 0 && nm_block_get(NM_BLOCK_HANDLE, handle, &held) &&
        nm_block_take(NM_BLOCK_BINDING, binding_key(held.owner, there.row, offset), &binding))
        unrefer(binding.bytes);
    leave();
    return result;
}

/* -- ranges of addresses -- */

/* With the lock held: number of an allocation that keeps the memory of all mappings in the
   range, like a multicast object; 0: there are none. */
static uint64_t group_of_mappings(uint64_t address, uint64_t bytes)
{
    struct nm_block mapping;
    uint64_t group = 0;
    for (uint64_t at = address; at < address + bytes && mapping_at(at, &mapping);
         at = mapping.key + mapping.bytes) {
        group = group != 0 ? group : enter_empty();
        put(&(struct nm_block){.kind = NM_BLOCK_BINDING,
                               .key = mixed((const uint64_t[]){group, mapping.key}, 2),
                               .owner = group,
                               .bytes = mapping.owner});
        refer(mapping.owner);
    }
    return group;
}

/* With the lock held: number that has a linear block's charge; 0: no known block is there. */
static uint64_t number_of_block(uint64_t address)
{
    nm_cu_deviceptr base = address;
    size_t bytes;
    struct nm_block block, range;
    if (nm_real_cuMemGetAddressRange_v2(&base, &bytes, address) != SUCCESS ||
        !nm_block_get(NM_BLOCK_LINEAR, base, &block) || block.kind != NM_BLOCK_LINEAR)
        return 0;
    if (block.bytes == 0)
        return nm_block_get(NM_BLOCK_RANGE, base, &range) ? range.owner : 0;
    if (!nm_block_change_bytes(NM_BLOCK_LINEAR, base, block.bytes, 0))
        return 0;
    uint64_t number = new_number();
    put(&(struct nm_block){.kind = NM_BLOCK_MEMORY,
                           .key = number,
                           .bytes = block.bytes,
                           .lease = block.lease,
                           .row = block.row});
    put(&(struct nm_block){.kind = NM_BLOCK_BASE, .key = number, .bytes = base});
    put(&(struct nm_block){.kind = NM_BLOCK_RANGE, .key = base, .owner = number});
    ranges++;
    return number;
}

/* A dma-buf keeps the memory, although the program promises a later free. */
int nm_hook_cuMemGetHandleForAddressRange(void *handle, nm_cu_deviceptr address, size_t bytes,
                                          int type, unsigned long long flags)
{
    enum { DMA_BUF = 1 };
    nm_lock(&lock);
    int result = nm_real_cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
    uint64_t number = result == SUCCESS ? group_of_mappings(address, bytes) : 0;
    if (result == SUCCESS && number == 0)
        number = number_of_block(address);
    if (number != 0)
        export(number, type == DMA_BUF ? *(const int *)handle : -1);
    nm_unlock(&lock);
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

/* -- tiles of sparse arrays -- */

static uint64_t place_of(const nm_cu_array_map_info *info)
{
    const uint64_t parts[] = {
        (uintptr_t)info->resource.array,
        (uint64_t)info->resource_type << 32 | (uint32_t)info->subresource_type,
        info->subresource_type == 0 ? (uint64_t)info->subresource.sparse_level.level << 32 |
                                          info->subresource.sparse_level.layer
                                    : info->subresource.miptail.layer,
        info->subresource_type == 0 ? (uint64_t)info->subresource.sparse_level.offset_x << 32 |
                                          info->subresource.sparse_level.offset_y
                                    : info->subresource.miptail.offset,
        info->subresource_type == 0 ? info->subresource.sparse_level.offset_z : 0,
    };
    return mixed(parts, sizeof parts / sizeof *parts);
}

static void note_tile(const nm_cu_array_map_info *info)
{
    struct nm_block tile = {.kind = NM_BLOCK_TILE, .key = place_of(info)}, before, held;
    if (nm_block_take(NM_BLOCK_TILE, tile.key, &before))
        unrefer(before.owner);
    if (info->mem_operation_type != NM_CU_MEM_OPERATION_TYPE_MAP ||
        !nm_block_get(NM_BLOCK_HANDLE, info->mem_handle, &held))
        return;
    tile.owner = held.owner;
    put(&tile);
    refer(held.owner);
}

static int map_array(nm_type_cuMemMapArrayAsync *real, nm_cu_array_map_info *list, unsigned count,
                     nm_cu_stream stream)
{
    if (is_idle())
        return real(list, count, stream);
    nm_lock(&lock);
    int result = real(list, count, stream);
    for (unsigned i = 0; result == SUCCESS && i < count; i++)
        note_tile(&list[i]);
    leave();
    return result;
}

int nm_hook_cuMemMapArrayAsync(nm_cu_array_map_info *list, unsigned count, nm_cu_stream stream)
{
    return map_array(nm_real_cuMemMapArrayAsync, list, count, stream);
}

int nm_hook_cuMemMapArrayAsync_ptsz(nm_cu_array_map_info *list, unsigned count, nm_cu_stream stream)
{
    return map_array(nm_real_cuMemMapArrayAsync_ptsz, list, count, stream);
}
