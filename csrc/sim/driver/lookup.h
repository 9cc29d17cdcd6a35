/* lookup.h: a row of the table of names, which the build makes from driver_names.txt, sorted by
 * (base, version).
 *
 * Knows: its columns. Must not know: its content.
 */
#ifndef NM_SIM_LOOKUP_H
#define NM_SIM_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *base;
    int version;     /* the CUDA version that brought this ABI, as 1000 * major + 10 * minor */
    bool per_thread; /* the flavour with the thread's own default stream */
    void *address;
} nm_name;

extern const nm_name nm_names[];
extern const size_t nm_name_count;

#endif
