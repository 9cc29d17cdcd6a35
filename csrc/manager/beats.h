/* beats.h: which processes of a ledger raised their beat words, and when the manager saw it. The
 * manager's alone.
 *
 * Knows: the ledger's layout and the manager's own memory of what each word was at the last look.
 * Must not know: clocks (the caller names the time), tasks, what a silence means.
 *
 * A word is a client's: only that it differs from the last look counts, never its value. A word of
 * another generation than the slot's counts as not moved.
 */
#ifndef NM_BEATS_H
#define NM_BEATS_H

#include <stdint.h>

#include "ledger/ledger.h"

/* cffi: begin */
struct nm_beats {
    /* as of the last look; 1024: NM_LEDGER_SLOTS */
    uint64_t word[1024], state[1024], heard_ns[1024];
    uint32_t woken[1024], silent[1024];               /* slots that the last look found */
    uint32_t woken_count, silent_count;
    /* of the live slots that are not silent; UINT64_MAX: there is none */
    uint64_t oldest_ns;
};

/* One look at all slots, at now_ns. A slot that has become live since the last look counts as
 * heard now. `woken`: stalled slots whose word has moved. `silent`: live slots that were last
 * heard before `silent_before_ns`. */
void nm_beats_read(const struct nm_ledger *ledger, struct nm_beats *beats, uint64_t now_ns,
                   uint64_t silent_before_ns);
/* cffi: end */

#endif
