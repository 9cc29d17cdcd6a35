/* launches.c: executable graphs.
 *
 * Knows: the steps of a graph, and the device memory that they need at once. Must not know: how
 * graphs are made.
 */
#include <stdlib.h>

#include "sim/streams/graphs.h"
#include "sim/timeline/timeline.h"

typedef struct {
    int type;
    const nm_node *node; /* that it was made of; may be gone */
    nm_allocation *memory;
    uint64_t duration_ns;
    void (*function)(void *);
    void *argument;
} step;

typedef struct {
    nm_object object;
    uint64_t flags;
    step *steps;
    size_t count;
} executable;

static size_t count_steps(const nm_graph *graph) {
    size_t count = 0;
    for (const nm_node *each = nm_graph_oldest(graph); each; each = nm_graph_next(graph, each)) {
        count += each->child ? count_steps(each->child) : 1;
    }
    return count;
}

static void write_steps(executable *exec, const nm_graph *graph) {
    for (const nm_node *each = nm_graph_oldest(graph); each; each = nm_graph_next(graph, each)) {
        if (each->child) {
            write_steps(exec, each->child);
            continue;
        }
        exec->steps[exec->count++] =
            (step){each->type,        each,           each->memory,
                   each->duration_ns, each->function, each->argument};
        if (each->memory) each->memory->references++;
    }
}

static nm_cu_result instantiate(nm_cu_graph_exec *out, nm_cu_graph handle, uint64_t flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    executable *exec = graph && out ? nm_object_new(NM_GRAPH_EXEC, NULL) : NULL;
    if (exec) {
        exec->flags = flags;
        exec->steps = calloc(count_steps(graph) + 1, sizeof *exec->steps);
        if (exec->steps) write_steps(exec, graph);
        *out = exec;
    }
    NM_UNLOCK();
    return exec ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuGraphInstantiateWithFlags(nm_cu_graph_exec *out, nm_cu_graph graph,
                                  unsigned long long flags) {
    return instantiate(out, graph, flags);
}
NM_CU cuGraphInstantiate_v2(nm_cu_graph_exec *out, nm_cu_graph graph, nm_cu_graph_node *error,
                            char *log, size_t log_bytes) {
    if (error) *error = NULL;
    if (log && log_bytes > 0) *log = '\0';
    return instantiate(out, graph, 0);
}
NM_CU cuGraphInstantiate(nm_cu_graph_exec *out, nm_cu_graph graph, nm_cu_graph_node *error,
                         char *log, size_t log_bytes) {
    return cuGraphInstantiate_v2(out, graph, error, log, log_bytes);
}

NM_CU cuGraphExecDestroy(nm_cu_graph_exec handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    executable *exec = nm_object_of(handle, NM_GRAPH_EXEC);
    for (size_t index = 0; exec && index < exec->count; index++) {
        if (exec->steps[index].memory) nm_allocation_drop(exec->steps[index].memory);
    }
    if (exec) {
        free(exec->steps);
        nm_object_free(exec);
    }
    NM_UNLOCK();
    return exec ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* The highest use of each device's graph memory while these steps run. */
static void peaks_of(const executable *exec, uint64_t peaks[NM_SIM_DEVICES]) {
    uint64_t used[NM_SIM_DEVICES];
    for (int device = 0; device < NM_SIM_DEVICES; device++)
        used[device] = peaks[device] = nm_graph_memory_of(device)->used_bytes;
    for (size_t index = 0; index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (!each->memory || each->memory->block->device < 0) continue;
        int device = each->memory->block->device;
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            used[device] += each->memory->block->bytes;
        bool frees = each->type == NM_CU_GRAPH_NODE_TYPE_MEM_FREE &&
                     used[device] >= each->memory->block->bytes;
        if (frees) used[device] -= each->memory->block->bytes;
        if (peaks[device] < used[device]) peaks[device] = used[device];
    }
}

static nm_cu_result reserve_for(const executable *exec) {
    uint64_t peaks[NM_SIM_DEVICES];
    peaks_of(exec, peaks);
    for (int device = 0; device < NM_SIM_DEVICES; device++) {
        nm_cu_result result =
            peaks[device] > 0 ? nm_graph_memory_reserve(device, peaks[device]) : NM_CUDA_SUCCESS;
        if (result != NM_CUDA_SUCCESS) return result;
    }
    return NM_CUDA_SUCCESS;
}

/* Allocations of an earlier launch must be freed before the next, by the program or by the flag. */
static nm_cu_result free_earlier(executable *exec) {
    bool may = exec->flags & NM_CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    for (size_t index = 0; index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (each->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC || !each->memory->block->live) continue;
        if (!may) return NM_CUDA_ERROR_INVALID_VALUE;
        nm_allocation_end(each->memory);
    }
    return NM_CUDA_SUCCESS;
}

static nm_cu_result launch(executable *exec) {
    nm_cu_result result = free_earlier(exec);
    if (result == NM_CUDA_SUCCESS) result = reserve_for(exec);
    for (size_t index = 0; result == NM_CUDA_SUCCESS && index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) nm_allocation_begin(each->memory);
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_FREE) nm_allocation_end(each->memory);
    }
    return result;
}

static uint64_t total_ns(const executable *exec) {
    uint64_t total = 0;
    for (size_t index = 0; index < exec->count; index++) total += exec->steps[index].duration_ns;
    return total;
}

/* One piece of work on the device for the steps up to each function of the program. */
static void run(const executable *exec, nm_stream *stream) {
    uint64_t duration_ns = 0;
    for (size_t index = 0; index < exec->count; index++) {
        step each = exec->steps[index]; /* a function may end the graph */
        duration_ns += each.duration_ns;
        bool is_last = index + 1 == exec->count;
        if ((each.function || is_last) && duration_ns > 0) {
            nm_add_kernel(stream, duration_ns);
            duration_ns = 0;
        }
        if (each.function) nm_add_function(stream, each.function, each.argument);
    }
}

/* With the mutex held. */
static nm_cu_result launch_in(nm_cu_graph_exec handle, nm_cu_stream stream_handle) {
    nm_context *context;
    nm_stream *stream;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    nm_wait_for_room(context->device);
    result = nm_stream_use(stream_handle, &context, &stream);
    executable *exec = nm_object_of(handle, NM_GRAPH_EXEC);
    if (result == NM_CUDA_SUCCESS && !exec) result = NM_CUDA_ERROR_INVALID_VALUE;
    if (result != NM_CUDA_SUCCESS) return result;
    if (nm_capture_node(stream_handle, NM_CU_GRAPH_NODE_TYPE_GRAPH, total_ns(exec)))
        return NM_CUDA_SUCCESS;
    result = launch(exec);
    if (result == NM_CUDA_SUCCESS) run(exec, stream);
    return result;
}

NM_CU cuGraphLaunch(nm_cu_graph_exec handle, nm_cu_stream stream) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_cu_result result = launch_in(handle, stream);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD_AT(cuGraphLaunch, NM_ARGUMENT_2);

NM_CU cuGraphUpload(nm_cu_graph_exec handle, nm_cu_stream stream) {
    (void)stream;
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    const executable *exec = nm_object_of(handle, NM_GRAPH_EXEC);
    result = exec ? reserve_for(exec) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuGraphUpload, "_ptsz");

NM_CU cuGraphInstantiateWithParams(nm_cu_graph_exec *out, nm_cu_graph graph,
                                   nm_cu_graph_instantiate_params *parameters) {
    if (!parameters) return NM_CUDA_ERROR_INVALID_VALUE;
    parameters->error_node = NULL;
    nm_cu_result result = instantiate(out, graph, parameters->flags);
    if (result == NM_CUDA_SUCCESS && (parameters->flags & NM_CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        result = cuGraphUpload(*out, parameters->upload_stream);
        if (result != NM_CUDA_SUCCESS) cuGraphExecDestroy(*out);
    }
    parameters->result = result != NM_CUDA_SUCCESS;
    return result;
}
NM_PER_THREAD(cuGraphInstantiateWithParams, "_ptsz");

static nm_cu_result exec_exists(nm_cu_graph_exec handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return nm_object_of(handle, NM_GRAPH_EXEC) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
/* The steps take the times of a graph of the same form. */
static void take_times(executable *exec, const nm_graph *graph, size_t *index) {
    for (const nm_node *each = nm_graph_oldest(graph); each; each = nm_graph_next(graph, each)) {
        if (each->child) {
            take_times(exec, each->child, index);
        } else if (*index < exec->count) {
            exec->steps[(*index)++].duration_ns = each->duration_ns;
        }
    }
}

NM_CU cuGraphExecUpdate(nm_cu_graph_exec exec, nm_cu_graph graph, nm_cu_graph_node *error,
                        int *outcome) {
    size_t index = 0;
    nm_cu_result result = exec_exists(exec);
    if (result == NM_CUDA_SUCCESS) result = nm_graph_exists(graph);
    NM_LOCK();
    if (result == NM_CUDA_SUCCESS) take_times(exec, graph, &index);
    NM_UNLOCK();
    if (error) *error = NULL;
    if (outcome) *outcome = result != NM_CUDA_SUCCESS;
    return result;
}
NM_CU cuGraphExecUpdate_v2(nm_cu_graph_exec exec, nm_cu_graph graph,
                           nm_cu_graph_exec_update_info *info) {
    if (!info) return NM_CUDA_ERROR_INVALID_VALUE;
    info->error_node = info->error_from_node = NULL;
    return cuGraphExecUpdate(exec, graph, NULL, &info->result);
}
static nm_cu_result set_kernel(nm_cu_graph_exec handle, nm_cu_graph_node node,
                               uint64_t duration_ns) {
    nm_cu_result result = exec_exists(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    NM_LOCK();
    const executable *exec = handle;
    for (size_t index = 0; index < exec->count; index++) {
        if (exec->steps[index].node == node) exec->steps[index].duration_ns = duration_ns;
    }
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}
NM_CU cuGraphExecKernelNodeSetParams(nm_cu_graph_exec exec, nm_cu_graph_node node,
                                     const nm_cu_kernel_node_params *parameters) {
    return set_kernel(exec, node, nm_kernel_node_ns(parameters, false));
}
NM_CU cuGraphExecKernelNodeSetParams_v2(nm_cu_graph_exec exec, nm_cu_graph_node node,
                                        const nm_cu_kernel_node_params *parameters) {
    return set_kernel(exec, node, nm_kernel_node_ns(parameters, true));
}
NM_CU cuGraphExecGetFlags(nm_cu_graph_exec handle, uint64_t *out) {
    nm_cu_result result = exec_exists(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = ((const executable *)nm_object_of(handle, NM_GRAPH_EXEC))->flags;
    return NM_CUDA_SUCCESS;
}
