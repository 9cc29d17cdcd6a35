/* race_threads.c: threads that allocate and free at random by many paths, against one grant.
 *
 *   racers THREADS STEPS SEED [children]   -> "SUCCESSES REFUSALS CHILDREN" and exit 0
 * An answer that is neither success nor out of memory: exit 1. With STEPS 0 it goes on until a line
 * of input comes. Then nothing is allocated any more; it says so, and waits for the end of its
 * input. `children`: meanwhile it forks, clones and vforks. Children use CUDA too, and leave
 * without a word to anybody; how many did is told.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/abi/abi.h"

enum { HELD = 8, GRANULE = 2 << 20 };

struct held {
    int path; /* index + 1; 0: empty */
    uint64_t handle;
};

static struct {
    int (*cuInit)(unsigned);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuMemAlloc_v2)(uint64_t *, size_t);
    int (*cuMemFree_v2)(uint64_t);
    int (*cuMemAllocManaged)(uint64_t *, size_t, unsigned);
    int (*cuMemAllocPitch_v2)(uint64_t *, size_t *, size_t, size_t, unsigned);
    int (*cuMemAllocFromPoolAsync)(uint64_t *, size_t, void *, void *);
    int (*cuMemPoolCreate)(void **, const nm_cu_mem_pool_props *);
    int (*cuMemAddressReserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*cuMemAddressFree)(uint64_t, size_t);
    int (*cuMemMap)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
    int (*cuMemUnmap)(uint64_t, size_t);
    int (*cuMemAllocAsync)(uint64_t *, size_t, void *);
    int (*cuMemFreeAsync)(uint64_t, void *);
    int (*cuMemCreate)(uint64_t *, size_t, const nm_cu_mem_allocation_prop *, unsigned long long);
    int (*cuMemRelease)(uint64_t);
    int (*cuArrayCreate_v2)(void **, const nm_cu_array_descriptor *);
    int (*cuArrayDestroy)(void *);
    int (*cuStreamSynchronize)(void *);
    int (*cuGraphCreate)(void **, unsigned);
    int (*cuGraphDestroy)(void *);
    int (*cuGraphAddMemAllocNode)(void **, void *, void **, size_t, nm_cu_mem_alloc_node_params *);
    int (*cuGraphAddMemFreeNode)(void **, void *, void **, size_t, uint64_t);
    int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long);
    int (*cuGraphLaunch)(void *, void *);
    int (*cuGraphExecDestroy)(void *);
    int (*cuDeviceGraphMemTrim)(int);
} cu;

static _Atomic long successes, refusals;
static _Atomic bool stopped;
static long steps, children;
static void *context, *own_pool;

static void fail(const char *what, int result)
{
    fprintf(stderr, "racers: %s: %d\n", what, result);
    exit(1);
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        fail(name, -1);
    return found;
}

static void find_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda == NULL)
        fail("libcuda.so.1", -1);
#define FIND(name) *(void **)&cu.name = symbol(cuda, #name)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemAllocManaged);
    FIND(cuMemAllocPitch_v2);
    FIND(cuMemAllocFromPoolAsync);
    FIND(cuMemPoolCreate);
    FIND(cuMemAddressReserve);
    FIND(cuMemAddressFree);
    FIND(cuMemMap);
    FIND(cuMemUnmap);
    FIND(cuMemAllocAsync);
    FIND(cuMemFreeAsync);
    FIND(cuMemCreate);
    FIND(cuMemRelease);
    FIND(cuArrayCreate_v2);
    FIND(cuArrayDestroy);
    FIND(cuStreamSynchronize);
    FIND(cuGraphCreate);
    FIND(cuGraphDestroy);
    FIND(cuGraphAddMemAllocNode);
    FIND(cuGraphAddMemFreeNode);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch);
    FIND(cuGraphExecDestroy);
    FIND(cuDeviceGraphMemTrim);
}

static int take_linear(uint64_t *out, size_t bytes) { return cu.cuMemAlloc_v2(out, bytes); }
static int take_managed(uint64_t *out, size_t bytes) { return cu.cuMemAllocManaged(out, bytes, 1); }
static int take_async(uint64_t *out, size_t bytes) { return cu.cuMemAllocAsync(out, bytes, NULL); }

static int take_pooled(uint64_t *out, size_t bytes)
{
    return cu.cuMemAllocFromPoolAsync(out, bytes, own_pool, NULL);
}

static int take_pitched(uint64_t *out, size_t bytes)
{
    size_t pitch;
    return cu.cuMemAllocPitch_v2(out, &pitch, 1000, bytes / 1000 + 1, 4);
}

static int take_virtual(uint64_t *out, size_t bytes)
{
    nm_cu_mem_allocation_prop prop = {.type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {NM_CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return cu.cuMemCreate(out, (bytes + GRANULE - 1) / GRANULE * GRANULE, &prop, 0);
}

/* Memory that lives by its mapping alone: the handle is released. All ranges are as long, so
   that an address says all. */
enum { MAPPED_BYTES = 8 * GRANULE };

static int take_mapped(uint64_t *out, size_t bytes)
{
    uint64_t handle;
    (void)bytes;
    int result = take_virtual(&handle, MAPPED_BYTES);
    if (result != 0)
        return result;
    if (cu.cuMemAddressReserve(out, MAPPED_BYTES, 0, 0, 0) != 0 ||
        cu.cuMemMap(*out, MAPPED_BYTES, 0, handle, 0) != 0)
        return -1;
    return cu.cuMemRelease(handle);
}

static int drop_mapped(uint64_t address)
{
    int result = cu.cuMemUnmap(address, MAPPED_BYTES);
    return result != 0 ? result : cu.cuMemAddressFree(address, MAPPED_BYTES);
}

static int take_array(uint64_t *out, size_t bytes)
{
    nm_cu_array_descriptor shape = {.width = 1024,
                                    .height = (bytes >> 12) + 1,
                                    .format = NM_CU_AD_FORMAT_FLOAT,
                                    .num_channels = 1};
    return cu.cuArrayCreate_v2((void **)out, &shape);
}

/* A graph that allocates and frees, launched once; held is the graph's reserve of the device. */
static int take_graph(uint64_t *out, size_t bytes)
{
    void *graph = NULL, *taking = NULL, *giving = NULL, *exec = NULL;
    nm_cu_mem_alloc_node_params params = {
        .pool_props = {.alloc_type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = {NM_CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytesize = bytes,
    };
    if (cu.cuGraphCreate(&graph, 0) != 0 ||
        cu.cuGraphAddMemAllocNode(&taking, graph, NULL, 0, &params) != 0 ||
        cu.cuGraphAddMemFreeNode(&giving, graph, &taking, 1, params.dptr) != 0 ||
        cu.cuGraphInstantiateWithFlags(&exec, graph, 0) != 0)
        return -1;
    int result = cu.cuGraphLaunch(exec, NULL);
    if (result != 0 && cu.cuGraphExecDestroy(exec) != 0)
        return -1;
    *out = (uint64_t)(uintptr_t)exec;
    return cu.cuGraphDestroy(graph) == 0 ? result : -1;
}

static int drop_graph(uint64_t handle)
{
    int result = cu.cuGraphExecDestroy((void *)(uintptr_t)handle);
    return result != 0 ? result : cu.cuDeviceGraphMemTrim(0);
}

static int drop_linear(uint64_t handle) { return cu.cuMemFree_v2(handle); }
static int drop_virtual(uint64_t handle) { return cu.cuMemRelease(handle); }
static int drop_array(uint64_t handle) { return cu.cuArrayDestroy((void *)(uintptr_t)handle); }

static int drop_async(uint64_t handle)
{
    int result = cu.cuMemFreeAsync(handle, NULL);
    return result != 0 ? result : cu.cuStreamSynchronize(NULL);
}

static const struct {
    const char *name;
    int (*take)(uint64_t *, size_t);
    int (*drop)(uint64_t);
} paths[] = {
    {"linear", take_linear, drop_linear},    {"linear", take_linear, drop_linear},
    {"managed", take_managed, drop_linear},  {"async", take_async, drop_async},
    {"virtual", take_virtual, drop_virtual}, {"pitched", take_pitched, drop_linear},
    {"pooled", take_pooled, drop_async},     {"mapped", take_mapped, drop_mapped},
    {"array", take_array, drop_array},       {"graph", take_graph, drop_graph},
};

static void drop(struct held *held)
{
    int result = held->path != 0 ? paths[held->path - 1].drop(held->handle) : 0;
    if (result != 0)
        fail(paths[held->path - 1].name, result);
    held->path = 0;
}

static void take(struct held *held, unsigned *seed)
{
    int path = (int)((unsigned)rand_r(seed) % (sizeof paths / sizeof *paths));
    size_t bytes = 1 + (size_t)rand_r(seed) % (48u << 20);
    int result = paths[path].take(&held->handle, bytes);
    if (result != 0 && result != NM_CUDA_ERROR_OUT_OF_MEMORY)
        fail(paths[path].name, result);
    held->path = result == 0 ? path + 1 : 0;
    atomic_fetch_add(result == 0 ? &successes : &refusals, 1);
}

static void *race(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct held held[HELD] = {{0}};
    int result = cu.cuCtxSetCurrent(context);
    if (result != 0)
        fail("cuCtxSetCurrent", result);
    for (long step = 0; steps == 0 ? !atomic_load(&stopped) : step < steps; step++) {
        struct held *one = &held[(unsigned)rand_r(&seed) % HELD];
        if (one->path != 0)
            drop(one);
        else
            take(one, &seed);
    }
    for (int i = 0; i < HELD; i++)
        drop(&held[i]);
    return NULL;
}

/* -- children -- */

/* Of a process that has threads, by a clone that no handler knows of: it may find a lock of
   libc's taken for ever. An alarm ends it. */
static void live_shortly(unsigned seed)
{
    uint64_t block;
    alarm(20);
    if (cu.cuInit(0) != 0 || cu.cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
        cu.cuCtxSetCurrent(context) != 0)
        _exit(3);
    for (int i = 0; i < 20; i++)
        if (cu.cuMemAlloc_v2(&block, 1 + (size_t)rand_r(&seed) % (4u << 20)) == 0 && i % 2 == 0 &&
            cu.cuMemFree_v2(block) != 0)
            _exit(4);
    _exit(0); /* with what it did not free */
}

static pid_t bear(unsigned seed)
{
    pid_t child;
    switch (seed % 3) {
    case 0: child = fork(); break;
    case 1:
        child = (pid_t)syscall(SYS_clone, (unsigned long)SIGCHLD, NULL, NULL, NULL, NULL);
        break;
    default:
        child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(5);
        }
    }
    if (child == 0)
        live_shortly(seed);
    return child;
}

static void *have_children(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int status; steps == 0 && !atomic_load(&stopped);) {
        pid_t child = bear((unsigned)rand_r(&seed));
        if (child < 0 || waitpid(child, &status, 0) != child)
            fail("child", child);
        if (WIFEXITED(status) && WEXITSTATUS(status) >= 4)
            fail("a child's end", WEXITSTATUS(status));
        children += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return NULL;
}

/* The grant may be full of others' memory at this moment; not for ever. */
static void enter_context(void)
{
    enum { TRIES = 3000, PAUSE_US = 10000 };
    int result = cu.cuDevicePrimaryCtxRetain(&context, 0);
    for (int i = 0; steps == 0 && i < TRIES && result == NM_CUDA_ERROR_OUT_OF_MEMORY; i++) {
        usleep(PAUSE_US);
        result = cu.cuDevicePrimaryCtxRetain(&context, 0);
    }
    if (result != 0)
        fail("cuDevicePrimaryCtxRetain", result);
}

static void make_pool(void)
{
    nm_cu_mem_pool_props props = {.alloc_type = NM_CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {NM_CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    int result = cu.cuMemPoolCreate(&own_pool, &props);
    if (result != 0)
        fail("cuMemPoolCreate", result);
}

static void await_word(void)
{
    char word;
    while (steps == 0 && read(0, &word, 1) == 1 && word != '\n')
        ;
    atomic_store(&stopped, true);
}

int main(int argc, char **argv)
{
    int threads = argc > 3 ? atoi(argv[1]) : 0, result;
    pthread_t thread[64], parent;
    if (threads < 1 || threads > 64)
        fail("THREADS STEPS SEED", -1);
    steps = atol(argv[2]);
    find_driver();
    if ((result = cu.cuInit(0)) != 0)
        fail("cuInit", result);
    enter_context();
    make_pool();
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, race, (void *)(uintptr_t)(atoi(argv[3]) * 64 + i + 1));
    if (argc > 4)
        pthread_create(&parent, NULL, have_children, (void *)(uintptr_t)(atoi(argv[3]) + 1));
    await_word();
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    if (argc > 4)
        pthread_join(parent, NULL);
    printf("%ld %ld %ld\n", successes, refusals, children);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
