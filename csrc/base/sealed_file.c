/* sealed_file.c: see sealed_file.h. */
#include "base/sealed_file.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/prim.h"

int nm_sealed_create(const char *name, size_t size, int seals, void **address)
{
    int fd = nm_memfd(name);
    *address = NULL;
    if (fd < 0)
        return -1;
    /* mapped first: NM_SEALS_OWNED permits no later mapping for writing */
    if (ftruncate(fd, (off_t)size) == 0)
        *address = nm_sealed_map(fd, size, PROT_READ | PROT_WRITE);
    if (*address != NULL && fcntl(fd, F_ADD_SEALS, seals) == 0)
        return fd;
    nm_sealed_unmap(*address, size, fd);
    *address = NULL;
    return -1;
}

int nm_sealed_check(int fd, size_t size, int seals)
{
    if (nm_fd_size(fd) < 0)
        return NM_SEALED_ERRNO;
    /* before the size, which may change without them */
    int found = fcntl(fd, F_GET_SEALS);
    if (found < 0 || (found & seals) != seals)
        return NM_SEALED_SEALS;
    return nm_fd_size(fd) == (int64_t)size ? NM_SEALED_OK : NM_SEALED_SIZE;
}

void *nm_sealed_map(int fd, size_t size, int protection)
{
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *address = mmap(NULL, size, protection, flags, fd, 0);
    return address == MAP_FAILED ? NULL : address;
}

void nm_sealed_unmap(const void *address, size_t size, int fd)
{
    int error = errno;
    if (address != NULL)
        munmap((void *)(uintptr_t)address, size);
    if (fd >= 0)
        close(fd);
    errno = error;
}
