/* suspended_calls.c: calls of a process whose GPU memory is in host memory: the ways of hooks.def's column
 * `away` (interpose.h). It has them with and without a launch gate.
 *
 * Knows: when the process is suspended, and when all its work is done. Must not know: any one call.
 *
 * An end (LATER) is noted with its arguments, and the program goes on. It is done before the next
 * call that needs the GPU, or by a thread that waits for the resume; the end of the process does the
 * rest. A note ends in this process: a forked child has none.
 */
#include <string.h>
#include <sys/mman.h>

#include "hooks/interpose.h"
#include "launch/gpu_gate.h"
#include "launch/launch.h"

enum { SUCCESS = NM_CUDA_SUCCESS, CAPTURE_MODE_RELAXED = 2 };
enum { FIRST_NOTES = 256 };
#define LOOK_AGAIN_NS (1000000 * NM_US) /* to end with the program's last thread */

struct note {
    nm_later_call *call;
    nm_cu_context context; /* current meanwhile; NULL: any */
    uint64_t words[NM_LATER_WORDS];
};

static struct nm_lock writing; /* of the notes */
static struct note *notes;
static size_t room, first;
_Atomic size_t nm_away_count;
static struct nm_lock working; /* one thread at a time does them */
static _Atomic bool has_thread;

/* -- the notes -- */

static bool make_room(void)
{
    if (atomic_load(&nm_away_count) < room)
        return true;
    size_t more = room != 0 ? 2 * room : FIRST_NOTES;
    struct note *fresh = mmap(NULL, more * sizeof *fresh, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return false;
    if (notes != NULL) {
        memcpy(fresh, notes, room * sizeof *notes);
        munmap(notes, room * sizeof *notes);
    }
    notes = fresh;
    room = more;
    return true;
}

static bool add(const struct note *note)
{
    nm_lock(&writing);
    bool added = make_room();
    if (added)
        notes[atomic_fetch_add(&nm_away_count, 1)] = *note;
    nm_unlock(&writing);
    return added;
}

/* The oldest. False: none is left. */
static bool is_any(struct note *note)
{
    nm_lock(&writing);
    bool found = first < atomic_load(&nm_away_count);
    if (found)
        *note = notes[first];
    nm_unlock(&writing);
    return found;
}

/* The oldest is done: it counts until then, so that calls of other threads wait for it. */
static void drop(void)
{
    nm_lock(&writing);
    if (++first == atomic_load(&nm_away_count)) {
        first = 0;
        atomic_store(&nm_away_count, 0);
    }
    nm_unlock(&writing);
}

static void carry_out(const struct note *note)
{
    nm_cu_context popped;
    bool pushed = note->context != NULL && nm_real_cuCtxPushCurrent_v2(note->context) == SUCCESS;
    note->call(note->words);
    if (pushed)
        nm_real_cuCtxPopCurrent_v2(&popped);
}

/* A call of another thread waits for them, since it may need their memory. A new suspension keeps the
   rest. */
static void catch_up(void)
{
    struct note note;
    if (atomic_load_explicit(&nm_away_count, memory_order_relaxed) == 0)
        return;
    nm_lock(&working);
    while (nm_hold() == NM_NOT_HELD && is_any(&note)) {
        carry_out(&note);
        drop();
    }
    nm_unlock(&working);
}

/* -- the thread that waits for the resume -- */

static void *wait_for_resume(void *given)
{
    struct nm_thread thread = {0};
    int mode = CAPTURE_MODE_RELAXED; /* of this thread: a free ends no capture of another */
    (void)given;
    nm_real_cuThreadExchangeStreamCaptureMode(&mode);
    while (!thread.last && nm_client_lease() != NULL && atomic_load(&nm_away_count) > 0) {
        if (nm_hold() != NM_NOT_HELD)
            nm_hold_sleep(LOOK_AGAIN_NS);
        else
            catch_up();
        nm_thread_look(&thread);
    }
    atomic_store(&has_thread, false);
    if (!nm_thread_leave())
        nm_thread_end(&thread);
    return NULL;
}

/* A process that can start no thread does its ends with its next call. */
static void start_thread(void)
{
    if (!atomic_exchange(&has_thread, true) && nm_thread_start(wait_for_resume, 0) != 0)
        atomic_store(&has_thread, false);
}

/* -- the ways -- */

int nm_away_back(void)
{
    if (nm_forked())
        return SUCCESS;
    int result = nm_hold_await(NM_FOR_MEMORY);
    if (result == SUCCESS)
        catch_up();
    return result;
}

bool nm_away_done(int *result)
{
    *result = SUCCESS;
    if (nm_forked() || nm_hold() == NM_NOT_HELD)
        return false;
    *result = nm_hold_await(NM_FOR_WORK);
    return *result != SUCCESS || nm_hold() != NM_NOT_HELD;
}

bool nm_away_later(nm_later_call *call, const uint64_t words[NM_LATER_WORDS])
{
    struct note note = {.call = call};
    nm_cu_context popped;
    if (nm_forked())
        return false;
    if (nm_hold() == NM_NOT_HELD) {
        catch_up();
        return false;
    }
    memcpy(note.words, words, sizeof note.words);
    nm_real_cuCtxGetCurrent(&note.context);
    bool ends_context = note.context != NULL && (uintptr_t)note.context == words[0];
    if (ends_context)
        note.context = NULL;
    if (!add(&note))
        return false; /* no memory is left for notes: the driver holds the call */
    if (ends_context) /* as after the driver's own end of it */
        nm_real_cuCtxPopCurrent_v2(&popped);
    start_thread();
    return true;
}

void nm_away_forget(void)
{
    memset(&writing, 0, sizeof writing);
    memset(&working, 0, sizeof working);
    first = 0;
    atomic_store(&nm_away_count, 0);
    atomic_store(&has_thread, false);
}
