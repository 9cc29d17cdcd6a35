/* race.c: allocates and frees at random, in several threads, by every route that takes and gives
 * back at once.
 *
 * Knows: a few of the driver's functions. Must not know: how much there is.
 *
 *   race THREADS ROUNDS SEED MOST_BYTES
 *
 * Frees all it had and prints {"done": rounds, "refused": count}; exit code 1 where the driver
 * answered anything but success and CUDA_ERROR_OUT_OF_MEMORY. ROUNDS 0: for ever.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLOTS = 16, OUT_OF_MEMORY = 2, GRANULE = 2 << 20 };

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **out, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemAllocAsync(uint64_t *out, size_t bytes, void *stream);
int cuMemCreate(uint64_t *out, size_t bytes, const void *prop, unsigned long long flags);
int cuMemRelease(uint64_t handle);

static const struct {
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
} on_device_0 = {1, 0, 1, 0, NULL, {0}};

static unsigned long rounds, seed, most_bytes;
static _Atomic unsigned long refusals;
static void *context;

typedef enum { NOTHING, ADDRESS, HANDLE } kind;

static int give_back(kind what, uint64_t had) {
    return what == ADDRESS ? cuMemFree_v2(had) : what == HANDLE ? cuMemRelease(had) : 0;
}

static int take(unsigned *random, kind *what, uint64_t *had) {
    size_t bytes = (size_t)rand_r(random) % most_bytes + 1;
    switch (rand_r(random) % 3) {
    case 0: *what = ADDRESS; return cuMemAlloc_v2(had, bytes);
    case 1: *what = ADDRESS; return cuMemAllocAsync(had, bytes, NULL);
    default:
        *what = HANDLE;
        return cuMemCreate(had, (bytes / GRANULE + 1) * GRANULE, &on_device_0, 0);
    }
}

static void *run(void *number) {
    unsigned random = (unsigned)(seed * 1000 + (uintptr_t)number);
    uint64_t had[SLOTS] = {0};
    kind what[SLOTS] = {NOTHING};
    if (cuCtxSetCurrent(context) != 0) exit(1);
    for (unsigned long round = 0; rounds == 0 || round < rounds; round++) {
        int slot = rand_r(&random) % SLOTS;
        if (give_back(what[slot], had[slot]) != 0) exit(1);
        what[slot] = NOTHING;
        if (round % 16 == 0 && cuCtxSynchronize() != 0) exit(1);
        int result = take(&random, &what[slot], &had[slot]);
        if (result == OUT_OF_MEMORY) {
            refusals++;
            what[slot] = NOTHING;
        } else if (result != 0) {
            exit(1);
        }
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        if (give_back(what[slot], had[slot]) != 0) exit(1);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[64];
    if (count != 5) return 2;
    unsigned long thread_count = strtoul(words[1], NULL, 10);
    rounds = strtoul(words[2], NULL, 10);
    seed = strtoul(words[3], NULL, 10);
    most_bytes = strtoul(words[4], NULL, 10);
    if (thread_count < 1 || thread_count > 64 || cuInit(0) != 0 ||
        cuDevicePrimaryCtxRetain(&context, 0) != 0)
        return 1;
    printf("ready\n");
    fflush(stdout);
    for (uintptr_t each = 0; each < thread_count; each++) {
        if (pthread_create(&threads[each], NULL, run, (void *)each) != 0) return 1;
    }
    for (uintptr_t each = 0; each < thread_count; each++) pthread_join(threads[each], NULL);
    if (cuCtxSetCurrent(context) != 0 || cuCtxSynchronize() != 0) return 1;
    printf("{\"done\": %lu, \"refused\": %lu}\n", rounds, refusals);
    fflush(stdout);
    return getchar() == EOF ? 0 : 0;
}
