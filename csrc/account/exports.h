/* exports.h: exported descriptors of memory, and when the last copy of each is closed.
 *
 * Knows: epoll sets, descriptors. Must not know: CUDA, the ledger, the memory behind a descriptor.
 * The caller serialises calls, except those for witnesses of different keys.
 */
#ifndef NM_EXPORTS_H
#define NM_EXPORTS_H

#include <stdint.h>

/* Records an export of `number` by fd. The driver keeps the memory while the descriptor is open
 * anywhere, in a socket's queue or another process too. The kernel removes a file from an epoll
 * set when its last descriptor is closed: the set of all exports shows which have ended. An
 * export with fd -1, or one that cannot be polled, ends with the process; so do all if the
 * program closes the set. */
void nm_exports_add(int fd, uint64_t number);
/* Calls `ended` with the number of each export that has ended. */
void nm_exports_sweep(void (*ended)(uint64_t number));

/* An import holds a copy of its descriptor under that key until it is dropped, so that the
 * exporter's set still has it. An import gets none if its copy would take one of the last
 * quarter of the numbers that the program may open. */
void nm_witness_hold(int fd, uint64_t key);
void nm_witness_drop(uint64_t key);

/* In a forked child, before it has threads. Needs the parent's blocks, with free locks. */
void nm_exports_forget(void);

#endif
