/* names.h: the list that the build takes out of driver_types.h (build.py): each error's number
   and name. */
#ifndef NM_SIM_CUDART_NAMES_H
#define NM_SIM_CUDART_NAMES_H

typedef struct {
    int error;
    const char *name; /* NULL ends the list */
} nm_error_name;

extern const nm_error_name nm_error_names[];

#endif
