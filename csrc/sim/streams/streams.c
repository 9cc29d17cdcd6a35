/* streams.c: streams, events, and launching.
 *
 * Knows: the calls. Nothing is computed; work takes time (timeline.h). A captured stream does
 * nothing, and becomes a graph (graphs.c).
 */
#include <stdlib.h>
#include <string.h>

#include "sim/driver/driver.h"
#include "sim/driver/green.h"
#include "sim/memory/tickets.h"
#include "sim/timeline/timeline.h"

enum { EVENT_DISABLE_TIMING = 2, EVENT_FLAGS = 7 };

typedef struct {
    nm_object object;
    unsigned flags;
    bool recorded;
    nm_moment at;
} event;

/* ---- streams
   ----------------------------------------------------------------------------- */

static bool is_default_stream(nm_cu_stream handle) {
    return (uintptr_t)handle <= (uintptr_t)NM_CU_STREAM_PER_THREAD;
}

/* CUDA_SUCCESS and the stream (NULL for a default one) in a usable context. */
static nm_cu_result use(nm_cu_stream handle, nm_context **context, nm_stream **stream) {
    nm_cu_result result = nm_use_current(context);
    if (result != NM_CUDA_SUCCESS) return result;
    *stream = NULL;
    if (is_default_stream(handle)) return NM_CUDA_SUCCESS;
    *stream = nm_object_of(handle, NM_STREAM);
    return *stream ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

static nm_cu_result create_stream(nm_cu_stream *out, nm_context *context, unsigned flags,
                                  int priority) {
    if (!out || flags > 1) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_stream *stream = nm_object_new(NM_STREAM, context);
    if (stream) {
        stream->flags = flags;
        stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
        *out = stream;
    }
    NM_UNLOCK();
    return stream ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuStreamCreateWithPriority(nm_cu_stream *out, unsigned flags, int priority) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    return result == NM_CUDA_SUCCESS ? create_stream(out, context, flags, priority) : result;
}
NM_CU cuStreamCreate(nm_cu_stream *out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

NM_CU cuGreenCtxStreamCreate(nm_cu_stream *out, void *green, unsigned flags, int priority) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_context *view = nm_green_view(green);
    return view ? create_stream(out, view, flags, priority) : NM_CUDA_ERROR_INVALID_HANDLE;
}

/* Its work goes on. */
static void release_stream(nm_stream *stream) {
    nm_moment_set(&stream->last, (nm_point){0});
    if (stream->capture) {
        atomic_fetch_sub(&nm_the_driver.captures, 1);
        if (!stream->capture_is_borrowed) nm_graph_drop(stream->capture);
    }
    nm_object_free(stream);
}

NM_CU cuStreamDestroy_v2(nm_cu_stream handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_stream *stream = nm_object_of(handle, NM_STREAM);
    if (stream) release_stream(stream);
    NM_UNLOCK();
    return stream ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
NM_CU cuStreamDestroy(nm_cu_stream handle) { return cuStreamDestroy_v2(handle); }

/* One out-parameter of a stream: the value of the default stream, and of others. */
#define STREAM_GETTER(name, type, of_default, of_stream) \
    NM_CU name(nm_cu_stream handle, type *out) { \
        nm_context *context; \
        nm_stream *stream; \
        nm_cu_result result = use(handle, &context, &stream); \
        if (result != NM_CUDA_SUCCESS) return result; \
        if (!out) return NM_CUDA_ERROR_INVALID_VALUE; \
        *out = stream ? (of_stream) : (of_default); \
        return NM_CUDA_SUCCESS; \
    } \
    NM_PER_THREAD(name, "_ptsz")

STREAM_GETTER(cuStreamGetPriority, int, 0, stream->priority);
STREAM_GETTER(cuStreamGetFlags, unsigned, 0, stream->flags);
STREAM_GETTER(cuStreamGetId, unsigned long long, (uintptr_t)handle, stream->object.serial);
STREAM_GETTER(cuStreamGetCtx, nm_cu_context, context, stream->object.context);
STREAM_GETTER(cuStreamGetDevice, nm_cu_device, context->ordinal, stream->object.context->ordinal);
STREAM_GETTER(cuStreamIsCapturing, int, NM_CU_STREAM_CAPTURE_STATUS_NONE, stream->capture_status);

NM_CU cuStreamGetCtx_v2(nm_cu_stream handle, nm_cu_context *out, void **green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, out);
}
NM_PER_THREAD(cuStreamGetCtx_v2, "_ptsz");

/* With the mutex held: the stream, of whose work the call may ask. */
static nm_cu_result use_running(nm_cu_stream handle, nm_context **context, nm_stream **stream) {
    nm_cu_result result = nm_stream_use(handle, context, stream);
    if (result != NM_CUDA_SUCCESS) return result;
    return (*stream)->capture ? NM_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : NM_CUDA_SUCCESS;
}

NM_CU cuStreamQuery(nm_cu_stream handle) {
    nm_context *context;
    nm_stream *stream;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = use_running(handle, &context, &stream);
    if (result == NM_CUDA_SUCCESS && !nm_is_past(nm_stream_end(stream)))
        result = NM_CUDA_ERROR_NOT_READY;
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuStreamQuery, NM_ARGUMENT_1);

NM_CU cuStreamSynchronize(nm_cu_stream handle) {
    nm_context *context;
    nm_stream *stream;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = use_running(handle, &context, &stream);
    if (result == NM_CUDA_SUCCESS)
        result = nm_wait_for(stream->object.context, nm_stream_end(stream));
    if (result == NM_CUDA_SUCCESS) nm_pools_trim(context->device);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuStreamSynchronize, NM_ARGUMENT_1);

/* An event that was never recorded is in the past. A captured stream is not made to wait. */
NM_CU cuStreamWaitEvent(nm_cu_stream handle, nm_cu_event event_handle, unsigned flags) {
    (void)flags;
    nm_context *context;
    nm_stream *stream;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = nm_stream_use(handle, &context, &stream);
    event *awaited = nm_object_of(event_handle, NM_EVENT);
    if (result == NM_CUDA_SUCCESS && !awaited) result = NM_CUDA_ERROR_INVALID_HANDLE;
    if (result == NM_CUDA_SUCCESS && !stream->capture) nm_add_wait(stream, &awaited->at);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuStreamWaitEvent, NM_ARGUMENT_1);

/* Attributes are hints to hardware: each is accepted, and reads as zero. */
enum { STREAM_ATTRIBUTE_BYTES = 64 };

static nm_cu_result is_stream(nm_cu_stream handle) {
    nm_context *context;
    nm_stream *stream;
    return use(handle, &context, &stream);
}

NM_CU cuStreamGetAttribute(nm_cu_stream handle, int which, void *out) {
    (void)which;
    nm_cu_result result = is_stream(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, STREAM_ATTRIBUTE_BYTES);
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuStreamGetAttribute, "_ptsz");
NM_CU cuStreamSetAttribute(nm_cu_stream handle, int which, const void *value) {
    (void)which;
    return value ? is_stream(handle) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_PER_THREAD(cuStreamSetAttribute, "_ptsz");
NM_CU cuStreamCopyAttributes(nm_cu_stream to, nm_cu_stream from) {
    nm_cu_result result = is_stream(to);
    return result == NM_CUDA_SUCCESS ? is_stream(from) : result;
}
NM_PER_THREAD(cuStreamCopyAttributes, "_ptsz");

typedef void (*stream_callback)(nm_cu_stream, nm_cu_result, void *);
typedef void (*host_function)(void *);

static nm_cu_result add_function(nm_cu_stream handle, host_function function, void *argument) {
    nm_context *context;
    nm_stream *stream;
    NM_LOCK();
    nm_cu_result result = nm_stream_use(handle, &context, &stream);
    if (result == NM_CUDA_SUCCESS) nm_add_function(stream, function, argument);
    NM_UNLOCK();
    return result;
}

/* A callback as a function of one argument. */
typedef struct {
    stream_callback callback;
    nm_cu_stream stream;
    void *argument;
} callback_call;

static void call_back(void *call) {
    callback_call called = *(callback_call *)call;
    free(call);
    called.callback(called.stream, NM_CUDA_SUCCESS, called.argument);
}

NM_CU cuStreamAddCallback(nm_cu_stream handle, stream_callback callback, void *argument,
                          unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!callback || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    callback_call *call = malloc(sizeof *call);
    if (!call) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    *call = (callback_call){callback, handle, argument};
    nm_cu_result result = add_function(handle, call_back, call);
    if (result != NM_CUDA_SUCCESS) free(call);
    return result;
}
NM_PER_THREAD_AT(cuStreamAddCallback, NM_ARGUMENT_1);

NM_CU cuLaunchHostFunc(nm_cu_stream handle, host_function function, void *argument) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!function) return NM_CUDA_ERROR_INVALID_VALUE;
    if (nm_captured_host(handle, function, argument)) return NM_CUDA_SUCCESS;
    return add_function(handle, function, argument);
}
NM_PER_THREAD_AT(cuLaunchHostFunc, NM_ARGUMENT_1);
NM_CU cuLaunchHostFunc_v2(nm_cu_stream handle, host_function function, void *argument,
                          unsigned mode) {
    (void)mode;
    return cuLaunchHostFunc(handle, function, argument);
}
NM_PER_THREAD_AT(cuLaunchHostFunc_v2, NM_ARGUMENT_1);

/* ---- events
   ----------------------------------------------------------------------------- */

NM_CU cuEventCreate(nm_cu_event *out, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || flags > EVENT_FLAGS) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    event *created = nm_object_new(NM_EVENT, context);
    if (created) {
        created->flags = flags;
        *out = created;
    }
    NM_UNLOCK();
    return created ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

static void release_event(event *ending) {
    nm_moment_set(&ending->at, (nm_point){0});
    nm_object_free(ending);
}

NM_CU cuEventDestroy_v2(nm_cu_event handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    event *ending = nm_object_of(handle, NM_EVENT);
    if (ending) release_event(ending);
    NM_UNLOCK();
    return ending ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
NM_CU cuEventDestroy(nm_cu_event handle) { return cuEventDestroy_v2(handle); }

static void record(event *recorded, nm_point point) {
    recorded->recorded = true;
    nm_moment_set(&recorded->at, nm_point_now(point));
}

NM_CU cuEventRecord(nm_cu_event handle, nm_cu_stream stream_handle) {
    nm_context *context;
    nm_stream *stream;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = nm_stream_use(stream_handle, &context, &stream);
    event *recorded = nm_object_of(handle, NM_EVENT);
    if (result == NM_CUDA_SUCCESS && !recorded) result = NM_CUDA_ERROR_INVALID_HANDLE;
    if (result == NM_CUDA_SUCCESS) record(recorded, nm_stream_end(stream));
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuEventRecord, NM_ARGUMENT_2);
NM_CU cuEventRecordWithFlags(nm_cu_event handle, nm_cu_stream stream, unsigned flags) {
    return flags > 1 ? NM_CUDA_ERROR_INVALID_VALUE : cuEventRecord(handle, stream);
}
NM_PER_THREAD_AT(cuEventRecordWithFlags, NM_ARGUMENT_2);

/* Of a whole context: the work of all its streams. */
static nm_cu_result record_in(nm_context *context, nm_cu_event handle) {
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    NM_LOCK();
    event *recorded = nm_object_of(handle, NM_EVENT);
    nm_cu_result result = recorded ? nm_context_state(context) : NM_CUDA_ERROR_INVALID_HANDLE;
    if (result == NM_CUDA_SUCCESS) record(recorded, nm_context_end(context));
    NM_UNLOCK();
    return result;
}
static nm_cu_result wait_in(nm_context *context, nm_cu_event handle) {
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    NM_LOCK();
    event *awaited = nm_object_of(handle, NM_EVENT);
    nm_cu_result result = awaited ? nm_context_state(context) : NM_CUDA_ERROR_INVALID_HANDLE;
    if (result == NM_CUDA_SUCCESS) nm_context_add_wait(context, &awaited->at);
    NM_UNLOCK();
    return result;
}
NM_CU cuCtxRecordEvent(nm_cu_context context, nm_cu_event handle) {
    return nm_is_ready() ? record_in(nm_object_of(context, NM_CONTEXT), handle)
                         : NM_CUDA_ERROR_NOT_INITIALIZED;
}
NM_CU cuCtxWaitEvent(nm_cu_context context, nm_cu_event handle) {
    return nm_is_ready() ? wait_in(nm_object_of(context, NM_CONTEXT), handle)
                         : NM_CUDA_ERROR_NOT_INITIALIZED;
}
NM_CU cuGreenCtxRecordEvent(void *green, nm_cu_event handle) {
    return nm_is_ready() ? record_in(nm_green_view(green), handle) : NM_CUDA_ERROR_NOT_INITIALIZED;
}
NM_CU cuGreenCtxWaitEvent(void *green, nm_cu_event handle) {
    return nm_is_ready() ? wait_in(nm_green_view(green), handle) : NM_CUDA_ERROR_NOT_INITIALIZED;
}

NM_CU cuEventQuery(nm_cu_event handle) {
    if (!handle) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    event *asked = nm_object_of(handle, NM_EVENT);
    nm_cu_result result = !asked                                  ? NM_CUDA_ERROR_INVALID_HANDLE
                          : nm_is_past(nm_moment_get(&asked->at)) ? NM_CUDA_SUCCESS
                                                                  : NM_CUDA_ERROR_NOT_READY;
    NM_UNLOCK();
    return result;
}

NM_CU cuEventSynchronize(nm_cu_event handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    event *awaited = nm_object_of(handle, NM_EVENT);
    nm_cu_result result = NM_CUDA_ERROR_INVALID_HANDLE;
    if (awaited) {
        const nm_context *context = awaited->object.context;
        result = nm_wait_for(context, nm_moment_get(&awaited->at));
        if (result == NM_CUDA_SUCCESS) nm_pools_trim(context->device);
    }
    NM_UNLOCK();
    return result;
}

static nm_cu_result elapsed(event *first, event *second, float *out_ms) {
    if (!first || !second || !first->recorded || !second->recorded ||
        ((first->flags | second->flags) & EVENT_DISABLE_TIMING))
        return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!nm_is_past(nm_moment_get(&first->at)) || !nm_is_past(nm_moment_get(&second->at)))
        return NM_CUDA_ERROR_NOT_READY;
    int64_t between_ns =
        (int64_t)(nm_moment_get(&second->at).floor_ns - nm_moment_get(&first->at).floor_ns);
    *out_ms = (float)((double)between_ns / 1e6);
    return NM_CUDA_SUCCESS;
}

NM_CU cuEventElapsedTime(float *out_ms, nm_cu_event start, nm_cu_event end) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out_ms) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_cu_result result =
        elapsed(nm_object_of(start, NM_EVENT), nm_object_of(end, NM_EVENT), out_ms);
    NM_UNLOCK();
    return result;
}
NM_CU cuEventElapsedTime_v2(float *out_ms, nm_cu_event start, nm_cu_event end) {
    return cuEventElapsedTime(out_ms, start, end);
}

NM_CU cuIpcGetEventHandle(nm_cu_ipc_mem_handle *out, nm_cu_event handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !nm_object_of(handle, NM_EVENT)) return NM_CUDA_ERROR_INVALID_HANDLE;
    nm_ticket ticket = nm_ticket_new(NM_TICKET_EVENT, -1, (uintptr_t)handle, 0);
    memcpy(out, &ticket, sizeof ticket);
    return NM_CUDA_SUCCESS;
}

NM_CU cuIpcOpenEventHandle(nm_cu_event *out, nm_cu_ipc_mem_handle handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    if (!nm_ticket_valid(&ticket, NM_TICKET_EVENT, true)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return cuEventCreate(out, 2);
}

/* ---- launching
   ----------------------------------------------------------------------------- */

/* A kernel without a context of its own is loaded into the one it is launched in. */
static nm_cu_result load(const nm_object *object, nm_context *context, uint64_t *duration_ns) {
    if (!object || (object->type != NM_FUNCTION && object->type != NM_KERNEL))
        return NM_CUDA_ERROR_INVALID_HANDLE;
    if (object->type == NM_FUNCTION) {
        *duration_ns = ((const nm_function *)(const void *)object)->duration_ns;
        return NM_CUDA_SUCCESS;
    }
    const nm_kernel *kernel = (const nm_kernel *)(const void *)object;
    *duration_ns = kernel->duration_ns;
    return nm_library_load_into(kernel->library, context);
}

/* With the mutex held. */
static nm_cu_result launch(const nm_cu_kernel_node_params *kernel, nm_cu_stream handle) {
    nm_context *context;
    nm_stream *stream;
    uint64_t duration_ns = 0;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    nm_wait_for_room(context->device);
    result = nm_stream_use(handle, &context, &stream);
    if (result == NM_CUDA_SUCCESS)
        result = load(nm_object_at(kernel->function), context, &duration_ns);
    if (result != NM_CUDA_SUCCESS) return result;
    uint64_t blocks = (uint64_t)kernel->grid_x * kernel->grid_y * kernel->grid_z;
    if (duration_ns == 0) duration_ns = nm_grid_ns(context->device, blocks);
    if (!nm_capture_kernel(handle, kernel, duration_ns)) nm_add_kernel(stream, duration_ns);
    return NM_CUDA_SUCCESS;
}

NM_CU cuLaunchKernel(nm_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     nm_cu_stream stream, void **arguments, void **extra) {
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
        return NM_CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)block_x * block_y * block_z > 1024) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_kernel_node_params kernel = {function, grid_x,  grid_y,       grid_z,    block_x, block_y,
                                       block_z,  shared_bytes, arguments, extra,   NULL,    NULL};
    nm_cu_result result = launch(&kernel, stream);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuLaunchKernel, NM_ARGUMENT_9);

NM_CU cuLaunchKernelEx(const nm_cu_launch_config *config, nm_cu_function function, void **arguments,
                       void **extra) {
    if (!config) return NM_CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x,
                          config->block_y, config->block_z, config->shared_mem_bytes,
                          config->stream, arguments, extra);
}
NM_CU cuLaunchKernelEx_ptsz(const nm_cu_launch_config *config, nm_cu_function function,
                            void **arguments, void **extra) {
    if (!config || config->stream) return cuLaunchKernelEx(config, function, arguments, extra);
    nm_cu_launch_config of_thread = *config;
    of_thread.stream = NM_CU_STREAM_PER_THREAD;
    return cuLaunchKernelEx(&of_thread, function, arguments, extra);
}

NM_CU cuLaunchCooperativeKernel(nm_cu_function function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, nm_cu_stream stream,
                                void **arguments) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                          stream, arguments, NULL);
}
NM_PER_THREAD_AT(cuLaunchCooperativeKernel, NM_ARGUMENT_9);

/* ---- bulk frees
   ----------------------------------------------------------------------------- */

void nm_object_release(nm_object *object) {
    switch ((nm_type)object->type) {
    case NM_STREAM: release_stream((nm_stream *)(void *)object); break;
    case NM_EVENT: release_event((event *)(void *)object); break;
    case NM_MODULE: nm_module_release(object); break;
    case NM_ARRAY:
    case NM_MIPMAP: nm_array_release(object); break;
    default: nm_object_free(object); break;
    }
}
