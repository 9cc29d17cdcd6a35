/* timeline.h: the work of the process on its devices: its order, and when it ends.
 *
 * Knows: streams as chains of work, events as points on them, kernels, copies and functions of the
 * program by their durations. Must not know: the calls of the driver's interface, graphs, captures.
 *
 * The end of work follows from its beginning, and is found out when a call asks for it (engine.h).
 * Work that begins at a time that is not known yet is a deferred operation (deferred.h). All times
 * are those of CLOCK_MONOTONIC, in nanoseconds. All functions are called with the mutex held;
 * those that wait release it meanwhile.
 */
#ifndef NM_SIM_TIMELINE_H
#define NM_SIM_TIMELINE_H

#include "sim/driver/driver.h"

typedef struct nm_deferred nm_deferred;

/* The end of some work: the latest of a time, of a kernel in the process's queue at a device, and
   of a deferred operation. */
typedef struct {
    uint64_t floor_ns;
    uint64_t kernel; /* its number at `device`; 0: none */
    int device;
    nm_deferred *deferred; /* NULL: none */
} nm_point;

/* A point that is kept. Zeros are a point in the past. */
typedef struct {
    nm_point point;
    nm_link link; /* of those that wait for the same kernel */
} nm_moment;

void nm_moment_set(nm_moment *moment, nm_point point);
/* The point, as much of it as is not decided yet. */
nm_point nm_moment_get(nm_moment *moment);

typedef struct {
    nm_object object;
    unsigned flags;
    int priority;
    int capture_status;
    nm_graph *capture;
    bool capture_is_borrowed; /* the program's own graph: not to be dropped here */
    nm_moment last;           /* the end of all work so far */
    const void *thread;       /* whose default stream it is; NULL: another stream */
    nm_link link;             /* of a context's default streams */
} nm_stream;

/* CUDA_SUCCESS and the stream behind a handle, a default one of `context` too. */
nm_cu_result nm_stream_find(nm_cu_stream handle, nm_context *context, nm_stream **out);
/* The same for the current context. */
nm_cu_result nm_stream_use(nm_cu_stream handle, nm_context **context, nm_stream **out);

/* ---- adding work
   ----------------------------------------------------------------------------- */

/* A driver's queue has an end too: waits until one more kernel has room in it. Before the stream of
   a launch is looked up. */
void nm_wait_for_room(int device);
void nm_add_kernel(nm_stream *stream, uint64_t duration_ns);

/* To and from the host, and within the device: each has an engine of its own. */
typedef enum { NM_TO_DEVICE, NM_TO_HOST, NM_IN_DEVICE, NM_COPY_ENGINES } nm_copy_engine;
uint64_t nm_copy_ns(int device, nm_copy_engine engine, uint64_t bytes);
/* `waits`: until the copy has ended. */
nm_cu_result nm_add_copy(nm_stream *stream, nm_copy_engine engine, uint64_t bytes, bool waits);

/* Called at once where the stream has nothing to do, else by the thread. */
void nm_add_function(nm_stream *stream, void (*function)(void *), void *argument);

void nm_add_wait(nm_stream *stream, nm_moment *until);
/* All streams that the context has by now. */
void nm_context_add_wait(nm_context *context, nm_moment *until);

/* A kernel of that many blocks. */
uint64_t nm_grid_ns(int device, uint64_t blocks);

/* ---- asking and waiting
   ----------------------------------------------------------------------------- */

/* Where a stream, or all of a context, has got to by now. */
nm_point nm_stream_end(nm_stream *stream);
nm_point nm_context_end(nm_context *context);
/* The same for what begins now: not before now. */
nm_point nm_point_now(nm_point point);
nm_point nm_point_both(nm_point one, nm_point other);

bool nm_is_past(nm_point point);
/* DEVICE_UNAVAILABLE where the context's device is lost meanwhile. */
nm_cu_result nm_wait_for(const nm_context *context, nm_point point);
/* Before the program's bytes are read or written: its functions that were added have ended. */
nm_cu_result nm_wait_for_functions(nm_stream *stream);

#endif
