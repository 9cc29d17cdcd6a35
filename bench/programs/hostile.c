/* hostile.c: a gated process that rewrites the shared words of its launch gate in a loop.
 *
 *   hostile garbage   each word random
 *   hostile zero      each word 0
 *   hostile ones      all bits of each word
 *   hostile urgent    the bits of latency-sensitive work of all slots, and the beats of all
 *   hostile virtual   virtual time 0 for itself, the most for the others; it pretends to wait
 *   hostile token     takes the token, beats, and launches nothing
 *   hostile pass      gives the token to one slot after the other, each of which seems to wait
 *   hostile progress  takes the token, and pretends that its work goes on
 *   hostile flags     clears the waiting flags and wakes of the others
 *   hostile bypass    writes nothing, and launches without pause through the driver's own function
 *   hostile idle      nothing
 *
 * Prints "ready" when it has the gate, follows it to each fresh page, and goes on until it is killed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/abi.h"
#include "gate/gate.h"

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(nm_cu_context *, int);
extern int cuCtxSetCurrent(nm_cu_context);
extern int cuCtxSynchronize(void);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(nm_cu_function *, void *, const char *);
extern int cuLaunchKernel(nm_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, nm_cu_stream, void **, void **);

#define FAR (UINT64_C(1) << 61)
#define MAX_PAGES 4096

static struct nm_turns *turns;
static const struct nm_shares *shares;
static uint32_t own;
static uint64_t group;
static nm_cu_function kernel;

static void fail(const char *what)
{
    printf("%s\n", what);
    exit(3);
}

/* The files of one name that this process has mapped so far. */
struct pages {
    const char *name;
    void *latest;
    unsigned count;
    unsigned long seen[MAX_PAGES];
};

static bool is_seen(const struct pages *pages, unsigned long inode)
{
    for (unsigned i = 0; i < pages->count; i++)
        if (pages->seen[i] == inode)
            return true;
    return false;
}

/* Any process finds its own mappings. The latest file is one that was not there before: the kernel
 * gives each processor its own range of inodes, so their order says nothing. */
static void *latest(struct pages *pages)
{
    char line[512];
    unsigned long at, inode;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, pages->name) != NULL &&
            sscanf(line, "%lx-%*x %*s %*s %*s %lu", &at, &inode) == 2 && !is_seen(pages, inode) &&
            pages->count < MAX_PAGES) {
            pages->seen[pages->count++] = inode;
            pages->latest = (void *)at;
        }
    if (maps != NULL)
        fclose(maps);
    return pages->latest;
}

static struct pages turns_pages = {.name = "nodemgr-turns"};
static struct pages shares_pages = {.name = "nodemgr-shares"};

static uint64_t next_random(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void fill(uint64_t (*word)(void))
{
    uint64_t *words = (uint64_t *)turns;
    for (size_t i = 0; i < sizeof *turns / sizeof *words; i++)
        *(volatile uint64_t *)&words[i] = word();
}

static uint64_t zero(void)
{
    return 0;
}

static uint64_t ones(void)
{
    return UINT64_MAX;
}

static void beat_all(void)
{
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        atomic_fetch_add(&turns->row[slot].beat, 1);
}

static void set_urgent(void)
{
    atomic_store(&turns->urgent, UINT64_MAX);
    beat_all();
}

static void skew_virtual(void)
{
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        atomic_store(&turns->row[slot].virtual_ns, slot == own ? 0 : FAR);
    atomic_store(&turns->floor_ns, FAR);
    atomic_store(&turns->row[own].waiting_since_ns, 1);
}

static void take_token(uint32_t slot)
{
    uint64_t token = atomic_load(&turns->token);
    if (nm_token_slot(token) != (int)slot)
        atomic_store(&turns->token, nm_token_after(token, (int)slot));
    atomic_fetch_add(&turns->row[slot].beat, 1);
    atomic_store(&turns->row[slot].in_flight_ns, 100000);
}

static void hold_token(void)
{
    take_token(own);
}

static void pass_token(void)
{
    static uint32_t slot;
    struct timespec pause = {0, 1000000};
    slot = (slot + 1) % NM_LAUNCH_SLOTS;
    take_token(slot);
    atomic_store(&turns->row[slot].waiting_since_ns, 1);
    nanosleep(&pause, NULL);
}

static void pretend_progress(void)
{
    take_token(own);
    atomic_fetch_add(&turns->row[own].used_ns, 1);
    atomic_fetch_add(&turns->row[own].launches, 1);
}

static void clear_flags(void)
{
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++) {
        atomic_store(&turns->row[slot].waiting_since_ns, 0);
        atomic_store(&turns->row[slot].wake, 0);
    }
}

static void fill_random(void)
{
    fill(next_random);
}

static void fill_zero(void)
{
    fill(zero);
}

static void fill_ones(void)
{
    fill(ones);
}

static void rest(void)
{
    struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
}

typedef int launch_function(nm_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, unsigned, nm_cu_stream, void **, void **);

/* The driver's own cuLaunchKernel, from the symbols of its library: no look-up can hook this. */
static int find_launch(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    const ElfW(Sym) *symbols = NULL, *symbol;
    const char *strings = NULL;
    if (strstr(info->dlpi_name, "libcuda.so") == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++)
            if (entry->d_tag == DT_SYMTAB)
                symbols = (const void *)entry->d_un.d_ptr;
            else if (entry->d_tag == DT_STRTAB)
                strings = (const void *)entry->d_un.d_ptr;
    }
    /* the strings stand behind the symbols */
    for (symbol = symbols; symbol != NULL && (const char *)symbol < strings; symbol++)
        if (symbol->st_value != 0 && strcmp(strings + symbol->st_name, "cuLaunchKernel") == 0)
            *(uintptr_t *)found = info->dlpi_addr + symbol->st_value;
    return 0;
}

static void bypass(void)
{
    static launch_function *launch;
    if (launch == NULL)
        dl_iterate_phdr(find_launch, &launch);
    if (launch == NULL)
        fail("no launch function");
    for (int i = 0; i < 100; i++)
        launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    cuCtxSynchronize();
}

static const struct {
    const char *name;
    void (*act)(void);
} modes[] = {
    {"garbage", fill_random}, {"zero", fill_zero},   {"ones", fill_ones},
    {"urgent", set_urgent},   {"virtual", skew_virtual}, {"token", hold_token},
    {"pass", pass_token},     {"progress", pretend_progress}, {"flags", clear_flags},
    {"bypass", bypass},       {"idle", rest},
};

/* The slot whose count of launches has just changed. */
static uint32_t own_slot(void)
{
    for (uint32_t slot = NM_LAUNCH_SLOTS; slot-- > 0;)
        if (atomic_load(&turns->row[slot].launches) == 3)
            return slot;
    return 0;
}

/* The manager gives fresh pages: the latest ones, and the slot there. */
static void follow(void)
{
    turns = latest(&turns_pages);
    shares = latest(&shares_pages);
    if (turns == NULL || shares == NULL)
        fail("no gate");
    for (uint32_t slot = 0; slot < NM_LAUNCH_SLOTS; slot++)
        if (atomic_load(&shares->row[slot].group) == group)
            own = slot;
}

static void begin(void)
{
    nm_cu_context context;
    void *module;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
        cuCtxSetCurrent(context) != 0 || cuModuleLoadData(&module, "image") != 0 ||
        cuModuleGetFunction(&kernel, module, "sleep_us_5") != 0)
        fail("no driver");
    for (int i = 0; i < 3; i++)
        if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
            fail("no launch");
    cuCtxSynchronize();
    turns = latest(&turns_pages);
    shares = latest(&shares_pages);
    if (turns == NULL || shares == NULL)
        fail("no gate");
    own = own_slot();
    group = atomic_load(&shares->row[own].group);
}

int main(int argc, char **argv)
{
    void (*act)(void) = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (argc > 1 && strcmp(argv[1], modes[i].name) == 0)
            act = modes[i].act;
    if (act == NULL)
        fail("no such mode");
    begin();
    printf("ready\n");
    fflush(stdout);
    for (time_t followed = time(NULL);; act())
        if (time(NULL) != followed) {
            followed = time(NULL);
            follow();
        }
}
