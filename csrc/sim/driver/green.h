/* green.h: a green context: contexts.c makes it, streams.c works through it. */
#ifndef NM_SIM_GREEN_H
#define NM_SIM_GREEN_H

#include "sim/driver/driver.h"

typedef struct {
    nm_object object;
    nm_context *view; /* used through this */
} nm_green_context;

/* NULL if the handle is not of a green context. */
static inline nm_context *nm_green_view(const void *handle) {
    const nm_green_context *green = nm_object_of(handle, NM_GREEN_CONTEXT);
    return green ? green->view : NULL;
}

#endif
