/* launches.c: executable graphs.
 *
 * Knows: the steps of a graph, and the device memory that they need at once. Must not know: how
 * graphs are made.
 */
#include <stdlib.h>

#include "sim/streams/graphs.h"

typedef struct {
    int type;
    nm_allocation *memory;
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
            (step){each->type, each->memory, each->function, each->argument};
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

NM_CU cuGraphLaunch(nm_cu_graph_exec handle, nm_cu_stream stream) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (nm_captured(stream, NM_CU_GRAPH_NODE_TYPE_GRAPH)) return NM_CUDA_SUCCESS;
    NM_LOCK();
    executable *exec = nm_object_of(handle, NM_GRAPH_EXEC);
    result = exec ? launch(exec) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    for (size_t index = 0; result == NM_CUDA_SUCCESS && index < exec->count; index++) {
        if (exec->steps[index].function) exec->steps[index].function(exec->steps[index].argument);
    }
    return result;
}
NM_PER_THREAD(cuGraphLaunch, "_ptsz");

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
NM_CU cuGraphExecUpdate(nm_cu_graph_exec exec, nm_cu_graph graph, nm_cu_graph_node *error,
                        int *outcome) {
    nm_cu_result result = exec_exists(exec);
    if (result == NM_CUDA_SUCCESS) result = nm_graph_exists(graph);
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
NM_CU cuGraphExecKernelNodeSetParams(nm_cu_graph_exec exec, nm_cu_graph_node nm_node,
                                     const void *parameters) {
    (void)nm_node, (void)parameters;
    return exec_exists(exec);
}
NM_CU cuGraphExecKernelNodeSetParams_v2(nm_cu_graph_exec exec, nm_cu_graph_node nm_node,
                                        const void *parameters) {
    return cuGraphExecKernelNodeSetParams(exec, nm_node, parameters);
}
NM_CU cuGraphExecGetFlags(nm_cu_graph_exec handle, uint64_t *out) {
    nm_cu_result result = exec_exists(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = ((const executable *)nm_object_of(handle, NM_GRAPH_EXEC))->flags;
    return NM_CUDA_SUCCESS;
}
