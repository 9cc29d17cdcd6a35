/* sight.h: what of the node an env's process may be shown: the GPUs it holds or would get, and the
 * processes of its env.
 *
 * Knows: the lease, client.conf, what the manager says about the env's holdings.
 * Must not know: NVML (nvml.c shows it), the driver.
 *
 * With a lease: the lease's GPUs. Without one (nvidia-smi in a second terminal, a notebook that has
 * not begun): those that the env holds by its other tasks; and beside them, so that counts are what
 * a program will find, room for as many as a request of this process would get.
 */
#ifndef NM_SIGHT_H
#define NM_SIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ledger/ledger.h"

struct nm_sight_gpu {
    char uuid[NM_UUID_BYTES];
    /* as the manager said; a lease's own figures are charge.h's */
    uint64_t limit_bytes, used_bytes;
};

struct nm_sight {
    uint32_t count, expected; /* held; to be shown, where the node has so many */
    struct nm_sight_gpu gpu[NM_LEDGER_ROWS];
    uint32_t node_count; /* GPUs of the node, as the manager knows them */
    bool leased;
    uint64_t memory_per_gpu; /* of a GPU that it would get; 0: all of it */
};

/* May ask the manager, and wait a moment for the answer; what it said holds for a fifth of a
   second. */
void nm_sight_look(struct nm_sight *out);
/* Of `count` records that hold a pid at `offset`: those of the env's processes, moved to the
   front. How many. */
uint32_t nm_sight_keep_own(void *records, uint32_t count, size_t record_bytes, size_t offset);
bool nm_sight_is_own(uint32_t pid);

#endif
