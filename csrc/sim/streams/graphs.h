/* graphs.h: the parts of a graph, for graphs.c, launches.c (executable graphs), captures.c (streams
 * that become graphs) and graph_memory.c (memory for allocations).
 *
 * Knows: nodes, and the memory that some take or free. Must not know: the work of other nodes.
 *
 * An allocation node has its address from its creation on, and its memory from a launch to its
 * free. All functions but nm_graph_exists are called with the mutex held.
 */
#ifndef NM_SIM_GRAPHS_H
#define NM_SIM_GRAPHS_H

#include "sim/driver/driver.h"

/* Shared by an allocation node, its graph's executable copies and their frees. */
typedef struct {
    nm_sim_block *block;
    int references;
    nm_link live; /* in the device's list while it has memory */
} nm_allocation;

typedef struct {
    nm_object object;
    nm_graph *graph;
    int type;
    nm_allocation *memory; /* taken or freed here */
    nm_graph *child;
    uint64_t duration_ns; /* on the device */
    nm_cu_kernel_node_params kernel;
    void (*function)(void *);
    void *argument;
} nm_node;

struct nm_graph {
    nm_object object;
    nm_link nodes; /* the newest first */
    size_t count;
};

uint64_t nm_kernel_node_ns(const nm_cu_kernel_node_params *parameters, bool second_version);

/* -- graph_memory.c -- */
nm_graph_memory *nm_graph_memory_of(int device);
/* At least `bytes` for all graphs of the process. */
nm_cu_result nm_graph_memory_reserve(int device, uint64_t bytes);
void nm_allocation_begin(nm_allocation *memory);
void nm_allocation_end(nm_allocation *memory); /* nothing where it has no memory */
void nm_allocation_drop(nm_allocation *memory); /* a reference */

/* -- graphs.c -- */
nm_graph *nm_graph_new(void);
nm_node *nm_graph_add_node(nm_graph *graph, int type);
/* The nodes in the order in which they were added; NULL after the last. */
nm_node *nm_graph_oldest(const nm_graph *graph);
nm_node *nm_graph_next(const nm_graph *graph, const nm_node *after);
nm_cu_result nm_graph_exists(nm_cu_graph handle);

#endif
