/* exports.h: descriptors by which memory has left this process, and when the last copy of one is
 * closed.
 *
 * Knows: epoll sets, descriptors. Must not know: CUDA, the ledger, what the memory is.
 *
 * The driver keeps exported memory while the descriptor is open anywhere: as a copy, in a socket's
 * queue, in another process. The kernel takes an open file out of an epoll set when its last
 * descriptor is closed, and the set keeps no file open. So the set of all descriptors that this
 * process exported tells which exports have ended. Where it cannot tell (the descriptor cannot be
 * polled, the program closed the set), an export lasts as long as the process.
 *
 * An import holds a copy of the descriptor (a witness) for as long as it lives, so that the
 * exporter's set tells of it. Witnesses leave the program a quarter of the descriptors that it may
 * have open: an import beyond that has none.
 *
 * The caller serialises calls, but those for witnesses of different keys.
 */
#ifndef NM_EXPORTS_H
#define NM_EXPORTS_H

#include <stdint.h>

/* The export of `number` ends with the last copy of fd; -1: with the process. */
void nm_exports_add(int fd, uint64_t number);
/* Calls `ended` with the number of each export that has ended since. */
void nm_exports_sweep(void (*ended)(uint64_t number));

/* Holds a copy of fd under that key, until it is dropped. */
void nm_witness_hold(int fd, uint64_t key);
void nm_witness_drop(uint64_t key);

/* In a forked child, before it has threads. Needs the parent's blocks, with their locks free. */
void nm_exports_forget(void);

#endif
