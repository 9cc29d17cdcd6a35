/*
 * Memory of huge pages for the manager's Python.
 *
 * Knows: mmap, madvise, and how malloc grows its heap. Must not know: Python's objects, /proc. Part
 * of the manager's extension alone.
 *
 * A manager sleeps between requests, and meanwhile the processor forgets where its pages are. To
 * look one up again costs several reads of memory, on a virtual machine some twenty; a request
 * touches hundreds of small pages, and a dozen huge ones.
 */
#ifndef NM_HUGE_H
#define NM_HUGE_H

#include <stddef.h>

/* cffi: begin */
enum { NM_HUGE_BYTES = 2097152, NM_HUGE_HEAP_BYTES = 16777216 };

/* An arena of Python's allocator (PyObjectArenaAllocator): NULL without memory. Called by
   whoever holds the interpreter's lock. */
void *nm_huge_arena(void *context, size_t bytes);
/* Gives back what nm_huge_arena gave, or what was mapped before it was asked. */
void nm_huge_return(void *context, void *arena, size_t bytes);
/* What malloc gives from now on comes from huge pages, too, for the first NM_HUGE_HEAP_BYTES. */
void nm_huge_heap(void);
/* Moves what lies between two addresses into huge pages, as far as whole ones fit in: 0, or
   -errno where the kernel will not. */
int nm_huge_gather(size_t begin, size_t end);
/* cffi: end */

#endif
