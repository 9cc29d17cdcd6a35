/* timeline.c: streams of a context, and the work that is added to them. See timeline.h.
 *
 * Knows: the order between streams. The legacy default stream waits for all work in blocking
 * streams, and they wait for it. Must not know: how deferred operations begin (deferred.c).
 */
#include "sim/timeline/timeline.h"

#include <stdlib.h>

#include "sim/timeline/deferred.h"

/* The work of a context. */
struct nm_context_work {
    nm_stream legacy;
    nm_link threads;  /* default streams of threads */
    nm_moment blocking; /* the end of all work in streams that the legacy one waits for */
    nm_moment all;
};

enum { NON_BLOCKING = 1 };

/* ---- the streams of a context
   ----------------------------------------------------------------------------- */

static struct nm_context_work *work_of(nm_context *context) {
    if (context->work) return context->work;
    struct nm_context_work *work = calloc(1, sizeof *work);
    if (!work) return NULL;
    work->legacy.object.context = context;
    nm_list_init(&work->threads);
    context->work = work;
    return work;
}

static const nm_point nothing;

void nm_context_work_end(nm_context *context) {
    struct nm_context_work *work = context->work;
    if (!work) return;
    while (!nm_list_empty(&work->threads)) {
        nm_stream *stream = NM_OF(work->threads.next, nm_stream, link);
        nm_moment_set(&stream->last, nothing);
        nm_list_remove(&stream->link);
        free(stream);
    }
    nm_moment_set(&work->legacy.last, nothing);
    nm_moment_set(&work->blocking, nothing);
    nm_moment_set(&work->all, nothing);
    free(work);
    context->work = NULL;
}

static nm_stream *stream_of_thread(struct nm_context_work *work, nm_context *context) {
    for (nm_link *link = work->threads.next; link != &work->threads; link = link->next) {
        nm_stream *stream = NM_OF(link, nm_stream, link);
        if (stream->thread == &nm_this_thread) return stream;
    }
    nm_stream *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->object.context = context;
    made->thread = &nm_this_thread;
    nm_list_add(&work->threads, &made->link);
    return made;
}

nm_cu_result nm_stream_find(nm_cu_stream handle, nm_context *context, nm_stream **out) {
    if (handle == NM_CU_STREAM_PER_THREAD || handle == NM_CU_STREAM_LEGACY || !handle) {
        struct nm_context_work *work = work_of(context);
        *out = !work                               ? NULL
               : handle == NM_CU_STREAM_PER_THREAD ? stream_of_thread(work, context)
                                                   : &work->legacy;
        return *out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = nm_object_of(handle, NM_STREAM);
    if (!*out) return NM_CUDA_ERROR_INVALID_HANDLE;
    return work_of((*out)->object.context) ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

nm_cu_result nm_stream_use(nm_cu_stream handle, nm_context **context, nm_stream **out) {
    nm_cu_result result = nm_use_current(context);
    return result == NM_CUDA_SUCCESS ? nm_stream_find(handle, *context, out) : result;
}

/* ---- order
   ----------------------------------------------------------------------------- */

static bool is_legacy(const nm_stream *stream) {
    return stream == &stream->object.context->work->legacy;
}

nm_point nm_stream_end(nm_stream *stream) {
    struct nm_context_work *work = stream->object.context->work;
    nm_point end = nm_moment_get(&stream->last);
    if (is_legacy(stream)) return nm_point_both(end, nm_moment_get(&work->blocking));
    if (stream->flags & NON_BLOCKING) return end;
    return nm_point_both(end, nm_moment_get(&work->legacy.last));
}

nm_point nm_context_end(nm_context *context) {
    return context->work ? nm_moment_get(&context->work->all) : nothing;
}

nm_point nm_point_now(nm_point point) {
    uint64_t now_ns = nm_now_ns();
    if (point.floor_ns < now_ns) point.floor_ns = now_ns;
    return point;
}

static void put(nm_stream *stream, nm_point end) {
    struct nm_context_work *work = stream->object.context->work;
    nm_moment_set(&stream->last, end);
    nm_moment_set(&work->all, nm_point_both(nm_moment_get(&work->all), end));
    if (!is_legacy(stream) && !(stream->flags & NON_BLOCKING))
        nm_moment_set(&work->blocking, nm_point_both(nm_moment_get(&work->blocking), end));
}

static int device_of(const nm_stream *stream) { return stream->object.context->device; }

static bool is_known_by(nm_point point, uint64_t now_ns) {
    return !point.deferred && !point.kernel && point.floor_ns <= now_ns;
}

bool nm_is_past(nm_point point) {
    nm_moment asked = {0};
    uint64_t now_ns = nm_now_ns();
    nm_moment_set(&asked, point);
    nm_drive(now_ns);
    bool is_past = is_known_by(nm_moment_get(&asked), now_ns);
    nm_moment_set(&asked, nothing);
    return is_past;
}

nm_cu_result nm_wait_for(const nm_context *context, nm_point point) {
    nm_moment awaited = {0};
    nm_sim_device *device = nm_device(context->device);
    uint32_t losses = context->losses;
    nm_moment_set(&awaited, point);
    for (;;) {
        uint64_t now_ns = nm_now_ns();
        nm_drive(now_ns);
        nm_point rest = nm_moment_get(&awaited);
        bool is_lost = atomic_load(&device->losses) != losses;
        if (is_lost || is_known_by(rest, now_ns)) {
            nm_moment_set(&awaited, nothing);
            return is_lost ? NM_CUDA_ERROR_DEVICE_UNAVAILABLE : NM_CUDA_SUCCESS;
        }
        nm_sleep_until(nm_next_look(&rest, now_ns));
    }
}

nm_cu_result nm_wait_for_functions(nm_stream *stream) {
    if (nm_functions_waiting == 0) return NM_CUDA_SUCCESS;
    return nm_wait_for(stream->object.context, nm_stream_end(stream));
}

/* ---- adding work
   ----------------------------------------------------------------------------- */

uint64_t nm_grid_ns(int device, uint64_t blocks) {
    uint64_t wave_ns = atomic_load_explicit(&nm_device(device)->wave_ns, memory_order_relaxed);
    uint64_t at_once = (uint64_t)nm_model(device)->multiprocessors;
    return (blocks + at_once - 1) / at_once * wave_ns;
}

void nm_wait_for_room(int device) {
    while (nm_queue_is_full(device)) {
        uint64_t now_ns = nm_now_ns();
        nm_drive(now_ns);
        if (nm_queue_is_full(device)) nm_sleep_until(nm_next_look(NULL, now_ns));
    }
}

void nm_add_kernel(nm_stream *stream, uint64_t duration_ns) {
    int device = device_of(stream);
    uint64_t now_ns = nm_now_ns();
    nm_point before = nm_stream_end(stream);
    bool in_queue = !before.deferred && before.floor_ns <= now_ns &&
                    (!before.kernel || before.device == device);
    if (in_queue) {
        put(stream, nm_begin_kernel(device, now_ns, duration_ns));
        return;
    }
    before.floor_ns = before.floor_ns > now_ns ? before.floor_ns : now_ns;
    nm_deferred *kernel = nm_defer(NM_KERNEL_PIECE, before, nothing, device);
    if (!kernel) return;
    kernel->duration_ns = duration_ns;
    put(stream, (nm_point){.deferred = kernel});
    nm_start_thread();
}

uint64_t nm_copy_ns(int device, nm_copy_engine engine, uint64_t bytes) {
    const nm_sim_model *model = nm_model(device);
    /* within the device each byte is read and written */
    return engine == NM_IN_DEVICE ? bytes * 2 / model->memory_gb_per_s
                                  : bytes / model->host_gb_per_s;
}

nm_cu_result nm_add_copy(nm_stream *stream, nm_copy_engine engine, uint64_t bytes, bool waits) {
    int device = device_of(stream);
    uint64_t asked_ns = nm_now_ns(), duration_ns = nm_copy_ns(device, engine, bytes);
    const nm_context *context = stream->object.context;
    nm_point before = nm_stream_end(stream);
    if (waits && !is_known_by(before, asked_ns)) {
        nm_cu_result result = nm_wait_for(context, before);
        if (result != NM_CUDA_SUCCESS) return result;
        if (!context->work) return NM_CUDA_ERROR_CONTEXT_IS_DESTROYED;
        before = nm_stream_end(stream);
    }
    if (before.floor_ns < asked_ns) before.floor_ns = asked_ns;
    if (nm_copy_can_begin(device, engine, before, asked_ns)) {
        put(stream, nm_begin_copy(device, engine, before.floor_ns, duration_ns));
    } else {
        nm_deferred *copy = nm_defer(NM_COPY, before, nothing, device);
        if (!copy) return NM_CUDA_ERROR_OUT_OF_MEMORY;
        copy->engine = engine;
        copy->duration_ns = duration_ns;
        put(stream, (nm_point){.deferred = copy});
        nm_start_thread();
    }
    return waits ? nm_wait_for(context, nm_moment_get(&stream->last)) : NM_CUDA_SUCCESS;
}

void nm_add_function(nm_stream *stream, void (*function)(void *), void *argument) {
    uint64_t now_ns = nm_now_ns();
    nm_point before = nm_stream_end(stream);
    nm_deferred *call = nm_defer(NM_FUNCTION_CALL, before, nothing, -1);
    if (!call) return;
    call->function = function;
    call->argument = argument;
    put(stream, (nm_point){.deferred = call});
    if (is_known_by(before, now_ns)) {
        call->begun = true;
        nm_call_function(call);
    } else {
        nm_start_thread();
    }
}

void nm_add_wait(nm_stream *stream, nm_moment *until) {
    put(stream, nm_point_both(nm_moment_get(&stream->last), nm_moment_get(until)));
}

void nm_context_add_wait(nm_context *context, nm_moment *until) {
    struct nm_context_work *work = work_of(context);
    if (!work) return;
    nm_add_wait(&work->legacy, until);
    for (nm_link *link = work->threads.next; link != &work->threads; link = link->next)
        nm_add_wait(NM_OF(link, nm_stream, link), until);
    for (nm_link *link = context->objects.next; link != &context->objects; link = link->next) {
        nm_object *object = NM_OF(link, nm_object, link);
        if (object->type == NM_STREAM) nm_add_wait((nm_stream *)(void *)object, until);
    }
}

nm_cu_result nm_context_wait(nm_context *context) {
    return nm_wait_for(context, nm_context_end(context));
}
