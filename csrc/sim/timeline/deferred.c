/* deferred.c: see deferred.h.
 *
 * A thread exists only in a process that has put a function, or a kernel, behind an unknown time.
 * The thread calls the program's functions, and brings deferred kernels to the device.
 *
 * The order is that of time: the device's schedule is decided no further than to the next moment
 * at which a deferred operation may begin. So a kernel behind a copy behind a kernel begins at its
 * exact time, however late a call asks, unless another process has had the device decided beyond.
 */
#include "sim/timeline/deferred.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.17");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.17");
#endif

#define LOOK_AGAIN_NS UINT64_C(10000000)
#define TOO_SHORT_TO_SLEEP_NS UINT64_C(20000)

int nm_functions_waiting;

/* The process's queue at a device, and the moments that wait for each kernel of it. */
typedef struct {
    nm_sim_place place; /* node NULL: none yet */
    bool alone;         /* all seats are taken: the process has the device for itself */
    uint64_t known;     /* the ends of kernels below are in their moments */
    uint64_t free_ns[NM_COPY_ENGINES];
    uint64_t alone_free_ns;
    nm_link waiting[NM_SIM_PIECES];
} queue;

static queue queues[NM_SIM_DEVICES];
static nm_link waiting; /* deferred operations that have not begun, and functions that run */
static _Atomic uint32_t changes;
static bool has_thread;

void nm_timeline_reset(void) {
    for (int device = 0; device < NM_SIM_DEVICES; device++)
        memset(&queues[device], 0, offsetof(queue, waiting));
    nm_list_init(&waiting);
    nm_functions_waiting = 0;
    has_thread = false;
}

/* ---- points
   ----------------------------------------------------------------------------- */

static nm_point settled(nm_point point) {
    if (point.kernel && point.kernel < queues[point.device].known) {
        uint64_t end_ns = nm_sim_engine_end(&queues[point.device].place, point.kernel);
        if (point.floor_ns < end_ns) point.floor_ns = end_ns;
        point.kernel = 0;
    }
    if (!point.deferred || !point.deferred->ended) return point;
    nm_point result = nm_moment_get(&point.deferred->result);
    if (result.kernel && point.kernel && result.device != point.device) return point;
    if (point.floor_ns < result.floor_ns) point.floor_ns = result.floor_ns;
    if (result.kernel) point.device = result.device;
    if (point.kernel < result.kernel) point.kernel = result.kernel;
    point.deferred = NULL;
    return point;
}

void nm_moment_set(nm_moment *moment, nm_point point) {
    point = settled(point);
    nm_deferred *before = moment->point.deferred;
    if (point.deferred) point.deferred->references++;
    if (moment->point.kernel) nm_list_remove(&moment->link);
    moment->point = point;
    if (point.kernel)
        nm_list_add(&queues[point.device].waiting[point.kernel % NM_SIM_PIECES], &moment->link);
    if (before) nm_deferred_drop(before);
}

nm_point nm_moment_get(nm_moment *moment) {
    if (moment->point.deferred && moment->point.deferred->ended)
        nm_moment_set(moment, moment->point);
    return moment->point;
}

static bool is_known(nm_point point) { return !point.deferred && !point.kernel; }

nm_point nm_point_both(nm_point one, nm_point other) {
    one = settled(one);
    other = settled(other);
    bool two_deferred = one.deferred && other.deferred && one.deferred != other.deferred;
    bool two_devices = one.kernel && other.kernel && one.device != other.device;
    if (two_deferred || two_devices) {
        nm_deferred *join = nm_defer(NM_JOIN, one, other, -1);
        return join ? (nm_point){.deferred = join} : one;
    }
    nm_point both = one.kernel < other.kernel ? other : one;
    both.floor_ns = one.floor_ns > other.floor_ns ? one.floor_ns : other.floor_ns;
    both.deferred = one.deferred ? one.deferred : other.deferred;
    return both;
}

/* ---- the process's kernels on a device
   ----------------------------------------------------------------------------- */

static queue *queue_at(int device) {
    queue *own = &queues[device];
    if (own->place.node || own->alone) return own;
    for (int index = 0; index < NM_SIM_PIECES; index++) nm_list_init(&own->waiting[index]);
    own->alone = !nm_sim_engine_sit(&own->place, &nm_the_driver.node, device);
    own->known = own->place.head;
    return own;
}

/* Writes the ends of kernels that ended into the moments that wait for them. */
static bool note_ends(queue *own) {
    bool any = own->known < own->place.head;
    for (; own->known < own->place.head; own->known++) {
        nm_link *list = &own->waiting[own->known % NM_SIM_PIECES];
        if (nm_list_empty(list)) continue;
        uint64_t end_ns = nm_sim_engine_end(&own->place, own->known);
        while (!nm_list_empty(list)) {
            nm_moment *moment = NM_OF(list->next, nm_moment, link);
            nm_list_remove(&moment->link);
            moment->point.kernel = 0;
            if (moment->point.floor_ns < end_ns) moment->point.floor_ns = end_ns;
        }
    }
    return any;
}

/* True if a kernel ended. */
static bool look(queue *own, uint64_t until_ns, uint64_t kernel) {
    if (!own->place.node || own->known == own->place.next) return false;
    nm_sim_engine_run(&own->place, until_ns, kernel);
    return note_ends(own);
}

nm_point nm_begin_kernel(int device, uint64_t ready_ns, uint64_t duration_ns) {
    queue *own = queue_at(device);
    if (own->alone) {
        if (own->alone_free_ns < ready_ns) own->alone_free_ns = ready_ns;
        own->alone_free_ns += duration_ns;
        return (nm_point){.floor_ns = own->alone_free_ns};
    }
    uint64_t kernel = nm_sim_engine_add(&own->place, ready_ns, duration_ns);
    note_ends(own);
    return (nm_point){.kernel = kernel, .device = device};
}

nm_point nm_begin_copy(int device, nm_copy_engine engine, uint64_t ready_ns, uint64_t duration_ns) {
    uint64_t *free_ns = &queue_at(device)->free_ns[engine];
    if (*free_ns < ready_ns) *free_ns = ready_ns;
    *free_ns += duration_ns;
    return (nm_point){.floor_ns = *free_ns};
}

bool nm_copy_can_begin(int device, nm_copy_engine engine, nm_point at, uint64_t now_ns) {
    uint64_t free_ns = queue_at(device)->free_ns[engine];
    return is_known(at) && at.floor_ns <= (free_ns > now_ns ? free_ns : now_ns);
}

bool nm_queue_is_full(int device) {
    const queue *own = queue_at(device);
    return own->place.next - own->known >= NM_SIM_PIECES;
}

/* ---- deferred operations
   ----------------------------------------------------------------------------- */

static void changed(void) {
    atomic_fetch_add(&changes, 1);
    syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

nm_deferred *nm_defer(nm_deferred_kind kind, nm_point after, nm_point also, int device) {
    nm_deferred *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->references = 1; /* the list's */
    made->kind = kind;
    made->device = device;
    nm_moment_set(&made->after, after);
    nm_moment_set(&made->also, also);
    if (!waiting.next) nm_list_init(&waiting);
    nm_list_add(waiting.previous, &made->link);
    if (kind == NM_FUNCTION_CALL) nm_functions_waiting++;
    atomic_fetch_add(&nm_the_driver.node.state->slot_deferred[nm_the_driver.node.slot], 1);
    changed();
    return made;
}

void nm_deferred_drop(nm_deferred *deferred) {
    if (--deferred->references > 0) return;
    nm_moment_set(&deferred->after, (nm_point){0});
    nm_moment_set(&deferred->also, (nm_point){0});
    nm_moment_set(&deferred->result, (nm_point){0});
    free(deferred);
}

static void end(nm_deferred *ending, nm_point result) {
    nm_moment_set(&ending->result, result);
    ending->ended = true;
    nm_list_remove(&ending->link);
    if (ending->kind == NM_FUNCTION_CALL) nm_functions_waiting--;
    atomic_fetch_sub(&nm_the_driver.node.state->slot_deferred[nm_the_driver.node.slot], 1);
    nm_deferred_drop(ending);
    changed();
}

/* False where it is not known yet. */
static bool ready_at(nm_deferred *deferred, uint64_t *ready_ns) {
    nm_point after = nm_moment_get(&deferred->after), also = nm_moment_get(&deferred->also);
    *ready_ns = after.floor_ns > also.floor_ns ? after.floor_ns : also.floor_ns;
    return is_known(after) && is_known(also);
}

static void begin(nm_deferred *beginning, uint64_t ready_ns) {
    beginning->begun = true;
    switch (beginning->kind) {
    case NM_JOIN: end(beginning, (nm_point){.floor_ns = ready_ns}); break;
    case NM_COPY:
        end(beginning, nm_begin_copy(beginning->device, beginning->engine, ready_ns,
                                     beginning->duration_ns));
        break;
    case NM_KERNEL_PIECE:
        end(beginning, nm_begin_kernel(beginning->device, ready_ns, beginning->duration_ns));
        break;
    case NM_FUNCTION_CALL: changed(); break; /* the thread calls it */
    }
}

/* The first to begin of those whose time is known, if that is not after *limit_ns, which becomes
   that time. */
static nm_deferred *first_ready(uint64_t *limit_ns) {
    nm_deferred *first = NULL;
    for (nm_link *link = waiting.next; link != &waiting; link = link->next) {
        nm_deferred *each = NM_OF(link, nm_deferred, link);
        uint64_t ready_ns;
        if (each->begun || !ready_at(each, &ready_ns)) continue;
        if (ready_ns > *limit_ns || (first && ready_ns == *limit_ns)) continue;
        bool must_wait = each->kind == NM_KERNEL_PIECE && nm_queue_is_full(each->device);
        if (must_wait) continue;
        first = each;
        *limit_ns = ready_ns;
    }
    return first;
}

/* The first kernel on a device that something deferred waits for. */
static uint64_t awaited_kernel(int device) {
    uint64_t least = UINT64_MAX;
    for (nm_link *link = waiting.next; link != &waiting; link = link->next) {
        nm_deferred *each = NM_OF(link, nm_deferred, link);
        const nm_point points[] = {nm_moment_get(&each->after), nm_moment_get(&each->also)};
        for (int index = 0; index < 2; index++) {
            if (points[index].kernel && points[index].device == device &&
                points[index].kernel < least)
                least = points[index].kernel;
        }
    }
    return least;
}

void nm_drive(uint64_t now_ns) {
    if (!waiting.next) nm_list_init(&waiting);
    for (;;) {
        uint64_t limit_ns = now_ns;
        nm_deferred *first = first_ready(&limit_ns);
        bool moved = false;
        for (int device = 0; device < (int)nm_the_driver.node.state->device_count; device++) {
            if (queues[device].place.node)
                moved |= look(&queues[device], limit_ns, awaited_kernel(device));
        }
        if (nm_list_empty(&waiting)) return;
        if (!moved && !first) return;
        if (!moved) begin(first, limit_ns);
    }
}

/* ---- sleeping
   ----------------------------------------------------------------------------- */

static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

static uint64_t look_at(const nm_point *point, uint64_t horizon_ns) {
    if (point->deferred) return horizon_ns;
    if (!point->kernel) return least(point->floor_ns, horizon_ns);
    return nm_sim_engine_expected_end(&queues[point->device].place, point->kernel, horizon_ns);
}

uint64_t nm_next_look(const nm_point *point, uint64_t now_ns) {
    uint64_t next_ns = now_ns + LOOK_AGAIN_NS;
    if (point) next_ns = look_at(point, next_ns);
    for (nm_link *link = waiting.next; link != &waiting; link = link->next) {
        nm_deferred *each = NM_OF(link, nm_deferred, link);
        if (each->begun) continue;
        nm_point after = nm_moment_get(&each->after), also = nm_moment_get(&each->also);
        if (after.deferred || also.deferred) continue;
        uint64_t one_ns = look_at(&after, now_ns + LOOK_AGAIN_NS);
        uint64_t other_ns = look_at(&also, now_ns + LOOK_AGAIN_NS);
        next_ns = least(next_ns, one_ns > other_ns ? one_ns : other_ns);
    }
    return next_ns;
}

/* Below some microseconds a sleep is longer than what it waits for. */
void nm_sleep_until(uint64_t at_ns) {
    uint32_t seen = atomic_load(&changes);
    uint64_t now_ns = nm_now_ns();
    NM_UNLOCK();
    struct timespec until = {.tv_sec = (time_t)(at_ns / 1000000000),
                             .tv_nsec = (long)(at_ns % 1000000000)};
    if (at_ns <= now_ns + TOO_SHORT_TO_SLEEP_NS) {
        sched_yield();
    } else {
        syscall(SYS_futex, &changes, FUTEX_WAIT_BITSET_PRIVATE, seen, &until, NULL,
                FUTEX_BITSET_MATCH_ANY);
    }
    NM_LOCK_GOING_ON();
}

/* ---- the thread
   ----------------------------------------------------------------------------- */

void nm_call_function(nm_deferred *called) {
    called->called = true;
    NM_UNLOCK();
    called->function(called->argument);
    NM_LOCK_GOING_ON();
    end(called, (nm_point){.floor_ns = nm_now_ns()});
}

/* A function whose time has come. Functions of a process are called one after the other. */
static nm_deferred *callable(void) {
    for (nm_link *link = waiting.next; link != &waiting; link = link->next) {
        nm_deferred *each = NM_OF(link, nm_deferred, link);
        if (each->kind == NM_FUNCTION_CALL && each->begun && !each->called) return each;
    }
    return NULL;
}

static void *run_thread(void *unused) {
    NM_LOCK_GOING_ON();
    for (;;) {
        uint64_t now_ns = nm_now_ns();
        nm_drive(now_ns);
        nm_deferred *called = callable();
        if (called) {
            nm_call_function(called);
        } else {
            nm_sleep_until(nm_list_empty(&waiting) ? UINT64_MAX / 2 : nm_next_look(NULL, now_ns));
        }
    }
    return unused;
}

void nm_start_thread(void) {
    if (has_thread) return;
    has_thread = true;
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, run_thread, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
