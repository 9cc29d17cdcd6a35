/* meter.c: the GPU time of this process, measured by events; see gpu_gate.h.
 *
 * Knows: pieces of work and their events. Must not know: whose turn it is.
 *
 * Launches of a stream form a piece, closed by an event in that stream. A piece has used the time
 * from the end of the piece before to its own end. Where the GPU may have had no work of this
 * process, an event before its first launch is the beginning, if it is later. Events are recorded
 * by threads that launch or synchronise, never by the keeper, which does not know whether a stream
 * still lives.
 */
#include <string.h>

#include "hooks/interpose.h"
#include "launch/gpu_gate.h"

#define PIECE_NS (150 * NM_US)
#define NO_STREAM ((nm_cu_stream)UINTPTR_MAX)
#define QUIET_NS (200 * NM_US)
#define LONG_NS (1000000 * NM_US)
#define LONG_PIECE_NS (50000 * NM_US)
enum { SUCCESS = NM_CUDA_SUCCESS, CAPTURE_MODE_RELAXED = 2 };

/* -- events -- */

static nm_cu_event take_event(struct nm_gpu_gate *gate, nm_cu_context context)
{
    struct nm_meter *meter = &gate->meter;
    nm_cu_event event = NULL;
    nm_lock(&gate->lock);
    for (uint32_t i = 0; i < meter->spares && event == NULL; i++)
        if (meter->spare[i].context == context) {
            event = meter->spare[i].event;
            meter->spare[i] = meter->spare[--meter->spares];
        }
    nm_unlock(&gate->lock);
    if (event == NULL && nm_real_cuEventCreate(&event, 0) != SUCCESS)
        return NULL;
    return event;
}

/* With the lock. An event beyond the room stays with its context. */
static void put_event(struct nm_meter *meter, nm_cu_event event, nm_cu_context context)
{
    if (event != NULL && meter->spares < NM_SPARE_EVENTS)
        meter->spare[meter->spares++] = (struct nm_spare_event){event, context};
}

static int record(nm_cu_event event, nm_cu_stream stream, bool per_thread)
{
    return per_thread && stream == NULL ? nm_real_cuEventRecord_ptsz(event, stream)
                                        : nm_real_cuEventRecord(event, stream);
}

/* -- launches -- */

static bool is_of(const struct nm_piece *piece, nm_cu_stream stream, bool per_thread)
{
    return piece->count > 0 && piece->stream == stream && piece->per_thread == per_thread;
}

static bool has_open(struct nm_gpu_gate *gate, nm_cu_stream stream, bool per_thread)
{
    bool found = false;
    nm_lock(&gate->lock);
    for (uint32_t i = 0; i < NM_PIECE_STREAMS && !found; i++)
        found = is_of(&gate->meter.open[i], stream, per_thread);
    nm_unlock(&gate->lock);
    return found;
}

void nm_meter_begin(struct nm_gpu_gate *gate, struct nm_launch *launch)
{
    nm_cu_context context = NULL;
    nm_cu_event event = NULL;
    if (has_open(gate, launch->stream, launch->per_thread))
        return;
    if (nm_real_cuCtxGetCurrent(&context) == SUCCESS && context != NULL)
        event = take_event(gate, context);
    if (event != NULL && record(event, launch->stream, launch->per_thread) == SUCCESS) {
        launch->start = event;
        launch->context = context;
        return;
    }
    /* without a start the time since the last piece must not count */
    nm_lock(&gate->lock);
    put_event(&gate->meter, event, context);
    put_event(&gate->meter, gate->meter.last.event, gate->meter.last.context);
    gate->meter.last = (struct nm_spare_event){0};
    nm_unlock(&gate->lock);
}

/* With the lock: the open piece of the stream, else an empty place, else the first. */
static struct nm_piece *open_piece(struct nm_meter *meter, nm_cu_stream stream, bool per_thread)
{
    struct nm_piece *empty = NULL;
    for (struct nm_piece *piece = meter->open; piece < meter->open + NM_PIECE_STREAMS; piece++) {
        if (is_of(piece, stream, per_thread))
            return piece;
        if (piece->count == 0 && empty == NULL)
            empty = piece;
    }
    return empty != NULL ? empty : meter->open;
}

/* With the lock. */
static void add(struct nm_gpu_gate *gate, struct nm_piece *piece, const struct nm_launch *launch)
{
    if (piece->count == 0) {
        *piece = (struct nm_piece){.stream = launch->stream, .per_thread = launch->per_thread,
                                    .intrusions = nm_turn_intrusions(gate)};
        atomic_fetch_add_explicit(&gate->open_pieces, 1, memory_order_relaxed);
    }
    if (launch->start != NULL && piece->start == NULL) {
        piece->start = launch->start;
        piece->context = launch->context;
    } else {
        put_event(&gate->meter, launch->start, launch->context);
    }
    if (piece->count < NM_PIECE_KERNELS)
        piece->kernel[piece->count++] = launch->kernel;
    piece->estimate_ns += launch->estimate_ns;
    atomic_store_explicit(&gate->open_stream, launch->per_thread ? NO_STREAM : launch->stream,
                          memory_order_relaxed);
}

/* At least four pieces fill the window. */
static bool is_full(const struct nm_gpu_gate *gate, const struct nm_piece *piece)
{
    uint64_t window_ns = atomic_load_explicit(&gate->window_ns, memory_order_relaxed);
    return piece->count >= NM_PIECE_KERNELS || piece->estimate_ns >= PIECE_NS ||
           4 * piece->estimate_ns >= window_ns;
}

/* With the lock: the piece leaves its place. */
static struct nm_piece detach(struct nm_gpu_gate *gate, struct nm_piece *piece)
{
    struct nm_piece detached = *piece;
    piece->count = 0;
    atomic_fetch_sub_explicit(&gate->open_pieces, 1, memory_order_relaxed);
    atomic_store_explicit(&gate->open_stream, NO_STREAM, memory_order_relaxed);
    return detached;
}

/* With the lock: the piece is done, and has used that time. */
static void charge(struct nm_gpu_gate *gate, const struct nm_piece *piece, uint64_t used_ns)
{
    uint64_t own_ns = nm_estimates_sum(piece->kernel, piece->count);
    if (used_ns > LONG_NS) { /* it may have begun before these pages: impossible there */
        uint64_t since_ns = nm_now_ns() - gate->bound_ns;
        uint64_t most_ns = since_ns > gate->used_ns ? since_ns - gate->used_ns : 0;
        used_ns = used_ns < most_ns ? used_ns : most_ns;
    }
    nm_turn_charge(gate, used_ns, piece->disturbed && own_ns < used_ns ? own_ns : used_ns);
    uint64_t left_ns =
        atomic_fetch_sub(&gate->in_flight_ns, piece->estimate_ns) - piece->estimate_ns;
    atomic_store_explicit(&nm_own_row(gate)->in_flight_ns, left_ns, memory_order_relaxed);
    if (left_ns != 0)
        return;
    gate->done_ns = nm_now_ns();
    if (atomic_load(&gate->waiters) == 0) /* a starved process wants the token while it has work */
        atomic_store(&nm_own_row(gate)->waiting_since_ns, 0);
}

/* With the lock: the same without a measurement. The estimate counts, but no more than the time
   that went by since the process last had no work. */
static void charge_estimate(struct nm_gpu_gate *gate, const struct nm_piece *piece)
{
    uint64_t most_ns = nm_now_ns() - gate->done_ns;
    charge(gate, piece, piece->estimate_ns < most_ns ? piece->estimate_ns : most_ns);
}

/* Records the event behind a detached piece. Where that fails, its estimate is charged. */
static void close_piece(struct nm_gpu_gate *gate, struct nm_piece *piece)
{
    nm_cu_context context = NULL;
    nm_cu_event event = NULL;
    if (nm_real_cuCtxGetCurrent(&context) == SUCCESS && context != NULL)
        event = take_event(gate, context);
    bool recorded = event != NULL && record(event, piece->stream, piece->per_thread) == SUCCESS;
    nm_lock(&gate->lock);
    struct nm_meter *meter = &gate->meter;
    if (recorded && meter->closed_count < NM_PIECES) {
        piece->end = event;
        piece->context = context;
        piece->disturbed = nm_turn_is_disturbed(gate);
        meter->closed[meter->closed_count++] = *piece;
    } else {
        put_event(meter, event, context);
        put_event(meter, piece->start, piece->context);
        charge_estimate(gate, piece);
    }
    nm_unlock(&gate->lock);
}

void nm_meter_add(struct nm_gpu_gate *gate, struct nm_launch *launch)
{
    struct nm_piece full = {0}, evicted = {0};
    nm_lock(&gate->lock);
    struct nm_piece *piece = open_piece(&gate->meter, launch->stream, launch->per_thread);
    if (piece->count > 0 && !is_of(piece, launch->stream, launch->per_thread))
        evicted = detach(gate, piece);
    add(gate, piece, launch);
    if (is_full(gate, piece) && gate->meter.closed_count < NM_PIECES)
        full = detach(gate, piece);
    nm_unlock(&gate->lock);
    if (evicted.count > 0)
        close_piece(gate, &evicted);
    if (full.count > 0)
        close_piece(gate, &full);
}

void nm_meter_withdraw(struct nm_gpu_gate *gate, struct nm_launch *launch)
{
    nm_lock(&gate->lock);
    put_event(&gate->meter, launch->start, launch->context);
    uint64_t left_ns =
        atomic_fetch_sub(&gate->in_flight_ns, launch->estimate_ns) - launch->estimate_ns;
    atomic_store_explicit(&nm_own_row(gate)->in_flight_ns, left_ns, memory_order_relaxed);
    nm_unlock(&gate->lock);
}

void nm_meter_close(struct nm_gpu_gate *gate, nm_cu_stream stream, bool per_thread, bool all)
{
    struct nm_piece left[NM_PIECE_STREAMS];
    uint32_t count = 0;
    if (atomic_load_explicit(&gate->open_pieces, memory_order_relaxed) == 0)
        return;
    nm_lock(&gate->lock);
    for (uint32_t i = 0; i < NM_PIECE_STREAMS; i++) {
        struct nm_piece *piece = &gate->meter.open[i];
        if (piece->count > 0 && (all || is_of(piece, stream, per_thread)))
            left[count++] = detach(gate, piece);
    }
    nm_unlock(&gate->lock);
    for (uint32_t i = 0; i < count; i++)
        if (!nm_is_captured(left[i].stream, left[i].per_thread))
            close_piece(gate, &left[i]);
        else {
            nm_lock(&gate->lock);
            charge_estimate(gate, &left[i]);
            nm_unlock(&gate->lock);
        }
}

/* With the lock. */
static void drop_open(struct nm_gpu_gate *gate, struct nm_piece *piece)
{
    struct nm_piece dropped = detach(gate, piece);
    put_event(&gate->meter, dropped.start, dropped.context);
    charge_estimate(gate, &dropped);
}

void nm_meter_drop(struct nm_gpu_gate *gate, nm_cu_stream stream, bool all)
{
    nm_lock(&gate->lock);
    for (uint32_t i = 0; i < NM_PIECE_STREAMS; i++) {
        struct nm_piece *piece = &gate->meter.open[i];
        if (piece->count > 0 && (all || piece->stream == stream))
            drop_open(gate, piece);
    }
    nm_unlock(&gate->lock);
}

void nm_meter_forget(struct nm_gpu_gate *gate)
{
    struct nm_meter *meter = &gate->meter;
    nm_lock(&gate->lock);
    for (uint32_t i = 0; i < NM_PIECE_STREAMS; i++)
        if (meter->open[i].count > 0)
            drop_open(gate, &meter->open[i]);
    for (uint32_t i = 0; i < meter->closed_count; i++)
        charge_estimate(gate, &meter->closed[i]);
    meter->closed_count = meter->spares = 0;
    meter->last = (struct nm_spare_event){0};
    nm_unlock(&gate->lock);
}

/* -- completion -- */

static bool elapsed_ns(nm_cu_event from, nm_cu_event to, int64_t *out_ns)
{
    float ms = 0;
    if (from == NULL || to == NULL || nm_real_cuEventElapsedTime(&ms, from, to) != SUCCESS)
        return false;
    *out_ns = (int64_t)((double)ms * 1e6);
    return true;
}

/* Times beside work of other processes only bound an estimate from above. An estimate that
   was learned from them would feed on itself. */
static bool may_learn(const struct nm_gpu_gate *gate, const struct nm_piece *piece,
                      uint64_t used_ns)
{
    return used_ns < nm_estimates_sum(piece->kernel, piece->count) ||
           (!piece->disturbed && !nm_turn_is_disturbed(gate) &&
            piece->intrusions == nm_turn_intrusions(gate));
}

/* Beside work of others, a piece has had at least an even part of its time: the GPU goes round in
   slices far shorter than LONG_PIECE_NS. 0: nothing is known. */
static uint64_t least_own_ns(const struct nm_gpu_gate *gate, uint64_t used_ns)
{
    return used_ns > LONG_PIECE_NS ? used_ns / (1 + nm_turn_others(gate)) : 0;
}

/* With the lock: the same kernels in flight count by their new estimates where those are far above
   the ones at their launch. */
static void expect_more(struct nm_gpu_gate *gate)
{
    for (uint32_t i = 0; i < gate->meter.closed_count; i++) {
        struct nm_piece *piece = &gate->meter.closed[i];
        uint64_t estimate_ns = nm_estimates_sum(piece->kernel, piece->count);
        if (estimate_ns < 4 * piece->estimate_ns)
            continue;
        uint64_t more_ns = estimate_ns - piece->estimate_ns;
        piece->estimate_ns = estimate_ns;
        uint64_t in_flight_ns = atomic_fetch_add(&gate->in_flight_ns, more_ns) + more_ns;
        atomic_store_explicit(&nm_own_row(gate)->in_flight_ns, in_flight_ns, memory_order_relaxed);
    }
}

/* With the lock. */
static void learn(struct nm_gpu_gate *gate, const struct nm_piece *piece, uint64_t used_ns)
{
    uint64_t least_ns = least_own_ns(gate, used_ns);
    if (least_ns > nm_estimates_sum(piece->kernel, piece->count))
        nm_estimates_raise(piece->kernel, piece->count, least_ns);
    else if (may_learn(gate, piece, used_ns))
        nm_estimates_learn(piece->kernel, piece->count, used_ns);
}

bool nm_meter_guesses(const struct nm_gpu_gate *gate)
{
    for (uint32_t i = 0; i < gate->meter.closed_count; i++)
        for (uint32_t j = 0; j < gate->meter.closed[i].count; j++)
            if (atomic_load(&gate->meter.closed[i].kernel[j]->estimate_ns) == 0)
                return true;
    return false;
}

void nm_meter_raise_estimates(struct nm_gpu_gate *gate)
{
    for (uint32_t i = 0; i < gate->meter.closed_count; i++) {
        struct nm_piece *piece = &gate->meter.closed[i];
        nm_estimates_learn(piece->kernel, piece->count, 4 * piece->estimate_ns);
    }
}

/* With the lock: the GPU time of a complete piece, which becomes the last one. */
static void settle(struct nm_gpu_gate *gate, const struct nm_piece *piece)
{
    struct nm_meter *meter = &gate->meter;
    int64_t since_last_ns = 0, since_start_ns = 0;
    bool after_last = meter->last.context == piece->context &&
                      elapsed_ns(meter->last.event, piece->end, &since_last_ns);
    bool after_start = elapsed_ns(piece->start, piece->end, &since_start_ns);
    bool measured = after_last || after_start;
    int64_t used_ns = after_last ? since_last_ns : (int64_t)piece->estimate_ns;
    if (after_start && (!after_last || since_start_ns < used_ns))
        used_ns = since_start_ns;
    if (used_ns < 0) /* another stream's later piece was seen first, and has it */
        used_ns = 0;
    else if (measured)
        learn(gate, piece, (uint64_t)used_ns);
    charge(gate, piece, (uint64_t)used_ns);
    put_event(meter, piece->start, piece->context);
    if (after_last && since_last_ns < 0) {
        put_event(meter, piece->end, piece->context);
        return;
    }
    put_event(meter, meter->last.event, meter->last.context);
    meter->last = (struct nm_spare_event){piece->end, piece->context};
}

/* Behind a piece that is not complete, no later piece of its stream is. */
static bool is_behind(const struct nm_piece *waiting, uint32_t count, const struct nm_piece *piece)
{
    for (uint32_t i = 0; i < count; i++)
        if (is_of(&waiting[i], piece->stream, piece->per_thread))
            return true;
    return false;
}

/* With the lock. A query that fails (the context is gone, or an error of the program's) counts as
   complete, and its events are not used again. */
static void settle_complete(struct nm_gpu_gate *gate)
{
    struct nm_meter *meter = &gate->meter;
    uint32_t left = 0;
    for (uint32_t i = 0; i < meter->closed_count; i++) {
        struct nm_piece *piece = &meter->closed[i];
        bool behind = is_behind(meter->closed, left, piece);
        int result = behind ? NM_CUDA_ERROR_NOT_READY : nm_real_cuEventQuery(piece->end);
        if (result == SUCCESS) {
            settle(gate, piece);
        } else if (result != NM_CUDA_ERROR_NOT_READY) {
            charge_estimate(gate, piece);
        } else {
            if (left != i)
                meter->closed[left] = *piece;
            left++;
        }
    }
    bool is_any_complete = left < meter->closed_count;
    meter->closed_count = left;
    if (is_any_complete)
        expect_more(gate);
}

/* With the lock, after a look at all events: all work but the first piece is ahead, and no more
   than all of it. */
static void expect_end(struct nm_gpu_gate *gate)
{
    const struct nm_meter *meter = &gate->meter;
    uint64_t in_flight_ns = atomic_load(&gate->in_flight_ns), now_ns = nm_now_ns();
    uint64_t first_ns = meter->closed_count > 0 ? meter->closed[0].estimate_ns : in_flight_ns;
    uint64_t least_ns = now_ns + (in_flight_ns > first_ns ? in_flight_ns - first_ns : 0);
    uint64_t until_ns = atomic_load_explicit(&gate->until_ns, memory_order_relaxed);
    if (until_ns > now_ns + in_flight_ns)
        until_ns = now_ns + in_flight_ns;
    if (in_flight_ns > first_ns && until_ns < least_ns)
        until_ns = least_ns;
    atomic_store_explicit(&gate->until_ns, until_ns, memory_order_relaxed);
}

bool nm_meter_poll(struct nm_gpu_gate *gate)
{
    int mode = CAPTURE_MODE_RELAXED;
    if (!nm_lock_within(&gate->lock, 0))
        return false;
    /* a query would end a capture that is under way, unless this thread's mode allows it */
    bool relaxed = gate->meter.closed_count > 0 && nm_captures_under_way() &&
                   nm_real_cuThreadExchangeStreamCaptureMode(&mode) == SUCCESS;
    settle_complete(gate);
    if (relaxed)
        nm_real_cuThreadExchangeStreamCaptureMode(&mode);
    uint64_t window_ns = atomic_load_explicit(
        &atomic_load_explicit(&gate->shares, memory_order_relaxed)->window_ns,
        memory_order_relaxed);
    atomic_store_explicit(&gate->window_ns, window_ns, memory_order_relaxed);
    expect_end(gate);
    nm_turn_check(gate, nm_now_ns());
    nm_unlock(&gate->lock);
    return true;
}

void nm_meter_retire_quiet(struct nm_gpu_gate *gate, uint64_t now_ns)
{
    struct nm_meter *meter = &gate->meter;
    uint64_t launches = atomic_load_explicit(&gate->launches, memory_order_relaxed);
    if (launches != meter->seen_launches || meter->closed_count > 0) {
        meter->seen_launches = launches;
        meter->quiet_since_ns = now_ns;
        return;
    }
    uint64_t in_flight_ns = atomic_load_explicit(&gate->in_flight_ns, memory_order_relaxed);
    if (atomic_load_explicit(&gate->open_pieces, memory_order_relaxed) > 0 &&
        now_ns - meter->quiet_since_ns > QUIET_NS + in_flight_ns)
        nm_meter_drop(gate, NULL, true);
}
