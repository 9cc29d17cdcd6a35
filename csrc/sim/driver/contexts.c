/* contexts.c: contexts of all kinds, and the frees at their end.
 *
 * Knows: the bytes of a context, each thread's stack of contexts. Must not know: how their memory
 * is allocated.
 *
 * A context takes node.context_bytes of its device; a green one takes a quarter, and keeps the
 * primary one alive. Raised limits take what they reserve.
 */
#include <string.h>

#include "sim/driver/driver.h"
#include "sim/driver/green.h"

enum {
    GREEN_SHARE = 4,
};

static const uint64_t default_limits[NM_LIMITS] = {
    [NM_CU_LIMIT_STACK_SIZE] = 1024,
    [NM_CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20,
    [NM_CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [NM_CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [NM_CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [NM_CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128,
};

/* ---- the thread's stack
   ----------------------------------------------------------------------------- */

/* Of this cuInit: an inherited stack of a forked child is void. */
static int stack_depth(void) {
    if (nm_this_thread.epoch != nm_the_driver.epoch) {
        nm_this_thread.epoch = nm_the_driver.epoch;
        nm_this_thread.depth = 0;
    }
    return nm_this_thread.depth;
}

static nm_cu_result push(nm_context *context) {
    if (stack_depth() == NM_STACK_DEPTH) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    nm_this_thread.frames[nm_this_thread.depth++] = (nm_frame){context, context->object.serial};
    return NM_CUDA_SUCCESS;
}

static nm_context *usable(nm_cu_context handle) {
    nm_context *context = nm_object_of(handle, NM_CONTEXT);
    return context && context->active ? context : NULL;
}

/* ---- birth and death
   ----------------------------------------------------------------------------- */

static void count_context(const nm_context *context, int change) {
    atomic_fetch_add(&nm_device(context->device)->account[nm_the_driver.node.slot].contexts,
                     (uint32_t)change);
}

static nm_cu_result charge_implicit(nm_context *context, uint64_t bytes) {
    nm_cu_result result = nm_charge(context->device, NM_SIM_KIND_context, bytes);
    if (result == NM_CUDA_SUCCESS) context->implicit_bytes += bytes;
    return result;
}

static nm_cu_result activate(nm_context *context, uint64_t bytes) {
    nm_cu_result result = charge_implicit(context, bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    context->losses = atomic_load(&nm_device(context->device)->losses);
    memcpy(context->limits, default_limits, sizeof default_limits);
    context->active = true;
    count_context(context, 1);
    return NM_CUDA_SUCCESS;
}

/* Frees all that lives in the context, and the context's own bytes. */
static void deactivate(nm_context *context) {
    if (!context->active) return;
    context->active = false;
    nm_context_work_end(context);
    while (!nm_list_empty(&context->blocks))
        nm_memory_release(NM_OF(context->blocks.next, nm_sim_block, link));
    while (!nm_list_empty(&context->objects))
        nm_object_release(NM_OF(context->objects.next, nm_object, link));
    nm_give_back(context->device, NM_SIM_KIND_context, context->implicit_bytes);
    context->implicit_bytes = 0;
    count_context(context, -1);
}

static nm_context *new_context(int device, int ordinal, unsigned flags) {
    nm_context *context = nm_object_new(NM_CONTEXT, NULL);
    if (!context) return NULL;
    context->device = device;
    context->ordinal = ordinal;
    context->flags = flags;
    nm_list_init(&context->blocks);
    nm_list_init(&context->objects);
    return context;
}

static nm_cu_result create(nm_cu_context *out, unsigned flags, nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_context *context = new_context(device, ordinal, flags);
    nm_cu_result result = context ? activate(context, nm_the_driver.node.state->context_bytes)
                                  : NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (result == NM_CUDA_SUCCESS) result = push(context);
    if (result == NM_CUDA_SUCCESS) {
        *out = context;
    } else if (context) {
        deactivate(context);
        nm_object_free(context);
    }
    NM_UNLOCK();
    return result;
}

NM_CU cuCtxCreate(nm_cu_context *out, unsigned flags, nm_cu_device device) {
    return create(out, flags, device);
}
NM_CU cuCtxCreate_v2(nm_cu_context *out, unsigned flags, nm_cu_device device) {
    return create(out, flags, device);
}
NM_CU cuCtxCreate_v3(nm_cu_context *out, void *affinity, int count, unsigned flags,
                     nm_cu_device device) {
    if (count < 0 || (count > 0 && !affinity)) return NM_CUDA_ERROR_INVALID_VALUE;
    return create(out, flags, device);
}
NM_CU cuCtxCreate_v4(nm_cu_context *out, void *parameters, unsigned flags, nm_cu_device device) {
    (void)parameters;
    return create(out, flags, device);
}

NM_CU cuGLCtxCreate(nm_cu_context *out, unsigned flags, nm_cu_device device) {
    return create(out, flags, device);
}
NM_CU cuGLCtxCreate_v2(nm_cu_context *out, unsigned flags, nm_cu_device device) {
    return create(out, flags, device);
}
NM_CU cuVDPAUCtxCreate(nm_cu_context *out, unsigned flags, nm_cu_device device, unsigned vdp,
                       void *get) {
    (void)vdp, (void)get;
    return create(out, flags, device);
}
NM_CU cuVDPAUCtxCreate_v2(nm_cu_context *out, unsigned flags, nm_cu_device device, unsigned vdp,
                          void *get) {
    return cuVDPAUCtxCreate(out, flags, device, vdp, get);
}

NM_CU cuCtxDestroy_v2(nm_cu_context handle) {
    if (!handle) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_context *context = usable(handle);
    nm_cu_result result = context && !context->primary && !context->parent
                              ? NM_CUDA_SUCCESS
                              : NM_CUDA_ERROR_INVALID_CONTEXT;
    if (result == NM_CUDA_SUCCESS) {
        if (nm_current() == context) nm_this_thread.depth--;
        deactivate(context);
        nm_object_free(context);
    }
    NM_UNLOCK();
    return result;
}
NM_CU cuCtxDestroy(nm_cu_context handle) { return cuCtxDestroy_v2(handle); }

/* The first CUDA's way to count references to the current context; the last one to detach
   destroys it. */
NM_CU cuCtxAttach(nm_cu_context *out, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    context->attached++;
    NM_UNLOCK();
    *out = context;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxDetach(nm_cu_context handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *context = usable(handle);
    if (!context || context != nm_current()) return NM_CUDA_ERROR_INVALID_CONTEXT;
    if (context->attached == 0) return cuCtxDestroy_v2(handle);
    NM_LOCK();
    context->attached--;
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

/* ---- the primary context
   ----------------------------------------------------------------------------- */

static nm_cu_result retain_primary(int device, int ordinal, nm_context **out) {
    nm_context **slot = &nm_the_driver.primary[device];
    if (!*slot) *slot = new_context(device, ordinal, 0);
    if (!*slot) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    (*slot)->primary = true;
    if (!(*slot)->active) {
        nm_cu_result result = activate(*slot, nm_the_driver.node.state->context_bytes);
        if (result != NM_CUDA_SUCCESS) return result;
    }
    (*slot)->retained++;
    *out = *slot;
    return NM_CUDA_SUCCESS;
}

static void reset_primary(nm_context *context) {
    deactivate(context);
    nm_graphs_reset(context->device);
    nm_pools_trim(context->device);
}

static nm_cu_result release_primary(int device) {
    nm_context *context = nm_the_driver.primary[device];
    if (!context || context->retained == 0) return NM_CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained == 0) reset_primary(context);
    return NM_CUDA_SUCCESS;
}

NM_CU cuDevicePrimaryCtxRetain(nm_cu_context *out, nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    nm_context *context = NULL;
    NM_LOCK();
    nm_cu_result result = retain_primary(device, ordinal, &context);
    NM_UNLOCK();
    if (result == NM_CUDA_SUCCESS) *out = context;
    return result;
}

NM_CU cuDevicePrimaryCtxRelease_v2(nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_cu_result result = release_primary(device);
    NM_UNLOCK();
    return result;
}
NM_CU cuDevicePrimaryCtxRelease(nm_cu_device ordinal) {
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}

/* Its memory is freed. Processes that retained it still do, and find it inactive until a new
   retain. */
NM_CU cuDevicePrimaryCtxReset_v2(nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_context *context = nm_the_driver.primary[device];
    if (context) reset_primary(context);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}
NM_CU cuDevicePrimaryCtxReset(nm_cu_device ordinal) { return cuDevicePrimaryCtxReset_v2(ordinal); }

NM_CU cuDevicePrimaryCtxSetFlags_v2(nm_cu_device ordinal, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_context **slot = &nm_the_driver.primary[device];
    if (!*slot) *slot = new_context(device, ordinal, flags);
    if (*slot) (*slot)->flags = flags;
    if (*slot) (*slot)->primary = true;
    NM_UNLOCK();
    return *slot ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}
NM_CU cuDevicePrimaryCtxSetFlags(nm_cu_device ordinal, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

NM_CU cuDevicePrimaryCtxGetState(nm_cu_device ordinal, unsigned *flags, int *active) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (!flags || !active) return NM_CUDA_ERROR_INVALID_VALUE;
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_context *context = nm_the_driver.primary[device];
    *flags = context ? context->flags : 0;
    *active = context && context->active;
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

/* ---- which one is current
   ----------------------------------------------------------------------------- */

NM_CU cuCtxPushCurrent_v2(nm_cu_context handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *context = usable(handle);
    return context ? push(context) : NM_CUDA_ERROR_INVALID_CONTEXT;
}
NM_CU cuCtxPushCurrent(nm_cu_context handle) { return cuCtxPushCurrent_v2(handle); }

NM_CU cuCtxPopCurrent_v2(nm_cu_context *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (stack_depth() == 0) return NM_CUDA_ERROR_INVALID_CONTEXT;
    nm_this_thread.depth--;
    if (out) *out = nm_this_thread.frames[nm_this_thread.depth].context;
    return NM_CUDA_SUCCESS;
}
NM_CU cuCtxPopCurrent(nm_cu_context *out) { return cuCtxPopCurrent_v2(out); }

NM_CU cuCtxSetCurrent(nm_cu_context handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *context = usable(handle);
    if (handle && !context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    if (stack_depth() > 0) nm_this_thread.depth--;
    return context ? push(context) : NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetCurrent(nm_cu_context *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = nm_current();
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetDevice(nm_cu_device *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *context = nm_current();
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    *out = context->ordinal;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetDevice_v2(nm_cu_device *out, nm_cu_context handle) {
    if (!handle) return cuCtxGetDevice(out);
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *context = usable(handle);
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    *out = context->ordinal;
    return NM_CUDA_SUCCESS;
}

/* ---- properties
   ----------------------------------------------------------------------------- */

/* The named context, or the current one for NULL. */
static nm_cu_result chosen(nm_cu_context handle, nm_context **context) {
    if (!handle) return nm_use_current(context);
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    *context = usable(handle);
    return *context ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_CONTEXT;
}

NM_CU cuCtxGetApiVersion(nm_cu_context handle, unsigned *out) {
    nm_context *context;
    nm_cu_result result = chosen(handle, &context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = 3020;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetId(nm_cu_context handle, unsigned long long *out) {
    nm_context *context;
    nm_cu_result result = chosen(handle, &context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = context->object.serial;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetFlags(unsigned *out) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = context->flags;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxSetFlags(unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result == NM_CUDA_SUCCESS) context->flags = flags;
    return result;
}

/* The device memory of a limit of that value. */
static uint64_t limit_bytes(const nm_context *context, int limit, uint64_t value) {
    const nm_sim_model *model = nm_model(context->device);
    if (limit == NM_CU_LIMIT_STACK_SIZE)
        return value * (uint64_t)model->multiprocessors * (uint64_t)model->threads_each;
    return limit == NM_CU_LIMIT_MALLOC_HEAP_SIZE || limit == NM_CU_LIMIT_PRINTF_FIFO_SIZE ? value
                                                                                          : 0;
}

NM_CU cuCtxSetLimit(int limit, size_t value) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (limit < 0 || limit > NM_CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        return NM_CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (value >= NM_SIM_MEMORY_LIMIT_BYTES) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    uint64_t before = limit_bytes(context, limit, context->limits[limit]);
    uint64_t after = limit_bytes(context, limit, value);
    if (after > before) result = charge_implicit(context, after - before);
    if (after < before) {
        context->implicit_bytes -= before - after;
        nm_give_back(context->device, NM_SIM_KIND_context, before - after);
    }
    if (result == NM_CUDA_SUCCESS) context->limits[limit] = value;
    NM_UNLOCK();
    return result;
}

NM_CU cuCtxGetLimit(size_t *out, int limit) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= NM_LIMITS) return NM_CUDA_ERROR_UNSUPPORTED_LIMIT;
    *out = context->limits[limit];
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxGetCacheConfig(int *out) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result == NM_CUDA_SUCCESS && out) *out = 0;
    return result;
}
NM_CU cuCtxSetCacheConfig(int config) {
    (void)config;
    nm_context *context;
    return nm_use_current(&context);
}
NM_CU cuCtxGetSharedMemConfig(int *out) { return cuCtxGetCacheConfig(out); }
NM_CU cuCtxSetSharedMemConfig(int config) { return cuCtxSetCacheConfig(config); }
NM_CU cuCtxResetPersistingL2Cache(void) { return cuCtxSetCacheConfig(0); }

NM_CU cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return NM_CUDA_SUCCESS;
}

NM_CU cuCtxEnablePeerAccess(nm_cu_context peer, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    return usable(peer) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_CONTEXT;
}
NM_CU cuCtxDisablePeerAccess(nm_cu_context peer) { return cuCtxEnablePeerAccess(peer, 0); }

/* ---- synchronising: then pools give back what they need not keep
   ------------------ */

NM_CU cuCtxSynchronize_v2(nm_cu_context handle) {
    nm_context *context;
    nm_cu_result result = chosen(handle, &context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    result = nm_context_wait(context);
    if (result == NM_CUDA_SUCCESS) nm_pools_trim(context->device);
    NM_UNLOCK();
    return result;
}
NM_CU cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }

/* ---- green contexts
   ----------------------------------------------------------------------------- */

static nm_cu_result sm_resource(int device, nm_cu_dev_resource_head *out, int type) {
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    if (type != NM_CU_DEV_RESOURCE_TYPE_SM) return NM_CUDA_ERROR_INVALID_RESOURCE_TYPE;
    out->type = type;
    out->sm_count = (unsigned)nm_model(device)->multiprocessors;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetDevResource(nm_cu_device ordinal, nm_cu_dev_resource_head *out, int type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    return device < 0 ? NM_CUDA_ERROR_INVALID_DEVICE : sm_resource(device, out, type);
}
NM_CU cuCtxGetDevResource(nm_cu_context handle, nm_cu_dev_resource_head *out, int type) {
    nm_context *context;
    nm_cu_result result = chosen(handle, &context);
    return result == NM_CUDA_SUCCESS ? sm_resource(context->device, out, type) : result;
}
NM_CU cuGreenCtxGetDevResource(void *handle, nm_cu_dev_resource_head *out, int type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_context *view = nm_green_view(handle);
    return view ? sm_resource(view->device, out, type) : NM_CUDA_ERROR_INVALID_HANDLE;
}

/* The description is only checked to be one: it has no content. */
NM_CU cuDevResourceGenerateDesc(void **out, nm_cu_dev_resource_head *resources, unsigned count) {
    static char description;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !resources || count == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = &description;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result create_green(nm_green_context *green, int device, int ordinal) {
    nm_context *primary = NULL;
    nm_cu_result result = retain_primary(device, ordinal, &primary);
    if (result != NM_CUDA_SUCCESS) return result;
    green->view = new_context(device, ordinal, 0);
    result = green->view
                 ? activate(green->view, nm_the_driver.node.state->context_bytes / GREEN_SHARE)
                 : NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (result == NM_CUDA_SUCCESS) {
        green->view->parent = primary;
        return NM_CUDA_SUCCESS;
    }
    if (green->view) nm_object_free(green->view);
    release_primary(device);
    return result;
}

NM_CU cuGreenCtxCreate(void **out, void *description, nm_cu_device ordinal, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (!out || !description || flags != NM_CU_GREEN_CTX_DEFAULT_STREAM)
        return NM_CUDA_ERROR_INVALID_VALUE;
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    nm_green_context *green = nm_object_new(NM_GREEN_CONTEXT, NULL);
    nm_cu_result result =
        green ? create_green(green, device, ordinal) : NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (result == NM_CUDA_SUCCESS) *out = green;
    if (result != NM_CUDA_SUCCESS && green) nm_object_free(green);
    NM_UNLOCK();
    return result;
}

/* Memory that was allocated through a green context is the primary one's, and stays. */
static void hand_over(nm_context *view, nm_context *primary) {
    while (!nm_list_empty(&view->blocks)) {
        nm_sim_block *block = NM_OF(view->blocks.next, nm_sim_block, link);
        nm_list_remove(&block->link);
        nm_list_add(&primary->blocks, &block->link);
        block->context = primary;
    }
    while (!nm_list_empty(&view->objects)) {
        nm_object *object = NM_OF(view->objects.next, nm_object, link);
        nm_list_remove(&object->link);
        nm_list_add(&primary->objects, &object->link);
        object->context = primary;
    }
}

NM_CU cuGreenCtxDestroy(void *handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_green_context *green = nm_object_of(handle, NM_GREEN_CONTEXT);
    if (green) {
        int device = green->view->device;
        hand_over(green->view, green->view->parent);
        deactivate(green->view);
        nm_object_free(green->view);
        nm_object_free(green);
        release_primary(device);
    }
    NM_UNLOCK();
    return green ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

NM_CU cuCtxFromGreenCtx(nm_cu_context *out, void *handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *view = nm_green_view(handle);
    if (!view) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = view;
    return NM_CUDA_SUCCESS;
}
