/* memory.c: linear, pitched, managed and host memory; frees; figures about memory and pointers.
 *
 * Knows: how each kind of block is freed. Must not know: copies (copies.c), the inside of pools and
 * graphs.
 *
 * A linear allocation is charged to the byte. A real driver rounds up to 2 MiB, which a test could
 * not tell from a leak.
 */
#include <string.h>
#include <time.h>

#include "sim/driver/driver.h"
#include "sim/memory/exports.h"

/* ---- taking
   ----------------------------------------------------------------------------- */

static nm_cu_result take(nm_context *context, nm_use use, uint64_t bytes, bool below_4g,
                         nm_cu_deviceptr *out) {
    nm_sim_kind kind = use == NM_MANAGED ? NM_SIM_KIND_managed : NM_SIM_KIND_linear;
    nm_cu_result result = nm_charge(context->device, kind, bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    nm_sim_block *block =
        nm_block_new(use, bytes, use == NM_MANAGED ? 4096 : NM_PITCH_BYTES, below_4g);
    if (!block) {
        nm_give_back(context->device, kind, bytes);
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->device = (int8_t)context->device;
    block->context = context;
    nm_list_add(&context->blocks, &block->link);
    *out = block->address;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result allocate(nm_cu_deviceptr *out, uint64_t bytes, nm_use use, bool below_4g) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || bytes == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_delay(context->device);
    NM_LOCK();
    bool lives = nm_current() == context; /* another thread may have ended it just now */
    result = lives ? take(context, use, bytes, below_4g, out) : NM_CUDA_ERROR_CONTEXT_IS_DESTROYED;
    NM_UNLOCK();
    return result;
}

NM_CU cuMemAlloc_v2(nm_cu_deviceptr *out, size_t bytes) {
    return allocate(out, bytes, NM_LINEAR, false);
}

NM_CU cuMemAllocManaged(nm_cu_deviceptr *out, size_t bytes, unsigned flags) {
    if (!out || bytes == 0 ||
        (flags != NM_CU_MEM_ATTACH_GLOBAL && flags != NM_CU_MEM_ATTACH_HOST))
        return NM_CUDA_ERROR_INVALID_VALUE;
    return allocate(out, bytes, NM_MANAGED, false);
}

static nm_cu_result allocate_pitched(nm_cu_deviceptr *out, size_t *pitch, uint64_t width,
                                     uint64_t height, unsigned element, bool below_4g) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    bool odd_element = element != 4 && element != 8 && element != 16;
    if (!pitch || width == 0 || height == 0 || odd_element || width >= NM_SIM_MEMORY_LIMIT_BYTES)
        return NM_CUDA_ERROR_INVALID_VALUE;
    uint64_t row = nm_round_up(width, NM_PITCH_BYTES);
    if (height > NM_SIM_MEMORY_LIMIT_BYTES / row) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    nm_cu_result result = allocate(out, row * height, NM_LINEAR, below_4g);
    if (result == NM_CUDA_SUCCESS) *pitch = row;
    return result;
}

NM_CU cuMemAllocPitch_v2(nm_cu_deviceptr *out, size_t *pitch, size_t width, size_t height,
                         unsigned element) {
    return allocate_pitched(out, pitch, width, height, element, false);
}

/* ---- freeing
   ----------------------------------------------------------------------------- */

/* A dma-buf may keep it (ranges.c). */
static void release_linear(const nm_sim_block *block) {
    nm_physical *remains = block->owner;
    if (!remains) {
        nm_give_back(block->device, NM_SIM_KIND_linear, block->bytes);
        return;
    }
    remains->charged = true;
    nm_physical_detach(remains);
    nm_exports_settle();
}

void nm_memory_release(nm_sim_block *block) {
    switch ((nm_use)block->use) {
    case NM_LINEAR: release_linear(block); break;
    case NM_MANAGED: nm_give_back(block->device, NM_SIM_KIND_managed, block->bytes); break;
    case NM_POOLED: nm_pool_give_back(block); break;
    default: break;
    }
    nm_block_free(block);
}

static nm_cu_result free_at(uint64_t address) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || block->address != address) return NM_CUDA_ERROR_INVALID_VALUE;
    switch ((nm_use)block->use) {
    case NM_LINEAR:
    case NM_MANAGED:
    case NM_POOLED: nm_memory_release(block); return NM_CUDA_SUCCESS;
    case NM_GRAPH_MEMORY:
        if (!block->live) return NM_CUDA_ERROR_INVALID_VALUE;
        nm_graph_block_free(block);
        return NM_CUDA_SUCCESS;
    case NM_IMPORTED:
        if (!block->owner) return NM_CUDA_ERROR_INVALID_VALUE; /* closed, not freed */
        nm_memory_release(block);
        return NM_CUDA_SUCCESS;
    default: return NM_CUDA_ERROR_INVALID_VALUE;
    }
}

NM_CU cuMemFree_v2(nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (address == 0) return NM_CUDA_SUCCESS;
    NM_LOCK();
    nm_cu_result result = free_at(address);
    NM_UNLOCK();
    return result;
}

/* ---- the 32-bit entry points of the first CUDA, which a program that looks symbols up by their
   bare names gets ---- */

NM_CU cuMemAlloc(unsigned *out, unsigned bytes) {
    nm_cu_deviceptr address = 0;
    nm_cu_result result = allocate(out ? &address : NULL, bytes, NM_LINEAR, true);
    if (result == NM_CUDA_SUCCESS) *out = (unsigned)address;
    return result;
}

NM_CU cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height,
                      unsigned element) {
    nm_cu_deviceptr address = 0;
    size_t row = 0;
    if (!out || !pitch) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_cu_result result = allocate_pitched(&address, &row, width, height, element, true);
    if (result != NM_CUDA_SUCCESS) return result;
    *out = (unsigned)address;
    *pitch = (unsigned)row;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemFree(unsigned address) { return cuMemFree_v2(address); }

/* ---- figures
   ----------------------------------------------------------------------------- */

/* The dead are looked for at most once a millisecond: a figure that a program polls stays cheap,
 * and a killed neighbour's memory is still free at once. */
static void reap_sometimes(void) {
    static _Atomic int64_t last_ns;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    int64_t before_ns = atomic_load_explicit(&last_ns, memory_order_relaxed);
    if (now_ns - before_ns < 1000000 ||
        !atomic_compare_exchange_strong(&last_ns, &before_ns, now_ns))
        return;
    NM_LOCK();
    nm_sim_node_reap(&nm_the_driver.node);
    NM_UNLOCK();
}

/* As NVIDIA's, it writes 0 with an error. */
NM_CU cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    nm_context *context;
    if (free_bytes) *free_bytes = 0;
    if (total_bytes) *total_bytes = 0;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    reap_sometimes();
    if (nm_exports_any()) {
        NM_LOCK();
        nm_exports_settle();
        NM_UNLOCK();
    }
    uint64_t capacity = nm_sim_capacity(nm_the_driver.node.state, context->device);
    if (free_bytes)
        *free_bytes = capacity - nm_sim_tally_bytes(&nm_device(context->device)->memory);
    if (total_bytes) *total_bytes = capacity;
    return NM_CUDA_SUCCESS;
}

static unsigned clamped(size_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

NM_CU cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
    size_t free64 = 0, total64 = 0;
    nm_cu_result result = cuMemGetInfo_v2(&free64, &total64);
    if (free_bytes) *free_bytes = clamped(free64);
    if (total_bytes) *total_bytes = clamped(total64);
    return result;
}

NM_CU cuMemGetAddressRange_v2(nm_cu_deviceptr *base, size_t *bytes, nm_cu_deviceptr address) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at(address);
    if (!block || block->use == NM_HOST) {
        result = NM_CUDA_ERROR_NOT_FOUND;
    } else {
        if (base) *base = block->address;
        if (bytes) *bytes = block->bytes;
    }
    NM_UNLOCK();
    return result;
}

/* ---- host memory
   ----------------------------------------------------------------------------- */

static nm_cu_result allocate_host(void **out, size_t bytes) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || bytes == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_sim_block *block = nm_block_new(NM_HOST, bytes, 4096, false);
    if (block) {
        block->context = context;
        nm_list_add(&context->blocks, &block->link);
        *out = (void *)(uintptr_t)block->address;
    }
    NM_UNLOCK();
    return block ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuMemAllocHost_v2(void **out, size_t bytes) { return allocate_host(out, bytes); }
NM_CU cuMemAllocHost(void **out, unsigned bytes) { return allocate_host(out, bytes); }
NM_CU cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    return flags > 7 ? NM_CUDA_ERROR_INVALID_VALUE : allocate_host(out, bytes);
}

NM_CU cuMemFreeHost(void *address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_sim_block *block = nm_block_at((uintptr_t)address);
    bool ours = block && block->use == NM_HOST && block->address == (uintptr_t)address;
    if (ours) nm_memory_release(block);
    NM_UNLOCK();
    return ours ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMemHostGetDevicePointer_v2(nm_cu_deviceptr *out, void *address, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !address || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = (uintptr_t)address;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemHostGetFlags(unsigned *out, void *address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at((uintptr_t)address);
    NM_UNLOCK();
    if (!out || !block || block->use != NM_HOST) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return NM_CUDA_SUCCESS;
}

/* Registered memory is the program's own, and stays usable as it was: nothing to remember. */
NM_CU cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    return !address || bytes == 0 || flags > 15 ? NM_CUDA_ERROR_INVALID_VALUE : NM_CUDA_SUCCESS;
}
NM_CU cuMemHostRegister(void *address, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(address, bytes, flags);
}
NM_CU cuMemHostUnregister(void *address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return address ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- hints about managed memory: accepted without effect
   ------------------------------------------------------ */

static nm_cu_result managed_hint(nm_cu_deviceptr address, size_t bytes) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    return address == 0 || bytes == 0 ? NM_CUDA_ERROR_INVALID_VALUE : NM_CUDA_SUCCESS;
}
NM_CU cuMemAdvise(nm_cu_deviceptr address, size_t bytes, int advice, nm_cu_device device) {
    (void)advice, (void)device;
    return managed_hint(address, bytes);
}
NM_CU cuMemAdvise_v2(nm_cu_deviceptr address, size_t bytes, int advice,
                     nm_cu_mem_location location) {
    (void)advice, (void)location;
    return managed_hint(address, bytes);
}
NM_CU cuMemPrefetchAsync(nm_cu_deviceptr address, size_t bytes, nm_cu_device device,
                         nm_cu_stream stream) {
    (void)device, (void)stream;
    return managed_hint(address, bytes);
}
NM_PER_THREAD(cuMemPrefetchAsync, "_ptsz");
NM_CU cuMemPrefetchAsync_v2(nm_cu_deviceptr address, size_t bytes, nm_cu_mem_location location,
                            unsigned flags, nm_cu_stream stream) {
    (void)location, (void)stream;
    return flags != 0 ? NM_CUDA_ERROR_INVALID_VALUE : managed_hint(address, bytes);
}
NM_PER_THREAD(cuMemPrefetchAsync_v2, "_ptsz");
NM_CU cuStreamAttachMemAsync(nm_cu_stream stream, nm_cu_deviceptr address, size_t bytes,
                             unsigned flags) {
    (void)stream, (void)bytes, (void)flags;
    return managed_hint(address, 1);
}
NM_PER_THREAD(cuStreamAttachMemAsync, "_ptsz");

/* ---- properties of a pointer
   ----------------------------------------------------------------------------- */

static bool is_managed(const nm_sim_block *block) { return block->use == NM_MANAGED; }

/* The mapping under `address` of a reservation, NULL elsewhere. */
static const nm_mapping *mapping_at(const nm_sim_block *block, uint64_t address) {
    if (block->use != NM_RESERVATION) return NULL;
    uint32_t index = nm_mapping_from(block, address - block->address);
    bool mapped =
        index < block->mapping_count && block->mappings[index].offset <= address - block->address;
    return mapped ? &block->mappings[index] : NULL;
}

static int device_of(const nm_sim_block *block, const nm_mapping *mapping) {
    return mapping ? mapping->physical->device : block->device;
}

/* Writes the attribute's value, of its own size, to `out`. */
static nm_cu_result pointer_attribute(const nm_sim_block *block, uint64_t address, int attribute,
                                      void *out) {
    const nm_mapping *mapping = mapping_at(block, address);
    switch (attribute) {
    case NM_CU_POINTER_ATTRIBUTE_CONTEXT: *(nm_cu_context *)out = block->context; break;
    case NM_CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = block->use == NM_HOST ? NM_CU_MEMORYTYPE_HOST : NM_CU_MEMORYTYPE_DEVICE;
        break;
    case NM_CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(nm_cu_deviceptr *)out = address; break;
    case NM_CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)out =
            block->use == NM_HOST || is_managed(block) ? (void *)(uintptr_t)address : NULL;
        return *(void **)out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
    case NM_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)out = 0; break;
    case NM_CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = block->address; break;
    case NM_CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = is_managed(block); break;
    case NM_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = nm_ordinal(device_of(block, mapping));
        break;
    case NM_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = block->use == NM_LINEAR;
        break;
    case NM_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(nm_cu_deviceptr *)out = block->address; break;
    case NM_CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = block->bytes; break;
    case NM_CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)out = block->use != NM_RESERVATION || mapping;
        break;
    case NM_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)out = mapping ? (uint64_t)mapping->physical->prop.requested_handle_types : 0;
        break;
    case NM_CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(uint64_t *)out =
            mapping ? (uint64_t)mapping->access : NM_CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        break;
    case NM_CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(nm_cu_memory_pool *)out = block->use == NM_POOLED ? block->owner : NULL;
        break;
    default: return NM_CUDA_ERROR_NOT_SUPPORTED;
    }
    return NM_CUDA_SUCCESS;
}

NM_CU cuPointerGetAttribute(void *out, int attribute, nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at(address);
    nm_cu_result result =
        block ? pointer_attribute(block, address, attribute, out) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    return result;
}

/* Each answer that there is; where there is none, as many zero bytes as it is safe to write: a
 * pointer that no driver knows has all its attributes zero. */
NM_CU cuPointerGetAttributes(unsigned count, int *attributes, void **out, nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!attributes || !out || count == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at(address);
    for (unsigned index = 0; index < count; index++) {
        if (block &&
            pointer_attribute(block, address, attributes[index], out[index]) == NM_CUDA_SUCCESS)
            continue;
        bool wide = attributes[index] == NM_CU_POINTER_ATTRIBUTE_CONTEXT ||
                    attributes[index] == NM_CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                    attributes[index] == NM_CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                    attributes[index] == NM_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                    attributes[index] == NM_CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        bool ordinal = attributes[index] == NM_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        memset(out[index], 0, wide ? 8 : 4);
        /* the answer of drivers about a foreign pointer */
        if (ordinal) *(int *)out[index] = -2;
    }
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

NM_CU cuPointerSetAttribute(const void *value, int attribute, nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!value || address == 0 || attribute != NM_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return NM_CUDA_ERROR_INVALID_VALUE;
    return NM_CUDA_SUCCESS;
}
