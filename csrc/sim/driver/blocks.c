/* blocks.c: device addresses and the blocks at them.
 *
 * Knows: regions of address space cut into equal blocks, so that taking, freeing and finding a
 * block take the same time for any number of blocks. Must not know: the charge for memory
 * (driver.c), its owner.
 *
 * An address is one of the host's address space, as with a real driver, backed by nothing before a
 * copy. The first bytes of a block are kept, up to the limits below: tests see their own bytes
 * again, and a program that fills 80 GiB does not fill the host. The rest reads as zeros.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/driver/driver.h"

#define KEPT_BLOCK_BYTES (UINT64_C(64) << 20)
#define KEPT_PROCESS_BYTES (UINT64_C(512) << 20)

enum {
    SMALLEST_SHIFT = 9, /* 512 bytes: the granularity of real allocations */
    LARGEST_SHIFT = 46,
    REGION_SHIFT = 40, /* a region spans 1 TiB, or one block */
    REGION_BLOCKS = 1 << 22,
    REGIONS = 256,
};

typedef struct {
    uint64_t base;
    uint32_t shift;
    uint32_t room;       /* blocks that fit */
    uint32_t used;       /* blocks ever taken */
    uint32_t first_free; /* index + 1 of a freed one */
    bool below_4g;
    bool readable; /* false if the host can only reserve addresses */
    nm_sim_block *blocks;
} region;

static uint64_t kept_part(uint64_t bytes) {
    return bytes < KEPT_BLOCK_BYTES ? bytes : KEPT_BLOCK_BYTES;
}

static region regions[REGIONS];
static int region_count;

void nm_blocks_reset(void) { region_count = 0; }

/* ---- regions
   ----------------------------------------------------------------------------- */

static void *reserve(uint64_t bytes, int protection, bool below_4g) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#ifdef MAP_32BIT
    if (below_4g) flags |= MAP_32BIT;
#else
    if (below_4g) return NULL;
#endif
    void *base = mmap(NULL, bytes, protection, flags, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* Blocks aligned to their own size: a block more than asked is reserved, and the base rounded
   up. */
static bool open_region(region *opened, uint32_t shift, uint32_t room, bool below_4g) {
    uint64_t bytes = ((uint64_t)room + 1) << shift;
    void *base = reserve(bytes, PROT_READ | PROT_WRITE, below_4g);
    bool readable = base != NULL;
    if (!base) base = reserve(bytes, PROT_NONE, below_4g);
    if (!base) return false;
    nm_sim_block *blocks =
        reserve((uint64_t)room * sizeof(nm_sim_block), PROT_READ | PROT_WRITE, false);
    if (!blocks) {
        munmap(base, bytes);
        return false;
    }
    madvise(base, bytes, MADV_DONTDUMP);
    madvise(base, bytes, MADV_NOHUGEPAGE);
    *opened = (region){
        .base = nm_round_up((uint64_t)(uintptr_t)base, UINT64_C(1) << shift),
        .shift = shift,
        .room = room,
        .below_4g = below_4g,
        .readable = readable,
        .blocks = blocks,
    };
    return true;
}

/* The largest that the host's limits allow. */
static region *new_region(uint32_t shift, bool below_4g) {
    if (region_count == REGIONS) return NULL;
    uint64_t span = UINT64_C(1) << (below_4g ? 28 : REGION_SHIFT);
    uint64_t room = span >> shift;
    if (room < 1) room = 1;
    if (room > REGION_BLOCKS) room = REGION_BLOCKS;
    for (; room >= 1; room /= 2) {
        if (open_region(&regions[region_count], shift, (uint32_t)room, below_4g))
            return &regions[region_count++];
    }
    return NULL;
}

static region *region_with_room(uint32_t shift, bool below_4g) {
    for (int index = region_count - 1; index >= 0; index--) {
        region *candidate = &regions[index];
        if (candidate->shift != shift || candidate->below_4g != below_4g) continue;
        if (candidate->first_free || candidate->used < candidate->room) return candidate;
    }
    return new_region(shift, below_4g);
}

static region *region_of(uint64_t address) {
    static _Thread_local int last;
    if (last < region_count && address - regions[last].base < (uint64_t)regions[last].used
                                                                  << regions[last].shift)
        return &regions[last];
    for (int index = 0; index < region_count; index++) {
        if (address - regions[index].base >= (uint64_t)regions[index].used << regions[index].shift)
            continue;
        last = index;
        return &regions[index];
    }
    return NULL;
}

/* ---- blocks
   ----------------------------------------------------------------------------- */

static uint32_t shift_for(uint64_t bytes) {
    uint32_t shift = SMALLEST_SHIFT;
    while (shift < LARGEST_SHIFT && (UINT64_C(1) << shift) < bytes) shift++;
    return shift;
}

nm_sim_block *nm_block_new(nm_use use, uint64_t bytes, uint64_t alignment, bool below_4g) {
    uint32_t shift = shift_for(bytes > alignment ? bytes : alignment);
    if (bytes > UINT64_C(1) << shift) return NULL;
    region *home = region_with_room(shift, below_4g);
    if (!home) return NULL;
    uint32_t index = home->first_free ? home->first_free - 1 : home->used++;
    nm_sim_block *block = &home->blocks[index];
    if (home->first_free) home->first_free = block->next_free;
    *block = (nm_sim_block){
        .address = home->base + ((uint64_t)index << shift),
        .bytes = bytes,
        .use = (uint8_t)use,
        .device = -1,
    };
    return block;
}

/* Returns the host's memory under a block. Blocks smaller than a page share one, and keep it. */
static void drop_bytes(const nm_sim_block *block, uint32_t shift) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (UINT64_C(1) << shift < page) return;
    madvise((void *)(uintptr_t)block->address, nm_round_up(block->bytes, page), MADV_DONTNEED);
}

void nm_block_free(nm_sim_block *block) {
    region *home = region_of(block->address);
    if (block->kept) nm_the_driver.kept_bytes -= kept_part(block->bytes);
    if (block->kept || block->use == NM_MANAGED || block->use == NM_HOST)
        drop_bytes(block, home->shift);
    free(block->mappings);
    nm_list_remove(&block->link);
    uint32_t index = (uint32_t)((block->address - home->base) >> home->shift);
    *block = (nm_sim_block){.next_free = home->first_free};
    home->first_free = index + 1;
}

nm_sim_block *nm_block_at(uint64_t address) {
    region *home = region_of(address);
    if (!home) return NULL;
    nm_sim_block *block = &home->blocks[(address - home->base) >> home->shift];
    return block->use != NM_UNUSED && address - block->address < block->bytes ? block : NULL;
}

uint32_t nm_mapping_from(const nm_sim_block *block, uint64_t offset) {
    uint32_t low = 0, high = block->mapping_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (block->mappings[middle].offset + block->mappings[middle].bytes <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- bytes
   ----------------------------------------------------------------------------- */

/* At the first write to a block or mapping: whether its beginning is kept from now on. */
static void decide_kept(bool *kept, uint64_t bytes) {
    if (*kept || nm_the_driver.kept_bytes + kept_part(bytes) > KEPT_PROCESS_BYTES) return;
    *kept = true;
    nm_the_driver.kept_bytes += kept_part(bytes);
}

/* How many of `bytes` at `offset` are within the kept beginning of a piece of `total`. */
static uint64_t kept_from(uint64_t total, uint64_t offset, uint64_t bytes) {
    uint64_t part = kept_part(total);
    return offset >= part ? 0 : bytes < part - offset ? bytes : part - offset;
}

/* The same as nm_block_bytes, in a reservation: every byte must be mapped. */
static bool mapped_bytes(nm_sim_block *block, uint64_t offset, uint64_t bytes, bool for_writing,
                         uint64_t *kept) {
    uint64_t at = offset, end = offset + bytes;
    for (uint32_t index = nm_mapping_from(block, at); at < end; index++) {
        if (index == block->mapping_count || block->mappings[index].offset > at) return false;
        nm_mapping *mapping = &block->mappings[index];
        uint64_t inside = at - mapping->offset, rest = mapping->bytes - inside,
                 wanted = end - at < rest ? end - at : rest;
        if (for_writing) decide_kept(&mapping->kept, mapping->bytes);
        /* kept bytes count up to the first gap */
        if (mapping->kept && *kept == at - offset)
            *kept += kept_from(mapping->bytes, inside, wanted);
        at += wanted;
    }
    return true;
}

bool nm_block_bytes(uint64_t address, uint64_t bytes, bool for_writing, char **host,
                    uint64_t *kept) {
    nm_sim_block *block = nm_block_at(address);
    uint64_t offset = block ? address - block->address : 0;
    *host = (char *)(uintptr_t)address;
    *kept = 0;
    if (!block || bytes > block->bytes - offset) return false;
    if (block->use == NM_RESERVATION) {
        if (!mapped_bytes(block, offset, bytes, for_writing, kept)) return false;
    } else if (block->use == NM_MANAGED || block->use == NM_HOST) {
        *kept = bytes;
    } else {
        if (for_writing) decide_kept(&block->kept, block->bytes);
        if (block->kept) *kept = kept_from(block->bytes, offset, bytes);
    }
    if (!region_of(address)->readable) *kept = 0;
    return true;
}

void nm_block_forget_bytes(uint64_t address, uint64_t bytes) {
    nm_the_driver.kept_bytes -= kept_part(bytes);
    madvise((void *)(uintptr_t)address, bytes, MADV_DONTNEED);
}
