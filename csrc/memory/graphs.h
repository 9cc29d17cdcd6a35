/* graphs.h: the memory of graphs. See graphs.c. */
#ifndef NM_GRAPHS_H
#define NM_GRAPHS_H

/* Looks at what the graphs of each device hold now, and gives back what they no longer do. */
void nm_graphs_settle(void);
/* In a forked child, before it has threads. */
void nm_graphs_forget(void);

#endif
