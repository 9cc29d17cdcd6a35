/* blocks.c: the table of blocks, swept again and again while other threads put blocks into it and
 * take them out.
 *
 *   blocks ROUNDS   -> exit 0; a sweep that does not find each block once, or leaves one there:
 *                   exit 1, with a line
 */
#include "account/blocks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 3, SWEPT = 500, NEIGHBOURS = 600 };

static _Atomic int ended;
static _Atomic uint64_t found;

static void *come_and_go(void *argument)
{
    uint64_t first = (uint64_t)(uintptr_t)argument << 32;
    struct nm_block block, stale;
    while (!atomic_load(&ended)) {
        for (uint64_t i = 0; i < NEIGHBOURS; i++)
            nm_block_put(
                &(struct nm_block){.kind = NM_BLOCK_LINEAR, .key = first + i * 512, .owner = 1},
                &stale);
        for (uint64_t i = 0; i < NEIGHBOURS; i++)
            nm_block_take(NM_BLOCK_LINEAR, first + i * 512, &block);
    }
    return NULL;
}

static void count(const struct nm_block *block)
{
    atomic_fetch_add(&found, block->bytes);
}

static void sweep(uint64_t owner)
{
    struct nm_block stale;
    found = 0;
    for (uint64_t i = 0; i < SWEPT; i++)
        nm_block_put(
            &(struct nm_block){.kind = NM_BLOCK_LINEAR, .key = i * 512, .owner = owner, .bytes = 1},
            &stale);
    nm_block_rename_owner(NM_BLOCK_LINEAR, owner, owner + 1);
    nm_block_take_owned(NM_BLOCK_LINEAR, owner + 1, count);
    if (found == SWEPT)
        return;
    fprintf(stderr, "blocks: %d put, %llu found\n", SWEPT, (unsigned long long)found);
    exit(1);
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    int rounds = argc > 1 ? atoi(argv[1]) : 0;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, come_and_go, (void *)(i + 1));
    for (int round = 0; round < rounds; round++)
        sweep(10 + 2 * (uint64_t)round);
    atomic_store(&ended, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
