/* probe.c: a CUDA program that does what it is told, line by line, and reaches the driver by the
 * route that it is told.
 *
 * Knows: the names in hooks.def, calls with integer and pointer arguments. Must not know: what any
 * of them does.
 *
 *   resolve linked|dlsym|getproc|default NAME BASE VERSION FLAGS   -> address, 0 where there is
 *     none
 *   name ADDRESS                                            -> the exported symbol there, or ?
 *   call ADDRESS ARGUMENT...                                -> result
 *   alloc BYTES | peek ADDRESS BYTES | poke ADDRESS HEX     -> address | hex | ok
 *   env NAME                                                -> value, or - where it is not set
 *   setenv NAME VALUE                                       -> ok
 *   fork                                                    -> forked; the child obeys on, its quit
 *                                                           gives "joined STATUS"
 *   quit CODE
 * Numbers are decimal, or hexadecimal with 0x.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NM_HOOK(library, name, base, since, stream, away, types) extern int name() __attribute__((weak));
#include "hooks/hooks.def"

static const struct {
    const char *name;
    void *address;
} linked[] = {
#define NM_HOOK(library, name, base, since, stream, away, types) {#name, (void *)name},
#include "hooks/hooks.def"
};

static void *resolve_linked(const char *name)
{
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++)
        if (strcmp(linked[i].name, name) == 0)
            return linked[i].address;
    return NULL;
}

static void *library_of(const char *name)
{
    static void *cuda, *nvml;
    void **handle = strncmp(name, "nvml", 4) == 0 ? &nvml : &cuda;
    if (*handle == NULL)
        *handle = dlopen(handle == &nvml ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_NOW);
    return *handle;
}

static void *resolve_dlsym(const char *name)
{
    void *handle = library_of(name);
    return handle != NULL ? dlsym(handle, name) : NULL;
}

typedef int get_proc_address(const char *, void **, int, uint64_t, int *);

static void *resolve_getproc(const char *base, int version, uint64_t flags)
{
    void *found = NULL, *get = resolve_dlsym("cuGetProcAddress_v2");
    int status;
    if (get == NULL || ((get_proc_address *)get)(base, &found, version, flags, &status) != 0)
        return NULL;
    return found;
}

typedef int anything(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t, uint64_t, uint64_t, uint64_t);

static uint64_t number(const char *text)
{
    return text != NULL ? strtoull(text, NULL, 0) : 0;
}

static const char *word(void)
{
    return strtok(NULL, " \n");
}

static void do_resolve(void)
{
    const char *route = word(), *name = word(), *base = word();
    int version = (int)number(word());
    uint64_t flags = number(word());
    void *found = strcmp(route, "linked") == 0    ? resolve_linked(name)
                  : strcmp(route, "dlsym") == 0   ? resolve_dlsym(name)
                  : strcmp(route, "default") == 0 ? dlsym(RTLD_DEFAULT, name)
                                                  : resolve_getproc(base, version, flags);
    printf("%llu\n", (unsigned long long)(uintptr_t)found);
}

static void do_name(void)
{
    void *address = (void *)(uintptr_t)number(word());
    Dl_info info = {0};
    int exact = dladdr(address, &info) != 0 && info.dli_saddr == address && info.dli_sname != NULL;
    printf("%s\n", exact ? info.dli_sname : "?");
}

static void do_call(void)
{
    anything *function = (anything *)(uintptr_t)number(word());
    uint64_t a[11];
    for (int i = 0; i < 11; i++)
        a[i] = number(word());
    printf("%d\n", function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]));
}

static void do_peek(void)
{
    const unsigned char *at = (const unsigned char *)(uintptr_t)number(word());
    for (uint64_t left = number(word()); left > 0; left--)
        printf("%02x", *at++);
    printf("\n");
}

static void do_poke(void)
{
    unsigned char *at = (unsigned char *)(uintptr_t)number(word());
    const char *hex = word();
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        *at++ = (unsigned char)byte;
    printf("ok\n");
}

static void do_fork(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        printf("forked\n");
        return;
    }
    waitpid(child, &status, 0);
    printf("joined %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void obey(const char *verb)
{
    if (strcmp(verb, "resolve") == 0) {
        do_resolve();
    } else if (strcmp(verb, "name") == 0) {
        do_name();
    } else if (strcmp(verb, "call") == 0) {
        do_call();
    } else if (strcmp(verb, "alloc") == 0) {
        printf("%llu\n", (unsigned long long)(uintptr_t)calloc(1, number(word())));
    } else if (strcmp(verb, "peek") == 0) {
        do_peek();
    } else if (strcmp(verb, "poke") == 0) {
        do_poke();
    } else if (strcmp(verb, "env") == 0) {
        const char *value = getenv(word());
        printf("%s\n", value != NULL ? value : "-");
    } else if (strcmp(verb, "setenv") == 0) {
        const char *name = word(), *value = word();
        printf("%s\n", setenv(name, value != NULL ? value : "", 1) == 0 ? "ok" : "failed");
    } else if (strcmp(verb, "fork") == 0) {
        do_fork();
    } else if (strcmp(verb, "quit") == 0) {
        exit((int)number(word()));
    } else {
        printf("unknown verb\n");
    }
}

/* Unbuffered input: what a forked child has read, its parent must not read again. */
static char *read_line(char *line, size_t size)
{
    size_t length = 0;
    while (length < size - 1 && read(STDIN_FILENO, line + length, 1) == 1)
        if (line[length++] == '\n')
            break;
    line[length] = '\0';
    return length != 0 ? line : NULL;
}

int main(void)
{
    char line[4096];
    while (read_line(line, sizeof line) != NULL) {
        const char *verb = strtok(line, " \n");
        if (verb != NULL)
            obey(verb);
        fflush(stdout);
    }
    return 0;
}
