/* ledger.h: the shared memory in which an environment's processes account for device memory.
 *
 * Knows: two memory files and single-word atomics on them. Must not know: sockets, CUDA, the
 * assignment of slots.
 *
 * A reservation adds to the process's own word, sums all words, and withdraws if the sum is too
 * large. Two processes may both withdraw (they try again after random pauses), but never both pass.
 * A kill between any two instructions leaves one word, which the manager clears after the death of
 * its process.
 */

/* A task that named its memory has a cap: its processes together have `kept_bytes` for sure, and
 * never more than `most_bytes`. The promised bytes of a row are those that are in use or kept for
 * a task, whichever is more for each cap. A reservation beyond the kept bytes of its task passes if
 * the promised bytes are within the limit; one within them passes if the used bytes are.
 */
#ifndef NM_LEDGER_H
#define NM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_LEDGER_VERSION 4u
#define NM_GENERATION_SHIFT 48
#define NM_BYTES_MASK ((UINT64_C(1) << NM_GENERATION_SHIFT) - 1)

#define NM_BEAT_UNSUSPENDABLE (UINT64_C(1) << 47)
#define NM_PEAK_REFUSED (UINT64_C(1) << 47)
/* cffi: begin */
#define NM_LEDGER_ROWS 16    /* GPUs of a node, by node index */
#define NM_LEDGER_SLOTS 1024 /* processes of an environment */
#define NM_LEDGER_CAPS 1024  /* tasks with a cap; number 0 is no cap */
#define NM_UUID_BYTES 48     /* with its NUL */

enum nm_reserve { NM_OK = 0, NM_OVER = 1, NM_FENCED = 2, NM_STALLED = 3 };

enum nm_slot_state { NM_SLOT_FREE = 0, NM_SLOT_LIVE = 1, NM_SLOT_STALLED = 2, NM_SLOT_FENCED = 3 };

/* Whether the driver may hold the calls of a slot's process: its task is suspended, or was just now. */
enum nm_hold {
    NM_NOT_HELD = 0,
    NM_HELD = 1,
    NM_AWAY = 2 /* and all its work is done */
};

enum nm_ledger_fault {
    NM_LEDGER_OK = 0,
    NM_LEDGER_ERRNO = -1,      /* errno says more */
    NM_LEDGER_SIZE = -2,       /* a file of another size */
    NM_LEDGER_SEALS = -3,      /* seals are missing: another process could shrink it */
    NM_LEDGER_FORMAT = -4      /* no ledger, or another version */
};
/* cffi: end */

struct nm_limit_row {
    char uuid[NM_UUID_BYTES];
    /* total: physical; correction: counted as used */
    _Atomic uint64_t limit_bytes, total_bytes, correction_bytes;
    uint64_t reserved[7];
};

/* correction: the part of its row's that is of the cap's processes */
struct nm_cap {
    _Atomic uint64_t kept_bytes, most_bytes;
    _Atomic uint64_t rows; /* a bit for each row on which it is kept */
    uint64_t reserved;
    _Atomic uint64_t correction_bytes[NM_LEDGER_ROWS];
};

struct nm_limits {
    uint64_t magic;
    uint32_t version, rows, slots;
    _Atomic uint32_t slots_used; /* number of slots to sum */
    _Atomic uint32_t caps_used;  /* above each cap's number; 0: no task has one */
    uint32_t reserved[9];
    struct nm_limit_row row[NM_LEDGER_ROWS];
    _Atomic uint64_t slot_state[NM_LEDGER_SLOTS]; /* generation << 8 | enum nm_slot_state */
    _Atomic uint16_t slot_cap[NM_LEDGER_SLOTS];
    struct nm_cap cap[NM_LEDGER_CAPS]; /* from here on a restarted manager writes all anew */
    _Atomic uint32_t slot_hold[NM_LEDGER_SLOTS]; /* enum nm_hold; futexes */
};

/* usage: one word for each GPU and slot, generation << 48 | bytes, written by its process. The
 * manager clamps each to the GPU's memory. One beat word for each slot, generation << 48 | a
 * count that the process raises (manager/beats.h); its upper bit: the driver cannot suspend the
 * process. slots_used raises the count of slots to sum:
 * a restarted manager gives out slots that only its new limits file has, while all processes
 * share this one. One peak word for each slot and GPU, generation << 48 | the most bytes that the
 * usage word has had since the slot began; a slot's own lie together, apart from other writers'.
 * Its upper bit: the process was refused memory on that GPU. */
struct nm_usage {
    _Atomic uint64_t word[NM_LEDGER_ROWS][NM_LEDGER_SLOTS];
    _Atomic uint32_t slots_used;
    uint32_t reserved[15];
    _Atomic uint64_t beat[NM_LEDGER_SLOTS];
    _Atomic uint64_t peak[NM_LEDGER_SLOTS][NM_LEDGER_ROWS];
};

/* cffi: begin */
struct nm_ledger {
    const struct nm_limits *limits;
    struct nm_limits *limits_writable; /* the manager's; NULL in a client */
    struct nm_usage *usage;
    int limits_fd, usage_fd; /* -1: private to this process */
};

/* For the manager: a new ledger, both files sealed. */
int nm_ledger_create(struct nm_ledger *ledger);
/* For a restarted manager: keeps the usage file and copies limits into a new file, since the
   seal of the old one forbids a writable mapping. Owns both descriptors on success. */
int nm_ledger_adopt(struct nm_ledger *ledger, int limits_fd, int usage_fd);
/* For a client: maps two received files after checking them. Owns both descriptors on success. */
int nm_ledger_map_client(struct nm_ledger *ledger, int limits_fd, int usage_fd);
/* Without files, for one process alone (fixed limits over UDP). */
int nm_ledger_map_private(struct nm_ledger *ledger);
/* no thread may use it any more; closes the descriptors */
void nm_ledger_unmap(struct nm_ledger *ledger);

/* Whether the two files are a ledger that no process can shrink: an nm_ledger_fault. */
int nm_ledger_check(int limits_fd, int usage_fd);
const char *nm_ledger_fault_text(int fault);

/* Adds bytes to (row, slot): an nm_reserve. A bad row or slot is NM_FENCED. */
int nm_ledger_reserve(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                      uint32_t generation, uint64_t bytes);
/* The same without the limit, for memory that exists: a context, bytes of an earlier lease. */
int nm_ledger_charge(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                     uint32_t generation, uint64_t bytes);
/* Never below zero; a word of another generation stays. */
void nm_ledger_release(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                       uint32_t generation, uint64_t bytes);
/* Removes all bytes of (row, slot) and returns them. */
uint64_t nm_ledger_take(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                        uint32_t generation);

/* Writes the slot's beat word, with a count of the process, over any earlier value. */
void nm_ledger_beat(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                    uint64_t count);
/* Whether the process reports that the driver cannot suspend it; 0 for a bad slot. */
int nm_ledger_is_unsuspendable(const struct nm_ledger *ledger, uint32_t slot);
/* 0 for a bad slot */
uint64_t nm_ledger_beat_word(const struct nm_ledger *ledger, uint32_t slot);

/* all slots + correction; at most 2^63 */
uint64_t nm_ledger_used(const struct nm_ledger *ledger, uint32_t row);
/* clamped to the GPU's memory */
uint64_t nm_ledger_slot_used(const struct nm_ledger *ledger, uint32_t row, uint32_t slot);
/* The largest sum of the peaks of these slots on one row, clamped to the GPU's memory. Slots that
   had their peaks at different times count for more than they ever had together. A bad slot, or a
   peak of another generation, counts for nothing. */
uint64_t nm_ledger_peak(const struct nm_ledger *ledger, const uint32_t *slots,
                        const uint32_t *generations, uint32_t count);
/* The process is refused memory for good: its answer to the program is "out of memory". */
void nm_ledger_note_refusal(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                            uint32_t generation);
/* Whether it noted that on any row; 0 for a bad slot */
int nm_ledger_was_refused(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation);
uint64_t nm_ledger_limit(const struct nm_ledger *ledger, uint32_t row);
uint64_t nm_ledger_total(const struct nm_ledger *ledger, uint32_t row);
/* as summed; at most 2^48 */
uint64_t nm_ledger_correction(const struct nm_ledger *ledger, uint32_t row);
uint32_t nm_ledger_slots_used(const struct nm_ledger *ledger); /* how many are summed */
/* all that is used beyond what is kept for its task */
uint64_t nm_ledger_unkept(const struct nm_ledger *ledger, uint32_t row);
/* that, and all that is kept */
uint64_t nm_ledger_promised(const struct nm_ledger *ledger, uint32_t row);
/* nm_reserve: the result that a reserve would have */
int nm_ledger_slot_state(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation);
/* The most that the slot's task may have on a GPU; 0: it has no cap. */
uint64_t nm_ledger_cap(const struct nm_ledger *ledger, uint32_t slot);
/* The slot's limit and use on the row, and the result that a reserve by (slot, generation) would
   have, in one call: programs ask often. Of a task with a cap, its use, and what it may have now;
   else the row's limit, and all that others use or is kept for them counts as used. */
int nm_ledger_look(const struct nm_ledger *ledger, uint32_t row, uint32_t slot, uint32_t generation,
                   uint64_t *limit, uint64_t *used);
/* "" if the row is unused */
const char *nm_ledger_uuid(const struct nm_ledger *ledger, uint32_t row);

/* For the manager alone. Each returns 0, or -1 for a bad row or slot. */
int nm_ledger_set_row(struct nm_ledger *ledger, uint32_t row, const char *uuid,
                      uint64_t total_bytes);
int nm_ledger_set_limit(struct nm_ledger *ledger, uint32_t row, uint64_t limit_bytes);
/* Lowers the limit to `least_bytes`, or to the promised bytes if they are more; never raises it.
   Every later allocation meets the new limit, and all earlier ones are within it. */
int nm_ledger_lower_limit(struct nm_ledger *ledger, uint32_t row, uint64_t least_bytes,
                          uint64_t *limit_bytes);
int nm_ledger_set_correction(struct nm_ledger *ledger, uint32_t row, uint64_t correction_bytes);
/* most_bytes 0: the cap ends, and nothing is kept for its slots. */
int nm_ledger_set_cap(struct nm_ledger *ledger, uint32_t cap, uint64_t kept_bytes,
                      uint64_t most_bytes, uint32_t rows);
int nm_ledger_set_cap_correction(struct nm_ledger *ledger, uint32_t cap, uint32_t row,
                                 uint64_t correction_bytes);
/* cap 0: none */
int nm_ledger_set_slot_cap(struct nm_ledger *ledger, uint32_t slot, uint32_t cap);
/* Wakes the threads that wait for it. */
int nm_ledger_set_hold(struct nm_ledger *ledger, uint32_t slot, enum nm_hold hold);
/* Gives the slot to a generation: its bytes stay, those of another one go. Raises slots_used. */
int nm_ledger_set_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                       enum nm_slot_state state);
/* After the death of generation's process: the next generation begins, with zero bytes. Returns
   it, or -1. */
int nm_ledger_clear_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation);
/* -1 for a bad slot */
int nm_ledger_slot_generation(const struct nm_ledger *ledger, uint32_t slot);
/* cffi: end */

#endif
