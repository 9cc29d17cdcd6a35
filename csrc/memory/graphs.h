/* graphs.h: the memory of graphs. See graphs.c. */
#ifndef NM_GRAPHS_H
#define NM_GRAPHS_H

/* Reads the reserve of each device, and gives back the rest of its charge. */
void nm_graphs_settle(void);
/* In a forked child, before it has threads. */
void nm_graphs_forget(void);

#endif
