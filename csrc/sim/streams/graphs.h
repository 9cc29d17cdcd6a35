/* graphs.h: what a graph is made of, for the files that build, launch and capture graphs.
 *
 *   graphs.c        building, looking, copying
 *   launches.c      executable graphs
 *   captures.c      streams that become graphs
 *   graph_memory.c  what their allocations hold of a device
 *
 * Knows: nodes, and the memory that some take or free. Must not know: what the other nodes do.
 *
 * An allocation node has its address from the beginning and its memory from a launch to its free.
 * All of it but nm_graph_exists is called with the mutex held.
 */
#ifndef NM_SIM_GRAPHS_H
#define NM_SIM_GRAPHS_H

#include "sim/driver/driver.h"

/* What one allocation node, its graph's executable copies and their frees share. */
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
    void (*function)(void *);
    void *argument;
} nm_node;

struct nm_graph {
    nm_object object;
    nm_link nodes; /* the newest first */
    size_t count;
};

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
