/* huge.h: huge pages for the manager's Python. Part of the manager's extension alone.
 *
 * Knows: mmap, madvise, how malloc grows its heap. Must not know: Python's objects, /proc.
 *
 * While the manager sleeps, the processor drops its address translations. A new look-up takes
 * several reads of memory, on a virtual machine some twenty. A request touches hundreds of small
 * pages, or a dozen huge ones.
 */
#ifndef NM_HUGE_H
#define NM_HUGE_H

#include <stddef.h>

/* cffi: begin */
enum { NM_HUGE_BYTES = 2097152, NM_HUGE_HEAP_BYTES = 16777216 };

/* An arena of Python's allocator (PyObjectArenaAllocator): NULL without memory. Called with the
   interpreter's lock held. */
void *nm_huge_arena(void *context, size_t bytes);
/* Returns an arena of nm_huge_arena, or one that was mapped before that was set. */
void nm_huge_return(void *context, void *arena, size_t bytes);
/* Makes the first NM_HUGE_HEAP_BYTES that malloc gives from now on come from huge pages, too. */
void nm_huge_heap(void);
/* Moves the memory between two addresses into huge pages, as far as whole ones fit: 0, or -errno
   if the kernel refuses. */
int nm_huge_gather(size_t begin, size_t end);
/* cffi: end */

#endif
