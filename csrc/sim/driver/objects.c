/* objects.c: the arena of all objects behind handles.
 *
 * Knows: addresses of equal pieces. Must not know: the meaning of the objects.
 */
#include <string.h>
#include <sys/mman.h>

#include "sim/driver/driver.h"

enum { OBJECT_COUNT = 1 << 20 };

static struct {
    char *base;
    uint32_t room;         /* objects that fit */
    _Atomic uint32_t used; /* objects ever handed out */
    nm_link *unused;       /* through link.next */
} arena;

static bool arena_open(void) {
    if (arena.base) return true;
    for (uint32_t room = OBJECT_COUNT; room >= 1024; room /= 2) {
        void *base = mmap(NULL, (size_t)room * NM_OBJECT_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) continue;
        arena.base = base;
        arena.room = room;
        return true;
    }
    return false;
}

void nm_objects_reset(void) {
    arena.base = NULL;
    arena.used = 0;
    arena.unused = NULL;
}

void *nm_object_new(nm_type type, nm_context *context) {
    if (!arena_open()) return NULL;
    nm_object *object;
    if (arena.unused) {
        object = NM_OF(arena.unused, nm_object, link);
        arena.unused = arena.unused->next;
    } else if (arena.used < arena.room) {
        object = (nm_object *)(void *)(arena.base + (size_t)arena.used++ * NM_OBJECT_BYTES);
    } else {
        return NULL;
    }
    memset((char *)object + offsetof(nm_object, link), 0,
           NM_OBJECT_BYTES - offsetof(nm_object, link));
    atomic_store(&object->serial, ++nm_the_driver.serial);
    object->context = context;
    atomic_store(&object->type, type);
    if (context) nm_list_add(&context->objects, &object->link);
    return object;
}

void nm_object_free(void *handle) {
    nm_object *object = handle;
    nm_list_remove(&object->link);
    object->type = NM_NOTHING;
    object->link.next = arena.unused;
    arena.unused = &object->link;
}

nm_object *nm_object_at(const void *handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)arena.base;
    if (!arena.base || offset >= (uintptr_t)arena.used * NM_OBJECT_BYTES ||
        offset % NM_OBJECT_BYTES != 0)
        return NULL;
    nm_object *object = (nm_object *)(void *)(arena.base + offset);
    return object->type == NM_NOTHING ? NULL : object;
}

void *nm_object_of(const void *handle, nm_type type) {
    nm_object *object = nm_object_at(handle);
    return object && object->type == type ? object : NULL;
}

nm_context *nm_context_next(const nm_context *context) {
    uint32_t index =
        context ? (uint32_t)(((const char *)context - arena.base) / NM_OBJECT_BYTES) + 1 : 0;
    for (; index < arena.used; index++) {
        nm_context *next = nm_object_of(arena.base + (size_t)index * NM_OBJECT_BYTES, NM_CONTEXT);
        if (next && next->active) return next;
    }
    return NULL;
}
