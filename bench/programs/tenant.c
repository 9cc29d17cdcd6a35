/* tenant.c: a CUDA program that launches timed kernels, for the launch gate's tests and bench.
 *
 *   tenant stream KERNEL MS SYNC_EVERY [WARM_MS]
 *                                        launches without pause; waits for all after each SYNC_EVERY;
 *                                        kernels that end in the first WARM_MS are not counted
 *   tenant burst KERNEL MS COUNT         COUNT launches and a wait, then the same again
 *   tenant service KERNEL MS GAP_US      requests in Poisson order, GAP_US apart in the mean: each is
 *                                        a launch and a wait; prints each latency in nanoseconds
 *   tenant cost KERNEL MS COUNT          COUNT launches behind a function that holds the stream;
 *                                        prints nanoseconds per launch of each batch
 *   tenant length KERNEL MS COUNT        the kernel's microseconds by events, of MS's last COUNT
 *   tenant step KERNEL                   for each line of input: launch N, wait, stop
 *
 * Prints "ready" when the driver is up, and starts at a line of input.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/abi.h"
#include "timed_kernels.h"

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(nm_cu_context *, int);
extern int cuCtxSetCurrent(nm_cu_context);
extern int cuCtxSynchronize(void);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(nm_cu_function *, void *, const char *);
extern int cuStreamCreate(nm_cu_stream *, unsigned);
extern int cuStreamSynchronize(nm_cu_stream);
extern int cuStreamQuery(nm_cu_stream);
extern int cuEventCreate(nm_cu_event *, unsigned);
extern int cuEventRecord(nm_cu_event, nm_cu_stream);
extern int cuEventQuery(nm_cu_event);
extern int cuEventElapsedTime(float *, nm_cu_event, nm_cu_event);
extern int cuLaunchKernel(nm_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, nm_cu_stream, void **, void **);

enum {
    LONG_NS = 1000000, /* of a longer kernel, those that wait in the stream are no part of a count */
    MARKS = 256,
};
enum { BLOCKS = 1056 }; /* 8 for each multiprocessor of an H100; the time is that of the name */

static nm_cu_stream stream;
static nm_cu_function kernel;

static void check(int result, const char *what)
{
    if (result != 0) {
        printf("%s: %d\n", what, result);
        fflush(stdout);
        _exit(3);
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int launch(void)
{
    return cuLaunchKernel(kernel, BLOCKS, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

static void start(const char *name)
{
    nm_cu_context context;
    void *module;
    char line[32];
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    check(cuCtxSetCurrent(context), "current");
    check(cuModuleLoadData(&module, timed_kernels(&name, 1)), "module");
    check(cuModuleGetFunction(&kernel, module, name), "function");
    check(cuStreamCreate(&stream, 1), "stream");
    printf("ready\n");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        _exit(2);
}

/* Kernels that have ended, of `count` launched ones; all of them, where they are short. */
static uint64_t ended(const nm_cu_event *marks, uint64_t count)
{
    uint64_t waiting = 0;
    while (marks[0] != NULL && waiting < MARKS && waiting < count &&
           cuEventQuery(marks[(count - 1 - waiting) % MARKS]) != 0)
        waiting++;
    return count - waiting;
}

static void run_stream(uint64_t end_ns, unsigned sync_every, uint64_t warm_ns, bool is_long)
{
    static nm_cu_event marks[MARKS];
    uint64_t count = 0, cold = 0, warm_at_ns = now_ns() + warm_ns;
    for (unsigned i = 0; is_long && i < MARKS; i++)
        check(cuEventCreate(&marks[i], 0), "event");
    for (uint64_t at_ns; (at_ns = now_ns()) < end_ns;) {
        check(launch(), "launch");
        if (is_long)
            check(cuEventRecord(marks[count % MARKS], stream), "record");
        if (++count % sync_every == 0)
            check(cuStreamSynchronize(stream), "wait");
        if (at_ns < warm_at_ns)
            cold = ended(marks, count);
    }
    printf("launches %llu\n", (unsigned long long)(ended(marks, count) - cold));
    fflush(stdout);
    check(cuStreamSynchronize(stream), "wait");
}

static void run_service(uint64_t end_ns, double gap_us)
{
    uint64_t due_ns = now_ns();
    while (due_ns < end_ns) {
        due_ns += (uint64_t)(-log(1.0 - drand48()) * gap_us * 1e3);
        uint64_t at_ns = now_ns();
        if (at_ns < due_ns) {
            struct timespec pause = {.tv_sec = (time_t)((due_ns - at_ns) / 1000000000u),
                                     .tv_nsec = (long)((due_ns - at_ns) % 1000000000u)};
            nanosleep(&pause, NULL);
            due_ns = now_ns(); /* a late timer is no latency of the GPU */
        }
        check(launch(), "launch");
        check(cuStreamSynchronize(stream), "wait");
        printf("%llu\n", (unsigned long long)(now_ns() - due_ns));
    }
    fflush(stdout);
}

static void run_cost(uint64_t end_ns, unsigned count)
{
    while (now_ns() < end_ns) {
        uint64_t from_ns = cpu_ns();
        for (unsigned i = 0; i < count; i++)
            check(launch(), "launch");
        printf("%.1f\n", (double)(cpu_ns() - from_ns) / count);
        check(cuStreamSynchronize(stream), "wait");
    }
    fflush(stdout);
}

static void run_length(uint64_t end_ns, unsigned count)
{
    nm_cu_event from, to;
    float ms = 0;
    check(cuEventCreate(&from, 0), "event");
    check(cuEventCreate(&to, 0), "event");
    do {
        check(cuEventRecord(from, stream), "record");
        for (unsigned i = 0; i < count; i++)
            check(launch(), "launch");
        check(cuEventRecord(to, stream), "record");
        check(cuStreamSynchronize(stream), "wait");
    } while (now_ns() < end_ns); /* the first ones wake the GPU */
    check(cuEventElapsedTime(&ms, from, to), "elapsed");
    printf("%.3f\n", (double)ms * 1e3 / count);
    fflush(stdout);
}

static void run_steps(void)
{
    char line[64];
    unsigned count;
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "stop\n") != 0) {
        int result = 0;
        if (sscanf(line, "launch %u", &count) == 1)
            for (unsigned i = 0; i < count && result == 0; i++)
                result = launch();
        else
            result = cuStreamSynchronize(stream);
        printf("%d\n", result);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    start(argv[2]);
    if (strcmp(argv[1], "step") == 0) {
        run_steps();
        return 0;
    }
    uint64_t end_ns = now_ns() + strtoull(argv[3], NULL, 10) * 1000000u;
    unsigned number = (unsigned)strtoul(argv[4], NULL, 10);
    srand48(7);
    if (strcmp(argv[1], "service") == 0)
        run_service(end_ns, number);
    else if (strcmp(argv[1], "cost") == 0)
        run_cost(end_ns, number);
    else if (strcmp(argv[1], "length") == 0)
        run_length(end_ns, number);
    else
        run_stream(end_ns, number, argc > 5 ? strtoull(argv[5], NULL, 10) * 1000000u : 0,
                   argc > 5 && kernel_ns(argv[2]) >= LONG_NS);
    return 0;
}
