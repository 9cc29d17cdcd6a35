/* forks.c: forks beside threads that hold the locks of the table of blocks. The child looks through
 * the table.
 *
 *   forks ROUNDS   -> exit 0; a child that waits for a thread of its parent, or misses a block:
 *                  exit 1, with a line
 */
#include "account/blocks.h"
#include "base/prim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, WITNESSES = 100, OWNER = 1, PATIENCE_S = 300, ALL_SEEN = 0, MISSED = 3 };

static _Atomic int ended;
static unsigned found;

static void *keep_busy(void *argument)
{
    struct nm_block stale,
        block = {.kind = NM_BLOCK_LINEAR, .key = (uint64_t)(uintptr_t)argument << 32};
    while (!atomic_load(&ended)) {
        block.key += 512;
        nm_block_put(&block, &stale);
        nm_block_take(NM_BLOCK_LINEAR, block.key, &stale);
    }
    return NULL;
}

static void count(const struct nm_block *block)
{
    (void)block;
    found++;
}

static _Noreturn void be_child(void)
{
    nm_fork_mark(); /* the client's handler is called first */
    alarm(PATIENCE_S);
    nm_block_break_locks();
    nm_block_take_owned(NM_BLOCK_WITNESS, OWNER, count);
    nm_block_forget();
    _exit(found >= WITNESSES ? ALL_SEEN : MISSED);
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    struct nm_block stale;
    int status = 0, rounds = argc > 1 ? atoi(argv[1]) : 0;
    nm_fork_mark();
    for (uint64_t key = 1; key <= WITNESSES; key++)
        nm_block_put(&(struct nm_block){.kind = NM_BLOCK_WITNESS, .key = key, .owner = OWNER},
                     &stale);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, keep_busy, (void *)(i + 1));
    for (int round = 0; round < rounds && status == 0; round++) {
        pid_t child = fork();
        if (child == 0)
            be_child();
        if (child < 0 || waitpid(child, &status, 0) != child)
            status = -1;
    }
    atomic_store(&ended, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    if (status != 0)
        fprintf(stderr, "forks: a child has ended with status %d\n", status);
    return status != 0;
}
