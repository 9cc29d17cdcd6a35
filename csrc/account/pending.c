/* pending.c: see pending.h.
 *
 * An event of the shim follows each such free: unlike the stream, it outlives it. Programs rarely
 * free linear memory so, and a small list is enough. A free that finds no place in it is given back
 * at once.
 */
#include "account/pending.h"

#include <stdatomic.h>
#include <string.h>

#include "account/charge.h"
#include "base/prim.h"

enum { SUCCESS = NM_CUDA_SUCCESS };
enum { PENDING = 64 };
enum { EVENT_DISABLE_TIMING = 2, CAPTURE_MODE_RELAXED = 2 };

struct pending {
    nm_cu_event event; /* NULL: the place is free */
    struct nm_block block;
};

static struct nm_lock lock; /* guards the list */
static struct pending list[PENDING];
static _Atomic uint32_t count;

void nm_pending_forget(void)
{
    memset(&lock, 0, sizeof lock);
    memset(list, 0, sizeof list);
    count = 0;
}

/* With the lock held. */
static bool enter(const struct nm_block *block, nm_cu_event event)
{
    for (struct pending *place = list; place < list + PENDING; place++)
        if (place->event == NULL) {
            *place = (struct pending){event, *block};
            atomic_fetch_add(&count, 1);
            return true;
        }
    return false;
}

static void leave(struct pending *place)
{
    nm_charge_give_back_block(&place->block);
    *place = (struct pending){0};
    atomic_fetch_sub(&count, 1);
}

void nm_pending_add(const struct nm_block *block, nm_cu_stream stream,
                    nm_type_cuEventRecord *record)
{
    nm_cu_event event = NULL;
    bool behind = nm_real_cuEventCreate(&event, EVENT_DISABLE_TIMING) == SUCCESS &&
                  record(event, stream) == SUCCESS;
    nm_lock(&lock);
    bool entered = behind && enter(block, event);
    nm_unlock(&lock);
    if (entered)
        return;
    nm_charge_give_back_block(block);
    if (event != NULL)
        nm_real_cuEventDestroy_v2(event);
}

/* With the lock held. A query of an event would end a capture that is under way, unless this
   thread's capture mode allows it. */
static bool settle(void)
{
    bool gave_back = false;
    int mode = CAPTURE_MODE_RELAXED;
    bool relaxed = nm_real_cuThreadExchangeStreamCaptureMode(&mode) == SUCCESS;
    for (struct pending *place = list; place < list + PENDING; place++) {
        if (place->event == NULL || nm_real_cuEventQuery(place->event) == NM_CUDA_ERROR_NOT_READY)
            continue;
        nm_real_cuEventDestroy_v2(place->event);
        leave(place);
        gave_back = true;
    }
    if (relaxed)
        nm_real_cuThreadExchangeStreamCaptureMode(&mode);
    return gave_back;
}

bool nm_pending_settle(void)
{
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return false;
    nm_lock(&lock);
    bool gave_back = settle();
    nm_unlock(&lock);
    return gave_back;
}

/* Its events end with it and are not queried again. */
void nm_pending_end(uint64_t context)
{
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return;
    nm_lock(&lock);
    for (struct pending *place = list; place < list + PENDING; place++)
        if (place->event != NULL && place->block.owner == context)
            leave(place);
    nm_unlock(&lock);
}
