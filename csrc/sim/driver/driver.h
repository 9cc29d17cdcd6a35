/* driver.h: shared by the files of the simulated libcuda.so.1: the process's state, objects behind
 * handles, blocks behind addresses.
 *
 * Knows: the binary interface (abi.h) and the node (node.h). Must not know: nodemgr, its shim,
 * vendor headers.
 *
 * One mutex guards all of it; calls of a program's inner loop (launch, memory figures, current
 * context) take none. A forked child sees `nm_ready` as 0 and gets CUDA_ERROR_NOT_INITIALIZED until
 * its own cuInit starts afresh.
 */
#ifndef NM_SIM_DRIVER_H
#define NM_SIM_DRIVER_H

#include <pthread.h>
#include <time.h>

#include "sim/abi/abi.h"
#include "sim/node/node.h"

enum {
    NM_LIMITS = 10,
    NM_PITCH_BYTES = 512,
    NM_OBJECT_BYTES = 512, /* room for an object of any type */
};
#define NM_GRANULE_BYTES \
    (UINT64_C(2) << 20) /* of virtual memory management, and of what a pool takes at a time */

/* ---- declaring the interface
   ----------------------------------------------------------------------------- */

#define NM_CU NM_SIM_API nm_cu_result

/* The per-thread-default-stream variant of an entry point: an address of its own, the same
   behaviour. */
#if defined(__x86_64__)
#define NM_JUMP "jmp "
#elif defined(__aarch64__)
#define NM_JUMP "b "
#else
#error "the simulator knows the jump instruction of x86-64 and of aarch64 only"
#endif
#define NM_PER_THREAD(name, suffix) \
    __asm__(".pushsection .text\n" \
            ".globl " #name suffix "\n" \
            ".type " #name suffix ", %function\n" #name suffix ":\n\t" NM_JUMP #name "\n" \
            ".size " #name suffix ", . - " #name suffix "\n" \
            ".popsection\n")

/* The same for a call with a stream: handle 0 becomes that of the thread's own default stream. */
#if defined(__x86_64__)
#define NM_ARGUMENT_1 "%rdi"
#define NM_ARGUMENT_2 "%rsi"
#define NM_ARGUMENT_4 "%rcx"
#define NM_ARGUMENT_5 "%r8"
#define NM_ARGUMENT_6 "%r9"
#define NM_ARGUMENT_8 "16(%rsp)"
#define NM_ARGUMENT_9 "24(%rsp)"
#define NM_OWN_STREAM(place) "cmpq $0, " place "\n\tjne 1f\n\tmovq $2, " place "\n1:\t"
#else
#define NM_ARGUMENT_1 "x0", ""
#define NM_ARGUMENT_2 "x1", ""
#define NM_ARGUMENT_4 "x3", ""
#define NM_ARGUMENT_5 "x4", ""
#define NM_ARGUMENT_6 "x5", ""
#define NM_ARGUMENT_8 "x7", ""
#define NM_ARGUMENT_9 "x9", "ldr x9, [sp]\n\t"
#define NM_OWN_STREAM(place) NM_OWN_STREAM_IN(place)
#define NM_OWN_STREAM_IN(place, load) \
    load "cbnz " place ", 1f\n\tmov " place ", #2\n\t" \
         ".ifnc " place ",x9\n\t.else\n\tstr x9, [sp]\n\t.endif\n1:\t"
#endif
#define NM_PER_THREAD_AT(name, place) \
    __asm__(".pushsection .text\n" \
            ".globl " #name "_ptsz\n" \
            ".type " #name "_ptsz, %function\n" #name "_ptsz:\n\t" NM_OWN_STREAM(place) \
            NM_JUMP #name "\n" \
            ".size " #name "_ptsz, . - " #name "_ptsz\n" \
            ".popsection\n")

/* ---- lists
   ----------------------------------------------------------------------------- */

typedef struct nm_link {
    struct nm_link *next, *previous;
} nm_link;

#define NM_OF(link, type, member) ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void nm_list_init(nm_link *head) { head->next = head->previous = head; }
static inline bool nm_list_empty(const nm_link *head) { return head->next == head; }
static inline void nm_list_add(nm_link *head, nm_link *link) {
    *link = (nm_link){head->next, head};
    head->next->previous = link;
    head->next = link;
}
static inline void nm_list_remove(nm_link *link) {
    if (!link->next) return;
    link->next->previous = link->previous;
    link->previous->next = link->next;
    *link = (nm_link){NULL, NULL};
}

/* ---- objects behind handles (objects.c)
   -------------------------------------------------------------------- */

/* A handle is the address of its object in one arena, so that a stale or invented handle is
   recognised. */
typedef enum {
    NM_NOTHING,
    NM_CONTEXT,
    NM_GREEN_CONTEXT,
    NM_STREAM,
    NM_EVENT,
    NM_MODULE,
    NM_LIBRARY,
    NM_FUNCTION,
    NM_KERNEL,
    NM_LINK,
    NM_POOL,
    NM_ARRAY,
    NM_MIPMAP,
    NM_PHYSICAL,
    NM_MULTICAST,
    NM_EXTERNAL_MEMORY,
    NM_GRAPH,
    NM_GRAPH_NODE,
    NM_GRAPH_EXEC,
    NM_USER_OBJECT,
    NM_VIEW,
} nm_type;

typedef struct nm_context nm_context;

typedef struct {
    _Atomic uint32_t type;   /* these two are read without the mutex, by any holder of a handle */
    /* unique in the process; the answer of cuStreamGetId and similar calls */
    _Atomic uint32_t serial;
    nm_link link;        /* in the owner's list: a context's, a graph's, a module's */
    nm_context *context; /* NULL where the object belongs to the process */
} nm_object;

struct nm_context {
    nm_object object;
    int device;  /* index in the node */
    int ordinal; /* the program's number of that device */
    unsigned flags;
    bool primary;
    _Atomic bool active;
    int retained;
    int attached; /* by cuCtxAttach, beyond its creation */
    /* of the device when this was made: another number now means broken for ever */
    uint32_t losses;
    uint64_t implicit_bytes;
    uint64_t limits[NM_LIMITS];
    nm_context *parent; /* of a green context's view: the primary one that carries it */
    nm_link blocks;
    nm_link objects;
    struct nm_context_work *work; /* NULL: never any (timeline.c) */
};

typedef struct {
    nm_object object;
    int device;
    int location_type;
    int handle_types;
    bool is_default;
    bool imported;
    bool dying; /* destroyed by the program; blocks still live, or an exported handle is open */
    int exports; /* handles that are open somewhere */
    int held;    /* of an imported pool: the descriptor that holds it */
    uint64_t live_blocks;
    uint64_t max_bytes; /* 0: none */
    uint64_t reserved_bytes, reserved_high_bytes;
    uint64_t used_bytes, used_high_bytes;
    uint64_t release_threshold_bytes;
    int reuse[3];
} nm_pool;

typedef struct {
    nm_object object;
    int device; /* -1: host memory */
    uint64_t bytes;
    nm_cu_mem_allocation_prop prop;
    int handles;     /* that the program holds */
    int attachments; /* mappings, sparse tiles, multicast bindings, exported descriptors */
    /* false for an import: the exporter pays; and for linear memory, whose block pays while it
       lives */
    bool charged;
    nm_sim_kind kind;
    int held; /* of an import: the descriptor that holds it */
} nm_physical;

typedef struct {
    nm_object object;
    nm_object *library;
    char *name;
    uint64_t duration_ns; /* by its name; 0: by the grid */
} nm_kernel;

typedef struct nm_module nm_module;

typedef struct {
    nm_object object;
    nm_module *module;
    char *name;
    uint64_t duration_ns;
} nm_function;

typedef struct nm_graph nm_graph;

/* A new object of `type`, zeroed, in `context`'s list if given; NULL when the arena is full. */
void *nm_object_new(nm_type type, nm_context *context);
void nm_object_free(void *object);
/* The object behind a handle, or NULL where it is none of that type (any more). */
void *nm_object_of(const void *handle, nm_type type);
/* Every active context of the process, one after the other: NULL gives the first, the last gives
   NULL. */
nm_context *nm_context_next(const nm_context *context);
/* The same for any type: the common part of the object there. */
nm_object *nm_object_at(const void *handle);
/* Forgets everything: a forked child that starts afresh owns none of it. */
void nm_objects_reset(void);

/* ---- blocks behind addresses (blocks.c)
   -------------------------------------------------------------------- */

typedef enum {
    NM_UNUSED,
    NM_LINEAR,
    NM_MANAGED,
    NM_POOLED,
    NM_GRAPH_MEMORY,
    NM_IMPORTED,    /* another process's, or external: its exporter pays */
    NM_RESERVATION, /* addresses only */
    NM_HOST,        /* page-locked host memory */
    NM_DEVICE_GLOBAL,
} nm_use;

/* A piece of physical memory mapped somewhere into a reservation. */
typedef struct {
    uint64_t offset, bytes; /* in the reservation */
    nm_physical *physical;
    int access;
    bool kept;
} nm_mapping;

typedef struct nm_sim_block {
    uint64_t address;
    uint64_t bytes;
    uint32_t next_free;
    uint8_t use;
    bool kept; /* the bytes copied to its beginning are kept */
    bool live; /* graph memory: between its allocation and its free */
    int8_t device; /* -1: the host */
    nm_context *context;
    void *owner; /* the pool, or what the graph knows of it */
    nm_link link;
    nm_mapping *mappings; /* of a reservation, sorted by offset */
    uint32_t mapping_count, mapping_room;
} nm_sim_block;

/* Addresses for a block of `bytes`, aligned to `alignment` (a power of two) or better; NULL when
   there are none. */
nm_sim_block *nm_block_new(nm_use use, uint64_t bytes, uint64_t alignment, bool below_4g);
void nm_block_free(nm_sim_block *block);
/* The block that holds `address`, NULL where it is in none. */
nm_sim_block *nm_block_at(uint64_t address);
/* The first of a reservation's mappings that ends above `offset`: mapping_count where there is
   none. */
uint32_t nm_mapping_from(const nm_sim_block *block, uint64_t offset);
void nm_blocks_reset(void);

/* Where the bytes of [address, address + bytes) are on the host, and how many of them, from the
 * first, the simulator keeps (see blocks.c): the others are zeros, and are not to be written.
 * False where the range is no device's or leaves its block. `for_writing` decides at a block's
 * first write whether anything of it is kept. */
bool nm_block_bytes(uint64_t address, uint64_t bytes, bool for_writing, char **host,
                    uint64_t *kept);
/* Ends the keeping of a mapping's bytes. */
void nm_block_forget_bytes(uint64_t address, uint64_t bytes);

/* ---- the process
   ----------------------------------------------------------------------------- */

typedef struct {
    uint64_t reserved_bytes, reserved_high_bytes;
    uint64_t used_bytes, used_high_bytes;
    nm_link live; /* allocations of launched graphs, not freed yet */
} nm_graph_memory;

typedef struct {
    nm_sim_node node;
    int device_count;
    int visible[NM_SIM_DEVICES]; /* ordinal -> index in the node */
    nm_context *primary[NM_SIM_DEVICES];
    nm_pool *default_pool[NM_SIM_DEVICES];
    nm_pool *current_pool[NM_SIM_DEVICES];
    nm_pool *managed_pool[NM_SIM_DEVICES];
    nm_graph_memory graph_memory[NM_SIM_DEVICES];
    uint64_t kept_bytes;
    uint32_t serial;
    /* of cuInit in this process: a thread's context stack of an older one is void */
    uint32_t epoch;
    _Atomic int captures;
} nm_driver;

extern nm_driver nm_the_driver;
extern pthread_mutex_t nm_mutex;
extern _Atomic int *nm_ready;

static inline bool nm_is_ready(void) {
    return atomic_load_explicit(nm_ready, memory_order_acquire) != 0;
}
static inline nm_sim_device *nm_device(int index) {
    return &nm_the_driver.node.state->device[index];
}
static inline const nm_sim_model *nm_model(int index) {
    return nm_sim_model_of(nm_the_driver.node.state, index);
}
static inline uint64_t nm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A thread's stack of contexts. Small, and with offsets that the loader fixes: it is read at
   every call. */
enum { NM_STACK_DEPTH = 16 };
typedef struct {
    nm_context *context;
    /* a destroyed context with another in its place is recognised by it */
    uint32_t serial;
} nm_frame;
typedef struct {
    uint32_t epoch; /* the cuInit that it is of */
    int depth;
    nm_frame frames[NM_STACK_DEPTH];
} nm_thread;
extern _Thread_local nm_thread nm_this_thread __attribute__((tls_model("initial-exec")));

/* The current context of this thread, NULL where there is none. */
static inline nm_context *nm_current(void) {
    if (nm_this_thread.depth == 0 || nm_this_thread.epoch != nm_the_driver.epoch) return NULL;
    const nm_frame *top = &nm_this_thread.frames[nm_this_thread.depth - 1];
    const nm_context *context = top->context;
    bool alive = context->object.type == NM_CONTEXT && context->object.serial == top->serial &&
                 context->active;
    return alive ? top->context : NULL;
}

/* CUDA_SUCCESS while the context's device is there and always was. */
static inline nm_cu_result nm_context_state(const nm_context *context) {
    uint32_t losses =
        atomic_load_explicit(&nm_device(context->device)->losses, memory_order_relaxed);
    return losses == context->losses ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* CUDA_SUCCESS and the usable current context, or why not. */
static inline nm_cu_result nm_use_current(nm_context **context) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    *context = nm_current();
    return *context ? nm_context_state(*context) : NM_CUDA_ERROR_INVALID_CONTEXT;
}

/* That of the node; without a node the youngest that is simulated. */
enum { NM_NEWEST_VERSION = 13050 };
static inline int nm_driver_version(void) {
    return nm_is_ready() ? (int)nm_the_driver.node.state->driver_version : NM_NEWEST_VERSION;
}

/* An ordinal's device in the node, -1 where there is none such. */
int nm_device_index(nm_cu_device ordinal);
int nm_ordinal(int device);

/* Charges the program's own allocation, faults and all: CUDA_SUCCESS, OUT_OF_MEMORY or
 * DEVICE_UNAVAILABLE. With the mutex held; the delay that a device may have is before it, in
 * nm_delay. */
nm_cu_result nm_charge(int device, nm_sim_kind kind, uint64_t bytes);
void nm_give_back(int device, nm_sim_kind kind, uint64_t bytes);
void nm_delay(int device);

/* Bulk frees, with the mutex held: each file clears what it made. */
void nm_memory_release(nm_sim_block *block);
void nm_object_release(nm_object *object);

/* Reserves of pools (pool_memory.c). */
nm_pool *nm_pool_new(int device);
nm_pool *nm_default_pool(int device);
nm_pool *nm_current_pool(int device);
nm_cu_result nm_pool_allocate(nm_pool *pool, nm_context *context, uint64_t bytes,
                              nm_cu_deviceptr *out);
void nm_pool_give_back(nm_sim_block *block);
void nm_pool_shrink(nm_pool *pool, uint64_t keep_bytes);
/* A destroyed pool lasts as long as a block of it, or an exported handle. */
void nm_pool_end_if_done(nm_pool *pool);
/* Bytes that a synchronisation releases above the pools' thresholds. */
void nm_pools_trim(int device);
void nm_pools_reset(void);

/* The work of a context, and of the process (timeline.c, deferred.c). */
nm_cu_result nm_context_wait(nm_context *context);
void nm_context_work_end(nm_context *context);
void nm_timeline_reset(void);

/* Memory that left the process (exports.c), with the mutex held. */
/* Frees the memory that descriptors kept and no process has open any more. */
void nm_exports_settle(void);
void nm_exports_reset(void);

void nm_physical_detach(nm_physical *physical);
void nm_array_release(nm_object *object);
void nm_module_release(nm_object *object);
/* The device memory of an image, for its variables and code (images.c). */
uint64_t nm_sim_image_bytes(const char *image, uint64_t bytes);
nm_cu_result nm_library_load_into(nm_object *library, nm_context *context);

/* The graph that a stream is being captured into, with the mutex held; NULL for a stream that is
   not. */
nm_graph *nm_capture_of(nm_cu_stream stream);
/* True where `stream` is being captured: the operation has then become a node of `type`, and is
   not to be done. nm_capture_node: with the mutex held. */
bool nm_capture_node(nm_cu_stream stream, int type, uint64_t duration_ns);
bool nm_captured(nm_cu_stream stream, int type, uint64_t duration_ns);
/* With the mutex held. */
bool nm_capture_kernel(nm_cu_stream stream, const nm_cu_kernel_node_params *kernel,
                       uint64_t duration_ns);
bool nm_captured_host(nm_cu_stream stream, void (*function)(void *), void *argument);
/* A node that will take, or free, memory when the graph is launched. */
nm_cu_result nm_graph_allocate(nm_graph *graph, int device, uint64_t bytes, nm_cu_deviceptr *out);
nm_cu_result nm_graph_free(nm_graph *graph, nm_cu_deviceptr address);
/* The program frees, outside of any graph, what a launched graph allocated. */
void nm_graph_block_free(nm_sim_block *block);
void nm_graph_drop(nm_graph *graph);
void nm_graphs_reset(int device);

static inline uint64_t nm_round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* The mutex, in a process that may be locked from outside (suspended.h): then a call waits here.
   `going_on`: a call that has waited for work, or the work. */
void nm_lock(bool going_on);
void nm_unlock(void);
#define NM_LOCK() nm_lock(false)
#define NM_LOCK_GOING_ON() nm_lock(true)
#define NM_UNLOCK() nm_unlock()

#endif
