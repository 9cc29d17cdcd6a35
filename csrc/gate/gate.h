/* gate.h: the two memory files of a GPU in which processes take turns to launch kernels.
 *
 * Knows: the layout of both files, single-word atomics on them. Must not know: sockets, CUDA, the
 * reason for a share. (csrc/manager/gate.h is another one: the device gate in the kernel.)
 *
 * The manager alone writes `shares`, which clients map read-only. Clients write `turns`. A word of
 * `turns` may hold anything, because a hostile client can write it: each reader checks and clamps.
 * All times are nanoseconds, points in time those of CLOCK_MONOTONIC.
 */
#ifndef NM_LAUNCH_GATE_H
#define NM_LAUNCH_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_LAUNCH_GATE_VERSION 1u

/* cffi: begin */
#define NM_LAUNCH_SLOTS 64 /* processes on a GPU */

enum nm_launch_state {
    NM_LAUNCH_FREE = 0,      /* no process has the slot */
    NM_LAUNCH_OPEN = 1,
    NM_LAUNCH_CLOSED = 2,    /* launches wait; they pass 2 s after the manager's last beat */
    NM_LAUNCH_PAUSED = 3,    /* as closed, until the use beyond the share is paid back */
    NM_LAUNCH_SUSPENDED = 4, /* launches wait for the resumption, also without a manager */
    NM_LAUNCH_FENCED = 5     /* launches are refused: the process has another page, or no lease */
};

enum nm_launch_class {
    NM_LAUNCH_NORMAL = 0,
    NM_LAUNCH_LATENCY_SENSITIVE = 1,
    NM_LAUNCH_BEST_EFFORT = 2
};

enum nm_launch_fault {
    NM_LAUNCH_GATE_OK = 0,
    NM_LAUNCH_GATE_ERRNO = -1,  /* errno says more */
    NM_LAUNCH_GATE_SIZE = -2,   /* a file of another size */
    NM_LAUNCH_GATE_SEALS = -3,  /* seals are missing: another process could shrink it */
    NM_LAUNCH_GATE_FORMAT = -4, /* no launch gate, or another version */
    NM_LAUNCH_GATE_RANGE = -5   /* no such slot, share, class or state */
};

/* The words of the manager about a slot. */
struct nm_launch_slot {
    uint32_t generation; /* 16 bits; grows each time the slot is given out */
    uint32_t share;      /* percent of the GPU, of all processes of the group together */
    uint32_t klass;      /* enum nm_launch_class */
    uint32_t state;      /* enum nm_launch_state */
    uint64_t group;      /* its task: processes of one group divide one share */
};

/* Figures that a process writes about itself. A client may lie: compare used_ns with the driver's
   figures. */
struct nm_launch_use {
    uint64_t used_ns;          /* measured GPU time since the slot was given out */
    uint64_t in_flight_ns;     /* estimate of the work that is launched and not complete */
    uint64_t last_activity_ns; /* of a launch or a hooked copy; 0: none yet */
    uint64_t launches;
    uint64_t waiting_since_ns; /* 0: no thread waits in the gate */
};
/* cffi: end */

/* word: generation << 48 | state << 16 | class << 8 | share. group is written before it. */
struct nm_shares_row {
    _Atomic uint64_t word, group;
};

#define NM_LAUNCH_GENERATION_SHIFT 48
#define NM_LAUNCH_STATE_SHIFT 16
#define NM_LAUNCH_CLASS_SHIFT 8

struct nm_shares {
    uint64_t magic;
    uint32_t version, slots;
    _Atomic uint64_t beat_ns;   /* the manager's last beat: only its change counts */
    _Atomic uint64_t window_ns; /* B: most estimated work in flight */
    _Atomic uint64_t turn_ns;   /* Q: a turn of a process with all of the GPU */
    _Atomic uint32_t moved;     /* 1: a fresh pair of files replaces this one */
    _Atomic uint32_t spatial;   /* 1: MPS divides the GPU: no turns, only the window and priority */
    uint64_t reserved[2];
    struct nm_shares_row row[NM_LAUNCH_SLOTS];
};

/* Written by the process that has the slot, except `wake`. Two cache lines. */
struct nm_turns_row {
    _Atomic uint64_t virtual_ns, in_flight_ns, gap_ns, used_ns, last_activity_ns, launches,
        waiting_since_ns;
    _Atomic uint32_t beat; /* grows each millisecond while the process holds the token */
    _Atomic uint32_t wake; /* futex: any process raises it to wake this one */
    _Atomic uint32_t generation;
    uint32_t reserved[15];
};

/* token: epoch << 16 | slot + 1; slot part 0: no process holds it. */
struct nm_turns {
    uint64_t magic;
    uint32_t version, slots;
    _Atomic uint64_t token;
    _Atomic uint64_t floor_ns; /* virtual time at which a process joins */
    _Atomic uint64_t intrusions; /* grows with each launch beside the holder's */
    uint64_t line[3];
    _Atomic uint64_t urgent; /* a bit for each slot with latency-sensitive work under way */
    uint64_t reserved[7];
    struct nm_turns_row row[NM_LAUNCH_SLOTS];
};

/* The last rows have this waiting time until their slot is given out the first time. No process
   reads or writes a row whose slot was never given out, so a change shows a hostile client: also
   one that writes zeroes. */
#define NM_BAIT_ROWS 8
#define NM_BAIT_NS (UINT64_C(1) << 40)

#define NM_TOKEN_EPOCH_SHIFT 16
#define NM_TOKEN_SLOT_MASK UINT64_C(0xffff)

/* The token of the next epoch with this holder; slot -1: none. */
static inline uint64_t nm_token_after(uint64_t token, int slot)
{
    return ((token >> NM_TOKEN_EPOCH_SHIFT) + 1) << NM_TOKEN_EPOCH_SHIFT | (uint64_t)(slot + 1);
}

/* -1: no holder */
static inline int nm_token_slot(uint64_t token)
{
    uint64_t holder = token & NM_TOKEN_SLOT_MASK;
    return holder <= NM_LAUNCH_SLOTS ? (int)holder - 1 : -1;
}

/* cffi: begin */
struct nm_launch_gate {
    const struct nm_shares *shares;
    struct nm_shares *shares_writable; /* the manager's; NULL in a client */
    struct nm_turns *turns;
    int shares_fd, turns_fd;
};

/* For the manager: two new sealed files, without a process. */
int nm_launch_gate_create(struct nm_launch_gate *gate);
/* For a client: maps two received files after checking them. Owns both descriptors on success. */
int nm_launch_gate_map_client(struct nm_launch_gate *gate, int shares_fd, int turns_fd);
/* no thread may use it any more; closes the descriptors */
void nm_launch_gate_unmap(struct nm_launch_gate *gate);
const char *nm_launch_gate_fault_text(int fault);

/* Gives a free slot to a process, with zero figures and a new generation, in the state and with
   the share of *slot. Returns its number, -1 if all are in use, or NM_LAUNCH_GATE_RANGE. */
int nm_launch_gate_give(struct nm_launch_gate *gate, const struct nm_launch_slot *slot);
/* Changes share, class, state and group; the generation stays. An nm_launch_fault. */
int nm_launch_gate_set(struct nm_launch_gate *gate, uint32_t number,
                       const struct nm_launch_slot *slot);
/* After the end of its process: the slot is free, and neither its token nor its bit is left. */
int nm_launch_gate_clear(struct nm_launch_gate *gate, uint32_t number);
int nm_launch_gate_slot(const struct nm_launch_gate *gate, uint32_t number,
                        struct nm_launch_slot *slot);
/* Zeroes, if the words are of another generation than the slot's. */
int nm_launch_gate_use(const struct nm_launch_gate *gate, uint32_t number,
                       struct nm_launch_use *use);

void nm_launch_gate_beat(struct nm_launch_gate *gate, uint64_t now_ns);
/* The window is 1 ms at first. */
void nm_launch_gate_tune(struct nm_launch_gate *gate, uint64_t window_ns, int spatial);
/* Wakes each process that waits: after a change that opens gates. */
void nm_launch_gate_wake(struct nm_launch_gate *gate);
/* cffi: end */

#endif
