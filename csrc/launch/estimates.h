/* estimates.h: the expected time of a kernel, by its function and grid.
 *
 * Knows: a table of fixed size. Must not know: CUDA.
 */
#ifndef NM_ESTIMATES_H
#define NM_ESTIMATES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NM_FIRST_ESTIMATE_NS UINT64_C(500000)

struct nm_estimate {
    _Atomic uint64_t key, estimate_ns;
};

/* Never NULL: another kernel's entry may be replaced. Lock-free. */
struct nm_estimate *nm_estimate_of(const void *function, uint64_t blocks);

static inline uint64_t nm_estimate_ns(const struct nm_estimate *kernel)
{
    uint64_t estimate_ns = atomic_load_explicit(&kernel->estimate_ns, memory_order_relaxed);
    return estimate_ns > 0 ? estimate_ns : NM_FIRST_ESTIMATE_NS;
}

/* `count` kernels of estimate_ns together took measured_ns. */
void nm_estimates_learn(struct nm_estimate *const *kernels, uint32_t count, uint64_t estimate_ns,
                        uint64_t measured_ns);

#endif
