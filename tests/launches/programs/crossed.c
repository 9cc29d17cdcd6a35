/* crossed.c: streams that wait for events of each other, for the launch gate's tests.
 *
 *   crossed ROUNDS   In each round two streams launch small kernels, each waits for an event that the
 *                    other one records later in the round, and now and then the context is waited
 *                    for. Prints "done".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
extern int cuStreamWaitEvent(nm_cu_stream, nm_cu_event, unsigned);
extern int cuEventCreate(nm_cu_event *, unsigned);
extern int cuEventRecord(nm_cu_event, nm_cu_stream);
extern int cuLaunchKernel(nm_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, nm_cu_stream, void **, void **);

static void check(int result, const char *what)
{
    if (result != 0) {
        printf("%s: %d\n", what, result);
        exit(3);
    }
}

static void launch(nm_cu_function function, nm_cu_stream stream)
{
    check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "launch");
}

static void pass(nm_cu_event event, nm_cu_stream from, nm_cu_stream to)
{
    check(cuEventRecord(event, from), "record");
    check(cuStreamWaitEvent(to, event, 0), "wait for event");
}

int main(int argc, char **argv)
{
    nm_cu_context context;
    void *module;
    nm_cu_function small, large;
    nm_cu_stream one, other;
    nm_cu_event there, back;
    const char *names[] = {"sleep_us_2", "sleep_us_30"};
    long rounds = argc > 1 ? atol(argv[1]) : 1;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    check(cuCtxSetCurrent(context), "current");
    check(cuModuleLoadData(&module, timed_kernels(names, 2)), "module");
    check(cuModuleGetFunction(&small, module, names[0]), "function");
    check(cuModuleGetFunction(&large, module, names[1]), "function");
    check(cuStreamCreate(&one, 1), "stream");
    check(cuStreamCreate(&other, 1), "stream");
    check(cuEventCreate(&there, 2), "event");
    check(cuEventCreate(&back, 2), "event");
    printf("ready\n");
    fflush(stdout);
    getchar();
    for (long round = 0; round < rounds; round++) {
        launch(round % 7 == 0 ? large : small, one);
        pass(there, one, other);
        launch(small, other);
        pass(back, other, one);
        launch(small, one);
        if (round % 5 == 0)
            check(cuStreamSynchronize(other), "stream");
        if (round % 11 == 0)
            check(cuCtxSynchronize(), "context");
    }
    check(cuCtxSynchronize(), "context");
    printf("done\n");
    return 0;
}
