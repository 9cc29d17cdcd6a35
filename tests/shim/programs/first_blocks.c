/* first_blocks.c: blocks.c without a new page of memory.
 *
 *   first_blocks COUNT STRIDE   Puts COUNT blocks whose keys are STRIDE apart, where mmap fails,
 *                               and takes them again. Exit 0: all were there, and mmap was not
 *                               called.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "account/blocks.h"

static unsigned maps;

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
{
    (void)address, (void)length, (void)protection, (void)flags, (void)fd, (void)offset;
    maps++;
    errno = ENOMEM;
    return MAP_FAILED;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    uint64_t count = strtoull(argv[1], NULL, 10), stride = strtoull(argv[2], NULL, 10),
             first = UINT64_C(0x7f2000000000);
    for (uint64_t i = 0; i < count; i++) {
        struct nm_block block = {.key = first + i * stride, .bytes = i, .kind = NM_BLOCK_LINEAR},
                        replaced;
        if (!nm_block_put(&block, &replaced))
            return fprintf(stderr, "no room for block %llu\n", (unsigned long long)i), 1;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct nm_block found;
        if (!nm_block_take(NM_BLOCK_LINEAR, first + i * stride, &found) || found.bytes != i)
            return fprintf(stderr, "block %llu is lost\n", (unsigned long long)i), 1;
    }
    if (maps != 0)
        return fprintf(stderr, "%u calls of mmap\n", maps), 1;
    return 0;
}
