/* streams.c: streams, events, and launching.
 *
 * Knows: all work of a stream is done before the call returns. Nothing is computed. A captured
 * stream does nothing, and becomes a graph (graphs.c).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim/driver/driver.h"
#include "sim/driver/green.h"
#include "sim/memory/tickets.h"

typedef struct {
    nm_object object;
    unsigned flags;
    bool recorded;
    int64_t at_ns;
} event;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

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

static void release_stream(nm_stream *stream) {
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

NM_CU cuStreamQuery(nm_cu_stream handle) {
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = use(handle, &context, &stream);
    if (result != NM_CUDA_SUCCESS) return result;
    return stream && stream->capture ? NM_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuStreamQuery, "_ptsz");

NM_CU cuStreamSynchronize(nm_cu_stream handle) {
    nm_context *context;
    nm_cu_result result = cuStreamQuery(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    if (nm_use_current(&context) == NM_CUDA_SUCCESS) nm_pools_trim(context->device);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuStreamSynchronize, "_ptsz");

NM_CU cuStreamWaitEvent(nm_cu_stream handle, nm_cu_event event_handle, unsigned flags) {
    (void)flags;
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = use(handle, &context, &stream);
    if (result != NM_CUDA_SUCCESS) return result;
    return nm_object_of(event_handle, NM_EVENT) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
NM_PER_THREAD(cuStreamWaitEvent, "_ptsz");

/* Attributes are hints to hardware: each is accepted, and reads as zero. */
enum { STREAM_ATTRIBUTE_BYTES = 64 };

NM_CU cuStreamGetAttribute(nm_cu_stream handle, int which, void *out) {
    (void)which;
    nm_cu_result result = cuStreamQuery(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, STREAM_ATTRIBUTE_BYTES);
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuStreamGetAttribute, "_ptsz");
NM_CU cuStreamSetAttribute(nm_cu_stream handle, int which, const void *value) {
    (void)which;
    return value ? cuStreamQuery(handle) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_PER_THREAD(cuStreamSetAttribute, "_ptsz");
NM_CU cuStreamCopyAttributes(nm_cu_stream to, nm_cu_stream from) {
    nm_cu_result result = cuStreamQuery(to);
    return result == NM_CUDA_SUCCESS ? cuStreamQuery(from) : result;
}
NM_PER_THREAD(cuStreamCopyAttributes, "_ptsz");

/* Called at once, on the caller's thread: the stream has nothing left to do before it. */
typedef void (*stream_callback)(nm_cu_stream, nm_cu_result, void *);
typedef void (*host_function)(void *);

NM_CU cuStreamAddCallback(nm_cu_stream handle, stream_callback callback, void *argument,
                          unsigned flags) {
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = use(handle, &context, &stream);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!callback || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    callback(handle, NM_CUDA_SUCCESS, argument);
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuStreamAddCallback, "_ptsz");

NM_CU cuLaunchHostFunc(nm_cu_stream handle, host_function function, void *argument) {
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = use(handle, &context, &stream);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!function) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!nm_captured_host(handle, function, argument)) function(argument);
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuLaunchHostFunc, "_ptsz");
NM_CU cuLaunchHostFunc_v2(nm_cu_stream handle, host_function function, void *argument,
                          unsigned mode) {
    (void)mode;
    return cuLaunchHostFunc(handle, function, argument);
}
NM_PER_THREAD(cuLaunchHostFunc_v2, "_ptsz");

/* ---- events
   ----------------------------------------------------------------------------- */

NM_CU cuEventCreate(nm_cu_event *out, unsigned flags) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || flags > 7) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    event *created = nm_object_new(NM_EVENT, context);
    if (created) {
        created->flags = flags;
        *out = created;
    }
    NM_UNLOCK();
    return created ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuEventDestroy_v2(nm_cu_event handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    event *ending = nm_object_of(handle, NM_EVENT);
    if (ending) nm_object_free(ending);
    NM_UNLOCK();
    return ending ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
NM_CU cuEventDestroy(nm_cu_event handle) { return cuEventDestroy_v2(handle); }

NM_CU cuEventRecord(nm_cu_event handle, nm_cu_stream stream_handle) {
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = use(stream_handle, &context, &stream);
    if (result != NM_CUDA_SUCCESS) return result;
    event *recorded = nm_object_of(handle, NM_EVENT);
    if (!recorded) return NM_CUDA_ERROR_INVALID_HANDLE;
    recorded->recorded = true;
    recorded->at_ns = now_ns();
    return NM_CUDA_SUCCESS;
}
NM_PER_THREAD(cuEventRecord, "_ptsz");
NM_CU cuEventRecordWithFlags(nm_cu_event handle, nm_cu_stream stream, unsigned flags) {
    return flags > 1 ? NM_CUDA_ERROR_INVALID_VALUE : cuEventRecord(handle, stream);
}
NM_PER_THREAD(cuEventRecordWithFlags, "_ptsz");

/* Of a whole context: the work of all its streams is done. */
static nm_cu_result record_in(const nm_context *context, nm_cu_event handle) {
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    event *recorded = nm_object_of(handle, NM_EVENT);
    if (!recorded) return NM_CUDA_ERROR_INVALID_HANDLE;
    recorded->recorded = true;
    recorded->at_ns = now_ns();
    return nm_context_state(context);
}
static nm_cu_result wait_in(const nm_context *context, nm_cu_event handle) {
    if (!context) return NM_CUDA_ERROR_INVALID_CONTEXT;
    return nm_object_of(handle, NM_EVENT) ? nm_context_state(context)
                                          : NM_CUDA_ERROR_INVALID_HANDLE;
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
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return nm_object_of(handle, NM_EVENT) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

NM_CU cuEventSynchronize(nm_cu_event handle) {
    nm_cu_result result = cuEventQuery(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    event *waited = nm_object_of(handle, NM_EVENT);
    if (waited && waited->object.context) nm_pools_trim(waited->object.context->device);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

NM_CU cuEventElapsedTime(float *out_ms, nm_cu_event start, nm_cu_event end) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const event *first = nm_object_of(start, NM_EVENT), *second = nm_object_of(end, NM_EVENT);
    if (!out_ms) return NM_CUDA_ERROR_INVALID_VALUE;
    if (!first || !second || !first->recorded || !second->recorded)
        return NM_CUDA_ERROR_INVALID_HANDLE;
    *out_ms = (float)((double)(second->at_ns - first->at_ns) / 1e6);
    return NM_CUDA_SUCCESS;
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
static nm_cu_result launch(void *function, nm_cu_stream stream) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    const nm_object *object = nm_object_at(function);
    if (!object || (object->type != NM_FUNCTION && object->type != NM_KERNEL))
        return NM_CUDA_ERROR_INVALID_HANDLE;
    if (object->type == NM_KERNEL) {
        NM_LOCK();
        result = nm_library_load_into(((const nm_kernel *)(const void *)object)->library, context);
        NM_UNLOCK();
    }
    nm_captured(stream, NM_CU_GRAPH_NODE_TYPE_KERNEL);
    return result;
}

NM_CU cuLaunchKernel(nm_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     nm_cu_stream stream, void **arguments, void **extra) {
    (void)shared_bytes, (void)arguments, (void)extra;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
        return NM_CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)block_x * block_y * block_z > 1024) return NM_CUDA_ERROR_INVALID_VALUE;
    return launch(function, stream);
}
NM_PER_THREAD(cuLaunchKernel, "_ptsz");

NM_CU cuLaunchKernelEx(const nm_cu_launch_config *config, nm_cu_function function, void **arguments,
                       void **extra) {
    (void)arguments, (void)extra;
    return config ? launch(function, config->stream) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_PER_THREAD(cuLaunchKernelEx, "_ptsz");

NM_CU cuLaunchCooperativeKernel(nm_cu_function function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, nm_cu_stream stream,
                                void **arguments) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                          stream, arguments, NULL);
}
NM_PER_THREAD(cuLaunchCooperativeKernel, "_ptsz");

/* ---- bulk frees
   ----------------------------------------------------------------------------- */

void nm_object_release(nm_object *object) {
    switch ((nm_type)object->type) {
    case NM_STREAM: release_stream((nm_stream *)(void *)object); break;
    case NM_MODULE: nm_module_release(object); break;
    case NM_ARRAY:
    case NM_MIPMAP: nm_array_release(object); break;
    default: nm_object_free(object); break;
    }
}
