/* linker.h: the dynamic linker's own functions, found without asking the names that we export
 * ourselves.
 *
 * Knows: the ELF tables of the loaded libc.
 * Must not know: CUDA, what is hooked (nm_route_dlsym says), leases.
 *
 * A library that exports dlsym and dlvsym cannot look up the real ones with either: so their
 * definitions are read from libc's symbol table (libdl's before glibc 2.34), once. Nothing here
 * allocates or takes a lock of ours: it works in constructors that run before ours, and while
 * another preloaded allocator is starting.
 */
#ifndef NM_LINKER_H
#define NM_LINKER_H

#include <stdbool.h>

typedef void *nm_dlsym_function(void *handle, const char *name);
typedef void *nm_dlvsym_function(void *handle, const char *name, const char *version);
typedef void *nm_dlopen_function(const char *file, int mode);
typedef int nm_dladdr_function(const void *address, void *info); /* info: a Dl_info */
typedef char *nm_dlerror_function(void);

struct nm_linker {
    nm_dlsym_function *_Atomic dlsym;
    nm_dlvsym_function *_Atomic dlvsym;
    nm_dlopen_function *_Atomic dlopen;
    nm_dladdr_function *_Atomic dladdr;
    nm_dlerror_function *_Atomic dlerror;
};

/* Equality without libc: see linker.c. */
bool nm_same_text(const char *a, const char *b);

/* Where a call of the exported dlsym or dlvsym goes on: interpose.c's answer, with the same
   arguments. Never NULL. */
nm_dlsym_function *nm_route_dlsym(void *handle, const char *name);
nm_dlvsym_function *nm_route_dlvsym(void *handle, const char *name, const char *version);

/* The exported ones, for any meaning of `dlsym` in this process. */
extern nm_dlsym_function nm_our_dlsym;

/* Never NULL, constant once seen. A function that could not be found answers NULL or 0. */
const struct nm_linker *nm_linker(void);

#endif
