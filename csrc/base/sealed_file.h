/* sealed_file.h: memory files of a size that no process can change, mapped by several processes.
 *
 * Knows: memfd, seals, mappings. Must not know: the contents. A reader of a file without its seals
 * could be killed by SIGBUS, since another process could shrink the file.
 */
#ifndef NM_SEALED_FILE_H
#define NM_SEALED_FILE_H

#include <fcntl.h>
#include <stddef.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

/* Each process that has the file may write it. */
#define NM_SEALS_SHARED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* Only the mapping of its creator may write it. */
#define NM_SEALS_OWNED (NM_SEALS_SHARED | F_SEAL_FUTURE_WRITE)

enum nm_sealed_fault {
    NM_SEALED_OK = 0,
    NM_SEALED_ERRNO = -1, /* errno says more */
    NM_SEALED_SIZE = -2,  /* a file of another size */
    NM_SEALED_SEALS = -3  /* seals are missing */
};

/* A new file of zeros with these seals, and its mapping for reading and writing in *address.
   Returns the descriptor; or -1, and errno says more. */
int nm_sealed_create(const char *name, size_t size, int seals, void **address);
/* Whether a file that another process sent has these seals and this size: an nm_sealed_fault. */
int nm_sealed_check(int fd, size_t size, int seals);
/* A mapping of size bytes; fd -1: of zeros, private to this process and its children. Or NULL. */
void *nm_sealed_map(int fd, size_t size, int protection);
/* Undoes both, the mapping if it is not NULL and the descriptor if it is not -1. Keeps errno. */
void nm_sealed_unmap(const void *address, size_t size, int fd);

#endif
