/* contexts.c: the memory of a context itself, and the charges that end with it.
 *
 * Knows: the calls that make and end contexts, an estimate of a context's memory (raised limits:
 * limits.c). Must not know: the ledger, the lease (charge.h).
 *
 * The estimate is the manager's, from the driver's figures and the ledger, or a small one of the
 * shim. The manager's correction covers the rest. Linear memory and arrays end with their context.
 * Their blocks are renamed before the driver ends it: the next moment another thread's new context
 * may have its address.
 */
#include "launch/launch.h"
#include "memory/contexts.h"

#include <stdatomic.h>
#include <string.h>

#include "account/charge.h"
#include "account/pending.h"
#include "base/prim.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "memory/room.h"

enum { SUCCESS = NM_CUDA_SUCCESS };
/* less than any context takes on today's GPUs: it makes no grant smaller */
enum { ESTIMATE_BYTES = 64 << 20 };

/* -- the beginning -- */

static uint64_t estimate(void)
{
    char text[24];
    uint64_t bytes;
    int length = nodemgr_setting("context_bytes", text, sizeof text);
    return length > 0 && (size_t)length < sizeof text && nm_number(text, (size_t)length, &bytes)
               ? bytes
               : ESTIMATE_BYTES;
}

static bool begin(struct nm_charge *charge, nm_cu_device device)
{
    return nm_take(charge, device, nm_client_lease() != NULL ? estimate() : 0);
}

/* With the new context current. It took at most the memory in use on the GPU. */
static void measure(struct nm_charge *charge)
{
    size_t free = 0, total = 0;
    if (charge->bytes != 0 && nm_real_cuMemGetInfo_v2(&free, &total) == SUCCESS && free <= total &&
        total - free < charge->bytes)
        nm_charge_resize(charge, total - free);
}

static void keep(struct nm_charge *charge, nm_cu_context context)
{
    nm_charge_keep(charge, NM_BLOCK_CONTEXT, (uintptr_t)context, 0);
}

static int created(struct nm_charge *charge, int result, const nm_cu_context *context)
{
    if (result != SUCCESS) {
        nm_charge_give_back(charge);
        return result;
    }
    measure(charge);
    keep(charge, *context);
    return result;
}

/* The functions differ in their parameters, context and device among them. */
#define CREATES(name, parameters, arguments)                                  \
    int nm_hook_##name parameters                                             \
    {                                                                         \
        struct nm_charge charge;                                              \
        bool within = begin(&charge, device);                                 \
        return within ? created(&charge, nm_real_##name arguments, context)   \
                      : nm_charge_refusal(&charge);                           \
    }

CREATES(cuCtxCreate, (nm_cu_context * context, unsigned flags, nm_cu_device device),
        (context, flags, device))
CREATES(cuCtxCreate_v2, (nm_cu_context * context, unsigned flags, nm_cu_device device),
        (context, flags, device))
CREATES(cuCtxCreate_v3,
        (nm_cu_context * context, void *affinity, int count, unsigned flags, nm_cu_device device),
        (context, affinity, count, flags, device))
CREATES(cuCtxCreate_v4,
        (nm_cu_context * context, void *parameters, unsigned flags, nm_cu_device device),
        (context, parameters, flags, device))
CREATES(cuGLCtxCreate, (nm_cu_context * context, unsigned flags, nm_cu_device device),
        (context, flags, device))
CREATES(cuGLCtxCreate_v2, (nm_cu_context * context, unsigned flags, nm_cu_device device),
        (context, flags, device))
CREATES(cuVDPAUCtxCreate,
        (nm_cu_context * context, unsigned flags, nm_cu_device device, unsigned vdp, void *get),
        (context, flags, device, vdp, get))
CREATES(cuVDPAUCtxCreate_v2,
        (nm_cu_context * context, unsigned flags, nm_cu_device device, unsigned vdp, void *get),
        (context, flags, device, vdp, get))

/* -- the end -- */

static struct nm_lock lock;

/* Odd, so that no context has it. */
static uint64_t fresh_name(void)
{
    static _Atomic uint64_t last;
    return atomic_fetch_add(&last, 1) << 1 | 1;
}

/* Kinds that end with their context. */
static const enum nm_block_kind kinds_owned[] = {NM_BLOCK_LINEAR, NM_BLOCK_ARRAY, NM_BLOCK_MODULE,
                                                 NM_BLOCK_LIMIT};
enum { KINDS_OWNED = sizeof kinds_owned / sizeof *kinds_owned };

static void rename_blocks(uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < KINDS_OWNED; i++)
        nm_block_rename_owner(kinds_owned[i], from, to);
}

/* A context that is about to end. */
struct ending {
    uint64_t context, name;
    bool charged;
    struct nm_block own; /* the context's own charge, if any */
};

static struct ending about_to_end(nm_cu_context context)
{
    struct ending ending = {.context = (uintptr_t)context, .name = fresh_name()};
    /* first: a thread that keeps a block after the renaming sees this */
    atomic_fetch_add(&nm_contexts_ending, 1);
    ending.charged = nm_block_take(NM_BLOCK_CONTEXT, ending.context, &ending.own);
    rename_blocks(ending.context, ending.name);
    nm_pending_end(ending.context);
    return ending;
}

static void ended(const struct ending *ending)
{
    for (size_t i = 0; i < KINDS_OWNED; i++)
        nm_block_take_owned(kinds_owned[i], ending->name, nm_charge_give_back_block);
    if (ending->charged)
        nm_charge_give_back_block(&ending->own);
    nm_pools_settle();
    nm_graphs_settle();
    atomic_fetch_add(&nm_contexts_ending, 1);
}

static void lives_on(const struct ending *ending)
{
    struct nm_block stale;
    rename_blocks(ending->name, ending->context);
    if (ending->charged)
        nm_block_put(&ending->own, &stale);
    atomic_fetch_add(&nm_contexts_ending, 1);
}

static int destroy(nm_type_cuCtxDestroy_v2 *real, nm_cu_context context)
{
    nm_launch_forget_events();
    nm_lock(&lock);
    struct ending ending = about_to_end(context);
    int result = real(context);
    if (result == SUCCESS)
        ended(&ending);
    else
        lives_on(&ending);
    nm_unlock(&lock);
    return result;
}

void nm_contexts_look_again(enum nm_block_kind kind, uint64_t key)
{
    struct nm_block block;
    nm_cu_context context = NULL, popped;
    nm_lock(&lock); /* the ending is over then, or has not begun */
    nm_real_cuCtxGetCurrent(&context);
    bool lives = context != NULL && nm_real_cuCtxPushCurrent_v2(context) == SUCCESS;
    if (lives)
        nm_real_cuCtxPopCurrent_v2(&popped);
    else if (nm_block_take(kind, key, &block))
        nm_charge_give_back_block(&block);
    nm_unlock(&lock);
}

int nm_hook_cuCtxDestroy_v2(nm_cu_context context)
{
    return destroy(nm_real_cuCtxDestroy_v2, context);
}

int nm_hook_cuCtxDestroy(nm_cu_context context)
{
    return destroy(nm_real_cuCtxDestroy, context);
}

/* -- the primary context of a device -- */

/* By device, from the last retain. */
enum { DEVICES = 64 };
static nm_cu_context primary_contexts[DEVICES]; /* guarded by the lock */

void nm_contexts_forget(void)
{
    memset(&lock, 0, sizeof lock);
    nm_contexts_ending = 0;
    memset(primary_contexts, 0, sizeof primary_contexts);
}

static bool is_remembered(nm_cu_device device)
{
    return device >= 0 && device < DEVICES;
}

static bool is_active(nm_cu_device device)
{
    unsigned flags;
    int active = 0;
    return nm_real_cuDevicePrimaryCtxGetState(device, &flags, &active) != SUCCESS || active != 0;
}

static void measure_in(struct nm_charge *charge, nm_cu_context context)
{
    nm_cu_context popped;
    if (nm_real_cuCtxPushCurrent_v2(context) != SUCCESS)
        return;
    measure(charge);
    nm_real_cuCtxPopCurrent_v2(&popped);
}

/* A retain makes the context if it does not exist. */
static int retain(nm_cu_context *context, nm_cu_device device, struct nm_charge *charge)
{
    bool makes = is_remembered(device) && !is_active(device);
    if (makes && !begin(charge, device))
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    int result = nm_real_cuDevicePrimaryCtxRetain(context, device);
    if (result != SUCCESS) {
        nm_charge_give_back(charge);
        return result;
    }
    if (is_remembered(device))
        primary_contexts[device] = *context;
    if (charge->bytes != 0) {
        measure_in(charge, *context);
        keep(charge, *context);
    }
    return result;
}

int nm_hook_cuDevicePrimaryCtxRetain(nm_cu_context *context, nm_cu_device device)
{
    struct nm_charge charge = {.row = -1};
    nm_lock(&lock);
    int result = retain(context, device, &charge);
    nm_unlock(&lock);
    return charge.refused_bytes != 0 || charge.lost ? nm_charge_refusal(&charge) : result;
}

/* After a call that may have ended the device's primary context. With the lock held: only then
   is it known whether a retain made the context, and whether a release was the last. */
static void end_if_inactive(int result, nm_cu_device device, struct ending *ending)
{
    if (result == SUCCESS && !is_active(device)) {
        nm_pools_suspend(device);
        ended(ending);
    } else {
        lives_on(ending);
    }
}

/* With the lock held. */
static int end_primary(int (*real)(nm_cu_device), nm_cu_device device)
{
    nm_cu_context context = is_remembered(device) ? primary_contexts[device] : NULL;
    if (context == NULL)
        return real(device);
    struct ending ending = about_to_end(context);
    int result = real(device);
    end_if_inactive(result, device, &ending);
    return result;
}

static int leave_primary(int (*real)(nm_cu_device), nm_cu_device device)
{
    nm_launch_forget_events();
    nm_lock(&lock);
    int result = end_primary(real, device);
    nm_unlock(&lock);
    return result;
}

int nm_hook_cuDevicePrimaryCtxRelease_v2(nm_cu_device device)
{
    return leave_primary(nm_real_cuDevicePrimaryCtxRelease_v2, device);
}

int nm_hook_cuDevicePrimaryCtxRelease(nm_cu_device device)
{
    return leave_primary(nm_real_cuDevicePrimaryCtxRelease, device);
}

int nm_hook_cuDevicePrimaryCtxReset_v2(nm_cu_device device)
{
    return leave_primary(nm_real_cuDevicePrimaryCtxReset_v2, device);
}

int nm_hook_cuDevicePrimaryCtxReset(nm_cu_device device)
{
    return leave_primary(nm_real_cuDevicePrimaryCtxReset, device);
}

/* -- counted references: an old interface that is still exported -- */

int nm_hook_cuCtxAttach(nm_cu_context *context, unsigned flags)
{
    int result = nm_real_cuCtxAttach(context, flags);
    if (result != SUCCESS || context == NULL)
        return result;
    struct nm_block stale, attached = {.kind = NM_BLOCK_ATTACHED, .key = (uintptr_t)*context};
    nm_block_take(NM_BLOCK_ATTACHED, attached.key, &attached);
    attached.bytes++;
    nm_block_put(&attached, &stale);
    return result;
}

/* The last detach ends the context. */
int nm_hook_cuCtxDetach(nm_cu_context context)
{
    struct nm_block stale, attached;
    if (!nm_block_take(NM_BLOCK_ATTACHED, (uintptr_t)context, &attached))
        return destroy(nm_real_cuCtxDetach, context);
    int result = nm_real_cuCtxDetach(context);
    attached.bytes -= result == SUCCESS;
    if (attached.bytes != 0)
        nm_block_put(&attached, &stale);
    return result;
}

/* -- green contexts: a part of the primary one's multiprocessors; each keeps it alive -- */

/* Divides the estimate: a green context has its own streams and queues, but no code and heaps. */
enum { GREEN_SHARE = 4 };

/* The primary context, which a green one has just created. */
static nm_cu_context find_primary(nm_cu_device device)
{
    nm_cu_context context = NULL;
    if (nm_real_cuDevicePrimaryCtxRetain(&context, device) != SUCCESS)
        return NULL;
    nm_real_cuDevicePrimaryCtxRelease_v2(device);
    primary_contexts[device] = context;
    return context;
}

static void keep_green(nm_cu_green_context green, nm_cu_device device, const struct nm_charge *own,
                       struct nm_charge *primary)
{
    nm_charge_keep(own, NM_BLOCK_CONTEXT, (uintptr_t)green, (uint64_t)device);
    nm_cu_context context = find_primary(device);
    if (primary->bytes != 0 && context != NULL) {
        measure_in(primary, context);
        keep(primary, context);
    }
}

int nm_hook_cuGreenCtxCreate(nm_cu_green_context *green, void *description, nm_cu_device device,
                             unsigned flags)
{
    struct nm_charge own = {.row = -1}, primary = {.row = -1};
    int result = NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (!is_remembered(device))
        return nm_real_cuGreenCtxCreate(green, description, device, flags);
    nm_lock(&lock);
    bool has_primary = is_active(device) || begin(&primary, device);
    bool within = has_primary &&
                  nm_take(&own, device, nm_client_lease() != NULL ? estimate() / GREEN_SHARE : 0);
    if (within)
        result = nm_real_cuGreenCtxCreate(green, description, device, flags);
    if (result == SUCCESS) {
        keep_green(*green, device, &own, &primary);
    } else {
        nm_charge_give_back(&own);
        nm_charge_give_back(&primary);
    }
    nm_unlock(&lock);
    return within ? result : nm_charge_refusal(has_primary ? &own : &primary);
}

/* Memory allocated through it belongs to the primary context, and stays with that. With the lock
   held. */
static int end_green(nm_cu_green_context green, struct nm_block *own)
{
    nm_cu_context view = NULL;
    nm_cu_device device = (nm_cu_device)own->owner;
    struct ending ending = about_to_end(primary_contexts[device]);
    uint64_t through = nm_real_cuCtxFromGreenCtx(&view, green) == SUCCESS ? (uintptr_t)view
                                                                          : ending.context,
             name = fresh_name();
    struct nm_block stale;
    rename_blocks(through, name);
    int result = nm_real_cuGreenCtxDestroy(green);
    rename_blocks(name, result == SUCCESS ? ending.name : through);
    if (result == SUCCESS)
        nm_charge_give_back_block(own);
    else
        nm_block_put(own, &stale);
    end_if_inactive(result, device, &ending);
    return result;
}

int nm_hook_cuGreenCtxDestroy(nm_cu_green_context green)
{
    struct nm_block own;
    nm_lock(&lock);
    bool known = nm_block_take(NM_BLOCK_CONTEXT, (uintptr_t)green, &own);
    int result = known ? end_green(green, &own) : nm_real_cuGreenCtxDestroy(green);
    nm_unlock(&lock);
    return result;
}
