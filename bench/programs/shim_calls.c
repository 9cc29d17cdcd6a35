/* shim_calls.c: what one driver call costs in this process, with or without a shim before it.
 *
 * Knows: the driver's entry points that it times, and the two functions by which a process asks for
 * its lease beforehand, by name.
 *
 *   shim_calls OPERATION LIVE CALLS BATCHES   prints the batches' nanoseconds of CPU time per call
 * Operations: alloc (cuMemAlloc and cuMemFree of 1 MiB; LIVE blocks of 512 bytes exist meanwhile),
 * async (the same by cuMemAllocAsync and cuMemFreeAsync), info (cuMemGetInfo), launch
 * (cuLaunchKernel), launch-record (and cuEventRecord), launch-wait (and cuCtxSynchronize), init (the
 * first cuInit, which asks for the lease too; CALLS and BATCHES are 1),
 * init-held (the same in a process that has its lease already, as after a framework's import). It
 * waits for a line on stdin before the first batch, after having said "ready": several of it can
 * start at one moment. A second thread sleeps all the while: a real driver starts threads of its
 * own, and libc's locks are cheaper in a process without.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*allocate)(uint64_t *, size_t);
static int (*give_back)(uint64_t);
static int (*info)(size_t *, size_t *);
static int (*allocate_async)(uint64_t *, size_t, void *);
static int (*give_back_async)(uint64_t, void *);
static int (*load)(void **, const void *);
static int (*get_function)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void *, void **, void **);
static int (*create_event)(void **, unsigned);
static int (*record)(void *, void *);
static int (*synchronize)(void);

static void fail(const char *what)
{
    fprintf(stderr, "shim_calls: %s\n", what);
    exit(1);
}

static void check(int result, const char *what)
{
    if (result != 0)
        fail(what);
}

static void *sleep_on(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        fail(name);
    return found;
}

static void find_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda == NULL)
        fail("no driver");
    *(void **)&init = symbol(cuda, "cuInit");
    *(void **)&retain = symbol(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = symbol(cuda, "cuCtxSetCurrent");
    *(void **)&allocate = symbol(cuda, "cuMemAlloc_v2");
    *(void **)&give_back = symbol(cuda, "cuMemFree_v2");
    *(void **)&allocate_async = symbol(cuda, "cuMemAllocAsync");
    *(void **)&give_back_async = symbol(cuda, "cuMemFreeAsync");
    *(void **)&info = symbol(cuda, "cuMemGetInfo_v2");
    *(void **)&load = symbol(cuda, "cuModuleLoadData");
    *(void **)&get_function = symbol(cuda, "cuModuleGetFunction");
    *(void **)&launch = symbol(cuda, "cuLaunchKernel");
    *(void **)&create_event = symbol(cuda, "cuEventCreate");
    *(void **)&record = symbol(cuda, "cuEventRecord");
    *(void **)&synchronize = symbol(cuda, "cuCtxSynchronize");
}

static uint64_t nanoseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nothing where no shim is preloaded. */
static void get_lease(void)
{
    enum { WAITING = 1, HELD = 2, TIMEOUT_MS = 500 };
    char line[1024];
    int (*begin)(int64_t, int64_t, int64_t, const char *), (*await)(int, char *, size_t);
    *(void **)&begin = dlsym(RTLD_DEFAULT, "nodemgr_begin");
    *(void **)&await = dlsym(RTLD_DEFAULT, "nodemgr_poll");
    int state = begin != NULL && await != NULL ? begin(-1, -1, -1, NULL) : HELD;
    while (state == WAITING)
        state = await(TIMEOUT_MS, line, sizeof line);
    if (state != HELD)
        fail("no lease");
}

static void time_init(bool held)
{
    if (held)
        get_lease();
    uint64_t begin = nanoseconds(CLOCK_MONOTONIC);
    check(init(0), "cuInit");
    printf("%llu\n", (unsigned long long)(nanoseconds(CLOCK_MONOTONIC) - begin));
}

static void *function, *event;

static void prepare(long live)
{
    void *context, *module;
    uint64_t address;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    check(
        load(&module,
             ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry sleep_ns_1() { ret; }\n"),
        "cuModuleLoadData");
    /* a nanosecond on a simulated device: the queue of launches never fills */
    check(get_function(&function, module, "sleep_ns_1"), "cuModuleGetFunction");
    check(create_event(&event, 0), "cuEventCreate");
    while (live-- > 0)
        check(allocate(&address, 512), "cuMemAlloc of a live block");
}

static void alloc_and_free(void)
{
    uint64_t address;
    check(allocate(&address, 1 << 20), "cuMemAlloc");
    check(give_back(address), "cuMemFree");
}

static void alloc_and_free_async(void)
{
    uint64_t address;
    check(allocate_async(&address, 1 << 20, NULL), "cuMemAllocAsync");
    check(give_back_async(address, NULL), "cuMemFreeAsync");
}

static void ask_info(void)
{
    size_t free_bytes, total_bytes;
    check(info(&free_bytes, &total_bytes), "cuMemGetInfo");
}

static void launch_and_record(void)
{
    check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    check(record(event, NULL), "cuEventRecord");
}

static void launch_and_wait(void)
{
    check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");
}

static void launch_nothing(void)
{
    check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void time_batches(void (*call)(void), long calls, long batches)
{
    for (long i = 0; i < calls / 10 + 1; i++)
        call();
    for (long batch = 0; batch < batches; batch++) {
        uint64_t begin = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        for (long i = 0; i < calls; i++)
            call();
        printf("%.2f\n", (double)(nanoseconds(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)calls);
        check(synchronize(), "cuCtxSynchronize"); /* each batch finds an empty queue of launches */
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } operations[] = {{"alloc", alloc_and_free},
                      {"async", alloc_and_free_async},
                      {"info", ask_info},
                      {"launch", launch_nothing},
                      {"launch-record", launch_and_record},
                      {"launch-wait", launch_and_wait}};
    char line[8];
    if (argc != 5)
        fail("OPERATION LIVE CALLS BATCHES");
    pthread_t sleeper;
    pthread_create(&sleeper, NULL, sleep_on, NULL);
    find_driver();
    if (strncmp(argv[1], "init", 4) == 0) {
        time_init(strcmp(argv[1], "init-held") == 0);
        return 0;
    }
    prepare(atol(argv[2]));
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        fail("nobody said go");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, argv[1]) == 0)
            time_batches(operations[i].call, atol(argv[3]), atol(argv[4]));
    return 0;
}
