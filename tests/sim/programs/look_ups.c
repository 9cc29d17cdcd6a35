/* look_ups.c: each answer of a driver's cuGetProcAddress.
 *
 *   look_ups 0|1 ENTRY VERSION... < NAMES    1: after cuInit
 *
 * Prints the driver's version, or "absent" without ENTRY. Then, for each name, version and flags:
 * result, status, and the exports at the address, "-" for NULL, "!" where nothing was written.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 2048, FLAGS = 5 };
#define UNTOUCHED ((void *)7)

typedef int look_up(const char *, void **, int, uint64_t, int *);

static struct {
    char name[80];
    void *address;
} names[NAMES];
static size_t count;

static void print_place(const void *found)
{
    if (found == NULL || found == UNTOUCHED) {
        puts(found == NULL ? " -" : " !");
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (names[i].address == found)
            printf(" %s", names[i].name);
    puts("");
}

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || argc < 3) {
        fprintf(stderr, "%s\n", library == NULL ? dlerror() : "too few arguments");
        return 1;
    }
    int version = 0;
    if (atoi(argv[1]))
        ((int (*)(unsigned))dlsym(library, "cuInit"))(0);
    ((int (*)(int *))dlsym(library, "cuDriverGetVersion"))(&version);
    look_up *get = (look_up *)dlsym(library, argv[2]);
    if (get == NULL)
        return puts("absent") < 0;
    printf("%d\n", version);
    while (count < NAMES && scanf("%79s", names[count].name) == 1) {
        names[count].address = dlsym(library, names[count].name);
        count++;
    }
    for (size_t i = 0; i < count; i++)
        for (int at = 3; at < argc; at++)
            for (uint64_t flags = 0; flags < FLAGS; flags++) {
                void *found = UNTOUCHED;
                int status = -7;
                int result = get(names[i].name, &found, atoi(argv[at]), flags, &status);
                printf("%s %s %d: %d %d", names[i].name, argv[at], (int)flags, result, status);
                print_place(found);
            }
    return 0;
}
