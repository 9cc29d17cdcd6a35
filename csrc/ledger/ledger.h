/* ledger.h: the shared memory in which an env's processes account for device memory. Source:
 * docs/ARCHITECTURE.md "Ledger".
 *
 * Knows: two memory files and single-word atomics on them.
 * Must not know: sockets, CUDA, the assignment of slots.
 *
 * limits: written by the manager alone; clients map it read-only, and its seals keep them from
 *         more.
 * usage:  one word per (GPU, process slot): generation << 48 | bytes. Written by clients; nothing
 *         in it is believed: each word is clamped to the GPU's memory; no total, nothing that could
 *         be held. Beside them one beat word per slot: generation << 48 | a count that its process
 *         raises. The manager notes that it changed, nothing more (manager/beats.h).
 *
 * To reserve is: add to one's own word, sum all words, withdraw if over. So two racers may both see
 * too much and both withdraw (they try again after random pauses), but never both pass; and kill -9
 * between any two instructions leaves one word, which the manager clears after the death of its
 * process.
 */
#ifndef NM_LEDGER_H
#define NM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_LEDGER_VERSION 2u
#define NM_GENERATION_SHIFT 48
#define NM_BYTES_MASK ((UINT64_C(1) << NM_GENERATION_SHIFT) - 1)

/* cffi: begin */
#define NM_LEDGER_ROWS 16    /* GPUs of a node, by node index */
#define NM_LEDGER_SLOTS 1024 /* processes of an env */
#define NM_UUID_BYTES 48     /* with its NUL */

enum nm_reserve { NM_OK = 0, NM_OVER = 1, NM_FENCED = 2, NM_STALLED = 3 };

enum nm_slot_state { NM_SLOT_FREE = 0, NM_SLOT_LIVE = 1, NM_SLOT_STALLED = 2, NM_SLOT_FENCED = 3 };

enum nm_ledger_fault {
    NM_LEDGER_OK = 0,
    NM_LEDGER_ERRNO = -1,      /* errno says more */
    NM_LEDGER_SIZE = -2,       /* a file of another size */
    NM_LEDGER_SEALS = -3,      /* seals are missing: somebody could shrink it under us */
    NM_LEDGER_FORMAT = -4      /* not a ledger, or of another version */
};
/* cffi: end */

struct nm_limit_row {
    char uuid[NM_UUID_BYTES];
    /* total: physical; correction: counts as used */
    _Atomic uint64_t limit_bytes, total_bytes, correction_bytes;
    uint64_t reserved[7];
};

struct nm_limits {
    uint64_t magic;
    uint32_t version, rows, slots;
    _Atomic uint32_t slots_used; /* slots to sum: no process has one beyond */
    uint64_t reserved[5];
    struct nm_limit_row row[NM_LEDGER_ROWS];
    _Atomic uint64_t slot_state[NM_LEDGER_SLOTS]; /* generation << 8 | enum nm_slot_state */
};

/* slots_used is the manager's word on how many slots to sum, and raises it further: a restarted
 * manager gives out slots of which only its new limits file tells, while this one is
 * everybody's. It can make a sum longer, never shorter. */
struct nm_usage {
    _Atomic uint64_t word[NM_LEDGER_ROWS][NM_LEDGER_SLOTS];
    _Atomic uint32_t slots_used;
    uint32_t reserved[15];
    _Atomic uint64_t beat[NM_LEDGER_SLOTS];
};

/* cffi: begin */
struct nm_ledger {
    const struct nm_limits *limits;
    struct nm_limits *limits_writable; /* the manager's; NULL at a client */
    struct nm_usage *usage;
    int limits_fd, usage_fd; /* -1: private to this process */
};

/* The manager's: a new ledger, both files sealed. */
int nm_ledger_create(struct nm_ledger *ledger);
/* The manager's, after its restart: keeps the usage file, and copies what limits said into a new
 * limits file (the old one can never be mapped writable again: that is its seal). Takes over
 * both descriptors on success. */
int nm_ledger_adopt(struct nm_ledger *ledger, int limits_fd, int usage_fd);
/* A client's: maps two received files after checking them. Takes over both descriptors on
   success. */
int nm_ledger_map_client(struct nm_ledger *ledger, int limits_fd, int usage_fd);
/* Without files, for one process alone (a fixed cap over UDP). */
int nm_ledger_map_private(struct nm_ledger *ledger);
/* no thread may use it any more; closes the descriptors */
void nm_ledger_unmap(struct nm_ledger *ledger);

/* Are these two files a ledger that no process can shrink under us? An nm_ledger_fault. */
int nm_ledger_check(int limits_fd, int usage_fd);
const char *nm_ledger_fault_text(int fault);

/* bytes more for (row, slot): an nm_reserve. A bad row or slot is NM_FENCED. */
int nm_ledger_reserve(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                      uint32_t generation, uint64_t bytes);
/* The same without looking at the limit (what is already there: a context, bytes carried over). */
int nm_ledger_charge(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                     uint32_t generation, uint64_t bytes);
/* Gives back; never below zero; another generation's word is left alone. */
void nm_ledger_release(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                       uint32_t generation, uint64_t bytes);
/* Takes all bytes of (row, slot) away and returns them. */
uint64_t nm_ledger_take(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                        uint32_t generation);

/* Writes the slot's beat word: a process does it each beat with a count of its own, whatever
   stood there before. */
void nm_ledger_beat(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                    uint64_t count);
/* 0 for a bad slot */
uint64_t nm_ledger_beat_word(const struct nm_ledger *ledger, uint32_t slot);

/* all slots + correction; at most 2^63 */
uint64_t nm_ledger_used(const struct nm_ledger *ledger, uint32_t row);
/* clamped to the GPU's memory */
uint64_t nm_ledger_slot_used(const struct nm_ledger *ledger, uint32_t row, uint32_t slot);
uint64_t nm_ledger_limit(const struct nm_ledger *ledger, uint32_t row);
uint64_t nm_ledger_total(const struct nm_ledger *ledger, uint32_t row);
/* as summed; at most 2^48 */
uint64_t nm_ledger_correction(const struct nm_ledger *ledger, uint32_t row);
uint32_t nm_ledger_slots_used(const struct nm_ledger *ledger); /* how many are summed */
/* nm_reserve: what a reserve would say */
int nm_ledger_slot_state(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation);
/* The row's limit and use, and what a reserve by (slot, generation) would say: in one look, for
   what a program asks again and again. */
int nm_ledger_look(const struct nm_ledger *ledger, uint32_t row, uint32_t slot, uint32_t generation,
                   uint64_t *limit, uint64_t *used);
/* "" where the row is unused */
const char *nm_ledger_uuid(const struct nm_ledger *ledger, uint32_t row);

/* The manager's alone. Each returns 0, or -1 for a bad row or slot. */
int nm_ledger_set_row(struct nm_ledger *ledger, uint32_t row, const char *uuid,
                      uint64_t total_bytes);
int nm_ledger_set_limit(struct nm_ledger *ledger, uint32_t row, uint64_t limit_bytes);
int nm_ledger_set_correction(struct nm_ledger *ledger, uint32_t row, uint64_t correction_bytes);
/* The slot is generation's: its bytes stay, those of another generation go. Raises slots_used. */
int nm_ledger_set_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                       enum nm_slot_state state);
/* After the death of generation's process: the next generation begins, with zero bytes. Returns
   it, or -1. */
int nm_ledger_clear_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation);
/* -1 for a bad slot */
int nm_ledger_slot_generation(const struct nm_ledger *ledger, uint32_t slot);
/* cffi: end */

#endif
