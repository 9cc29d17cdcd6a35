/* forks.c: a process that forks while one of its threads waits in the launch gate.
 *
 * Prints "ready", and starts the launching thread at a line of input. At the next line it forks; the
 * child calls the hooked launch, where no gate may hold it, and ends with 0. Prints "child STATUS",
 * and at last "launched RESULT".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/abi.h"

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(nm_cu_context *, int);
extern int cuCtxSetCurrent(nm_cu_context);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(nm_cu_function *, void *, const char *);
extern int cuLaunchKernel(nm_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, nm_cu_stream, void **, void **);

static nm_cu_context context;
static nm_cu_function kernel;

static int launch(void)
{
    return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static void *launch_there(void *result)
{
    cuCtxSetCurrent(context);
    *(int *)result = launch();
    return NULL;
}

static void next_line(const char *said)
{
    char line[16];
    printf("%s\n", said);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        _exit(2);
}

int main(void)
{
    void *module;
    pthread_t thread;
    int result = -1, status;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
        cuCtxSetCurrent(context) != 0 || cuModuleLoadData(&module, "image") != 0 ||
        cuModuleGetFunction(&kernel, module, "sleep_us_5") != 0)
        return 3;
    next_line("ready");
    pthread_create(&thread, NULL, launch_there, &result);
    next_line("started");
    pid_t child = fork();
    if (child == 0) {
        launch(); /* the driver has no context here: any result, but no wait */
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    fflush(stdout);
    pthread_join(thread, NULL);
    printf("launched %d\n", result);
    return 0;
}
