/* captures.c: streams whose operations become nodes of a graph.
 *
 * Knows: the captured streams, the graph of each. Must not know: the operations.
 */
#include "sim/streams/graphs.h"
#include "sim/timeline/timeline.h"

static bool any_capture(void) {
    return atomic_load_explicit(&nm_the_driver.captures, memory_order_relaxed) != 0;
}

nm_graph *nm_capture_of(nm_cu_stream handle) {
    if (!any_capture()) return NULL;
    const nm_stream *stream = nm_object_of(handle, NM_STREAM);
    return stream ? stream->capture : NULL;
}

bool nm_captured_host(nm_cu_stream stream, void (*function)(void *), void *argument) {
    if (!any_capture()) return false;
    NM_LOCK();
    nm_graph *graph = nm_capture_of(stream);
    nm_node *added = graph ? nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_HOST) : NULL;
    if (added) {
        added->function = function;
        added->argument = argument;
    }
    NM_UNLOCK();
    return graph != NULL;
}

bool nm_capture_node(nm_cu_stream stream, int type, uint64_t duration_ns) {
    nm_graph *graph = nm_capture_of(stream);
    nm_node *added = graph ? nm_graph_add_node(graph, type) : NULL;
    if (added) added->duration_ns = duration_ns;
    return graph != NULL;
}

bool nm_capture_kernel(nm_cu_stream stream, const nm_cu_kernel_node_params *kernel,
                       uint64_t duration_ns) {
    nm_graph *graph = nm_capture_of(stream);
    nm_node *added = graph ? nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_KERNEL) : NULL;
    if (added) {
        added->duration_ns = duration_ns;
        added->kernel = *kernel;
    }
    return graph != NULL;
}

bool nm_captured(nm_cu_stream stream, int type, uint64_t duration_ns) {
    if (!any_capture()) return false;
    NM_LOCK();
    bool captured = nm_capture_node(stream, type, duration_ns);
    NM_UNLOCK();
    return captured;
}

static nm_cu_result begin(nm_cu_stream handle, nm_graph *into) {
    nm_stream *stream = nm_object_of(handle, NM_STREAM);
    /* the default streams cannot be captured */
    if (!stream) return NM_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return NM_CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = into ? into : nm_graph_new();
    stream->capture_is_borrowed = into != NULL;
    if (!stream->capture) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    stream->capture_status = NM_CU_STREAM_CAPTURE_STATUS_ACTIVE;
    atomic_fetch_add(&nm_the_driver.captures, 1);
    return NM_CUDA_SUCCESS;
}

NM_CU cuStreamBeginCapture_v2(nm_cu_stream stream, int mode) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (mode < 0 || mode > 2) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    result = begin(stream, NULL);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuStreamBeginCapture_v2, "_ptsz");
NM_CU cuStreamBeginCapture(nm_cu_stream stream) { return cuStreamBeginCapture_v2(stream, 0); }
NM_PER_THREAD(cuStreamBeginCapture, "_ptsz");

NM_CU cuStreamBeginCaptureToGraph(nm_cu_stream stream, nm_cu_graph handle,
                                  const nm_cu_graph_node *after, const void *edges, size_t count,
                                  int mode) {
    (void)after, (void)edges, (void)count, (void)mode;
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    result = graph ? begin(stream, graph) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuStreamBeginCaptureToGraph, "_ptsz");

NM_CU cuStreamEndCapture(nm_cu_stream handle, nm_cu_graph *out) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_stream *stream = nm_object_of(handle, NM_STREAM);
    if (stream && stream->capture) {
        *out = stream->capture;
        stream->capture = NULL;
        stream->capture_status = NM_CU_STREAM_CAPTURE_STATUS_NONE;
        atomic_fetch_sub(&nm_the_driver.captures, 1);
    } else {
        result = NM_CUDA_ERROR_ILLEGAL_STATE;
    }
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuStreamEndCapture, "_ptsz");

static nm_cu_result capture_info(nm_cu_stream handle, int *status, uint64_t *id,
                                 nm_cu_graph *graph) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!status) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    nm_graph *captured = nm_capture_of(handle);
    *status = captured ? NM_CU_STREAM_CAPTURE_STATUS_ACTIVE : NM_CU_STREAM_CAPTURE_STATUS_NONE;
    if (captured && id) *id = captured->object.serial;
    if (captured && graph) *graph = captured;
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

NM_CU cuStreamGetCaptureInfo(nm_cu_stream stream, int *status, uint64_t *id) {
    return capture_info(stream, status, id, NULL);
}
NM_PER_THREAD(cuStreamGetCaptureInfo, "_ptsz");
NM_CU cuStreamGetCaptureInfo_v2(nm_cu_stream stream, int *status, uint64_t *id, nm_cu_graph *graph,
                                const nm_cu_graph_node **after, size_t *count) {
    if (after) *after = NULL;
    if (count) *count = 0;
    return capture_info(stream, status, id, graph);
}
NM_PER_THREAD(cuStreamGetCaptureInfo_v2, "_ptsz");
NM_CU cuStreamGetCaptureInfo_v3(nm_cu_stream stream, int *status, uint64_t *id, nm_cu_graph *graph,
                                const nm_cu_graph_node **after, const void **edges, size_t *count) {
    if (edges) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, after, count);
}
NM_PER_THREAD(cuStreamGetCaptureInfo_v3, "_ptsz");

NM_CU cuStreamUpdateCaptureDependencies(nm_cu_stream stream, nm_cu_graph_node *nodes, size_t count,
                                        unsigned flags) {
    (void)nodes, (void)count, (void)flags;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    bool captured = nm_capture_of(stream) != NULL;
    NM_UNLOCK();
    return captured ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_ILLEGAL_STATE;
}
NM_PER_THREAD(cuStreamUpdateCaptureDependencies, "_ptsz");
NM_CU cuStreamUpdateCaptureDependencies_v2(nm_cu_stream stream, nm_cu_graph_node *nodes,
                                           const void *edges, size_t count, unsigned flags) {
    (void)edges;
    return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}
NM_PER_THREAD(cuStreamUpdateCaptureDependencies_v2, "_ptsz");

NM_CU cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int of_this_thread;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!mode || *mode < 0 || *mode > 2) return NM_CUDA_ERROR_INVALID_VALUE;
    int before = of_this_thread;
    of_this_thread = *mode;
    *mode = before;
    return NM_CUDA_SUCCESS;
}
