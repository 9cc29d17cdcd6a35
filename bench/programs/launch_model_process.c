/* launch_model_process.c: what a copy of the gate needs in launch_model.c: its own lease. */
#include "client/client.h"

_Atomic(const struct nm_lease *) nm_held_lease;
static const _Atomic uint32_t no_hold; /* no process of the model is suspended */
const _Atomic uint32_t *_Atomic nm_hold_word = &no_hold;
static _Atomic uint32_t alive = 1;
_Atomic(_Atomic uint32_t *) nm_birth_page = &alive;

NM_API void nm_model_bind(const struct nm_lease *lease)
{
    nm_held_lease = lease;
}
