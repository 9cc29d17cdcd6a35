/* endings.c: contexts that end while other threads are at work.
 *
 *   endings SCENARIO ROUNDS   -> exit 0; then nothing is allocated any more. An answer that cannot
 *                             be: exit 1, with a line
 * It says "done" and waits for the end of its input.
 *   retained   threads retain the primary context, allocate in it, and release it: the last release
 *              ends it
 *   underfoot  a context ends while another thread allocates in it
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4 };

static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int),
    (*cuDevicePrimaryCtxRelease_v2)(int);
static int (*cuCtxSetCurrent)(void *), (*cuCtxCreate_v2)(void **, unsigned, int),
    (*cuCtxDestroy_v2)(void *);
static int (*cuMemAlloc_v2)(uint64_t *, size_t);

static int rounds;
static void *shared;

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "endings: %s: %d\n", what, result);
    exit(1);
}

static void find_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    must(cuda == NULL, "libcuda.so.1");
#define FIND(name) must((*(void **)&name = dlsym(cuda, #name)) == NULL, #name)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuDevicePrimaryCtxRelease_v2);
    FIND(cuCtxSetCurrent);
    FIND(cuCtxCreate_v2);
    FIND(cuCtxDestroy_v2);
    FIND(cuMemAlloc_v2);
}

static void *retain(void *unused)
{
    for (int round = 0; round < rounds; round++) {
        void *context;
        uint64_t block;
        must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        must(cuMemAlloc_v2(&block, 4096), "cuMemAlloc"); /* freed by the end of the context */
        must(cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
        must(cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
    }
    return unused;
}

static void retained(void)
{
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        must(pthread_create(&thread[i], NULL, retain, NULL), "pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static void *allocate_until_it_is_gone(void *unused)
{
    uint64_t block;
    cuCtxSetCurrent(shared);
    while (cuMemAlloc_v2(&block, 512) == 0)
        ;
    return unused;
}

static void underfoot(void)
{
    for (int round = 0; round < rounds; round++) {
        pthread_t thread[THREADS];
        must(cuCtxCreate_v2(&shared, 0, 0), "cuCtxCreate");
        for (int i = 0; i < THREADS; i++)
            must(pthread_create(&thread[i], NULL, allocate_until_it_is_gone, NULL),
                 "pthread_create");
        sched_yield();
        must(cuCtxDestroy_v2(shared), "cuCtxDestroy");
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*play)(void);
    } scenarios[] = {{"retained", retained}, {"underfoot", underfoot}};
    if (argc != 3)
        return 2;
    rounds = atoi(argv[2]);
    find_driver();
    must(cuInit(0), "cuInit");
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(argv[1], scenarios[i].name) == 0)
            scenarios[i].play();
    printf("done\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
