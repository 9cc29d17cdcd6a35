/* blocks.h: the charges of this process by address or handle, in a hash table.
 *
 * Knows: keys, locks, pages. Must not know: CUDA, the ledger.
 *
 * Constant time for any number of blocks. Memory of its own, since malloc may call the shim. Each
 * shard has a lock, held for a few loads and stores. A forked child forgets all blocks: it can free
 * none of them. A raw clone, which runs no handler, waits a while for threads that it does not
 * have, and goes on.
 */
#ifndef NM_BLOCKS_H
#define NM_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* The meaning of a key: addresses and handles of different kinds may have equal numbers. */
enum nm_block_kind {
    NM_BLOCK_NONE,
    NM_BLOCK_LINEAR,  /* key: address; owner: context */
    /* key: address, in LINEAR's space: a search for one kind finds the other; owner: pool
       (pools.c) */
    NM_BLOCK_POOLED,
    NM_BLOCK_ARRAY,   /* key: array or mipmapped array; owner: context */
    /* key: number of a physical allocation (virtual.c); owner: references here, and exports <<
       32 */
    NM_BLOCK_MEMORY,
    /* key: handle; owner: physical allocation; bytes: number of times that the program holds it */
    NM_BLOCK_HANDLE,
    NM_BLOCK_MAPPING, /* key: address; owner: physical allocation; bytes: of the mapping */
    NM_BLOCK_TILE,    /* key: a place in a sparse array; owner: physical allocation */
    /* key: a place in a multicast object; owner: number of the object; bytes: number of the
       allocation that is bound there */
    NM_BLOCK_BINDING,
    /* key: word in the epoll set (exports.c); owner: sweep; bytes: number of the allocation */
    NM_BLOCK_EXPORT,
    /* key: number of an imported allocation, or an imported pool; bytes: descriptor and inode
       (exports.c) */
    NM_BLOCK_WITNESS,
    /* key: address of a linear block; owner: number that has its charge now (virtual.c) */
    NM_BLOCK_RANGE,
    NM_BLOCK_BASE,    /* key: that number; bytes: that address */
    /* key: context, or green context (contexts.c); bytes: its own; owner: a green one's device */
    NM_BLOCK_CONTEXT,
    NM_BLOCK_ATTACHED, /* key: context; bytes: references of cuCtxAttach */
    /* key: context and limit (limits.c); bytes: taken by raising it; owner: context */
    NM_BLOCK_LIMIT,
    NM_BLOCK_MODULE,  /* key: module or library (modules.c); owner: context */
    /* key: executable graph and device (graphs.c); bytes: needed there by its allocation nodes */
    NM_BLOCK_GRAPH,
    NM_BLOCK_MANAGED, /* key: address of managed memory (suspendable.c) */
};

struct nm_block {
    uint64_t key;
    uint64_t owner;
    uint64_t bytes;
    uint32_t lease; /* number of the lease that was charged */
    uint8_t kind;   /* nm_block_kind */
    uint8_t row;    /* of the ledger */
};

/* Adds. False: no memory left for the table. *replaced gets the block that had this kind and key
   before (its free was not seen), else kind NM_BLOCK_NONE. */
bool nm_block_put(const struct nm_block *block, struct nm_block *replaced);
/* Removes; false if there is none. */
bool nm_block_take(enum nm_block_kind kind, uint64_t key, struct nm_block *out);
/* Reads; false if there is none. */
bool nm_block_get(enum nm_block_kind kind, uint64_t key, struct nm_block *out);
/* Sets the block's bytes, if they are `from`. */
bool nm_block_change_bytes(enum nm_block_kind kind, uint64_t key, uint64_t from, uint64_t to);
/* Removes all blocks of `kind` with that owner; `each` is called for them outside of all locks. */
void nm_block_take_owned(enum nm_block_kind kind, uint64_t owner,
                         void (*each)(const struct nm_block *block));
/* Moves all blocks of `kind` from owner `from` to `to`. */
void nm_block_rename_owner(enum nm_block_kind kind, uint64_t from, uint64_t to);
/* In a forked child, before it has threads: frees the locks that threads of the parent held. The
   table can then be read, but a block may appear twice or half written. */
void nm_block_break_locks(void);
/* In a forked child, before it has threads: empties the table and frees every lock. */
void nm_block_forget(void);

#endif
