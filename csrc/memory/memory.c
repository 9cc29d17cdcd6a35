/* memory.c: linear memory and arrays, which one call takes and one gives back; and the figures of
 * memory for the program.
 *
 * Knows: the bytes that each of these functions allocates. Must not know: the ledger, the lease
 * (charge.h).
 *
 * A free removes the block from the table before it calls the driver, and puts it back if the
 * driver refuses: otherwise another thread's new allocation could have the same address. A block
 * that is not in the table goes to the driver unchanged.
 */
#include <limits.h>

#include "account/charge.h"
#include "account/suspendable.h"
#include "hooks/interpose.h"
#include "launch/launch.h"
#include "memory/contexts.h"
#include "memory/pools.h"
#include "memory/room.h"
#include "memory/virtual.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

/* After the driver's answer: the charge is kept with the block, or given back. */
static inline int settle(struct nm_charge *charge, int result, enum nm_block_kind kind,
                         uint64_t key)
{
    if (charge->row < 0)
        return result;
    if (result == SUCCESS)
        nm_contexts_keep(charge, kind, key);
    else
        nm_charge_give_back(charge);
    return result;
}

/* -- linear memory -- */

int nm_hook_cuMemAlloc_v2(nm_cu_deviceptr *address, size_t bytes)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemAlloc_v2(address, bytes);
    return settle(&charge, result, NM_BLOCK_LINEAR, result == SUCCESS ? *address : 0);
}

int nm_hook_cuMemAlloc(unsigned *address, unsigned bytes)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemAlloc(address, bytes);
    return settle(&charge, result, NM_BLOCK_LINEAR, result == SUCCESS ? *address : 0);
}

int nm_hook_cuMemAllocManaged(nm_cu_deviceptr *address, size_t bytes, unsigned flags)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemAllocManaged(address, bytes, flags);
    if (result == SUCCESS)
        nm_managed_taken(*address);
    return settle(&charge, result, NM_BLOCK_LINEAR, result == SUCCESS ? *address : 0);
}

/* a * b, or the largest number. */
static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* The driver chooses the pitch. It is charged as today's drivers choose it, and corrected
   afterwards. */
static uint64_t pitch_guess(uint64_t width_bytes)
{
    enum { PITCH_BYTES = 512 };
    return width_bytes > UINT64_MAX - PITCH_BYTES
               ? width_bytes
               : (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
}

int nm_hook_cuMemAllocPitch_v2(nm_cu_deviceptr *address, size_t *pitch, size_t width, size_t height,
                               unsigned element)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, product(pitch_guess(width), height)))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemAllocPitch_v2(address, pitch, width, height, element);
    if (result == SUCCESS && !nm_resize(&charge, product(*pitch, height))) {
        nm_real_cuMemFree_v2(*address);
        result = nm_charge_refusal(&charge);
    }
    return settle(&charge, result, NM_BLOCK_LINEAR, result == SUCCESS ? *address : 0);
}

int nm_hook_cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height,
                            unsigned element)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, product(pitch_guess(width), height)))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMemAllocPitch(address, pitch, width, height, element);
    if (result == SUCCESS && !nm_resize(&charge, product(*pitch, height))) {
        nm_real_cuMemFree(*address);
        result = nm_charge_refusal(&charge);
    }
    return settle(&charge, result, NM_BLOCK_LINEAR, result == SUCCESS ? *address : 0);
}

static inline int settle_free(int result, struct nm_block *block)
{
    struct nm_block stale;
    if (result != SUCCESS)
        nm_block_put(block, &stale);
    else if (block->kind == NM_BLOCK_POOLED)
        nm_pool_freed_at_once(block);
    else if (block->bytes == 0)
        nm_virtual_settle(); /* a dma-buf of it has its charge */
    else
        nm_charge_give_back_block(block);
    return result;
}

int nm_hook_cuMemFree_v2(nm_cu_deviceptr address)
{
    struct nm_block block;
    nm_managed_freed(address);
    if (!nm_block_take(NM_BLOCK_LINEAR, address, &block))
        return nm_real_cuMemFree_v2(address);
    return settle_free(nm_real_cuMemFree_v2(address), &block);
}

int nm_hook_cuMemFree(unsigned address)
{
    struct nm_block block;
    if (!nm_block_take(NM_BLOCK_LINEAR, address, &block))
        return nm_real_cuMemFree(address);
    return settle_free(nm_real_cuMemFree(address), &block);
}

/* -- memory of other processes: its exporter is charged -- */

static int shared(int result)
{
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

int nm_hook_cuIpcGetMemHandle(void *handle, nm_cu_deviceptr address)
{
    return shared(nm_real_cuIpcGetMemHandle(handle, address));
}

int nm_hook_cuIpcOpenMemHandle(void *address, nm_cu_ipc_mem_handle handle, unsigned flags)
{
    return shared(nm_real_cuIpcOpenMemHandle(address, handle, flags));
}

int nm_hook_cuIpcOpenMemHandle_v2(void *address, nm_cu_ipc_mem_handle handle, unsigned flags)
{
    return shared(nm_real_cuIpcOpenMemHandle_v2(address, handle, flags));
}

int nm_hook_cuImportExternalMemory(void *memory, const void *description)
{
    return shared(nm_real_cuImportExternalMemory(memory, description));
}

/* -- arrays -- */

/* Bits of one element of a format's channel; for formats with their channels inside, of the
   whole element. */
static uint64_t bits_of(int format, unsigned channels)
{
    static const struct {
        unsigned char first, last, bits;
        bool per_channel;
    } formats[] = {
        {0x01, 0x01, 8, true},
        {0x02, 0x02, 16, true},
        {0x03, 0x03, 32, true},
        {0x08, 0x08, 8, true},
        {0x09, 0x09, 16, true},
        {0x0a, 0x0a, 32, true},
        {0x10, 0x10, 16, true},
        {0x20, 0x20, 32, true},
        /* 10-10-10-2 */
        {0x50, 0x50, 32, false},
        /* BC1 to BC7 */
        {0x91, 0x92, 4, false},
        {0x93, 0x96, 8, false},
        {0x97, 0x98, 4, false},
        {0x99, 0x9e, 8, false},
        {0xb0, 0xb0, 12, false},                                                      /* NV12 */
        {0xc0, 0xc0, 8, false},
        {0xc1, 0xc1, 16, false},
        {0xc2, 0xc2, 32, false},
        {0xc3, 0xc3, 16, false},
        {0xc4, 0xc4, 32, false},
        {0xc5, 0xc5, 64, false},
        {0xc6, 0xc6, 8, false},
        {0xc7, 0xc7, 16, false},
        {0xc8, 0xc8, 32, false},
        {0xc9, 0xc9, 16, false},
        {0xca, 0xca, 32, false},
        {0xcb, 0xcb, 64, false},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (format >= formats[i].first && format <= formats[i].last)
            return (uint64_t)formats[i].bits * (formats[i].per_channel ? channels : 1);
    return 64; /* video and future formats: at most as large as any of today */
}

static uint64_t at_least_one(uint64_t extent)
{
    return extent != 0 ? extent : 1;
}

static uint64_t level_bytes(const nm_cu_array3d_descriptor *d, unsigned level)
{
    bool layered = (d->flags & (NM_CUDA_ARRAY3D_LAYERED | NM_CUDA_ARRAY3D_CUBEMAP)) != 0;
    /* layers and faces do not shrink */
    uint64_t depth = at_least_one(layered ? d->depth : d->depth >> level);
    uint64_t elements =
        product(product(at_least_one(d->width >> level), at_least_one(d->height >> level)), depth);
    uint64_t bits = product(elements, bits_of(d->format, d->num_channels));
    return bits == UINT64_MAX ? bits : (bits + 7) / 8;
}

static uint64_t array_bytes(const nm_cu_array3d_descriptor *d, unsigned levels)
{
    uint64_t sum = 0;
    if (d == NULL || (d->flags & (NM_CUDA_ARRAY3D_SPARSE | NM_CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0; /* memory is mapped to it later, and charged where it is created */
    for (unsigned level = 0; level < at_least_one(levels) && level < 32; level++) {
        uint64_t bytes = level_bytes(d, level);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

int nm_hook_cuArray3DCreate_v2(nm_cu_array *array, const nm_cu_array3d_descriptor *d)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, array_bytes(d, 1)))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuArray3DCreate_v2(array, d);
    return settle(&charge, result, NM_BLOCK_ARRAY, result == SUCCESS ? (uintptr_t)*array : 0);
}

/* The other three descriptors are charged as the one with all fields. */
static uint64_t flat_bytes(uint64_t width, uint64_t height, int format, unsigned channels)
{
    nm_cu_array3d_descriptor full = {
        .width = width, .height = height, .format = format, .num_channels = channels};
    return array_bytes(&full, 1);
}

int nm_hook_cuArrayCreate_v2(nm_cu_array *array, const nm_cu_array_descriptor *d)
{
    struct nm_charge charge;
    uint64_t bytes = d != NULL ? flat_bytes(d->width, d->height, d->format, d->num_channels) : 0;
    if (!nm_take_here(&charge, bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuArrayCreate_v2(array, d);
    return settle(&charge, result, NM_BLOCK_ARRAY, result == SUCCESS ? (uintptr_t)*array : 0);
}

int nm_hook_cuArrayCreate(nm_cu_array *array, const nm_cu_array_descriptor_v1 *d)
{
    struct nm_charge charge;
    uint64_t bytes = d != NULL ? flat_bytes(d->width, d->height, d->format, d->num_channels) : 0;
    if (!nm_take_here(&charge, bytes))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuArrayCreate(array, d);
    return settle(&charge, result, NM_BLOCK_ARRAY, result == SUCCESS ? (uintptr_t)*array : 0);
}

int nm_hook_cuArray3DCreate(nm_cu_array *array, const nm_cu_array3d_descriptor_v1 *d)
{
    struct nm_charge charge;
    nm_cu_array3d_descriptor full = {0};
    if (d != NULL)
        full = (nm_cu_array3d_descriptor){.width = d->width,
                                          .height = d->height,
                                          .depth = d->depth,
                                          .format = d->format,
                                          .num_channels = d->num_channels,
                                          .flags = d->flags};
    if (!nm_take_here(&charge, array_bytes(d != NULL ? &full : NULL, 1)))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuArray3DCreate(array, d);
    return settle(&charge, result, NM_BLOCK_ARRAY, result == SUCCESS ? (uintptr_t)*array : 0);
}

int nm_hook_cuMipmappedArrayCreate(nm_cu_mipmapped_array *array, const nm_cu_array3d_descriptor *d,
                                   unsigned levels)
{
    struct nm_charge charge;
    if (!nm_take_here(&charge, array_bytes(d, levels)))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuMipmappedArrayCreate(array, d, levels);
    return settle(&charge, result, NM_BLOCK_ARRAY, result == SUCCESS ? (uintptr_t)*array : 0);
}

int nm_hook_cuArrayDestroy(nm_cu_array array)
{
    struct nm_block block;
    if (!nm_block_take(NM_BLOCK_ARRAY, (uintptr_t)array, &block))
        return nm_real_cuArrayDestroy(array);
    return settle_free(nm_real_cuArrayDestroy(array), &block);
}

int nm_hook_cuMipmappedArrayDestroy(nm_cu_mipmapped_array array)
{
    struct nm_block block;
    if (!nm_block_take(NM_BLOCK_ARRAY, (uintptr_t)array, &block))
        return nm_real_cuMipmappedArrayDestroy(array);
    return settle_free(nm_real_cuMipmappedArrayDestroy(array), &block);
}

/* -- figures -- */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The total is the quota or the task's own memory, if the GPU is as large. Free is the least of
   theirs and the driver's. With an error both are what the driver wrote: 0. */
static inline int memory_info(uint64_t *free, uint64_t *total)
{
    size_t driver_free = 0, driver_total = 0;
    struct nm_figures figures;
    if (nm_hold() != NM_NOT_HELD && nm_figures_here(&figures)) {
        *total = figures.total_bytes;
        *free = figures.total_bytes - figures.used_bytes;
        return SUCCESS;
    }
    int result = nm_real_cuMemGetInfo_v2(&driver_free, &driver_total);
    *free = driver_free;
    *total = driver_total;
    if (result == SUCCESS && nm_figures_here(&figures)) {
        *total = smaller(figures.total_bytes, driver_total);
        *free = smaller(figures.total_bytes - figures.used_bytes, smaller(driver_free, *total));
    }
    return result;
}

int nm_hook_cuMemGetInfo_v2(size_t *free, size_t *total)
{
    uint64_t free_bytes, total_bytes;
    int result = memory_info(&free_bytes, &total_bytes);
    if (free != NULL)
        *free = free_bytes;
    if (total != NULL)
        *total = total_bytes;
    return result;
}

int nm_hook_cuMemGetInfo(unsigned *free, unsigned *total)
{
    uint64_t free_bytes, total_bytes;
    int result = memory_info(&free_bytes, &total_bytes);
    if (free != NULL)
        *free = (unsigned)smaller(free_bytes, UINT_MAX);
    if (total != NULL)
        *total = (unsigned)smaller(total_bytes, UINT_MAX);
    return result;
}

int nm_hook_cuDeviceTotalMem_v2(size_t *bytes, nm_cu_device device)
{
    struct nm_figures figures;
    int result = nm_real_cuDeviceTotalMem_v2(bytes, device);
    if (result == SUCCESS && bytes != NULL && nm_figures_of_device(device, &figures))
        *bytes = smaller(figures.total_bytes, *bytes);
    return result;
}

int nm_hook_cuDeviceTotalMem(unsigned *bytes, nm_cu_device device)
{
    struct nm_figures figures;
    int result = nm_real_cuDeviceTotalMem(bytes, device);
    if (result == SUCCESS && bytes != NULL && nm_figures_of_device(device, &figures))
        *bytes = (unsigned)smaller(figures.total_bytes, *bytes);
    return result;
}
