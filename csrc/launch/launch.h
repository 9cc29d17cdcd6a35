/* launch.h: the launch gate of this process, as the hooks see it.
 *
 * Knows: the way of a launch: begin, the driver's call, end. Must not know: which function launches
 * (launch_hooks.c, memory/graphs.c).
 */
#ifndef NM_LAUNCH_H
#define NM_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/abi.h"

/* launch_hooks.c   the hooked launches
   capture_hooks.c  streams under capture, which pass; streams that end
   use_hooks.c      copies, which count as activity, and other uses of the GPU without a turn
   binding.c        the gate of each GPU of the lease, and which of them a launch needs
   token.c          the order of processes: the token, priority, the bound of work in flight
   gate_wait.c      a thread that waits for its turn
   suspended_calls.c  calls of a process whose memory is in host memory
   meter.c          pieces of work, their events, and the GPU time that they took
   estimates.c      the expected time of a kernel
   graph_times.c    the first estimate of a graph, from its nodes
   keeper.c         the thread that polls events and beats */
struct nm_gpu_gate;

/* One launch, between its begin and its end. */
struct nm_launch {
    struct nm_gpu_gate *gate; /* NULL: it passes without the gate */
    struct nm_estimate *kernel;
    nm_cu_stream stream;
    nm_cu_event start; /* recorded before a launch into an empty GPU */
    nm_cu_context context;
    uint64_t estimate_ns;
    bool per_thread; /* stream 0 is the thread's own */
};

/* Waits for the turn of a launch of `function` with that many blocks. CUDA_SUCCESS: the caller
 * launches, and calls nm_launch_end with the result. Otherwise the caller returns the error: the
 * gate is fenced, or Ctrl-C has ended the wait. */
int nm_launch_begin(struct nm_launch *launch, const void *function, uint64_t blocks,
                    nm_cu_stream stream, bool per_thread);
void nm_launch_end(struct nm_launch *launch, int result);

/* Adds what the gate expects of a node to the time of its graph. */
void nm_launch_add_node(uint64_t *expected_ns, nm_cu_graph_node node, int type);
/* A fresh executable graph, whose nodes are expected to take that time. */
void nm_launch_expect_graph(nm_cu_graph_exec exec, uint64_t expected_ns);

/* An executable graph that changes: its time is learned anew, and is what it was until then. */
void nm_launch_change_graph(nm_cu_graph_exec exec);

/* Before a call that waits for a stream (NULL with `all`: for all of them), and after it: its
   result comes back. */
void nm_launch_before_wait(nm_cu_stream stream, bool per_thread, bool all);
int nm_launch_after_wait(int result);
/* A copy shows that the process is not idle. */
void nm_launch_note_copy(void);
/* Before a context ends: its events end with it. */
void nm_launch_forget_events(void);
/* In a forked child, before it has threads. */
void nm_launch_forget(void);

/* The interrupts that the host has counted in one wait; all zero at its begin. */
struct nm_interrupt {
    uint32_t seen, asked;
    uint64_t asked_ns;
};

/* The needs of a long wait in Python. Each may be NULL. */
struct nm_launch_host {
    /* a signal has asked for the end of the wait */
    bool (*interrupted)(struct nm_interrupt *interrupt);
    void *(*leave)(void);           /* releases the interpreter lock, if this thread holds it */
    void (*enter_again)(void *left);
};
void nm_launch_set_host(const struct nm_launch_host *host);

#endif
