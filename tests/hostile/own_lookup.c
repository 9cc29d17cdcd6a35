/*
 * Takes its context as any program does, and then GPU memory by the driver's own cuMemAlloc_v2,
 * which it finds in the driver's symbol table: no symbol look-up of the linker is asked.
 *
 *     own_lookup COUNT BYTES      prints how many allocations succeeded; holds them until its stdin closes
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);

struct wanted {
    const char *name;
    void *found;
};

static int look(struct dl_phdr_info *library, size_t size, void *data)
{
    struct wanted *wanted = data;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;

    (void)size;
    if (strstr(library->dlpi_name, "libcuda.so") == NULL)
        return 0;
    for (int row = 0; row < library->dlpi_phnum; row++) {
        if (library->dlpi_phdr[row].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(library->dlpi_addr + library->dlpi_phdr[row].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_SYMTAB)
                symbols = (const void *)entry->d_un.d_ptr;
            else if (entry->d_tag == DT_STRTAB)
                names = (const void *)entry->d_un.d_ptr;
        }
    }
    /* the names follow the symbols */
    for (; symbols != NULL && (const char *)symbols < names; symbols++)
        if (symbols->st_value != 0 && strcmp(names + symbols->st_name, wanted->name) == 0)
            wanted->found = (void *)(library->dlpi_addr + symbols->st_value);
    return wanted->found != NULL;
}

int main(int argc, char **argv)
{
    struct wanted wanted = {"cuMemAlloc_v2", NULL};
    uint64_t address;
    void *context;
    int taken = 0;

    if (argc != 3 || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
        cuCtxSetCurrent(context) != 0)
        return 1;
    dl_iterate_phdr(look, &wanted);
    if (wanted.found == NULL)
        return 2;
    while (taken < atoi(argv[1]) &&
           ((int (*)(uint64_t *, size_t))wanted.found)(&address, strtoull(argv[2], NULL, 10)) == 0)
        taken++;
    printf("%d\n", taken);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
