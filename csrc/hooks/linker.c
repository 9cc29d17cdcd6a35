/* linker.c: see linker.h.
 *
 * It does not include prim.h, which binds the name dlsym to libc's version. It calls no function of
 * libc, not even strcmp: a sanitizer's runtime looks up the real strcmp by this dlsym before its
 * own can be called.
 */
#include "hooks/linker.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The symbols of a loaded object. */
struct symbols {
    const ElfW(Sym) *table;
    const char *strings;
    const uint32_t *gnu_hash;
    const char *soname;
    uintptr_t base;
};

/* glibc relocates the pointers of the dynamic section in place on the machines of this build;
   other libcs do not. */
static const void *at(uintptr_t base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool read_symbols(const struct link_map *object, struct symbols *out)
{
    *out = (struct symbols){.base = object->l_addr};
    ElfW(Xword) soname = 0;
    for (const ElfW(Dyn) *entry = object->l_ld; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: out->table = at(out->base, entry->d_un.d_ptr); break;
        case DT_STRTAB: out->strings = at(out->base, entry->d_un.d_ptr); break;
        case DT_GNU_HASH: out->gnu_hash = at(out->base, entry->d_un.d_ptr); break;
        case DT_SONAME: soname = entry->d_un.d_val; break;
        }
    }
    out->soname = soname && out->strings ? out->strings + soname : "";
    return out->table && out->strings && out->gnu_hash;
}

bool nm_same_text(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The definition of `name`, or NULL. Layout of the table: buckets, shift, bloom words, buckets,
   then the chains. */
static void *find(const struct symbols *symbols, const char *name)
{
    const uint32_t *header = symbols->gnu_hash;
    uint32_t bucket_count = header[0], first = header[1], bloom_words = header[2];
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(header + 4) + bloom_words);
    const uint32_t *chains = buckets + bucket_count;
    uint32_t hash = gnu_hash_of(name);
    uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        const ElfW(Sym) *symbol = &symbols->table[index];
        uint32_t link = chains[index - first];
        if ((link | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            nm_same_text(symbols->strings + symbol->st_name, name))
            return (void *)(symbols->base + symbol->st_value);
        if (link & 1)
            return NULL;
    }
}

static bool find_all(const struct symbols *symbols, struct nm_linker *linker)
{
    void *dlsym = find(symbols, "dlsym"), *dlvsym = find(symbols, "dlvsym"),
         *dlopen = find(symbols, "dlopen"), *dladdr = find(symbols, "dladdr"),
         *dlerror = find(symbols, "dlerror");
    if (!dlsym || !dlvsym || !dlopen || !dladdr || !dlerror)
        return false;
    linker->dlsym = (nm_dlsym_function *)dlsym;
    linker->dlvsym = (nm_dlvsym_function *)dlvsym;
    linker->dlopen = (nm_dlopen_function *)dlopen;
    linker->dladdr = (nm_dladdr_function *)dladdr;
    linker->dlerror = (nm_dlerror_function *)dlerror;
    return true;
}

/* Several threads at once find the same. libc is never unloaded, and comes early in the list. */
static void look(struct nm_linker *linker)
{
    struct symbols symbols;
    for (const struct link_map *object = _r_debug.r_map; object != NULL; object = object->l_next) {
        if (!read_symbols(object, &symbols))
            continue;
        bool is_libc =
            nm_same_text(symbols.soname, "libc.so.6") || nm_same_text(symbols.soname, "libdl.so.2");
        if (is_libc && find_all(&symbols, linker))
            return;
    }
}

static void *no_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version)
{
    (void)handle, (void)name, (void)version;
    return NULL;
}

static void *no_dlopen(const char *file, int mode)
{
    (void)file, (void)mode;
    return NULL;
}

static int no_dladdr(const void *address, void *info)
{
    (void)address, (void)info;
    return 0;
}

static char *no_dlerror(void)
{
    return NULL;
}

const struct nm_linker *nm_linker(void)
{
    static struct nm_linker linker = {no_dlsym, no_dlvsym, no_dlopen, no_dladdr, no_dlerror};
    static _Atomic bool looked;
    if (!atomic_load_explicit(&looked, memory_order_acquire)) {
        look(&linker);
        atomic_store_explicit(&looked, true, memory_order_release);
    }
    return &linker;
}

/* -- the exported dlsym and dlvsym -- */

/* They ask interpose.c for the function, and jump to it with all registers and the return
 * address unchanged: RTLD_NEXT and RTLD_DEFAULT depend on the caller, which the real function
 * finds by its return address. A second, private label of each shows whether the process's dlsym
 * is this one. */
#if defined(__x86_64__)
#define NM_JUMP(name, route) \
    __asm__(".text\n.p2align 4\n.globl " name "\n.type " name ",@function\n.hidden nm_our_" name \
            "\n.globl nm_our_" name "\n" name ":\nnm_our_" name ":\n.cfi_startproc\nendbr64\n" \
            "pushq %rdi\n.cfi_adjust_cfa_offset 8\npushq %rsi\n.cfi_adjust_cfa_offset 8\n" \
            "pushq %rdx\n.cfi_adjust_cfa_offset 8\n" \
            "call " route "\n" \
            "popq %rdx\n.cfi_adjust_cfa_offset -8\npopq %rsi\n.cfi_adjust_cfa_offset -8\n" \
            "popq %rdi\n.cfi_adjust_cfa_offset -8\n" \
            "jmp *%rax\n.cfi_endproc\n.size " name ", . - " name "\n")
#elif defined(__aarch64__)
#define NM_JUMP(name, route) \
    __asm__(".text\n.p2align 4\n.globl " name "\n.type " name ",%function\n.hidden nm_our_" name \
            "\n.globl nm_our_" name "\n" name ":\nnm_our_" name ":\n.cfi_startproc\nhint #34\n" \
            "stp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n.cfi_offset x29, " \
            "-48\n.cfi_offset x30, -40\n" \
            "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\n" \
            "bl " route "\nmov x16, x0\n" \
            "ldp x0, x1, [sp, #16]\nldr x2, [sp, #32]\n" \
            "ldp x29, x30, [sp], #48\n.cfi_restore x29\n.cfi_restore x30\n.cfi_def_cfa_offset 0\n" \
            "br x16\n.cfi_endproc\n.size " name ", . - " name "\n")
#else
#error "the exported dlsym is written for x86-64 and AArch64"
#endif
NM_JUMP("dlsym", "nm_route_dlsym");
NM_JUMP("dlvsym", "nm_route_dlvsym");
