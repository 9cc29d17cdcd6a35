/* use_hooks.c: calls of a gated process that take no turn.
 *
 * Knows: the rows NM_COPY, NM_USE and NM_CHANGE of hooks.def, of which each hook is made. Must not
 * know: turns.
 *
 * A suspended process: see the column `away`.
 */
#include "hooks/interpose.h"
#include "launch/launch.h"

#define NM_COPY(library, name, base, since, stream, away, types) \
    int nm_hook_##name(NM_PARAMETERS(types))                     \
    {                                                            \
        nm_launch_note_copy();                                   \
        return nm_real_##name(NM_ARGUMENTS(types));              \
    }
#define NM_USE(library, name, base, since, stream, away, types) \
    int nm_hook_##name(NM_PARAMETERS(types))                    \
    {                                                           \
        return nm_real_##name(NM_ARGUMENTS(types));             \
    }
#define NM_CHANGE(library, name, base, since, stream, away, types) \
    int nm_hook_##name(NM_PARAMETERS(types))                       \
    {                                                              \
        int result = nm_real_##name(NM_ARGUMENTS(types));          \
        nm_launch_change_graph(a);                                 \
        return result;                                             \
    }
#include "hooks/hooks.def"
