/* pools.c: stream-ordered memory. A pool is charged for its reserve on the device, not for its live
 * blocks.
 *
 * Knows: pools, the devices of their memory, when the driver gives it back. Must not know: the
 * ledger, the lease (charge.h).
 *
 * The driver chooses a pool's reserve. Before an allocation the pool is charged for its least need
 * with the new block and the calls of other threads; afterwards the charge becomes the reserve. If
 * that is more than may be charged, the block is given back and refused. At the limit, pools first
 * give up unused memory.
 */
#include "launch/launch.h"
#include "memory/pools.h"

#include <stdatomic.h>
#include <string.h>

#include "account/charge.h"
#include "account/exports.h"
#include "account/pending.h"
#include "account/suspendable.h"
#include "base/prim.h"
#include "client/messages.h"
#include "hooks/interpose.h"
#include "memory/virtual.h"

enum { OUT_OF_MEMORY = NM_CUDA_ERROR_OUT_OF_MEMORY, SUCCESS = NM_CUDA_SUCCESS };
enum { POOLS = 1024 }; /* of one process at a time; more are refused */
enum { LEAST_GROWTH_BYTES = 2 << 20, MOST_GROWTH_BYTES = 32 << 20 };

struct pool {
    nm_cu_memory_pool handle; /* NULL: the entry is free */
    nm_cu_device device;
    bool dying;               /* destroyed by the program; some of its blocks live */
    /* its device was reset: the pool may be gone, so the driver is not asked until the program
       uses it */
    bool suspended;
    uint64_t live_blocks;     /* with those in flight */
    uint64_t in_flight_bytes; /* requested by calls of the driver under way */
    uint64_t shared;          /* number of its exports (virtual.h); 0: none */
    struct nm_charge charge;
};

static struct nm_lock lock; /* guards the entries */
static struct pool pools[POOLS];
static uint32_t pool_count; /* entries that were ever used */
/* frees to pools so far; also counts other reasons for a pool to give something back */
static _Atomic uint32_t frees;
static _Atomic uint32_t settled; /* of them, those after which all pools were settled */

void nm_pools_forget(void)
{
    memset(&lock, 0, sizeof lock);
    memset(pools, 0, pool_count * sizeof *pools);
    pool_count = 0;
    frees = settled = 0;
}

/* -- entries, with the lock held -- */

static struct pool *find(nm_cu_memory_pool handle)
{
    for (uint32_t i = 0; i < pool_count; i++)
        if (pools[i].handle == handle && !pools[i].dying)
            return &pools[i];
    return NULL;
}

static struct pool *enter(nm_cu_memory_pool handle, nm_cu_device device)
{
    struct pool *entry = find(NULL);
    if (entry == NULL && pool_count < POOLS)
        entry = &pools[pool_count++];
    if (entry != NULL)
        *entry = (struct pool){.handle = handle, .device = device, .charge.row = -1};
    return entry;
}

/* An open export of it keeps its last charge. */
static void remove_pool(struct pool *pool)
{
    nm_virtual_inherit(pool->shared, &pool->charge);
    nm_charge_give_back(&pool->charge);
    *pool = (struct pool){0};
}

static uint64_t attribute(nm_cu_memory_pool handle, int name, uint64_t otherwise)
{
    uint64_t value = 0;
    return nm_real_cuMemPoolGetAttribute(handle, name, &value) == SUCCESS ? value : otherwise;
}

/* The unit in which pools grow: it divides every reserve that was seen. */
static _Atomic uint64_t holdings_seen; /* by a bitwise or */

static uint64_t grown_by(uint64_t bytes)
{
    uint64_t seen = atomic_load_explicit(&holdings_seen, memory_order_relaxed), unit = seen & -seen;
    unit = unit < LEAST_GROWTH_BYTES  ? LEAST_GROWTH_BYTES
           : unit > MOST_GROWTH_BYTES ? MOST_GROWTH_BYTES
                                      : unit;
    return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/* The pool's need for its blocks, those in flight and `more` bytes, if it wastes nothing. */
static uint64_t needed_bytes(const struct pool *pool, uint64_t more)
{
    uint64_t used =
        attribute(pool->handle, NM_CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charge.bytes);
    uint64_t sum = used + pool->in_flight_bytes;
    return grown_by(more > UINT64_MAX - sum ? UINT64_MAX : sum + more);
}

/* Makes the charge equal to the pool's reserve. False: the reserve is more than may be charged. */
static bool settle(struct pool *pool, bool *gave_back)
{
    if (pool->charge.row < 0 || pool->dying || pool->suspended)
        return true;
    uint64_t charged = pool->charge.bytes;
    uint64_t held = attribute(pool->handle, NM_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, charged);
    uint64_t needed = pool->in_flight_bytes != 0 ? needed_bytes(pool, 0) : 0,
             wanted = needed > held ? needed : held;
    if ((held & ~atomic_load_explicit(&holdings_seen, memory_order_relaxed)) != 0)
        atomic_fetch_or_explicit(&holdings_seen, held, memory_order_relaxed);
    if (wanted < charged) {
        nm_charge_resize(&pool->charge, wanted);
        *gave_back = true;
    }
    return held <= charged || nm_charge_resize(&pool->charge, held);
}

/* Settles all pools; `trim`: after they have given up all unused memory, also that below their
   threshold. True if anything was given back. */
static bool settle_all(bool trim)
{
    bool gave_back = false;
    nm_lock(&lock);
    for (uint32_t i = 0; i < pool_count; i++) {
        struct pool *pool = &pools[i];
        if (pool->handle == NULL || pool->dying || pool->suspended || pool->charge.bytes == 0)
            continue;
        if (trim)
            nm_real_cuMemPoolTrimTo(pool->handle, 0);
        settle(pool, &gave_back);
    }
    nm_unlock(&lock);
    return gave_back;
}

void nm_pools_settle(void)
{
    settle_all(false);
}

bool nm_pools_give_up(void)
{
    bool pending = nm_pending_settle(), exported = nm_virtual_settle();
    return settle_all(true) || pending || exported;
}

/* Whether a later synchronisation can make the pool give something back. */
static bool is_loose(const struct pool *pool)
{
    if (pool->handle == NULL || pool->dying || pool->suspended || pool->charge.row < 0)
        return false;
    uint64_t threshold = attribute(pool->handle, NM_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    uint64_t used = attribute(pool->handle, NM_CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    return pool->charge.bytes > threshold && pool->charge.bytes > used;
}

/* After calls at which the driver takes back a pool's memory, if there was a free to a pool
 * since. A free counts as settled after all pools were read: a thread that comes meanwhile reads
 * them itself. */
static int settle_freed(int result)
{
    uint32_t seen = atomic_load_explicit(&frees, memory_order_relaxed);
    bool loose = false;
    nm_pending_settle();
    if (seen == atomic_load_explicit(&settled, memory_order_relaxed))
        return result;
    nm_pools_settle();
    nm_lock(&lock);
    for (uint32_t i = 0; i < pool_count && !loose; i++)
        loose = is_loose(&pools[i]);
    if (!loose)
        atomic_store(&settled, seen);
    nm_unlock(&lock);
    return result;
}

/* -- the owner of memory -- */

/* The device of the stream's context; for the three streams without a handle, that of the
   current context. */
static nm_cu_device device_of(nm_cu_stream stream)
{
    nm_cu_context context = NULL, current = NULL, popped;
    if (stream == NULL || stream == NM_CU_STREAM_LEGACY || stream == NM_CU_STREAM_PER_THREAD)
        return nm_current_device();
    nm_real_cuCtxGetCurrent(&current);
    if (nm_real_cuStreamGetCtx(stream, &context) != SUCCESS || context == current ||
        context == NULL)
        return nm_current_device();
    if (nm_real_cuCtxPushCurrent_v2(context) != SUCCESS)
        return -1;
    nm_cu_device device = nm_current_device();
    nm_real_cuCtxPopCurrent_v2(&popped);
    return device;
}

/* The device of a pool whose creation was not seen: a default pool, or a pool of another kind. */
static nm_cu_device device_of_stranger(nm_cu_memory_pool handle)
{
    nm_cu_memory_pool pool;
    for (nm_cu_device device = 0; nm_real_cuDeviceGetDefaultMemPool(&pool, device) == SUCCESS;
         device++)
        if (pool == handle)
            return device;
    return -1;
}

static bool is_default(nm_cu_memory_pool handle)
{
    return device_of_stranger(handle) >= 0;
}

/* -- allocating -- */

/* One call of one of the four functions. */
struct request {
    nm_cu_deviceptr *address;
    size_t bytes;
    nm_cu_memory_pool pool; /* NULL: the current pool of the stream's device */
    nm_cu_stream stream;
    nm_type_cuMemAllocAsync *from_current;
    nm_type_cuMemAllocFromPoolAsync *from_pool;
    nm_type_cuMemFreeAsync *free;
    nm_type_cuStreamIsCapturing *is_capturing;
};

static int ask_driver(const struct request *request)
{
    if (request->pool != NULL)
        return request->from_pool(request->address, request->bytes, request->pool, request->stream);
    return request->from_current(request->address, request->bytes, request->stream);
}

/* With the lock held. */
static bool begin(struct pool *pool, uint64_t bytes)
{
    /* dying: the driver will refuse */
    uint64_t needed = pool->dying ? 0 : needed_bytes(pool, bytes);
    bool within = needed <= pool->charge.bytes || nm_charge_resize(&pool->charge, needed);
    if (within)
        pool->in_flight_bytes += bytes;
    return within;
}

/* The pool's entry with one more block, and whether that may be charged. NULL: no entry is left,
   or another thread has destroyed the pool. */
static struct pool *join(nm_cu_memory_pool handle, nm_cu_device device, int row, uint64_t bytes,
                         bool *within)
{
    nm_lock(&lock);
    struct pool *pool = find(handle);
    if (pool == NULL && is_default(handle))
        pool = enter(handle, device);
    if (pool != NULL) {
        pool->charge.row = row;
        pool->suspended = false;
        pool->live_blocks++;
        *within = begin(pool, bytes);
    }
    nm_unlock(&lock);
    return pool;
}

/* After the driver's answer. False: the pool's reserve is more than may be charged. */
static bool end(struct pool *pool, uint64_t bytes)
{
    bool gave_back;
    nm_lock(&lock);
    pool->in_flight_bytes -= bytes;
    bool within = settle(pool, &gave_back);
    nm_unlock(&lock);
    return within;
}

/* With the lock held: one block less. The last one of a destroyed pool gives back its charge. */
static void drop_block(struct pool *pool)
{
    pool->live_blocks -= pool->live_blocks != 0;
    if (pool->dying && pool->live_blocks == 0)
        remove_pool(pool);
}

static void part(struct pool *pool)
{
    nm_lock(&lock);
    drop_block(pool);
    nm_unlock(&lock);
}

/* After the pools have given up unused memory. */
static bool begin_after_trim(struct pool *pool, uint64_t bytes)
{
    nm_pools_give_up();
    nm_lock(&lock);
    bool within = begin(pool, bytes);
    nm_unlock(&lock);
    return within;
}

static int refuse(struct pool *pool, uint64_t bytes)
{
    nm_lock(&lock);
    pool->charge.refused_bytes = bytes;
    struct nm_charge charge = pool->charge;
    drop_block(pool);
    nm_unlock(&lock);
    return nm_charge_refusal(&charge);
}

static int allocate_in(const struct request *request, struct pool *pool, int row, bool within)
{
    if (!within && !begin_after_trim(pool, request->bytes))
        return refuse(pool, request->bytes);
    int result = ask_driver(request);
    within = end(pool, request->bytes);
    if (result != SUCCESS) {
        part(pool);
        return result;
    }
    if (!within) {
        request->free(*request->address, request->stream);
        begin_after_trim(pool, 0);
        atomic_fetch_add(&frees, 1); /* the stream may not have reached the free */
        return refuse(pool, request->bytes);
    }
    nm_charge_keep(&(struct nm_charge){.row = row}, NM_BLOCK_POOLED, *request->address,
                   (uint64_t)(pool - pools));
    return result;
}

static nm_cu_memory_pool pool_of(const struct request *request, nm_cu_device *device)
{
    nm_cu_memory_pool handle = request->pool;
    if (handle == NULL) {
        *device = device_of(request->stream);
        return *device >= 0 && nm_real_cuDeviceGetMemPool(&handle, *device) == SUCCESS ? handle
                                                                                       : NULL;
    }
    nm_lock(&lock);
    struct pool *known = find(handle);
    *device = known != NULL ? known->device : -1;
    nm_unlock(&lock);
    if (known == NULL)
        *device = device_of_stranger(handle);
    return *device >= 0 ? handle : NULL;
}

/* A capture makes the allocation a node of a graph, which is charged at its launch (graphs.c). */
static bool is_captured(const struct request *request)
{
    int status = NM_CU_STREAM_CAPTURE_STATUS_NONE;
    bool is_legacy =
        request->stream == NULL && request->is_capturing == nm_real_cuStreamIsCapturing;
    /* the legacy stream is never captured, and a query may wait for other streams */
    if (is_legacy || request->stream == NM_CU_STREAM_LEGACY)
        return false;
    return request->is_capturing(request->stream, &status) == SUCCESS &&
           status == NM_CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static int allocate(const struct request *request)
{
    struct nm_charge nothing;
    nm_cu_device device;
    nm_cu_memory_pool handle = pool_of(request, &device);
    if (handle == NULL || is_captured(request))
        return ask_driver(request);
    if (!nm_charge_take(&nothing, device, 0))
        return nm_charge_refusal(&nothing);
    if (nothing.row < 0)
        return ask_driver(request);
    bool within = false;
    struct pool *pool = join(handle, device, nothing.row, request->bytes, &within);
    if (pool == NULL)
        return is_default(handle) ? OUT_OF_MEMORY : ask_driver(request);
    return allocate_in(request, pool, nothing.row, within);
}

int nm_hook_cuMemAllocAsync(nm_cu_deviceptr *address, size_t bytes, nm_cu_stream stream)
{
    return allocate(&(struct request){address, bytes, NULL, stream, nm_real_cuMemAllocAsync, NULL,
                                      nm_real_cuMemFreeAsync, nm_real_cuStreamIsCapturing});
}

int nm_hook_cuMemAllocAsync_ptsz(nm_cu_deviceptr *address, size_t bytes, nm_cu_stream stream)
{
    return allocate(&(struct request){address, bytes, NULL, stream, nm_real_cuMemAllocAsync_ptsz,
                                      NULL, nm_real_cuMemFreeAsync_ptsz,
                                      nm_real_cuStreamIsCapturing_ptsz});
}

int nm_hook_cuMemAllocFromPoolAsync(nm_cu_deviceptr *address, size_t bytes, nm_cu_memory_pool pool,
                                    nm_cu_stream stream)
{
    if (pool == NULL)
        return nm_real_cuMemAllocFromPoolAsync(address, bytes, pool, stream);
    return allocate(&(struct request){address, bytes, pool, stream, NULL,
                                      nm_real_cuMemAllocFromPoolAsync, nm_real_cuMemFreeAsync,
                                      nm_real_cuStreamIsCapturing});
}

int nm_hook_cuMemAllocFromPoolAsync_ptsz(nm_cu_deviceptr *address, size_t bytes,
                                         nm_cu_memory_pool pool, nm_cu_stream stream)
{
    if (pool == NULL)
        return nm_real_cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream);
    return allocate(
        &(struct request){address, bytes, pool, stream, NULL, nm_real_cuMemAllocFromPoolAsync_ptsz,
                          nm_real_cuMemFreeAsync_ptsz, nm_real_cuStreamIsCapturing_ptsz});
}

/* -- freeing -- */

static void note_freed(const struct nm_block *block)
{
    nm_lock(&lock);
    drop_block(&pools[block->owner]);
    nm_unlock(&lock);
    atomic_fetch_add(&frees, 1);
}

void nm_pool_freed_at_once(const struct nm_block *block)
{
    note_freed(block);
    settle_freed(SUCCESS);
}

/* Linear memory may be freed in this way, too. */
static int free_async(nm_type_cuMemFreeAsync *real, nm_type_cuEventRecord *record,
                      nm_cu_deviceptr address, nm_cu_stream stream)
{
    struct nm_block block, stale;
    bool known = nm_block_take(NM_BLOCK_LINEAR, address, &block);
    int result = real(address, stream);
    if (known && result != SUCCESS)
        nm_block_put(&block, &stale);
    else if (known && block.kind == NM_BLOCK_POOLED)
        note_freed(&block);
    else if (known)
        nm_pending_add(&block, stream, record);
    return result;
}

int nm_hook_cuMemFreeAsync(nm_cu_deviceptr address, nm_cu_stream stream)
{
    return free_async(nm_real_cuMemFreeAsync, nm_real_cuEventRecord, address, stream);
}

int nm_hook_cuMemFreeAsync_ptsz(nm_cu_deviceptr address, nm_cu_stream stream)
{
    return free_async(nm_real_cuMemFreeAsync_ptsz, nm_real_cuEventRecord_ptsz, address, stream);
}

/* -- pools themselves -- */

/* A pool of device memory that the program made or got. False: no entry is left. */
static bool know(nm_cu_memory_pool handle, const nm_cu_mem_location *location)
{
    if (location == NULL || location->type != NM_CU_MEM_LOCATION_TYPE_DEVICE)
        return true;
    nm_lock(&lock);
    bool known = find(handle) != NULL || enter(handle, location->id) != NULL;
    nm_unlock(&lock);
    return known;
}

int nm_hook_cuMemPoolCreate(nm_cu_memory_pool *pool, const nm_cu_mem_pool_props *props)
{
    int result = nm_real_cuMemPoolCreate(pool, props);
    if (result != SUCCESS || know(*pool, &props->location))
        return result;
    nm_say(NM_TOO_MANY_POOLS, POOLS);
    nm_real_cuMemPoolDestroy(*pool);
    return OUT_OF_MEMORY;
}

int nm_hook_cuMemGetDefaultMemPool(nm_cu_memory_pool *pool, nm_cu_mem_location *location, int type)
{
    int result = nm_real_cuMemGetDefaultMemPool(pool, location, type);
    if (result == SUCCESS)
        know(*pool, location);
    return result;
}

int nm_hook_cuMemGetMemPool(nm_cu_memory_pool *pool, nm_cu_mem_location *location, int type)
{
    int result = nm_real_cuMemGetMemPool(pool, location, type);
    if (result == SUCCESS)
        know(*pool, location);
    return result;
}

/* Blocks of a destroyed pool live on. Their use at that time, and the calls under way, stay
   charged until the last of them is freed. */
int nm_hook_cuMemPoolDestroy(nm_cu_memory_pool handle)
{
    nm_lock(&lock);
    struct pool *pool = find(handle);
    uint64_t used = pool != NULL
                        ? attribute(handle, NM_CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charge.bytes)
                        : 0;
    uint64_t left = pool != NULL ? used + pool->in_flight_bytes : 0;
    int result = nm_real_cuMemPoolDestroy(handle);
    if (result == SUCCESS && pool != NULL && pool->live_blocks != 0) {
        pool->dying = true;
        if (left < pool->charge.bytes)
            nm_charge_resize(&pool->charge, left);
    } else if (result == SUCCESS && pool != NULL) {
        remove_pool(pool);
    } else if (result == SUCCESS) {
        nm_witness_drop((uintptr_t)handle);
    }
    nm_unlock(&lock);
    return result;
}

int nm_hook_cuMemPoolExportToShareableHandle(void *shared, nm_cu_memory_pool handle, int type,
                                             unsigned long long flags)
{
    nm_lock(&lock);
    int result = nm_real_cuMemPoolExportToShareableHandle(shared, handle, type, flags);
    struct pool *pool = result == SUCCESS ? find(handle) : NULL;
    if (pool != NULL)
        pool->shared = nm_virtual_share(pool->shared, shared, type);
    nm_unlock(&lock);
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

/* The exporter is charged. */
int nm_hook_cuMemPoolImportFromShareableHandle(nm_cu_memory_pool *pool, void *shared, int type,
                                               unsigned long long flags)
{
    nm_lock(&lock);
    int result = nm_real_cuMemPoolImportFromShareableHandle(pool, shared, type, flags);
    if (result == SUCCESS && type == NM_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        nm_witness_hold((int)(intptr_t)shared, (uintptr_t)*pool);
    nm_unlock(&lock);
    if (result == SUCCESS)
        nm_memory_shared();
    return result;
}

int nm_hook_cuMemPoolTrimTo(nm_cu_memory_pool handle, size_t keep_bytes)
{
    int result = nm_real_cuMemPoolTrimTo(handle, keep_bytes);
    nm_lock(&lock);
    struct pool *pool = find(handle);
    if (pool != NULL && result == SUCCESS)
        pool->suspended = false;
    nm_unlock(&lock);
    nm_pools_settle();
    return result;
}

/* A lower threshold makes it give something back at the next synchronisation, without a free. */
int nm_hook_cuMemPoolSetAttribute(nm_cu_memory_pool handle, int name, void *value)
{
    int result = nm_real_cuMemPoolSetAttribute(handle, name, value);
    if (result == SUCCESS && name == NM_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        atomic_fetch_add(&frees, 1);
    return result;
}

/* Their charges stay until then: a charge too high is better than one too low. */
void nm_pools_suspend(nm_cu_device device)
{
    nm_lock(&lock);
    for (uint32_t i = 0; i < pool_count; i++)
        if (pools[i].handle != NULL && pools[i].device == device)
            pools[i].suspended = true;
    nm_unlock(&lock);
}

/* -- synchronisation -- */

int nm_hook_cuStreamSynchronize(nm_cu_stream stream)
{
    nm_launch_before_wait(stream, false, false);
    return settle_freed(nm_launch_after_wait(nm_real_cuStreamSynchronize(stream)));
}

int nm_hook_cuStreamSynchronize_ptsz(nm_cu_stream stream)
{
    nm_launch_before_wait(stream, true, false);
    return settle_freed(nm_launch_after_wait(nm_real_cuStreamSynchronize_ptsz(stream)));
}

int nm_hook_cuEventSynchronize(nm_cu_event event)
{
    return settle_freed(nm_launch_after_wait(nm_real_cuEventSynchronize(event)));
}

int nm_hook_cuCtxSynchronize(void)
{
    nm_launch_before_wait(NULL, false, true);
    return settle_freed(nm_launch_after_wait(nm_real_cuCtxSynchronize()));
}

int nm_hook_cuCtxSynchronize_v2(nm_cu_context context)
{
    return settle_freed(nm_launch_after_wait(nm_real_cuCtxSynchronize_v2(context)));
}
