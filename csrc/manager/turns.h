/* turns.h: the words that clients write into a launch gate, checked at each reading. For the
 * manager alone.
 *
 * Knows: the layout of a launch gate, its words at the last reading. Must not know: clocks (the
 * caller gives the time), tasks, the consequence of a fault.
 *
 * Each process on the page can write each word, so a fault shows that a process of the page wrote
 * it, and never which one. The slot of a fault is the place of the word.
 */
#ifndef NM_TURNS_H
#define NM_TURNS_H

#include <stdint.h>

#include "gate/gate.h"

/* cffi: begin */
enum nm_turns_fault {
    NM_TURNS_OK = 0,
    NM_TURNS_TOKEN = 1,      /* its epoch went back or leapt, or it names no slot */
    NM_TURNS_URGENT = 2,     /* latency-sensitive work in a slot of another class */
    NM_TURNS_GENERATION = 3, /* words of another process than the slot's */
    NM_TURNS_FIGURE = 4,     /* a figure that no process can have */
    NM_TURNS_VIRTUAL = 5,    /* a virtual time went back, leapt, or stood still beside its use */
    NM_TURNS_STRAY = 6       /* words in a slot that was never given out */
};

struct nm_turns_watch {
    /* at the last reading; 64: NM_LAUNCH_SLOTS */
    uint64_t word[64], used_ns[64], virtual_ns[64], since_ns[64], beats[64];
    uint32_t beat[64];
    uint64_t token, floor_ns, strays, began_ns, at_ns;
    int32_t slot; /* of the fault that was found; -1: none */
};

/* An nm_turns_fault. A watch of zeroes has not read yet. */
int nm_turns_check(const struct nm_launch_gate *gate, struct nm_turns_watch *watch,
                   uint64_t now_ns);
/* The slot that has the token, or -1. */
int nm_turns_holder(const struct nm_launch_gate *gate);
/* Another pair of files takes this one's place: its processes pass until their next GRANT. */
void nm_turns_retire(struct nm_launch_gate *gate);
/* cffi: end */

#endif
