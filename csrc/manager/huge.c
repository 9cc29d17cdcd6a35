/* huge.c: see huge.h. */
#include "manager/huge.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum { SPACE_BYTES = 32 * NM_HUGE_BYTES, BLOCK_BYTES = 65536, MOST_BLOCKS = 64 };

/* addresses that are mapped and not in use; untouched ones take no memory */
static uintptr_t space, space_end;

static uintptr_t up(uintptr_t address)
{
    return (address + NM_HUGE_BYTES - 1) & ~(uintptr_t)(NM_HUGE_BYTES - 1);
}

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void new_space(void)
{
    void *memory = map(SPACE_BYTES + NM_HUGE_BYTES);
    if (memory == NULL)
        return;
    space = up((uintptr_t)memory);
    space_end = space + SPACE_BYTES;
    /* without huge pages, the pages are small */
    madvise((void *)space, SPACE_BYTES, MADV_HUGEPAGE);
}

void *nm_huge_arena(void *context, size_t bytes)
{
    (void)context;
    if (space_end - space < bytes)
        new_space();
    if (space_end - space < bytes)
        return map(bytes);
    space += bytes;
    return (void *)(space - bytes);
}

void nm_huge_return(void *context, void *arena, size_t bytes)
{
    (void)context;
    munmap(arena, bytes);
}

void nm_huge_heap(void)
{
#ifdef M_TOP_PAD
    void *blocks[MOST_BLOCKS];
    unsigned count = 0;
    uintptr_t end = (uintptr_t)sbrk(0);
    mallopt(M_TOP_PAD, NM_HUGE_HEAP_BYTES); /* the heap grows by this much at a time */
    while (count < MOST_BLOCKS && (uintptr_t)sbrk(0) == end)
        blocks[count++] = malloc(BLOCK_BYTES); /* and grows now */
    uintptr_t first = up(end), last = (uintptr_t)sbrk(0);
    if (first < last)
        madvise((void *)first, last - first, MADV_HUGEPAGE);
    while (count > 0)
        free(blocks[--count]);
#endif
}

int nm_huge_gather(size_t begin, size_t end)
{
    uintptr_t first = up(begin), last = end & ~(uintptr_t)(NM_HUGE_BYTES - 1);
    if (first >= last)
        return 0;
    /* before Linux 6.1: the kernel moves it in its own time */
    madvise((void *)first, last - first, MADV_HUGEPAGE);
    return madvise((void *)first, last - first, MADV_COLLAPSE) == 0 ? 0 : -errno;
}
