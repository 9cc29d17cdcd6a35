/* older.h: a few calls of libc, by symbols that every glibc since 2.17 has. The simulator is
 * mounted into images that are older than the machine of its build. Included after the headers that
 * it replaces.
 *
 * Knows: which symbols are newer, or have changed their library.
 */
#ifndef NM_SIM_OLDER_H
#define NM_SIM_OLDER_H

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dladdr,dladdr@GLIBC_2.17");
#endif

/* stat and fstat are symbols since 2.33; on 64 bits the kernel's structure is libc's. */
static inline int nm_sim_stat(const char *path, struct stat *status) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

static inline int nm_sim_fstat(int descriptor, struct stat *status) {
    return (int)syscall(SYS_fstat, descriptor, status);
}

#endif
