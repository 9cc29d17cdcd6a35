/* use_hooks.c: copies, fills, events and streams of a gated process, which take no turn.
 *
 * Knows: the rows NM_COPY and NM_USE of hooks.def, of which each hook is made. Must not know: turns.
 *
 * Such a use waits only while its process is suspended: it brings the memory back.
 */
#include "hooks/interpose.h"
#include "launch/launch.h"

#define HOOK_AFTER(await, name, types)                                            \
    int nm_hook_##name(NM_PARAMETERS(types))                                      \
    {                                                                             \
        int result = await();                                                     \
        return result != NM_CUDA_SUCCESS ? result : nm_real_##name(NM_ARGUMENTS(types)); \
    }
#define NM_COPY(library, name, base, since, stream, types) \
    HOOK_AFTER(nm_launch_begin_copy, name, types)
#define NM_USE(library, name, base, since, stream, types) \
    HOOK_AFTER(nm_launch_await_memory, name, types)
#include "hooks/hooks.def"
