/* sight.h: the GPUs and processes of the node that a process may see: the GPUs that it holds or
 * would get, and the processes of its environment.
 *
 * Knows: the lease, client.conf, the manager's answer about the environment's GPUs. Must not know:
 * NVML (nvml.c), the driver.
 *
 * With a lease: its GPUs. Without one (nvidia-smi in a second terminal): the GPUs that the
 * environment's other tasks hold, and as many more as a request would get, so that a program's
 * count is right.
 */
#ifndef NM_SIGHT_H
#define NM_SIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ledger/ledger.h"

struct nm_sight_gpu {
    char uuid[NM_UUID_BYTES];
    /* from the manager; a lease's own figures are in charge.h */
    uint64_t limit_bytes, used_bytes;
};

struct nm_sight {
    uint32_t count, expected; /* held; expected: to be shown, if the node has so many */
    struct nm_sight_gpu gpu[NM_LEDGER_ROWS];
    uint32_t node_count; /* GPUs of the node, from the manager */
    bool leased;
    uint64_t memory_per_gpu; /* of a GPU that a request would get; 0: all of it */
};

/* May ask the manager, and wait shortly for the answer, which holds for a fifth of a second. */
void nm_sight_look(struct nm_sight *out);
/* Moves the records of the environment's processes to the front and returns their number. Each
   of the `count` records has a pid at `offset`. */
uint32_t nm_sight_keep_own(void *records, uint32_t count, size_t record_bytes, size_t offset);
bool nm_sight_is_own(uint32_t pid);

#endif
