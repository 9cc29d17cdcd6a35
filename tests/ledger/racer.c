/* racer.c: a client of the ledger that reserves and gives back as fast as it can, and keeps the
 * test's own books beside it.
 *
 *   racer LIMITS_FD USAGE_FD TRUTH_FD SLOT GENERATION THREADS ROUNDS MOST_BYTES CEILING_BYTES
 *
 * TRUTH is one word of shared memory: added to after a reservation stood, taken from before it is
 * given back. So at every instant it is at most what is reserved, and a racer that ever sees more
 * than the ceiling there has found a hole: exit 3. ROUNDS 0: until killed. Says "ready" and starts
 * at the end of stdin, so that all start together. Prints how many reservations stood and how many
 * were refused. With the LIMITS_FD "private" the threads race as slots of a ledger without files
 * (for the thread sanitizer).
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/prim.h"
#include "ledger/ledger.h"

#define THREADS_MAX 64
#define HELD_MAX 4

static struct nm_ledger ledger;
static _Atomic uint64_t *truth;
static _Atomic uint64_t stood, refused, holes;
static uint32_t slot, generation;
static uint64_t rounds, most_bytes, ceiling_bytes;

static uint32_t slot_of(uintptr_t thread)
{
    return ledger.limits_writable != NULL ? (uint32_t)thread : slot;
}

static bool reserve(uint32_t own, uint64_t bytes)
{
    if (nm_ledger_reserve(&ledger, 0, own, generation, bytes) != NM_OK) {
        atomic_fetch_add(&refused, 1);
        return false;
    }
    if (atomic_fetch_add(truth, bytes) + bytes > ceiling_bytes)
        atomic_fetch_add(&holes, 1);
    atomic_fetch_add(&stood, 1);
    return true;
}

static void give_back(uint32_t own, uint64_t bytes)
{
    atomic_fetch_sub(truth, bytes);
    nm_ledger_release(&ledger, 0, own, generation, bytes);
}

static void *race(void *argument)
{
    uint32_t own = slot_of((uintptr_t)argument);
    uint64_t held[HELD_MAX] = {0};
    for (uint64_t round = 0; rounds == 0 || round < rounds; round++) {
        uint64_t *cell = &held[nm_random() % HELD_MAX], bytes = 1 + nm_random() % most_bytes;
        if (*cell != 0) {
            give_back(own, *cell);
            *cell = 0;
        } else if (reserve(own, bytes)) {
            *cell = bytes;
        }
    }
    for (unsigned i = 0; i < HELD_MAX; i++)
        if (held[i] != 0)
            give_back(own, held[i]);
    return NULL;
}

static bool open_private(void)
{
    if (nm_ledger_map_private(&ledger) != NM_LEDGER_OK)
        return false;
    nm_ledger_set_limit(&ledger, 0, ceiling_bytes);
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        nm_ledger_set_slot(&ledger, i, generation, NM_SLOT_LIVE);
    static _Atomic uint64_t own_truth;
    truth = &own_truth;
    return true;
}

static bool open_shared(char **arguments)
{
    if (nm_ledger_map_client(&ledger, atoi(arguments[1]), atoi(arguments[2])) != NM_LEDGER_OK)
        return false;
    truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(arguments[3]), 0);
    return truth != MAP_FAILED;
}

int main(int count, char **arguments)
{
    pthread_t thread[THREADS_MAX];
    if (count != 10)
        return 2;
    slot = (uint32_t)atoi(arguments[4]);
    unsigned threads = (unsigned)atoi(arguments[6]);
    rounds = strtoull(arguments[7], NULL, 10);
    most_bytes = strtoull(arguments[8], NULL, 10);
    ceiling_bytes = strtoull(arguments[9], NULL, 10);
    if (threads > THREADS_MAX || most_bytes == 0)
        return 2;
    bool private_one = strcmp(arguments[1], "private") == 0;
    if (!(private_one ? open_private() : open_shared(arguments)))
        return 2;
    generation = private_one ? 0 : (uint32_t)atoi(arguments[5]);
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) /* the start for all */
        ;
    for (uintptr_t i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, race, (void *)i);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", atomic_load(&stood), atomic_load(&refused),
           nm_ledger_used(&ledger, 0));
    return atomic_load(&holes) == 0 ? 0 : 3;
}
