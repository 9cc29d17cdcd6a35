/* clone.c: raw clones, made while another thread holds our locks: no handler of fork's ever sees
 * them.
 *
 *   clone   -> exit 0 once the clone has put a block, found it and taken a lock; it hangs where it
 *           waits for who is not in it
 */
#include "account/blocks.h"
#include "base/prim.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct nm_lock held;
static _Atomic int ended;

static void *keep_busy(void *argument)
{
    struct nm_block stale, block = {.kind = NM_BLOCK_LINEAR};
    (void)argument;
    while (!atomic_load(&ended)) {
        block.key += 512;
        nm_block_put(&block, &stale);
        nm_block_take(NM_BLOCK_LINEAR, block.key, &stale);
    }
    return NULL;
}

static int in_the_clone(void)
{
    struct nm_block found, stale;
    for (uint64_t key = 1; key <= 512; key++) /* every shard, whichever was held */
        if (!nm_block_put(&(struct nm_block){.kind = NM_BLOCK_ARRAY, .key = key, .bytes = key},
                          &stale) ||
            !nm_block_take(NM_BLOCK_ARRAY, key, &found) || found.bytes != key)
            return 1;
    nm_lock(&held);
    nm_unlock(&held);
    return 0;
}

int main(void)
{
    enum { CLONES = 20 };
    pthread_t thread;
    int status = 0;
    nm_fork_mark();
    nm_lock(&held);
    if (pthread_create(&thread, NULL, keep_busy, NULL) != 0)
        return 2;
    for (int i = 0; i < CLONES && status == 0; i++) {
        long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0)
            _exit(in_the_clone());
        if (waitpid((pid_t)pid, &status, 0) != pid)
            return 2;
    }
    atomic_store(&ended, 1);
    pthread_join(thread, NULL);
    nm_unlock(&held);
    return status == 0 ? 0 : 1;
}
