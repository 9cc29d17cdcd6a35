/* visible.h: the meaning of CUDA_VISIBLE_DEVICES.
 *
 * Knows: the grammar that drivers accept. Must not know: processes, contexts.
 */
#ifndef NM_SIM_VISIBLE_H
#define NM_SIM_VISIBLE_H

#include "sim/node/node.h"

/* Fills `devices` with indices into the node, in the order that the program will number them,
 * and returns how many. `value` is the variable's, NULL where it is not set (all devices).
 *
 * As drivers do: entries count up to the first that names no device (so -1 hides itself and what
 * follows it; an empty value hides all); a number may be followed by anything; "GPU-" and the
 * beginning of a UUID, enough of it to be unique, names a device, and then only such entries may
 * follow; a device named twice leaves none. Those that are shut are not there: numbers count the
 * others alone. */
int nm_visible_devices(const nm_sim_state *state, const bool shut[NM_SIM_DEVICES],
                       const char *value, int devices[NM_SIM_DEVICES]);

enum { NM_UUID_TEXT_BYTES = 41 };
/* "GPU-" and the usual form. */
void nm_uuid_text(const unsigned char uuid[16], char out[NM_UUID_TEXT_BYTES]);

#endif
