/* pools.c: stream-ordered allocation.
 *
 * Knows: pools as programs name them. Must not know: a pool's reserve (pool_memory.c), graphs
 * (graphs.c gets a captured allocation).
 *
 * An allocation or a free is done when its call returns, not in the order of its stream.
 */
#include <string.h>
#include <unistd.h>

#include "sim/driver/driver.h"
#include "sim/memory/exports.h"

/* ---- allocating
   ----------------------------------------------------------------------------- */

/* The pool of an allocation that names none: that of the stream's device, not of the current
   context's. */
static int device_of_stream(nm_cu_stream handle, const nm_context *current) {
    const nm_object *stream = nm_object_of(handle, NM_STREAM);
    return stream && stream->context ? stream->context->device : current->device;
}

static nm_cu_result allocate(nm_cu_deviceptr *out, size_t bytes, nm_cu_memory_pool handle,
                             bool named, nm_cu_stream stream) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || bytes == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_delay(context->device);
    NM_LOCK();
    nm_pool *pool =
        named ? nm_object_of(handle, NM_POOL) : nm_current_pool(device_of_stream(stream, context));
    nm_graph *graph = nm_capture_of(stream);
    if (!pool || pool->dying || pool->imported) {
        result = NM_CUDA_ERROR_INVALID_VALUE;
    } else if (graph) {
        result = nm_graph_allocate(graph, pool->device, bytes, out);
    } else {
        result = nm_pool_allocate(pool, context, bytes, out);
    }
    NM_UNLOCK();
    return result;
}

NM_CU cuMemAllocAsync(nm_cu_deviceptr *out, size_t bytes, nm_cu_stream stream) {
    return allocate(out, bytes, NULL, false, stream);
}
NM_PER_THREAD(cuMemAllocAsync, "_ptsz");

NM_CU cuMemAllocFromPoolAsync(nm_cu_deviceptr *out, size_t bytes, nm_cu_memory_pool pool,
                              nm_cu_stream stream) {
    return allocate(out, bytes, pool, true, stream);
}
NM_PER_THREAD(cuMemAllocFromPoolAsync, "_ptsz");

static nm_cu_result free_async(uint64_t address, nm_cu_stream stream) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || block->address != address) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_graph *graph = nm_capture_of(stream);
    if (block->use == NM_GRAPH_MEMORY) {
        if (graph) return nm_graph_free(graph, address);
        if (!block->live) return NM_CUDA_ERROR_INVALID_VALUE;
        nm_graph_block_free(block);
        return NM_CUDA_SUCCESS;
    }
    bool ours = block->use == NM_POOLED || block->use == NM_LINEAR ||
                (block->use == NM_IMPORTED && block->owner);
    if (!ours || graph) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_memory_release(block);
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemFreeAsync(nm_cu_deviceptr address, nm_cu_stream stream) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (address == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    result = free_async(address, stream);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuMemFreeAsync, "_ptsz");

/* ---- pools
   ----------------------------------------------------------------------------- */

/* The device of a location: -1 for the host, -2 for none. */
static int location_device(const nm_cu_mem_location *location) {
    if (location->type == NM_CU_MEM_LOCATION_TYPE_DEVICE) {
        int device = nm_device_index(location->id);
        return device < 0 ? -2 : device;
    }
    bool host = location->type == NM_CU_MEM_LOCATION_TYPE_HOST ||
                location->type == NM_CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                location->type == NM_CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    return host ? -1 : -2;
}

NM_CU cuMemPoolCreate(nm_cu_memory_pool *out, const nm_cu_mem_pool_props *props) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !props) return NM_CUDA_ERROR_INVALID_VALUE;
    bool pinned = props->alloc_type == NM_CU_MEM_ALLOCATION_TYPE_PINNED;
    if (!pinned && props->alloc_type != NM_CU_MEM_ALLOCATION_TYPE_MANAGED)
        return NM_CUDA_ERROR_INVALID_VALUE;
    int device = location_device(&props->location);
    if (device == -2) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_pool *pool = nm_pool_new(device);
    if (pool) {
        pool->location_type = props->location.type;
        pool->handle_types = props->handle_types;
        pool->max_bytes = props->max_size;
        *out = pool;
    }
    NM_UNLOCK();
    return pool ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the mutex: the pool of a handle that the program may still use. */
static nm_pool *pool_of(nm_cu_memory_pool handle) {
    nm_pool *pool = nm_object_of(handle, NM_POOL);
    return pool && !pool->dying ? pool : NULL;
}

NM_CU cuMemPoolDestroy(nm_cu_memory_pool handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    bool may = pool && !pool->is_default;
    for (int device = 0; may && device < NM_SIM_DEVICES; device++) {
        if (nm_the_driver.current_pool[device] == pool) nm_the_driver.current_pool[device] = NULL;
    }
    if (may) {
        pool->dying = true;
        nm_pool_end_if_done(pool);
        nm_exports_settle();
    }
    NM_UNLOCK();
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMemPoolTrimTo(nm_cu_memory_pool handle, size_t keep_bytes) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    if (pool) nm_pool_shrink(pool, keep_bytes);
    NM_UNLOCK();
    return pool ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

static nm_cu_result get_attribute(const nm_pool *pool, int attribute, void *value) {
    switch (attribute) {
    case NM_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case NM_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case NM_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        break;
    case NM_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->release_threshold_bytes;
        break;
    case NM_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved_bytes; break;
    case NM_CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->reserved_high_bytes;
        break;
    case NM_CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used_bytes; break;
    case NM_CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high_bytes; break;
    default: return NM_CUDA_ERROR_INVALID_VALUE;
    }
    return NM_CUDA_SUCCESS;
}

/* A high-water mark can be reset to zero, that is to the present, and to nothing else. */
static nm_cu_result reset_high(uint64_t *high, uint64_t present, const void *value) {
    if (*(const uint64_t *)value != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *high = present;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result set_attribute(nm_pool *pool, int attribute, const void *value) {
    switch (attribute) {
    case NM_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case NM_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case NM_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *(const int *)value;
        return NM_CUDA_SUCCESS;
    case NM_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_threshold_bytes = *(const uint64_t *)value;
        return NM_CUDA_SUCCESS;
    case NM_CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return reset_high(&pool->reserved_high_bytes, pool->reserved_bytes, value);
    case NM_CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return reset_high(&pool->used_high_bytes, pool->used_bytes, value);
    default: return NM_CUDA_ERROR_INVALID_VALUE;
    }
}

NM_CU cuMemPoolGetAttribute(nm_cu_memory_pool handle, int attribute, void *value) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    nm_cu_result result =
        pool && value ? get_attribute(pool, attribute, value) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    return result;
}

NM_CU cuMemPoolSetAttribute(nm_cu_memory_pool handle, int attribute, void *value) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    nm_cu_result result =
        pool && value ? set_attribute(pool, attribute, value) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    return result;
}

NM_CU cuMemPoolSetAccess(nm_cu_memory_pool handle, const nm_cu_mem_access_desc *descs,
                         size_t count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return nm_object_of(handle, NM_POOL) && (descs || count == 0) ? NM_CUDA_SUCCESS
                                                                  : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMemPoolGetAccess(int *flags, nm_cu_memory_pool handle, nm_cu_mem_location *location) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !location || !nm_object_of(handle, NM_POOL)) return NM_CUDA_ERROR_INVALID_VALUE;
    *flags = NM_CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return NM_CUDA_SUCCESS;
}

/* ---- which pool a device uses
   ----------------------------------------------------------------------------- */

static nm_cu_result get_pool(nm_cu_memory_pool *out, int device, nm_pool *(*which)(int)) {
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_pool *pool = which(device);
    NM_UNLOCK();
    if (!pool) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    *out = pool;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result set_pool(int device, nm_cu_memory_pool handle) {
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    bool fits = pool && pool->device == device;
    if (fits) nm_the_driver.current_pool[device] = pool;
    NM_UNLOCK();
    return fits ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuDeviceGetDefaultMemPool(nm_cu_memory_pool *out, nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return get_pool(out, nm_device_index(ordinal), nm_default_pool);
}
NM_CU cuDeviceGetMemPool(nm_cu_memory_pool *out, nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return get_pool(out, nm_device_index(ordinal), nm_current_pool);
}
NM_CU cuDeviceSetMemPool(nm_cu_device ordinal, nm_cu_memory_pool handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return set_pool(nm_device_index(ordinal), handle);
}

/* The same by location (CUDA 13): the simulator has pools of devices only. Those of managed
 * memory are others, and have no name in the older calls. */
static bool is_device_location(const nm_cu_mem_location *location, int type) {
    return location && location->type == NM_CU_MEM_LOCATION_TYPE_DEVICE &&
           type == NM_CU_MEM_ALLOCATION_TYPE_PINNED;
}
static bool is_managed_location(const nm_cu_mem_location *location, int type) {
    return location && location->type == NM_CU_MEM_LOCATION_TYPE_DEVICE &&
           type == NM_CU_MEM_ALLOCATION_TYPE_MANAGED;
}
static nm_pool *managed_pool(int device) {
    nm_pool **slot = &nm_the_driver.managed_pool[device];
    if (!*slot) *slot = nm_pool_new(device);
    if (*slot) (*slot)->is_default = true;
    return *slot;
}
static nm_cu_result get_pool_at(nm_cu_memory_pool *out, const nm_cu_mem_location *location,
                                int type, nm_pool *(*which)(int)) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (is_managed_location(location, type))
        return get_pool(out, nm_device_index(location->id), managed_pool);
    if (!is_device_location(location, type)) return NM_CUDA_ERROR_NOT_SUPPORTED;
    return get_pool(out, nm_device_index(location->id), which);
}
NM_CU cuMemGetDefaultMemPool(nm_cu_memory_pool *out, nm_cu_mem_location *location, int type) {
    return get_pool_at(out, location, type, nm_default_pool);
}
NM_CU cuMemGetMemPool(nm_cu_memory_pool *out, nm_cu_mem_location *location, int type) {
    return get_pool_at(out, location, type, nm_current_pool);
}
NM_CU cuMemSetMemPool(nm_cu_mem_location *location, int type, nm_cu_memory_pool handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!is_device_location(location, type)) return NM_CUDA_ERROR_NOT_SUPPORTED;
    return set_pool(nm_device_index(location->id), handle);
}

/* ---- pools across processes
   ----------------------------------------------------------------------------- */

NM_CU cuMemPoolExportToShareableHandle(void *out, nm_cu_memory_pool handle, int type,
                                       unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    bool may = pool && out && flags == 0 && type == NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
               (pool->handle_types & type);
    int descriptor = -1;
    if (may) {
        nm_ticket ticket = nm_ticket_new(NM_TICKET_POOL, pool->device, (uintptr_t)pool, 0);
        descriptor = nm_export_open(&ticket);
        if (descriptor >= 0 && !nm_export_keeps(NULL, pool)) close(descriptor), descriptor = -1;
    }
    NM_UNLOCK();
    if (!may) return NM_CUDA_ERROR_INVALID_VALUE;
    if (descriptor < 0) return NM_CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = descriptor;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemPoolImportFromShareableHandle(nm_cu_memory_pool *out, void *handle, int type,
                                         unsigned long long flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || type != NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return NM_CUDA_ERROR_INVALID_VALUE;
    nm_ticket ticket;
    if (!nm_ticket_import(&ticket, NM_TICKET_POOL, (int)(intptr_t)handle))
        return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_pool *pool = nm_pool_new(ticket.device);
    if (pool) pool->imported = true;
    if (pool) pool->held = nm_export_hold((int)(intptr_t)handle);
    NM_UNLOCK();
    if (!pool) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    *out = pool;
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemPoolExportPointer(nm_cu_mem_pool_ptr_export *out, nm_cu_deviceptr address) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_sim_block *block = nm_block_at(address);
    bool may = out && block && block->use == NM_POOLED;
    if (may) {
        nm_ticket ticket =
            nm_ticket_new(NM_TICKET_POOL_POINTER, block->device, block->address, block->bytes);
        memcpy(out, &ticket, sizeof ticket);
    }
    NM_UNLOCK();
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuMemPoolImportPointer(nm_cu_deviceptr *out, nm_cu_memory_pool handle,
                             nm_cu_mem_pool_ptr_export *data) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    nm_ticket ticket;
    if (!out || !data) return NM_CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, data, sizeof ticket);
    NM_LOCK();
    nm_pool *pool = pool_of(handle);
    bool may = pool && pool->imported && nm_ticket_valid(&ticket, NM_TICKET_POOL_POINTER, true);
    uint64_t address = may ? nm_import(context, ticket.device, ticket.bytes, pool) : 0;
    NM_UNLOCK();
    if (address == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = address;
    return NM_CUDA_SUCCESS;
}
