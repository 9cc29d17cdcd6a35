/* deferred.h: operations whose beginning is not known yet, and the order in which they begin.
 *
 * Knows: the points that each waits for. Must not know: streams, contexts, handles.
 */
#ifndef NM_SIM_DEFERRED_H
#define NM_SIM_DEFERRED_H

#include "sim/timeline/timeline.h"

/* NM_JOIN: the later of two points. */
typedef enum { NM_JOIN, NM_KERNEL_PIECE, NM_COPY, NM_FUNCTION_CALL } nm_deferred_kind;

struct nm_deferred {
    nm_link link; /* in the list of those that have not begun, oldest first */
    int references;
    nm_deferred_kind kind;
    bool begun, called, ended;
    nm_moment after, also;
    nm_moment result; /* once ended; a kernel has ended here when it is in the device's queue */
    int device;
    nm_copy_engine engine;
    uint64_t duration_ns;
    void (*function)(void *);
    void *argument;
};

/* NULL: no memory is left. */
nm_deferred *nm_defer(nm_deferred_kind kind, nm_point after, nm_point also, int device);
void nm_deferred_drop(nm_deferred *deferred); /* a reference */

/* Decides all up to `now_ns` that can be decided. */
void nm_drive(uint64_t now_ns);
/* When to look again for a point, or for anything deferred: at most 10 ms from now. */
uint64_t nm_next_look(const nm_point *point, uint64_t now_ns);

/* A kernel in the device's queue, a copy on its engine: from `ready_ns`, which is not after now. */
nm_point nm_begin_kernel(int device, uint64_t ready_ns, uint64_t duration_ns);
nm_point nm_begin_copy(int device, nm_copy_engine engine, uint64_t ready_ns, uint64_t duration_ns);

bool nm_queue_is_full(int device);
/* True where a copy that begins now, at that point, takes the engine from no other. */
bool nm_copy_can_begin(int device, nm_copy_engine engine, nm_point at, uint64_t now_ns);

/* Without it, deferred operations begin when the process calls the driver. */
void nm_start_thread(void);
/* Calls the function of a begun operation, without the mutex. */
void nm_call_function(nm_deferred *deferred);

/* Sleeps, without the mutex, until a deferred operation begins or ends, or that time. */
void nm_sleep_until(uint64_t at_ns);

extern int nm_functions_waiting;

#endif
