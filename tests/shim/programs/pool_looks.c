/* pool_looks.c: a stream is synchronised while another thread looks at the pools, and has seen this
 * one before the stream got there.
 *
 * Knows: the insides of pools.c, which it includes, with a driver and a ledger of its own: each
 * step of the race is waited for. Exit 0; what is still charged in the end: exit 1, with a line.
 */
#include "memory/pools.c"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_BYTES = 64 << 20 };
static const nm_cu_stream FREEING = (nm_cu_stream)0x10, OTHER = (nm_cu_stream)0x20;

static sem_t looks, has_decided;
static _Atomic uint64_t reserved_bytes = BLOCK_BYTES;
static _Atomic int looks_begun;
static _Thread_local bool is_freeing;

/* -- the driver: the pool gives everything back when the stream that frees is synchronised -- */

/* The first look takes so long that the other thread decides meanwhile. */
static int pool_attribute(nm_cu_memory_pool pool, int name, void *value)
{
    (void)pool;
    uint64_t reserved = atomic_load(&reserved_bytes);
    *(uint64_t *)value = name == NM_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : 0;
    if (name == NM_CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && atomic_fetch_add(&looks_begun, 1) == 0) {
        sem_post(&looks);
        sem_wait(&has_decided);
    }
    return SUCCESS;
}

static int synchronize(nm_cu_stream stream)
{
    if (stream == FREEING) {
        sem_wait(&looks);
        atomic_store(&reserved_bytes, 0);
    }
    return SUCCESS;
}

void *_Atomic nm_originals[NM_SYMBOL_COUNT];

void *nm_original_look_up(enum nm_symbol symbol)
{
    return symbol == NM_SYMBOL_cuMemPoolGetAttribute ? (void *)pool_attribute
           : symbol == NM_SYMBOL_cuStreamSynchronize ? (void *)synchronize : NULL;
}

/* -- locks: whoever wants one has decided to look -- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void nm_lock(struct nm_lock *wanted)
{
    (void)wanted;
    if (is_freeing)
        sem_post(&has_decided);
    pthread_mutex_lock(&mutex);
}

void nm_unlock(struct nm_lock *held)
{
    (void)held;
    pthread_mutex_unlock(&mutex);
}

/* -- the ledger, and what is not asked for here -- */

bool nm_charge_resize(struct nm_charge *charge, uint64_t bytes)
{
    charge->bytes = bytes;
    return true;
}

bool nm_pending_settle(void) { return false; }
int nm_launch_after_wait(int result) { return result; }
int nm_launch_await_memory(void) { return NM_CUDA_SUCCESS; }
void nm_launch_before_wait(nm_cu_stream stream, bool per_thread, bool all)
{
    (void)stream, (void)per_thread, (void)all;
}
bool nm_virtual_settle(void) { return false; }
void nm_virtual_inherit(uint64_t number, struct nm_charge *charge) { (void)number, (void)charge; }

#pragma GCC diagnostic ignored "-Wunused-parameter"
void nm_say(const char *format, ...) { abort(); }
nm_cu_device nm_current_device(void) { abort(); }
uint64_t nm_virtual_share(uint64_t number, const void *handle, int type) { abort(); }
void nm_witness_hold(int fd, uint64_t key) { abort(); }
void nm_witness_drop(uint64_t key) { abort(); }
void nm_memory_shared(void) { abort(); }
bool nm_block_put(const struct nm_block *block, struct nm_block *replaced) { abort(); }
bool nm_block_take(enum nm_block_kind kind, uint64_t key, struct nm_block *out) { abort(); }
bool nm_charge_take(struct nm_charge *charge, nm_cu_device device, uint64_t bytes) { abort(); }
void nm_charge_give_back(struct nm_charge *charge) { abort(); }
int nm_charge_refusal(const struct nm_charge *charge) { abort(); }
void nm_charge_keep(const struct nm_charge *charge, enum nm_block_kind kind, uint64_t key,
                    uint64_t owner)
{
    abort();
}
void nm_pending_add(const struct nm_block *block, nm_cu_stream stream,
                    nm_type_cuEventRecord *record)
{
    abort();
}

/* -- the race -- */

static void *synchronize_stream(void *stream)
{
    is_freeing = stream == FREEING;
    nm_hook_cuStreamSynchronize((nm_cu_stream)stream);
    if (is_freeing)
        sem_post(&has_decided);
    return NULL;
}

int main(void)
{
    pthread_t other, freeing;
    struct pool *pool = enter((nm_cu_memory_pool)0x1, 0);
    pool->charge = (struct nm_charge){.row = 0, .bytes = BLOCK_BYTES};
    pool->live_blocks = 1;
    sem_init(&looks, 0, 0);
    sem_init(&has_decided, 0, 0);
    note_freed(&(struct nm_block){.kind = NM_BLOCK_POOLED, .owner = 0});
    pthread_create(&other, NULL, synchronize_stream, OTHER);
    pthread_create(&freeing, NULL, synchronize_stream, FREEING);
    pthread_join(other, NULL);
    pthread_join(freeing, NULL);
    if (pool->charge.bytes == 0)
        return 0;
    fprintf(stderr, "pool_looks: %llu bytes are still charged\n",
            (unsigned long long)pool->charge.bytes);
    return 1;
}
