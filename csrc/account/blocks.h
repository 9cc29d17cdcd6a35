/* blocks.h: what this process has been charged for, by address or handle: a hash table of its own.
 *
 * Knows: keys, locks, pages.
 * Must not know: CUDA, the ledger.
 *
 * Constant time for any number of live ones; memory of its own (no malloc: malloc may call us);
 * shards, each with a lock that is held for a few loads and stores. A forked child forgets
 * everything: nothing that it could free is charged. A raw clone, which no handler prepared, waits
 * a while for threads that are not in it, and goes on.
 */
#ifndef NM_BLOCKS_H
#define NM_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* What a key is: addresses and handles of different kinds may have equal numbers. */
enum nm_block_kind {
    NM_BLOCK_NONE,
    NM_BLOCK_LINEAR,  /* key: address; owner: context */
    /* key: address, of the same space as LINEAR's: asked for the one, the other is found; owner:
       pool (pools.c) */
    NM_BLOCK_POOLED,
    NM_BLOCK_ARRAY,   /* key: array or mipmapped array; owner: context */
    /* key: number of a physical allocation (virtual.c); owner: references here, and exports <<
       32 */
    NM_BLOCK_MEMORY,
    /* key: handle; owner: physical allocation; bytes: how often the program holds the handle */
    NM_BLOCK_HANDLE,
    NM_BLOCK_MAPPING, /* key: address; owner: physical allocation; bytes: of the mapping */
    NM_BLOCK_TILE,    /* key: a place in a sparse array; owner: physical allocation */
    /* key: a place in a multicast object; owner: that object's number; bytes: number of what is
       bound there */
    NM_BLOCK_BINDING,
    /* key: word in the set of exports.c; owner: sweep; bytes: number of the physical allocation */
    NM_BLOCK_EXPORT,
    /* key: number of an imported allocation, or an imported pool; bytes: descriptor and inode
       (exports.c) */
    NM_BLOCK_WITNESS,
    /* key: address of a linear block; owner: number that its charge has moved to (virtual.c) */
    NM_BLOCK_RANGE,
    NM_BLOCK_BASE,    /* key: that number; bytes: that address */
    /* key: context, or green context (contexts.c); bytes: that it takes itself; owner: a green
       one's device */
    NM_BLOCK_CONTEXT,
    NM_BLOCK_ATTACHED, /* key: context; bytes: how often cuCtxAttach has counted it up */
    /* key: context and limit (limits.c); bytes: that raising it took; owner: context */
    NM_BLOCK_LIMIT,
    NM_BLOCK_MODULE,  /* key: module or library (modules.c); owner: context */
    /* key: executable graph and device (graphs.c); bytes: that its allocation nodes need there */
    NM_BLOCK_GRAPH,
};

struct nm_block {
    uint64_t key;
    uint64_t owner;
    uint64_t bytes;
    uint32_t lease; /* number of the lease that was charged */
    uint8_t kind;   /* nm_block_kind */
    uint8_t row;    /* of the ledger */
};

/* Adds. False: no memory left for the table. *replaced gets what stood under that kind and key
 * (its memory must be gone by a way that we did not see), else kind NM_BLOCK_NONE. */
bool nm_block_put(const struct nm_block *block, struct nm_block *replaced);
/* Removes; false where there is none. */
bool nm_block_take(enum nm_block_kind kind, uint64_t key, struct nm_block *out);
/* Reads; false where there is none. */
bool nm_block_get(enum nm_block_kind kind, uint64_t key, struct nm_block *out);
/* Sets the block's bytes, if they are `from`. */
bool nm_block_change_bytes(enum nm_block_kind kind, uint64_t key, uint64_t from, uint64_t to);
/* Removes all blocks of `kind` with that owner; `each` is called for them outside of all locks. */
void nm_block_take_owned(enum nm_block_kind kind, uint64_t owner,
                         void (*each)(const struct nm_block *block));
/* Gives all blocks of `kind` with owner `from` to `to`. */
void nm_block_rename_owner(enum nm_block_kind kind, uint64_t from, uint64_t to);
/* In a forked child, before it has threads: frees the locks that threads of the parent held. The
 * table can be read then: a block may be seen twice, or half written. */
void nm_block_break_locks(void);
/* In a forked child, before it has threads: empties the table and frees every lock. */
void nm_block_forget(void);

#endif
