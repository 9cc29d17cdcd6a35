/* destroyers.c: a thread makes pools and destroys them while others allocate from them: these get
 * the driver's errors, and what was charged for them is given back.
 *
 *   destroyers ROUNDS   -> "SUCCESSES" when all is destroyed, and goes on to the end of its input.
 *                       Another answer of the driver's than those below: exit 1.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/abi/abi.h"

enum { USERS = 2, MIB = 1 << 20 };
enum { INVALID_VALUE = 1, INVALID_HANDLE = 400 };

static struct {
    int (*cuInit)(unsigned);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxSynchronize)(void);
    int (*cuMemPoolCreate)(void **, const nm_cu_mem_pool_props *);
    int (*cuMemPoolDestroy)(void *);
    int (*cuMemAllocFromPoolAsync)(uint64_t *, size_t, void *, void *);
    int (*cuMemFreeAsync)(uint64_t, void *);
} cu;

static const nm_cu_mem_pool_props props = {.alloc_type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = {NM_CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static _Atomic(void *) published;
static _Atomic bool stopped;
static _Atomic long successes;
static void *context;

static void must(const char *what, int result)
{
    if (result != 0) {
        fprintf(stderr, "destroyers: %s: %d\n", what, result);
        exit(1);
    }
}

static void find_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    must("libcuda.so.1", cuda == NULL);
#define FIND(name) must(#name, (*(void **)&cu.name = dlsym(cuda, #name)) == NULL)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuCtxSynchronize);
    FIND(cuMemPoolCreate);
    FIND(cuMemPoolDestroy);
    FIND(cuMemAllocFromPoolAsync);
    FIND(cuMemFreeAsync);
}

/* True for a success; what a thread may be told besides is that it came too late, or that there
   is no room now. */
static bool stood(const char *what, int result)
{
    if (result != INVALID_VALUE && result != INVALID_HANDLE &&
        result != NM_CUDA_ERROR_OUT_OF_MEMORY)
        must(what, result);
    atomic_fetch_add(&successes, result == 0);
    return result == 0;
}

static void *make_pool(void)
{
    void *pool;
    must("cuMemPoolCreate", cu.cuMemPoolCreate(&pool, &props));
    return pool;
}

static void use_once(void *pool, unsigned *seed)
{
    uint64_t address;
    if (stood(
            "cuMemAllocFromPoolAsync",
            cu.cuMemAllocFromPoolAsync(&address, 1 + (size_t)rand_r(seed) % (8 * MIB), pool, NULL)))
        must("cuMemFreeAsync", cu.cuMemFreeAsync(address, NULL));
}

static void *use(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    must("cuCtxSetCurrent", cu.cuCtxSetCurrent(context));
    while (!atomic_load(&stopped))
        use_once(atomic_load(&published), &seed);
    return NULL;
}

/* Each is destroyed while it is published, and while others may be in the midst of it. Not
   before one of them has had its use. */
static void race(long rounds)
{
    pthread_t thread[USERS];
    atomic_store(&published, make_pool());
    for (uintptr_t i = 0; i < USERS; i++)
        pthread_create(&thread[i], NULL, use, (void *)(i + 1));
    for (long round = 0; round < rounds; round++) {
        for (long seen = atomic_load(&successes); atomic_load(&successes) == seen;)
            ;
        must("cuMemPoolDestroy", cu.cuMemPoolDestroy(atomic_load(&published)));
        atomic_store(&published, make_pool());
    }
    atomic_store(&stopped, true);
    for (int i = 0; i < USERS; i++)
        pthread_join(thread[i], NULL);
    must("cuMemPoolDestroy", cu.cuMemPoolDestroy(atomic_load(&published)));
}

int main(int count, char **arguments)
{
    must("ROUNDS", count != 2);
    find_driver();
    must("cuInit", cu.cuInit(0));
    must("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(&context, 0));
    must("cuCtxSetCurrent", cu.cuCtxSetCurrent(context));
    race(atol(arguments[1]));
    must("cuCtxSynchronize", cu.cuCtxSynchronize());
    printf("%ld\n", successes);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
