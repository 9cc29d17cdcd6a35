/* wish.h: what the environment variables wish for, and what a grant makes of CUDA_VISIBLE_DEVICES.
 * Pure: text in, text out.
 *
 * Knows: the rules of these variables.
 * Must not know: the environment itself, the wire, the manager.
 *
 * CUDA_VISIBLE_DEVICES is read as the driver reads it: entries up to the first that is neither an
 * index nor a UUID. No entry (empty, -1, "none") is CPU, always. Else, by what NODEMGR_VISIBLE (the
 * mark of the value that we set) says:
 * no mark:    the user's own list: a wish for as many GPUs. Where another number was granted (one
 * rank's entry of a task's lease), its entries are indices into the lease, modulo its size.
 *   the same:   our value, inherited: no wish; kept, as long as it lies within the grant.
 *   different:  a child's choice out of our value: members of it, or else indices into it. No wish.
 */
#ifndef NM_WISH_H
#define NM_WISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_VISIBLE_BYTES 1024 /* of a CUDA_VISIBLE_DEVICES; a longer one is no wish */

struct nm_wish_input { /* NULL: not set */
    const char *cuda_visible, *nodemgr_visible, *nodemgr_gpus, *local_world_size;
    int64_t gpus; /* said by the caller; -1: not */
};

enum nm_visible_rule { NM_VISIBLE_ALL, NM_VISIBLE_KEEP, NM_VISIBLE_MEMBERS, NM_VISIBLE_POSITIONS };

struct nm_wish {
    bool cpu;
    bool hidden;    /* CUDA_VISIBLE_DEVICES itself shows no device: it may stay as it is */
    bool has_gpus;  /* else the manager's default for the env holds */
    uint64_t gpus;  /* at least world */
    uint64_t world; /* 0: not said */
    enum nm_visible_rule rule;
    char list[NM_VISIBLE_BYTES], base[NM_VISIBLE_BYTES];
};

void nm_wish_read(struct nm_wish *wish, const struct nm_wish_input *input);
/* What to put into CUDA_VISIBLE_DEVICES, given the lease's own value (a list with at least one
   entry). */
void nm_wish_visible(const struct nm_wish *wish, const char *granted, char out[NM_VISIBLE_BYTES]);

#endif
