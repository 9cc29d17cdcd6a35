/* blocks.c: see blocks.h. Open addressing with linear probing. A removal shifts the following
 * blocks back: without tombstones, a table stays fast after a million blocks.
 */
#include "account/blocks.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/prim.h"

enum { SHARD_BITS = 5, SHARDS = 1 << SHARD_BITS, FIRST_CAPACITY = 4096 / sizeof(struct nm_block) };

/* Held for some twenty nanoseconds. A thread that finds it taken spins, then sleeps for a
 * moment, since the holder was interrupted. A plain store releases it: half the price of a lock
 * that wakes sleepers. */
struct spin {
    _Atomic uint32_t taken;
};
enum { SPINS = 200, PAUSE_NS = 20000, ORPHANED = 500 * SPINS };

struct shard {
    struct spin lock;
    uint32_t live;
    uint32_t capacity; /* a power of two, or 0 */
    struct nm_block *blocks;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];
/* The first table of each shard is part of the library, so that the first blocks take no system
 * call: a program that confined itself after cuInit may allocate. Pages that are never written
 * take no memory. A forked child gets other tables, since these hold its parent's blocks. */
static struct nm_block first_blocks[SHARDS][FIRST_CAPACITY] __attribute__((aligned(4096)));
static bool first_taken[SHARDS];

static inline bool try_lock(struct spin *spin)
{
    return atomic_exchange_explicit(&spin->taken, 1, memory_order_acquire) == 0;
}

/* A raw clone runs no handler: the lock may be held by a thread of the parent. */
static __attribute__((noinline)) void await_lock(struct spin *spin)
{
    for (uint32_t tries = 2; !try_lock(spin); tries++) {
        if (tries >= ORPHANED && nm_forked())
            return;
        if (tries % SPINS == 0)
            nm_pause_ns(PAUSE_NS);
    }
}

static inline void lock(struct spin *spin)
{
    if (!try_lock(spin))
        await_lock(spin);
}

static inline void unlock(struct spin *spin)
{
    atomic_store_explicit(&spin->taken, 0, memory_order_release);
}

/* Kinds that share one space of keys. */
static inline enum nm_block_kind space_of(enum nm_block_kind kind)
{
    return kind == NM_BLOCK_POOLED ? NM_BLOCK_LINEAR : kind;
}

/* The upper bits choose the shard, the lower ones the place in it. Addresses differ in their
   middle bits, so all bits must count. */
static inline uint64_t hash_of(enum nm_block_kind kind, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)space_of(kind) << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static inline struct shard *shard_of(uint64_t hash)
{
    return &shards[hash >> (64 - SHARD_BITS)];
}

/* The place of the block, or the empty place for it. Needs one empty place. */
static inline uint32_t place_of(const struct nm_block *blocks, uint32_t capacity, uint64_t hash,
                                enum nm_block_kind kind, uint64_t key)
{
    uint32_t mask = capacity - 1, at = (uint32_t)hash & mask;
    while (blocks[at].kind != NM_BLOCK_NONE &&
           (blocks[at].key != key || space_of(blocks[at].kind) != space_of(kind)))
        at = (at + 1) & mask;
    return at;
}

static struct nm_block *first_pages(uint32_t number)
{
    if (first_taken[number])
        return NULL;
    first_taken[number] = true;
    return first_blocks[number];
}

static struct nm_block *pages(uint32_t capacity)
{
    void *fresh = mmap(NULL, capacity * sizeof(struct nm_block), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return fresh != MAP_FAILED ? fresh : NULL;
}

/* If no memory is left, the old table fills up to its last empty place. */
static __attribute__((noinline)) bool grow(struct shard *shard)
{
    uint32_t capacity = shard->capacity != 0 ? shard->capacity * 2 : FIRST_CAPACITY,
             number = (uint32_t)(shard - shards);
    struct nm_block *fresh = shard->capacity == 0 ? first_pages(number) : NULL;
    if (fresh == NULL)
        fresh = pages(capacity);
    if (fresh == NULL)
        return shard->live + 1 < shard->capacity;
    for (const struct nm_block *block = shard->blocks; block < shard->blocks + shard->capacity;
         block++)
        if (block->kind != NM_BLOCK_NONE)
            fresh[place_of(fresh, capacity, hash_of(block->kind, block->key), block->kind,
                           block->key)] = *block;
    struct nm_block *old = shard->blocks;
    uint32_t old_capacity = shard->capacity;
    /* in this order: a clone made in between finds a readable table */
    shard->blocks = fresh;
    shard->capacity = capacity;
    if (old != NULL && old != first_blocks[number])
        munmap(old, old_capacity * sizeof(struct nm_block));
    return true;
}

/* At most half full: probes stay short. */
static inline bool make_room(struct shard *shard)
{
    return (shard->live + 1) * 2 <= shard->capacity || grow(shard);
}

static inline void remove_at(struct shard *shard, uint32_t hole)
{
    uint32_t mask = shard->capacity - 1;
    for (uint32_t at = (hole + 1) & mask; shard->blocks[at].kind != NM_BLOCK_NONE;
         at = (at + 1) & mask) {
        uint32_t home = (uint32_t)hash_of(shard->blocks[at].kind, shard->blocks[at].key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* a search for it passes the hole */
            shard->blocks[hole] = shard->blocks[at];
            hole = at;
        }
    }
    shard->blocks[hole].kind = NM_BLOCK_NONE;
    shard->live--;
}

bool nm_block_put(const struct nm_block *block, struct nm_block *replaced)
{
    enum nm_block_kind kind = block->kind;
    uint64_t key = block->key, hash = hash_of(kind, key);
    struct shard *shard = shard_of(hash);
    replaced->kind = NM_BLOCK_NONE;
    lock(&shard->lock);
    bool room = make_room(shard);
    if (room) {
        struct nm_block *place =
            &shard->blocks[place_of(shard->blocks, shard->capacity, hash, kind, key)];
        if (place->kind != NM_BLOCK_NONE)
            *replaced = *place;
        else
            shard->live++;
        *place = *block;
    }
    unlock(&shard->lock);
    return room;
}

static inline bool find(enum nm_block_kind kind, uint64_t key, struct nm_block *out, bool remove)
{
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = shard_of(hash);
    bool found = false;
    lock(&shard->lock);
    if (shard->live != 0) {
        uint32_t at = place_of(shard->blocks, shard->capacity, hash, kind, key);
        found = shard->blocks[at].kind != NM_BLOCK_NONE;
        if (found)
            *out = shard->blocks[at];
        if (found && remove)
            remove_at(shard, at);
    }
    unlock(&shard->lock);
    return found;
}

bool nm_block_take(enum nm_block_kind kind, uint64_t key, struct nm_block *out)
{
    return find(kind, key, out, true);
}

bool nm_block_get(enum nm_block_kind kind, uint64_t key, struct nm_block *out)
{
    return find(kind, key, out, false);
}

bool nm_block_change_bytes(enum nm_block_kind kind, uint64_t key, uint64_t from, uint64_t to)
{
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = shard_of(hash);
    bool found = false;
    lock(&shard->lock);
    if (shard->live != 0) {
        struct nm_block *block =
            &shard->blocks[place_of(shard->blocks, shard->capacity, hash, kind, key)];
        found = block->kind == kind && block->bytes == from;
        if (found)
            block->bytes = to;
    }
    unlock(&shard->lock);
    return found;
}

/* Removes some such blocks of a shard. Each call starts at the first place, since other threads
 * may move blocks between two calls. Within a call a removal may move another block to its
 * place: `at` stays there. */
static uint32_t take_some(struct shard *shard, enum nm_block_kind kind, uint64_t owner,
                          struct nm_block *out, uint32_t most)
{
    uint32_t taken = 0;
    lock(&shard->lock);
    for (uint32_t at = 0; at < shard->capacity && taken < most;) {
        const struct nm_block *block = &shard->blocks[at];
        if (block->kind == kind && block->owner == owner) {
            out[taken++] = *block;
            remove_at(shard, at);
        } else {
            at++;
        }
    }
    unlock(&shard->lock);
    return taken;
}

void nm_block_take_owned(enum nm_block_kind kind, uint64_t owner,
                         void (*each)(const struct nm_block *block))
{
    enum { SOME = 64 };
    struct nm_block blocks[SOME];
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        uint32_t taken;
        do {
            taken = take_some(shard, kind, owner, blocks, SOME);
            for (uint32_t i = 0; i < taken; i++)
                each(&blocks[i]);
        } while (taken == SOME);
    }
}

void nm_block_rename_owner(enum nm_block_kind kind, uint64_t from, uint64_t to)
{
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        lock(&shard->lock);
        for (uint32_t at = 0; at < shard->capacity; at++)
            if (shard->blocks[at].kind == kind && shard->blocks[at].owner == from)
                shard->blocks[at].owner = to;
        unlock(&shard->lock);
    }
}

void nm_block_break_locks(void)
{
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
        unlock(&shard->lock);
}

void nm_block_forget(void)
{
    /* the pages stay: another thread of the parent may have been between two stores */
    memset(shards, 0, sizeof shards);
}
