/* estimates.c: see estimates.h. */
#include "launch/estimates.h"

enum { ENTRIES = 4096, PROBES = 4 };
#define LEAST_NS UINT64_C(1000)
#define MOST_NS UINT64_C(10000000000)

static struct nm_estimate entries[ENTRIES];

static uint64_t key_of(const void *function, uint64_t blocks)
{
    uint64_t key = (uint64_t)(uintptr_t)function ^ blocks * UINT64_C(0x9e3779b97f4a7c15);
    key = (key ^ key >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    key ^= key >> 32;
    return key != 0 ? key : 1;
}

struct nm_estimate *nm_estimate_of(const void *function, uint64_t blocks)
{
    uint64_t key = key_of(function, blocks);
    for (uint64_t probe = 0; probe < PROBES; probe++) {
        struct nm_estimate *entry = &entries[(key + probe) % ENTRIES];
        uint64_t found = atomic_load_explicit(&entry->key, memory_order_relaxed);
        if (found == key)
            return entry;
        if (found == 0 && atomic_compare_exchange_strong(&entry->key, &found, key))
            return entry;
    }
    struct nm_estimate *entry = &entries[key % ENTRIES];
    atomic_store_explicit(&entry->first_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->estimate_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->key, key, memory_order_relaxed);
    return entry;
}

uint64_t nm_estimate_known_ns(const void *function, uint64_t blocks)
{
    uint64_t key = key_of(function, blocks);
    for (uint64_t probe = 0; probe < PROBES; probe++) {
        const struct nm_estimate *entry = &entries[(key + probe) % ENTRIES];
        if (atomic_load_explicit(&entry->key, memory_order_relaxed) == key)
            return nm_estimate_ns(entry);
    }
    return NM_FIRST_ESTIMATE_NS;
}

void nm_estimate_begin(const void *function, uint64_t blocks, uint64_t first_ns)
{
    struct nm_estimate *entry = nm_estimate_of(function, blocks);
    atomic_store_explicit(&entry->estimate_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->first_ns, first_ns < MOST_NS ? first_ns : MOST_NS,
                          memory_order_relaxed);
}

/* A ratio outside 0.25 to 4 is bounded: one disturbed measurement must not spoil an estimate. */
static double bounded(double ratio)
{
    return ratio < 0.25 ? 0.25 : ratio > 4.0 ? 4.0 : ratio;
}

static uint64_t scaled(uint64_t old_ns, double ratio)
{
    double fresh = (double)old_ns * ratio;
    if (fresh < (double)LEAST_NS)
        return LEAST_NS;
    return fresh > (double)MOST_NS ? MOST_NS : (uint64_t)fresh;
}

uint64_t nm_estimates_sum(struct nm_estimate *const *kernels, uint32_t count)
{
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        sum_ns += nm_estimate_ns(kernels[i]);
    return sum_ns;
}

void nm_estimates_raise(struct nm_estimate *const *kernels, uint32_t count, uint64_t least_ns)
{
    uint64_t each_ns = least_ns / (count > 0 ? count : 1);
    for (uint32_t i = 0; i < count; i++)
        if (nm_estimate_ns(kernels[i]) < each_ns)
            atomic_store_explicit(&kernels[i]->estimate_ns, each_ns < MOST_NS ? each_ns : MOST_NS,
                                  memory_order_relaxed);
}

/* A graph that is new or has changed: its first measurement by itself counts whole. */
static bool is_only_expected(const struct nm_estimate *kernel)
{
    return atomic_load_explicit(&kernel->first_ns, memory_order_relaxed) > 0 &&
           atomic_load_explicit(&kernel->estimate_ns, memory_order_relaxed) == 0;
}

void nm_estimates_learn(struct nm_estimate *const *kernels, uint32_t count, uint64_t measured_ns)
{
    uint64_t estimate_ns = nm_estimates_sum(kernels, count);
    double ratio = (double)measured_ns / (double)(estimate_ns > 0 ? estimate_ns : 1);
    if (count != 1 || !is_only_expected(kernels[0]))
        ratio = bounded(ratio);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t old_ns = nm_estimate_ns(kernels[i]),
                 fresh_ns = scaled(old_ns, ratio);
        bool seen = false; /* a kernel that stands in the piece twice is scaled once */
        for (uint32_t j = 0; j < i && !seen; j++)
            seen = kernels[j] == kernels[i];
        if (seen)
            continue;
        if (count > 1)
            fresh_ns = (old_ns + fresh_ns) / 2;
        atomic_store_explicit(&kernels[i]->estimate_ns, fresh_ns, memory_order_relaxed);
    }
}
