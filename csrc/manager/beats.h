/* beats.h: the processes of a ledger that have raised their beat words, and when the manager saw
 * it. For the manager alone.
 *
 * Knows: the ledger's layout, each word at the last reading. Must not know: clocks (the caller
 * gives the time), tasks, the consequence of a silence.
 *
 * A client writes the word, so only a change counts, never the value. A word of another generation
 * than the slot's counts as unchanged.
 */
#ifndef NM_BEATS_H
#define NM_BEATS_H

#include <stdint.h>

#include "ledger/ledger.h"

/* cffi: begin */
struct nm_beats {
    /* at the last reading; 1024: NM_LEDGER_SLOTS */
    uint64_t word[1024], state[1024], heard_ns[1024];
    uint32_t woken[1024], silent[1024];               /* slots found by the last reading */
    uint32_t woken_count, silent_count;
    /* of the live slots that are not silent; UINT64_MAX: none */
    uint64_t oldest_ns;
};

/* Reads all slots at now_ns. A slot that has become live since the last reading counts as heard
 * now. `woken`: stalled slots whose word has changed. `silent`: live slots that were last heard
 * before `silent_before_ns`. */
void nm_beats_read(const struct nm_ledger *ledger, struct nm_beats *beats, uint64_t now_ns,
                   uint64_t silent_before_ns);
/* cffi: end */

#endif
