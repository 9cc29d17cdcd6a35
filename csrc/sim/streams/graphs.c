/* graphs.c: building, reading and copying graphs.
 *
 * Knows: the nodes that take and free memory, and the time that others take. Nodes run one after
 * the other in the order in which they were added, which every dependency respects.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sim/streams/graphs.h"
#include "sim/timeline/timeline.h"

/* ---- building
   ----------------------------------------------------------------------------- */

nm_graph *nm_graph_new(void) {
    nm_graph *graph = nm_object_new(NM_GRAPH, NULL);
    if (graph) nm_list_init(&graph->nodes);
    return graph;
}

nm_node *nm_graph_add_node(nm_graph *graph, int type) {
    nm_node *added = nm_object_new(NM_GRAPH_NODE, NULL);
    if (!added) return NULL;
    added->graph = graph;
    added->type = type;
    nm_list_add(&graph->nodes, &added->object.link);
    graph->count++;
    return added;
}

static void drop_node(nm_node *ending) {
    if (ending->memory) nm_allocation_drop(ending->memory);
    if (ending->child) nm_graph_drop(ending->child);
    ending->graph->count--;
    nm_object_free(ending);
}

void nm_graph_drop(nm_graph *graph) {
    while (!nm_list_empty(&graph->nodes)) drop_node(NM_OF(graph->nodes.next, nm_node, object.link));
    nm_object_free(graph);
}

static nm_cu_result add_allocation(nm_graph *graph, int device, uint64_t bytes, nm_node **out) {
    if (bytes == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_allocation *memory = calloc(1, sizeof *memory);
    nm_sim_block *block =
        memory ? nm_block_new(NM_GRAPH_MEMORY, bytes, NM_PITCH_BYTES, false) : NULL;
    nm_node *added = block ? nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC) : NULL;
    if (!added) {
        if (block) nm_block_free(block);
        free(memory);
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->device = (int8_t)device;
    block->owner = memory;
    *memory = (nm_allocation){.block = block, .references = 1};
    added->memory = memory;
    *out = added;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result add_free(nm_graph *graph, uint64_t address, nm_node **out) {
    nm_sim_block *block = nm_block_at(address);
    if (!block || block->use != NM_GRAPH_MEMORY || block->address != address)
        return NM_CUDA_ERROR_INVALID_VALUE;
    nm_node *added = nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (!added) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    added->memory = block->owner;
    added->memory->references++;
    *out = added;
    return NM_CUDA_SUCCESS;
}

nm_cu_result nm_graph_allocate(nm_graph *graph, int device, uint64_t bytes, nm_cu_deviceptr *out) {
    nm_node *added;
    nm_cu_result result = add_allocation(graph, device, bytes, &added);
    if (result == NM_CUDA_SUCCESS) *out = added->memory->block->address;
    return result;
}

nm_cu_result nm_graph_free(nm_graph *graph, nm_cu_deviceptr address) {
    nm_node *added;
    return add_free(graph, address, &added);
}

NM_CU cuGraphCreate(nm_cu_graph *out, unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *out = nm_graph_new();
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

/* A node that takes that time, or calls the function. */
static nm_cu_result add_plain(nm_cu_graph_node *out, nm_cu_graph handle, int type,
                              uint64_t duration_ns, void (*function)(void *), void *argument) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    nm_node *added = graph && out ? nm_graph_add_node(graph, type) : NULL;
    if (added) {
        added->duration_ns = duration_ns;
        added->function = function;
        added->argument = argument;
        *out = added;
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* The device of the current context, which the graph will most likely be launched on. */
static int device_here(void) {
    const nm_context *context = nm_current();
    return context ? context->device : nm_the_driver.visible[0];
}

uint64_t nm_kernel_node_ns(const nm_cu_kernel_node_params *parameters, bool second_version) {
    if (!nm_is_ready() || !parameters) return 0;
    const nm_function *function = nm_object_of(parameters->function, NM_FUNCTION);
    const nm_kernel *kernel =
        nm_object_of(function || !second_version ? parameters->function : parameters->kernel,
                     NM_KERNEL);
    uint64_t named_ns = function ? function->duration_ns : kernel ? kernel->duration_ns : 0;
    uint64_t blocks =
        (uint64_t)parameters->grid_x * parameters->grid_y * parameters->grid_z;
    return named_ns > 0 ? named_ns : nm_grid_ns(device_here(), blocks);
}

/* The parameters of a fill: target, pitch, value, width of an element, width, height. */
typedef struct {
    nm_cu_deviceptr target;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, height;
} fill_parameters;

static nm_copy_engine engine_of(const nm_cu_memcpy3d *box) {
    if (box->src_memory_type == NM_CU_MEMORYTYPE_HOST) return NM_TO_DEVICE;
    return box->dst_memory_type == NM_CU_MEMORYTYPE_HOST ? NM_TO_HOST : NM_IN_DEVICE;
}

/* The first version of the parameters ends before the kernel. */
static void keep_kernel(nm_node *node, const nm_cu_kernel_node_params *parameters,
                        bool second_version) {
    size_t bytes = second_version ? sizeof *parameters : offsetof(nm_cu_kernel_node_params, kernel);
    memcpy(&node->kernel, parameters, bytes);
}

static nm_cu_result add_kernel(nm_cu_graph_node *out, nm_cu_graph graph,
                               const nm_cu_kernel_node_params *parameters, bool second_version) {
    nm_cu_result result = add_plain(out, graph, NM_CU_GRAPH_NODE_TYPE_KERNEL,
                                    nm_kernel_node_ns(parameters, second_version), NULL, NULL);
    if (result == NM_CUDA_SUCCESS && parameters) keep_kernel(*out, parameters, second_version);
    return result;
}

NM_CU cuGraphAddKernelNode_v2(nm_cu_graph_node *out, nm_cu_graph graph,
                              const nm_cu_graph_node *after, size_t count,
                              const nm_cu_kernel_node_params *parameters) {
    (void)after, (void)count;
    return add_kernel(out, graph, parameters, true);
}
NM_CU cuGraphAddKernelNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                           size_t count, const nm_cu_kernel_node_params *parameters) {
    (void)after, (void)count;
    return add_kernel(out, graph, parameters, false);
}

NM_CU cuGraphAddMemcpyNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                           size_t count, const nm_cu_memcpy3d *box, nm_cu_context context) {
    (void)after, (void)count, (void)context;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    uint64_t bytes = box ? box->width_bytes * box->height * box->depth : 0;
    uint64_t duration_ns = box ? nm_copy_ns(device_here(), engine_of(box), bytes) : 0;
    return add_plain(out, graph, NM_CU_GRAPH_NODE_TYPE_MEMCPY, duration_ns, NULL, NULL);
}
NM_CU cuGraphAddMemsetNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                           size_t count, const fill_parameters *fill, nm_cu_context context) {
    (void)after, (void)count, (void)context;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    uint64_t bytes = fill ? fill->width * fill->height * fill->element_bytes : 0;
    return add_plain(out, graph, NM_CU_GRAPH_NODE_TYPE_MEMSET,
                     nm_copy_ns(device_here(), NM_IN_DEVICE, bytes), NULL, NULL);
}

#define PLAIN_NODE(name, type, ...) \
    NM_CU name(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after, \
               size_t count __VA_ARGS__) { \
        (void)after, (void)count; \
        return add_plain(out, graph, type, 0, NULL, NULL); \
    }
PLAIN_NODE(cuGraphAddEmptyNode, NM_CU_GRAPH_NODE_TYPE_EMPTY)
PLAIN_NODE(cuGraphAddEventRecordNode, NM_CU_GRAPH_NODE_TYPE_EVENT_RECORD, ,
           nm_cu_event event __attribute__((unused)))
PLAIN_NODE(cuGraphAddEventWaitNode, NM_CU_GRAPH_NODE_TYPE_WAIT_EVENT, ,
           nm_cu_event event __attribute__((unused)))

typedef struct {
    void (*function)(void *);
    void *argument;
} host_parameters;

NM_CU cuGraphAddHostNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                         size_t count, const host_parameters *parameters) {
    (void)after, (void)count;
    if (!parameters || !parameters->function) return NM_CUDA_ERROR_INVALID_VALUE;
    return add_plain(out, graph, NM_CU_GRAPH_NODE_TYPE_HOST, 0, parameters->function,
                     parameters->argument);
}

/* The device of a pool's properties: -1 for the host, -2 for none. */
static int pool_device(const nm_cu_mem_pool_props *props) {
    if (props->location.type != NM_CU_MEM_LOCATION_TYPE_DEVICE)
        return props->location.type == NM_CU_MEM_LOCATION_TYPE_HOST ? -1 : -2;
    int device = nm_device_index(props->location.id);
    return device < 0 ? -2 : device;
}

NM_CU cuGraphAddMemAllocNode(nm_cu_graph_node *out, nm_cu_graph handle,
                             const nm_cu_graph_node *after, size_t count,
                             nm_cu_mem_alloc_node_params *parameters) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    int device = parameters ? pool_device(&parameters->pool_props) : -2;
    if (!out || device == -2) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_node *added = NULL;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    nm_cu_result result = graph ? add_allocation(graph, device, parameters->bytesize, &added)
                                : NM_CUDA_ERROR_INVALID_VALUE;
    if (result == NM_CUDA_SUCCESS) {
        parameters->dptr = added->memory->block->address;
        *out = added;
    }
    NM_UNLOCK();
    return result;
}

NM_CU cuGraphAddMemFreeNode(nm_cu_graph_node *out, nm_cu_graph handle,
                            const nm_cu_graph_node *after, size_t count, nm_cu_deviceptr address) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_node *added = NULL;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    nm_cu_result result = graph ? add_free(graph, address, &added) : NM_CUDA_ERROR_INVALID_VALUE;
    NM_UNLOCK();
    if (result == NM_CUDA_SUCCESS) *out = added;
    return result;
}

static nm_graph *copy_of(const nm_graph *original);

/* The child's nodes, with the parent's from here on. Only a child that is moved in may allocate. */
NM_CU cuGraphAddChildGraphNode(nm_cu_graph_node *out, nm_cu_graph handle,
                               const nm_cu_graph_node *after, size_t count,
                               nm_cu_graph child_handle) {
    (void)after, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH), *child = nm_object_of(child_handle, NM_GRAPH);
    nm_graph *copy = graph && child && graph != child && out ? copy_of(child) : NULL;
    nm_node *added = copy ? nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_GRAPH) : NULL;
    if (added) {
        added->child = copy;
        *out = added;
    } else if (copy) {
        nm_graph_drop(copy);
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

static nm_cu_result move_child(nm_cu_graph_node *out, nm_cu_graph handle,
                               nm_cu_graph child_handle) {
    NM_LOCK();
    nm_graph *graph = nm_object_of(handle, NM_GRAPH), *child = nm_object_of(child_handle, NM_GRAPH);
    nm_node *added = graph && child && graph != child && out
                         ? nm_graph_add_node(graph, NM_CU_GRAPH_NODE_TYPE_GRAPH)
                         : NULL;
    if (added) {
        added->child = child;
        *out = added;
    }
    NM_UNLOCK();
    return added ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuGraphAddNode(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                     size_t count, nm_cu_graph_node_params *parameters) {
    enum { OWNERSHIP_MOVE = 1 };
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!parameters) return NM_CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(out, graph, after, count, &parameters->as.alloc);
    case NM_CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, after, count, parameters->as.free.dptr);
    case NM_CU_GRAPH_NODE_TYPE_GRAPH:
        if (parameters->as.graph.ownership == OWNERSHIP_MOVE)
            return move_child(out, graph, parameters->as.graph.graph);
        return cuGraphAddChildGraphNode(out, graph, after, count, parameters->as.graph.graph);
    case NM_CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(out, graph, after, count, (void *)&parameters->as);
    default: return add_plain(out, graph, parameters->type, 0, NULL, NULL);
    }
}
NM_CU cuGraphAddNode_v2(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                        const void *edges, size_t count, nm_cu_graph_node_params *parameters) {
    (void)edges;
    return cuGraphAddNode(out, graph, after, count, parameters);
}
NM_CU cuGraphAddNode_v3(nm_cu_graph_node *out, nm_cu_graph graph, const nm_cu_graph_node *after,
                        const void *edges, size_t count, nm_cu_graph_node_params *parameters) {
    (void)edges;
    return cuGraphAddNode(out, graph, after, count, parameters);
}

/* ---- looking at a graph
   ----------------------------------------------------------------------------- */

nm_node *nm_graph_oldest(const nm_graph *graph) {
    return nm_list_empty(&graph->nodes) ? NULL : NM_OF(graph->nodes.previous, nm_node, object.link);
}
nm_node *nm_graph_next(const nm_graph *graph, const nm_node *after) {
    return after->object.link.previous == &graph->nodes
               ? NULL
               : NM_OF(after->object.link.previous, nm_node, object.link);
}

/* The driver's convention: no array asks for the number, an array too long is filled up with
   NULL. */
static nm_cu_result list_nodes(nm_cu_graph handle, nm_cu_graph_node *out, size_t *count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_graph *graph = nm_object_of(handle, NM_GRAPH);
    size_t index = 0;
    const nm_node *each = graph && out ? nm_graph_oldest(graph) : NULL;
    for (; each && index < *count; each = nm_graph_next(graph, each))
        out[index++] = (nm_cu_graph_node)(uintptr_t)each;
    for (size_t rest = index; out && rest < *count; rest++) out[rest] = NULL;
    if (graph) *count = out ? index : graph->count;
    NM_UNLOCK();
    return graph ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuGraphGetNodes(nm_cu_graph graph, nm_cu_graph_node *out, size_t *count) {
    return list_nodes(graph, out, count);
}
NM_CU cuGraphGetRootNodes(nm_cu_graph graph, nm_cu_graph_node *out, size_t *count) {
    /* dependencies are not remembered: every node might be a root */
    return list_nodes(graph, out, count);
}

static const nm_node *node_of(nm_cu_graph_node handle) {
    return nm_object_of(handle, NM_GRAPH_NODE);
}

NM_CU cuGraphNodeGetType(nm_cu_graph_node handle, int *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_node *asked = node_of(handle);
    if (!asked || !out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->type;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphMemAllocNodeGetParams(nm_cu_graph_node handle, nm_cu_mem_alloc_node_params *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_node *asked = node_of(handle);
    if (!asked || !out || asked->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return NM_CUDA_ERROR_INVALID_VALUE;
    const nm_sim_block *block = asked->memory->block;
    *out = (nm_cu_mem_alloc_node_params){
        .pool_props = {.alloc_type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = {block->device < 0 ? NM_CU_MEM_LOCATION_TYPE_HOST
                                                      : NM_CU_MEM_LOCATION_TYPE_DEVICE,
                                    nm_ordinal(block->device)}},
        .bytesize = block->bytes,
        .dptr = block->address,
    };
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphKernelNodeGetParams_v2(nm_cu_graph_node handle, nm_cu_kernel_node_params *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_node *asked = node_of(handle);
    if (!asked || !out || asked->type != NM_CU_GRAPH_NODE_TYPE_KERNEL)
        return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->kernel;
    return NM_CUDA_SUCCESS;
}
NM_CU cuGraphKernelNodeGetParams(nm_cu_graph_node handle, void *out) {
    nm_cu_kernel_node_params parameters;
    nm_cu_result result = cuGraphKernelNodeGetParams_v2(handle, out ? &parameters : NULL);
    if (result == NM_CUDA_SUCCESS)
        memcpy(out, &parameters, offsetof(nm_cu_kernel_node_params, kernel));
    return result;
}

NM_CU cuGraphMemFreeNodeGetParams(nm_cu_graph_node handle, nm_cu_deviceptr *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_node *asked = node_of(handle);
    if (!asked || !out || asked->type != NM_CU_GRAPH_NODE_TYPE_MEM_FREE)
        return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->memory->block->address;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphChildGraphNodeGetGraph(nm_cu_graph_node handle, nm_cu_graph *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_node *asked = node_of(handle);
    if (!asked || !out || !asked->child) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->child;
    return NM_CUDA_SUCCESS;
}

NM_CU cuGraphDestroyNode(nm_cu_graph_node handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_node *ending = nm_object_of(handle, NM_GRAPH_NODE);
    bool may = ending && ending->type != NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
               ending->type != NM_CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (may) drop_node(ending);
    NM_UNLOCK();
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

nm_cu_result nm_graph_exists(nm_cu_graph handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    return nm_object_of(handle, NM_GRAPH) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuGraphAddDependencies(nm_cu_graph graph, const nm_cu_graph_node *from,
                             const nm_cu_graph_node *to, size_t count) {
    (void)from, (void)to, (void)count;
    return nm_graph_exists(graph);
}
NM_CU cuGraphAddDependencies_v2(nm_cu_graph graph, const nm_cu_graph_node *from,
                                const nm_cu_graph_node *to, const void *edges, size_t count) {
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

/* A graph with memory nodes cannot be copied: two copies would have one address. NULL then. */
static nm_graph *copy_of(const nm_graph *original) {
    nm_graph *copy = nm_graph_new();
    for (const nm_node *each = copy ? nm_graph_oldest(original) : NULL; each;
         each = nm_graph_next(original, each)) {
        nm_node *added = each->memory ? NULL : nm_graph_add_node(copy, each->type);
        if (added && each->child) added->child = copy_of(each->child);
        if (!added || (each->child && !added->child)) {
            nm_graph_drop(copy);
            return NULL;
        }
        added->duration_ns = each->duration_ns;
        added->kernel = each->kernel;
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
