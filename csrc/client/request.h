/* request.h: a request of this process, from the caller's arguments and the environment's
 * variables; and the value that a grant gives to CUDA_VISIBLE_DEVICES.
 *
 * Knows: the rules of these variables. nm_request_read and nm_request_visible are pure: text in,
 * text out.
 * Must not know: the wire, the manager.
 */
#ifndef NM_REQUEST_H
#define NM_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_VISIBLE_BYTES 1024 /* of a CUDA_VISIBLE_DEVICES; a longer one is not read */
#define NM_COMMAND_BYTES 200
#define NM_CLASS_BYTES 64
#define NM_WORKER_GPU_BYTES 64

struct nm_variables { /* NULL: not set */
    const char *cuda_visible, *nodemgr_visible, *nodemgr_gpus, *local_world_size;
};

/* CUDA_VISIBLE_DEVICES is read as the driver reads it: the list ends at the first entry that is
 * neither an index nor a UUID, and a list without entries (empty, -1, "none") means CPU. The
 * meaning of its entries depends on NODEMGR_VISIBLE, a copy of the value that the client has set:
 *   POSITIONS  no copy: the user's list asks for as many GPUs as it has entries. If another number
 *              is granted, they are indices into the lease: modulo its size, unless the number was
 *              named otherwise.
 *   KEEP       the same: it asks for no number, and is kept if the grant has all of its entries.
 *   MEMBERS    another: a child chose from the copy. It asks for no number; its entries are
 *              members of the copy, else indices into it. The list ends at one that is neither.
 *   ALL        no list: the whole grant. */
enum nm_visible_rule { NM_VISIBLE_ALL, NM_VISIBLE_KEEP, NM_VISIBLE_MEMBERS, NM_VISIBLE_POSITIONS };

enum nm_wish {
#define NM_WISH(key, sign, variable, unit, least, most) NM_WISH_##key,
#include "wire/wishes.def"
#undef NM_WISH
    NM_WISH_COUNT
};

struct nm_request {
    /* set by nm_request_read */
    bool cpu;       /* no GPU is asked for */
    bool hidden;    /* CUDA_VISIBLE_DEVICES itself shows no device: it may stay as it is */
    bool has_gpus;  /* else the manager takes the environment's default */
    bool is_named;  /* by the caller or NODEMGR_GPUS: no other variable changes the number */
    uint64_t gpus;  /* at least world, unless named */
    uint64_t gpus_max; /* of a range, NODEMGR_GPUS=2-4; 0: exactly gpus */
    uint64_t world; /* LOCAL_WORLD_SIZE; 0: not set */
    enum nm_visible_rule rule;
    char list[NM_VISIBLE_BYTES], base[NM_VISIBLE_BYTES];
    /* set when the process sends the request */
    bool has_memory, has_wait;
    bool answered; /* the manager knows of it */
    bool starts;   /* this process becomes a program, which asks again */
    bool by_index; /* CUDA_VISIBLE_DEVICES gets the driver's numbers, not UUIDs */
    uint64_t memory_bytes, wait_ms, deadline_ns;
    uint64_t memory_max; /* of a range, NODEMGR_MEMORY=1024-4096; 0: exactly memory_bytes */
    uint64_t wish[NM_WISH_COUNT]; /* 0: not named */
    char task_class[NM_CLASS_BYTES + 1]; /* empty: the environment's */
    char worker_gpu[NM_WORKER_GPU_BYTES + 1]; /* a GPU of an elastic task; empty: not bound */
    char command[NM_COMMAND_BYTES + 1];
};

/* gpus: the caller's number; -1: not given. All other fields become 0. */
void nm_request_read(struct nm_request *request, const struct nm_variables *variables,
                     int64_t gpus);
/* The value for CUDA_VISIBLE_DEVICES, given the lease's own value (a list with at least one
   entry). */
void nm_request_visible(const struct nm_request *request, const char *granted,
                        char out[NM_VISIBLE_BYTES]);

#endif
