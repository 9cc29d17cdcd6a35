/* linker.h: the dynamic linker's own functions, found without the names that this library exports.
 *
 * Knows: the ELF tables of the loaded libc. Must not know: CUDA, the hooked symbols, leases.
 *
 * A library that exports dlsym and dlvsym cannot look up the real ones with either. It reads their
 * definitions once from libc's symbol table (libdl's before glibc 2.34). No function here allocates
 * or takes a lock of this library: some run in earlier constructors, and while another preloaded
 * allocator starts.
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

/* The function that a call of the exported dlsym or dlvsym jumps to, with the same arguments.
   Never NULL. */
nm_dlsym_function *nm_route_dlsym(void *handle, const char *name);
nm_dlvsym_function *nm_route_dlvsym(void *handle, const char *name, const char *version);

/* The exported ones, whichever `dlsym` this process binds. */
extern nm_dlsym_function nm_our_dlsym;

/* Never NULL; constant once seen. A function that was not found returns NULL or 0. */
const struct nm_linker *nm_linker(void);

#endif
