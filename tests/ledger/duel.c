/* duel.c: room for one block, and many who want it at the same moment: somebody gets it each time,
 * and never two.
 *
 *   duel THREADS ROUNDS   -> how many rounds had no winner; exit 3 where one had two
 * The threads are slots of a ledger without files. A winner keeps it until all have their answers.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "ledger/ledger.h"

enum { THREADS_MAX = 64, BLOCK_BYTES = 1 << 20 };

static struct nm_ledger ledger;
static _Atomic unsigned winners, without, twice, arrived, passed, threads;
static unsigned rounds;

/* Spinning, so that all leave at the same moment. True for the last to come. */
static bool meet(void)
{
    unsigned before = atomic_load(&passed);
    if (atomic_fetch_add(&arrived, 1) + 1 == threads) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&passed, 1);
        return true;
    }
    for (unsigned spins = 1; atomic_load(&passed) == before; spins++)
        if (spins % 1000 == 0)
            sched_yield();
    return false;
}

static void *duel(void *argument)
{
    uint32_t slot = (uint32_t)(uintptr_t)argument;
    for (unsigned round = 0; round < rounds; round++) {
        meet();
        int answer = nm_ledger_reserve(&ledger, 0, slot, 0, BLOCK_BYTES);
        if (answer == NM_OK)
            atomic_fetch_add(&winners, 1);
        if (meet()) {
            unsigned count = atomic_exchange(&winners, 0);
            without += count == 0;
            twice += count > 1;
        }
        if (answer == NM_OK)
            nm_ledger_release(&ledger, 0, slot, 0, BLOCK_BYTES);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread[THREADS_MAX];
    threads = count == 3 ? (unsigned)atoi(arguments[1]) : 0;
    if (threads < 1 || threads > THREADS_MAX || nm_ledger_map_private(&ledger) != NM_LEDGER_OK)
        return 2;
    rounds = (unsigned)atoi(arguments[2]);
    nm_ledger_set_limit(&ledger, 0, BLOCK_BYTES + BLOCK_BYTES / 2);
    /* all of them: a sum takes long, and the racers meet in it */
    for (uint32_t slot = 0; slot < NM_LEDGER_SLOTS; slot++)
        nm_ledger_set_slot(&ledger, slot, 0, NM_SLOT_LIVE);
    for (uintptr_t slot = 0; slot < threads; slot++)
        pthread_create(&thread[slot], NULL, duel, (void *)slot);
    for (unsigned slot = 0; slot < threads; slot++)
        pthread_join(thread[slot], NULL);
    printf("%u\n", without);
    return twice == 0 ? 0 : 3;
}
