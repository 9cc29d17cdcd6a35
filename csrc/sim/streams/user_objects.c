/* user_objects.c: an object of the program, destroyed with its last reference.
 *
 * Knows: the number of references. Must not know: the object.
 */
#include "sim/streams/graphs.h"

typedef struct {
    nm_object object;
    void *theirs;
    void (*destroy)(void *);
    unsigned references;
} user_object;

NM_CU cuUserObjectCreate(void **out, void *theirs, void (*destroy)(void *), unsigned references,
                         unsigned flags) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !destroy || references == 0 || flags != 1) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    user_object *made = nm_object_new(NM_USER_OBJECT, NULL);
    if (made) {
        made->theirs = theirs;
        made->destroy = destroy;
        made->references = references;
        *out = made;
    }
    NM_UNLOCK();
    return made ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuUserObjectRetain(void *handle, unsigned count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    user_object *kept = nm_object_of(handle, NM_USER_OBJECT);
    if (kept) kept->references += count;
    NM_UNLOCK();
    return kept && count > 0 ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* The program's function runs outside of the mutex: it may call the driver. */
NM_CU cuUserObjectRelease(void *handle, unsigned count) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    user_object last = {.references = 1};
    NM_LOCK();
    user_object *kept = nm_object_of(handle, NM_USER_OBJECT);
    bool may = kept && count > 0 && count <= kept->references;
    if (may) {
        kept->references -= count;
        last.references = kept->references;
        last.theirs = kept->theirs;
        last.destroy = kept->destroy;
        if (kept->references == 0) nm_object_free(kept);
    }
    NM_UNLOCK();
    if (last.references == 0) last.destroy(last.theirs);
    return may ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

/* A reference that a graph takes over; it is released with the process, and not before. */
NM_CU cuGraphRetainUserObject(nm_cu_graph graph, void *handle, unsigned count, unsigned flags) {
    enum { MOVE = 1 };
    nm_cu_result result = nm_graph_exists(graph);
    if (result != NM_CUDA_SUCCESS) return result;
    return flags == MOVE ? NM_CUDA_SUCCESS : cuUserObjectRetain(handle, count);
}
NM_CU cuGraphReleaseUserObject(nm_cu_graph graph, void *handle, unsigned count) {
    nm_cu_result result = nm_graph_exists(graph);
    return result == NM_CUDA_SUCCESS ? cuUserObjectRelease(handle, count) : result;
}
