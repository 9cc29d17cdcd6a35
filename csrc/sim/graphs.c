/* graphs.c: graphs, capture, and the memory that graphs allocate.
 *
 * Knows: which nodes take and free memory, and what the device holds for all graphs of the process. Must not know: what
 * the other nodes do: they are counted and forgotten. Nodes run in the order in which they were added, which every
 * dependency respects.
 *
 * An allocation node has its address from the beginning and its memory from a launch to its free. The device's graph
 * memory grows to what launches needed, in granules, and shrinks when it is trimmed. (A real driver holds memory by the
 * same rules; how it packs it is its own affair.)
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* What one allocation node, its graph's executable copies and their frees share. */
typedef struct {
    nm_block *block;
    int references;
    nm_link live; /* in the device's list while it has memory */
} allocation;

typedef struct {
    nm_object object;
    nm_graph *graph;
    int type;
    allocation *memory; /* taken or freed here */
    nm_graph *child;
    void (*function)(void *);
    void *argument;
} node;

struct nm_graph {
    nm_object object;
    nm_link nodes; /* the newest first */
    size_t count;
};

typedef struct {
    int type;
    allocation *memory;
    void (*function)(void *);
    void *argument;
} step;

typedef struct {
    nm_object object;
    uint64_t flags;
    step *steps;
    size_t count;
} executable;

/* ---- the memory of graphs ------------------------------------------------------------------------------------ */

static nm_graph_memory *memory_of(int device) {
    nm_graph_memory *memory = &nm_the_driver.graph_memory[device];
    if (!memory->live.next) nm_list_init(&memory->live);
    return memory;
}

static nm_cu_result reserve(int device, uint64_t bytes) {
    nm_graph_memory *memory = memory_of(device);
    uint64_t needed = nm_round_up(bytes, NM_GRANULE_BYTES);
    if (needed <= memory->reserved_bytes) return NM_CUDA_SUCCESS;
    nm_cu_result result = nm_charge(device, NM_SIM_KIND_graph, needed - memory->reserved_bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    memory->reserved_bytes = needed;
    if (memory->reserved_high_bytes < needed) memory->reserved_high_bytes = needed;
    return NM_CUDA_SUCCESS;
}

static void trim(int device) {
    nm_graph_memory *memory = memory_of(device);
    uint64_t kept = nm_round_up(memory->used_bytes, NM_GRANULE_BYTES);
    if (memory->reserved_bytes <= kept) return;
    nm_give_back(device, NM_SIM_KIND_graph, memory->reserved_bytes - kept);
    memory->reserved_bytes = kept;
}

static void release_if_unused(allocation *memory) {
    if (memory->references > 0 || memory->block->live) return;
    nm_block_free(memory->block);
    free(memory);
}

static void drop_reference(allocation *memory) {
    memory->references--;
    release_if_unused(memory);
}

static void begin_life(allocation *memory) {
    nm_block *block = memory->block;
    block->live = true;
    if (block->device < 0) return;
    nm_graph_memory *held = memory_of(block->device);
    held->used_bytes += block->bytes;
    if (held->used_high_bytes < held->used_bytes) held->used_high_bytes = held->used_bytes;
    nm_list_add(&held->live, &memory->live);
}

static void end_life(allocation *memory) {
    nm_block *block = memory->block;
    if (!block->live) return;
    block->live = false;
    if (block->device < 0) return;
    memory_of(block->device)->used_bytes -= block->bytes;
    nm_list_remove(&memory->live);
}

void nm_graph_block_free(nm_block *block) {
    allocation *memory = block->owner;
    end_life(memory);
    release_if_unused(memory);
}

void nm_graphs_reset(int device) {
    nm_graph_memory *memory = memory_of(device);
    while (!nm_list_empty(&memory->live)) nm_graph_block_free(NM_OF(memory->live.next, allocation, live)->block);
    trim(device);
}

/* ---- building -------------------------------------------------------------------------------------------------- */

static nm_graph *new_graph(void) {
    nm_graph *graph = nm_object_new(NM_GRAPH, NULL);
    if (graph) nm_list_init(&graph->nodes);
    return graph;
}

static node *add_node(nm_graph *graph, int type) {
    node *added = nm_object_new(NM_GRAPH_NODE, NULL);
    if (!added) return NULL;
    added->graph = graph;
    added->type = type;
    nm_list_add(&graph->nodes, &added->object.link);
    graph->count++;
    return added;
}

static void drop_node(node *ending) {
    if (ending->memory) drop_reference(ending->memory);
    if (ending->child) nm_graph_drop(ending->child);
    ending->graph->count--;
    nm_object_free(ending);
}

void nm_graph_drop(nm_graph *graph) {
    while (!nm_list_empty(&graph->nodes)) drop_node(NM_OF(graph->nodes.next, node, object.link));
    nm_object_free(graph);
}

static nm_cu_result add_allocation(nm_graph *graph, int device, uint64_t bytes, node **out) {
    if (bytes == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    allocation *memory = calloc(1, sizeof *memory);
    nm_block *block = memory ? nm_block_new(NM_GRAPH_MEMORY, bytes, NM_PITCH_BYTES, false) : NULL;
    node *added = block ? add_node(graph, NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) : NULL;
    if (!added) {
        if (block) nm_block_free(block);
        free(memory);
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->device = (int8_t)device;
    block->owner = memory;
    *memory = (allocation){.block = block, .references = 1};
    added->memory = memory;
    *out = added;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result add_free(nm_graph *graph, uint64_t address, node **out) {
    nm_block *block = nm_block_at(address);
    if (!block || block->use != NM_GRAPH_MEMORY || block->address != address) return NM_CUDA_ERROR_INVALID_VALUE;
    node *added = add_node(graph, NM_CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (!added) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    added->memory = block->owner;
    added->memory->references++;
    *out = added;
    return NM_CUDA_SUCCESS;
}

nm_cu_result nm_graph_allocate(nm_graph *graph, int device, uint64_t bytes, nm_cu_deviceptr *out) {
    node *added;
    nm_cu_result result = add_allocation(graph, device, bytes, &added);
    if (result == NM_CUDA_SUCCESS) *out = added->memory->block->address;
    return result;
}

nm_cu_result nm_graph_free(nm_graph *graph, nm_cu_deviceptr address) {
    node *added;
    return add_free(graph, address, &added);
}

NM_CU cuGraphCreate(nm_cu_graph *out, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *out = new_graph();
    NM_UNLOCK();
    return *out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuGraphDestroy(nm_cu_graph handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    if (graph) nm_graph_drop(graph);
    NM_UNLOCK();
    return graph ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* A node that does nothing here. */
static nm_cu_result add_plain(nm_cu_graph_node *out, nm_cu_graph handle, int type, void (*function)(void *), void *argument) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    node *added = graph && out ? add_node(graph, type) : NULL;
    if (added) {
        added->function = function;
        added->argument = argument;
        *out = added;
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

#define PLAIN_NODE(name, type, ...) \
    NM_CU name(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, size_t count __VA_ARGS__) { \
        (void)after, (void)count; \
        return add_plain(out, graph, type, NULL, NULL); \
    }
PLAIN_NODE(cuGraphAddKernelNode, NM_CU_GRAPH_NODE_TYPE_KERNEL, , const void *parameters __attribute__((unused)))
PLAIN_NODE(cuGraphAddKernelNode_v2, NM_CU_GRAPH_NODE_TYPE_KERNEL, , const void *parameters __attribute__((unused)))
PLAIN_NODE(cuGraphAddMemcpyNode, NM_CU_GRAPH_NODE_TYPE_MEMCPY, , const void *parameters __attribute__((unused)),
           nm_cu_context context __attribute__((unused)))
PLAIN_NODE(cuGraphAddMemsetNode, NM_CU_GRAPH_NODE_TYPE_MEMSET, , const void *parameters __attribute__((unused)),
           nm_cu_context context __attribute__((unused)))
PLAIN_NODE(cuGraphAddEmptyNode, NM_CU_GRAPH_NODE_TYPE_EMPTY)
PLAIN_NODE(cuGraphAddEventRecordNode, NM_CU_GRAPH_NODE_TYPE_EVENT_RECORD, , nm_cu_event event __attribute__((unused)))
PLAIN_NODE(cuGraphAddEventWaitNode, NM_CU_GRAPH_NODE_TYPE_WAIT_EVENT, , nm_cu_event event __attribute__((unused)))

typedef struct {
    void (*function)(void *);
    void *argument;
} host_parameters;

NM_CU cuGraphAddHostNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, size_t count,
                         const host_parameters *parameters) {
    (void)after, (void)count;
    if (!parameters || !parameters->function) return NM_CUDA_ERROR_INVALID_VALUE;
    return add_plain(out, graph, NM_CU_GRAPH_NODE_TYPE_HOST, parameters->function, parameters->argument);
}

/* The device a pool's properties name: -1 for the host, -2 for none such. */
static int pool_device(const nm_cu_mem_pool_props *props) {
    if (props->location.type != NM_CU_MEM_LOCATION_TYPE_DEVICE) return props->location.type == NM_CU_MEM_LOCATION_TYPE_HOST ? -1 : -2;
    int device = nm_device_index(props->location.id);
    return device < 0 ? -2 : device;
}

NM_CU cuGraphAddMemAllocNode(nm_cu_graph_node *out, nm_cu_graph handle, const nm_cu_graph_node *after, size_t count,
                             nm_cu_mem_alloc_node_params *parameters) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = parameters ? pool_device(&parameters->pool_props) : -2;
    if (!out || device == -2) return NM_CUDA_ERROR_INVALID_VALUE;
    node *added = NULL;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    nm_cu_result result = graph ? add_allocation(graph, device, parameters->bytesize, &added) : NM_CUDA_ERROR_INVALID_VALUE;
    if (result == NM_CUDA_SUCCESS) {
        parameters->dptr = added->memory->block->address;
        *out = added;
    }
    NM_UNLOCK();
    return result;
}

NM_CU cuGraphAddMemFreeNode(nm_cu_graph_node *out, nm_cu_graph handle, const nm_cu_graph_node *after, size_t count,
                            nm_cu_deviceptr address) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    node *added = NULL;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    nm_cu_result result = graph ? add_free(graph, address, &added) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    if (result == NM_CUDA_SUCCESS) *out = added;
    return result;
}

static nm_graph *copy_of(const nm_graph *original);

/* The child's nodes, with the parent's from here on. Only a child that is moved in may allocate. */
NM_CU cuGraphAddChildGraphNode(nm_cu_graph_node *out, nm_cu_graph handle, const nm_cu_graph_node *after, size_t count,
                               nm_cu_graph child_handle) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH), *child = nm_object_of(child_handle, NM_GRAPH);
    nm_graph *copy = graph && child && graph != child && out ? copy_of(child) : NULL;
    node *added = copy ? add_node(graph, NM_CU_GRAPH_NODE_TYPE_GRAPH) : NULL;
    if (added) {
        added->child = copy;
        *out = added;
    } else if (copy) {
        nm_graph_drop(copy);
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

static nm_cu_result move_child(nm_cu_graph_node *out, nm_cu_graph handle, nm_cu_graph child_handle) {
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH), *child = nm_object_of(child_handle, NM_GRAPH);
    node *added = graph && child && graph != child && out ? add_node(graph, NM_CU_GRAPH_NODE_TYPE_GRAPH) : NULL;
    if (added) {
        added->child = child;
        *out = added;
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuGraphAddNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, size_t count,
                     nm_cu_graph_node_params *parameters) {
    enum { OWNERSHIP_MOVE = 1 };
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!parameters) return NM_CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphAddMemAllocNode(out, graph, after, count, &parameters->as.alloc);
    case NM_CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(out, graph, after, count, parameters->as.free.dptr);
    case NM_CU_GRAPH_NODE_TYPE_GRAPH:
        if (parameters->as.graph.ownership == OWNERSHIP_MOVE) return move_child(out, graph, parameters->as.graph.graph);
        return cuGraphAddChildGraphNode(out, graph, after, count, parameters->as.graph.graph);
    default: return add_plain(out, graph, parameters->type, NULL, NULL);
    }
}
NM_CU cuGraphAddNode_v2(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, const void *edges, size_t count,
                        nm_cu_graph_node_params *parameters) {
    (void)edges;
    return cuGraphAddNode(out, graph, after, count, parameters);
}
NM_CU cuGraphAddNode_v3(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, const void *edges, size_t count,
                        nm_cu_graph_node_params *parameters) {
    (void)edges;
    return cuGraphAddNode(out, graph, after, count, parameters);
}

/* ---- looking at a graph ------------------------------------------------------------------------------------------ */

static node *oldest(const nm_graph *graph) {
    return nm_list_empty(&graph->nodes) ? NULL : NM_OF(graph->nodes.previous, node, object.link);
}
static node *next_of(const nm_graph *graph, const node *after) {
    return after->object.link.previous == &graph->nodes ? NULL : NM_OF(after->object.link.previous, node, object.link);
}

/* The driver's convention: no array asks for the number, an array too long is filled up with NULL. */
static nm_cu_result list_nodes(nm_cu_graph handle, nm_cu_graph_node *out, size_t *count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    size_t index = 0;
    const node *each = graph && out ? oldest(graph) : NULL;
    for (; each && index < *count; each = next_of(graph, each)) out[index++] = (nm_cu_graph_node)(uintptr_t)each;
    for (size_t rest = index; out && rest < *count; rest++) out[rest] = NULL;
    if (graph) *count = out ? index : graph->count;
    NM_UNLOCK();
    return graph ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuGraphGetNodes(nm_cu_graph graph, nm_cu_graph_node *out, size_t *count) { return list_nodes(graph, out, count); }
NM_CU cuGraphGetRootNodes(nm_cu_graph graph, nm_cu_graph_node *out, size_t *count) {
    return list_nodes(graph, out, count); /* dependencies are not remembered: every node might be a root */
}

static const node *node_of(nm_cu_graph_node handle) { return nm_object_of(handle, NM_GRAPH_NODE); }

NM_CU cuGraphNodeGetType(nm_cu_graph_node handle, int *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const node *asked = node_of(handle);
    if (!asked || !out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->type;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphMemAllocNodeGetParams(nm_cu_graph_node handle, nm_cu_mem_alloc_node_params *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const node *asked = node_of(handle);
    if (!asked || !out || asked->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) return NM_CUDA_ERROR_INVALID_VALUE;
    const nm_block *block = asked->memory->block;
    *out = (nm_cu_mem_alloc_node_params){
        .pool_props = {.alloc_type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = {block->device < 0 ? NM_CU_MEM_LOCATION_TYPE_HOST : NM_CU_MEM_LOCATION_TYPE_DEVICE,
                                    nm_ordinal(block->device)}},
        .bytesize = block->bytes,
        .dptr = block->address,
    };
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphMemFreeNodeGetParams(nm_cu_graph_node handle, nm_cu_deviceptr *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const node *asked = node_of(handle);
    if (!asked || !out || asked->type != NM_CU_GRAPH_NODE_TYPE_MEM_FREE) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->memory->block->address;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphChildGraphNodeGetGraph(nm_cu_graph_node handle, nm_cu_graph *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const node *asked = node_of(handle);
    if (!asked || !out || !asked->child) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->child;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphDestroyNode(nm_cu_graph_node handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    node *ending = nm_object_of(handle, NM_GRAPH_NODE);
    bool may = ending && ending->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC && ending->type != NM_CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (may) drop_node(ending);
    NM_UNLOCK();
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

static nm_cu_result nothing_to_do(nm_cu_graph handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return nm_object_of(handle, NM_GRAPH) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuGraphAddDependencies(nm_cu_graph graph, const nm_cu_graph_node *from, const nm_cu_graph_node *to, size_t count) {
    (void)from, (void)to, (void)count;
    return nothing_to_do(graph);
}
NM_CU cuGraphAddDependencies_v2(nm_cu_graph graph, const nm_cu_graph_node *from, const nm_cu_graph_node *to, const void *edges,
                                size_t count) {
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

/* A graph with memory nodes cannot be copied: two copies would have one address. NULL then. */
static nm_graph *copy_of(const nm_graph *original) {
    nm_graph *copy = new_graph();
    for (const node *each = copy ? oldest(original) : NULL; each; each = next_of(original, each)) {
        node *added = each->memory ? NULL : add_node(copy, each->type);
        if (added && each->child) added->child = copy_of(each->child);
        if (!added || (each->child && !added->child)) {
            nm_graph_drop(copy);
            return NULL;
        }
        added->function = each->function;
        added->argument = each->argument;
    }
    return copy;
}

NM_CU cuGraphClone(nm_cu_graph *out, nm_cu_graph handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    const nm_graph *original = nm_object_of(handle, NM_GRAPH);
    nm_graph *copy = original && out ? copy_of(original) : NULL;
    if (copy) *out = copy;
    NM_UNLOCK();
    return copy ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* ---- executable graphs --------------------------------------------------------------------------------------------- */

static size_t count_steps(const nm_graph *graph) {
    size_t count = 0;
    for (const node *each = oldest(graph); each; each = next_of(graph, each)) {
        count += each->child ? count_steps(each->child) : 1;
    }
    return count;
}

static void write_steps(executable *exec, const nm_graph *graph) {
    for (const node *each = oldest(graph); each; each = next_of(graph, each)) {
        if (each->child) {
            write_steps(exec, each->child);
            continue;
        }
        exec->steps[exec->count++] = (step){each->type, each->memory, each->function, each->argument};
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

NM_CU cuGraphInstantiateWithFlags(nm_cu_graph_exec *out, nm_cu_graph graph, unsigned long long flags) {
    return instantiate(out, graph, flags);
}
NM_CU cuGraphInstantiate_v2(nm_cu_graph_exec *out, nm_cu_graph graph, nm_cu_graph_node *error, char *log, size_t log_bytes) {
    if (error) *error = NULL;
    if (log && log_bytes > 0) *log = '\0';
    return instantiate(out, graph, 0);
}
NM_CU cuGraphInstantiate(nm_cu_graph_exec *out, nm_cu_graph graph, nm_cu_graph_node *error, char *log, size_t log_bytes) {
    return cuGraphInstantiate_v2(out, graph, error, log, log_bytes);
}

NM_CU cuGraphExecDestroy(nm_cu_graph_exec handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    executable *exec = nm_object_of(handle, NM_GRAPH_EXEC);
    for (size_t index = 0; exec && index < exec->count; index++) {
        if (exec->steps[index].memory) drop_reference(exec->steps[index].memory);
    }
    if (exec) {
        free(exec->steps);
        nm_object_free(exec);
    }
    NM_UNLOCK();
    return exec ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* How much each device's graphs will use at most while these steps run. */
static void peaks_of(const executable *exec, uint64_t peaks[NM_SIM_DEVICES]) {
    uint64_t used[NM_SIM_DEVICES];
    for (int device = 0; device < NM_SIM_DEVICES; device++) used[device] = peaks[device] = memory_of(device)->used_bytes;
    for (size_t index = 0; index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (!each->memory || each->memory->block->device < 0) continue;
        int device = each->memory->block->device;
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) used[device] += each->memory->block->bytes;
        bool frees = each->type == NM_CU_GRAPH_NODE_TYPE_MEM_FREE && used[device] >= each->memory->block->bytes;
        if (frees) used[device] -= each->memory->block->bytes;
        if (peaks[device] < used[device]) peaks[device] = used[device];
    }
}

static nm_cu_result reserve_for(const executable *exec) {
    uint64_t peaks[NM_SIM_DEVICES];
    peaks_of(exec, peaks);
    for (int device = 0; device < NM_SIM_DEVICES; device++) {
        nm_cu_result result = peaks[device] > 0 ? reserve(device, peaks[device]) : NM_CUDA_SUCCESS;
        if (result != NM_CUDA_SUCCESS) return result;
    }
    return NM_CUDA_SUCCESS;
}

/* What an earlier launch allocated must be freed before the next, by the program or by the flag that says so. */
static nm_cu_result free_earlier(executable *exec) {
    bool may = exec->flags & NM_CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    for (size_t index = 0; index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (each->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC || !each->memory->block->live) continue;
        if (!may) return NM_CUDA_ERROR_INVALID_VALUE;
        end_life(each->memory);
    }
    return NM_CUDA_SUCCESS;
}

static nm_cu_result launch(executable *exec) {
    nm_cu_result result = free_earlier(exec);
    if (result == NM_CUDA_SUCCESS) result = reserve_for(exec);
    for (size_t index = 0; result == NM_CUDA_SUCCESS && index < exec->count; index++) {
        const step *each = &exec->steps[index];
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) begin_life(each->memory);
        if (each->type == NM_CU_GRAPH_NODE_TYPE_MEM_FREE) end_life(each->memory);
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

NM_CU cuGraphInstantiateWithParams(nm_cu_graph_exec *out, nm_cu_graph graph, nm_cu_graph_instantiate_params *parameters) {
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
NM_CU cuGraphExecUpdate(nm_cu_graph_exec exec, nm_cu_graph graph, nm_cu_graph_node *error, int *outcome) {
    nm_cu_result result = exec_exists(exec);
    if (result == NM_CUDA_SUCCESS) result = nothing_to_do(graph);
    if (error) *error = NULL;
    if (outcome) *outcome = result != NM_CUDA_SUCCESS;
    return result;
}
NM_CU cuGraphExecUpdate_v2(nm_cu_graph_exec exec, nm_cu_graph graph, nm_cu_graph_exec_update_info *info) {
    if (!info) return NM_CUDA_ERROR_INVALID_VALUE;
    info->error_node = info->error_from_node = NULL;
    return cuGraphExecUpdate(exec, graph, NULL, &info->result);
}
NM_CU cuGraphExecKernelNodeSetParams(nm_cu_graph_exec exec, nm_cu_graph_node node, const void *parameters) {
    (void)node, (void)parameters;
    return exec_exists(exec);
}
NM_CU cuGraphExecKernelNodeSetParams_v2(nm_cu_graph_exec exec, nm_cu_graph_node node, const void *parameters) {
    return cuGraphExecKernelNodeSetParams(exec, node, parameters);
}
NM_CU cuGraphExecGetFlags(nm_cu_graph_exec handle, uint64_t *out) {
    nm_cu_result result = exec_exists(handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = ((const executable *)nm_object_of(handle, NM_GRAPH_EXEC))->flags;
    return NM_CUDA_SUCCESS;
}

/* ---- what a device holds for graphs ---------------------------------------------------------------------------------- */

NM_CU cuDeviceGraphMemTrim(nm_cu_device ordinal) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    trim(device);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

static uint64_t *figure(nm_graph_memory *memory, int attribute) {
    switch (attribute) {
    case NM_CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return &memory->used_bytes;
    case NM_CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return &memory->used_high_bytes;
    case NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return &memory->reserved_bytes;
    case NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return &memory->reserved_high_bytes;
    default: return NULL;
    }
}

NM_CU cuDeviceGetGraphMemAttribute(nm_cu_device ordinal, int attribute, void *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    NM_LOCK();
    const uint64_t *found = out ? figure(memory_of(device), attribute) : NULL;
    if (found) *(uint64_t *)out = *found;
    NM_UNLOCK();
    return found ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* Only the high-water marks, and only back to the present. */
NM_CU cuDeviceSetGraphMemAttribute(nm_cu_device ordinal, int attribute, void *value) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = nm_device_index(ordinal);
    if (device < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    bool high = attribute == NM_CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!value || !high || *(uint64_t *)value != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *figure(memory_of(device), attribute) = *figure(memory_of(device), attribute - 1);
    NM_UNLOCK();
    return NM_CUDA_SUCCESS;
}

/* ---- user objects: something of the program's, destroyed with its last reference ------------------------------------------ */

typedef struct {
    nm_object object;
    void *theirs;
    void (*destroy)(void *);
    unsigned references;
} user_object;

NM_CU cuUserObjectCreate(void **out, void *theirs, void (*destroy)(void *), unsigned references, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !destroy || references == 0 || flags != 1) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    user_object *made = nm_object_new(NM_USER_OBJECT, NULL);
    if (made) {
        made->theirs = theirs;
        made->destroy = destroy;
        made->references = references;
        *out = made;
    }
    NM_UNLOCK();
    return made ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuUserObjectRetain(void *handle, unsigned count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    user_object *kept = nm_object_of(handle, NM_USER_OBJECT);
    if (kept) kept->references += count;
    NM_UNLOCK();
    return kept && count > 0 ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* The program's function runs outside of the mutex: it may call us. */
NM_CU cuUserObjectRelease(void *handle, unsigned count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    user_object last = {.references = 1};
    NM_LOCK();
    user_object *kept = nm_object_of(handle, NM_USER_OBJECT);
    bool may = kept && count > 0 && count <= kept->references;
    if (may) {
        kept->references -= count;
        last.references = kept->references;
        last.theirs = kept->theirs;
        last.destroy = kept->destroy;
        if (kept->references == 0) nm_object_free(kept);
    }
    NM_UNLOCK();
    if (last.references == 0) last.destroy(last.theirs);
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* A reference that a graph takes over; it is released with the process, and not before. */
NM_CU cuGraphRetainUserObject(nm_cu_graph graph, void *handle, unsigned count, unsigned flags) {
    enum { MOVE = 1 };
    nm_cu_result result = nothing_to_do(graph);
    if (result != NM_CUDA_SUCCESS) return result;
    return flags == MOVE ? NM_CUDA_SUCCESS : cuUserObjectRetain(handle, count);
}
NM_CU cuGraphReleaseUserObject(nm_cu_graph graph, void *handle, unsigned count) {
    nm_cu_result result = nothing_to_do(graph);
    return result == NM_CUDA_SUCCESS ? cuUserObjectRelease(handle, count) : result;
}

/* ---- capture ------------------------------------------------------------------------------------------------------------ */

static bool any_capture(void) { return atomic_load_explicit(&nm_the_driver.captures, memory_order_relaxed) != 0; }

nm_graph *nm_capture_of(nm_cu_stream handle) {
    if (!any_capture()) return NULL;
    const nm_stream *stream = nm_object_of(handle, NM_STREAM);
    return stream ? stream->capture : NULL;
}

bool nm_captured_host(nm_cu_stream stream, void (*function)(void *), void *argument) {
    if (!any_capture()) return false;
    NM_LOCK();
    nm_graph *graph = nm_capture_of(stream);
    node *added = graph ? add_node(graph, NM_CU_GRAPH_NODE_TYPE_HOST) : NULL;
    if (added) {
        added->function = function;
        added->argument = argument;
    }
    NM_UNLOCK();
    return graph != NULL;
}

bool nm_captured(nm_cu_stream stream, int type) {
    if (!any_capture()) return false;
    NM_LOCK();
    nm_graph *graph = nm_capture_of(stream);
    if (graph) add_node(graph, type);
    NM_UNLOCK();
    return graph != NULL;
}

static nm_cu_result begin(nm_cu_stream handle, nm_graph *into) {
    nm_stream *stream = nm_object_of(handle, NM_STREAM);
    if (!stream) return NM_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the default streams cannot be captured */
    if (stream->capture) return NM_CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = into ? into : new_graph();
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

NM_CU cuStreamBeginCaptureToGraph(nm_cu_stream stream, nm_cu_graph handle, const nm_cu_graph_node *after, const void *edges,
                                  size_t count, int mode) {
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

static nm_cu_result capture_info(nm_cu_stream handle, int *status, uint64_t *id, nm_cu_graph *graph) {
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

NM_CU cuStreamGetCaptureInfo(nm_cu_stream stream, int *status, uint64_t *id) { return capture_info(stream, status, id, NULL); }
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

NM_CU cuStreamUpdateCaptureDependencies(nm_cu_stream stream, nm_cu_graph_node *nodes, size_t count, unsigned flags) {
    (void)nodes, (void)count, (void)flags;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    bool captured = nm_capture_of(stream) != NULL;
    NM_UNLOCK();
    return captured ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_ILLEGAL_STATE;
}
NM_PER_THREAD(cuStreamUpdateCaptureDependencies, "_ptsz");
NM_CU cuStreamUpdateCaptureDependencies_v2(nm_cu_stream stream, nm_cu_graph_node *nodes, const void *edges, size_t count,
                                           unsigned flags) {
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
