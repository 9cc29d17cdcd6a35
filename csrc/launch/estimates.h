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
#define NM_UNMEASURED_ROOM_NS UINT64_C(3000000)

struct nm_estimate {
    _Atomic uint64_t key, estimate_ns;
    _Atomic uint64_t first_ns; /* counts until it is measured; 0: NM_FIRST_ESTIMATE_NS */
};

/* Never NULL: another kernel's entry may be replaced. Lock-free. */
struct nm_estimate *nm_estimate_of(const void *function, uint64_t blocks);
/* The same without an entry for a kernel that has none. */
uint64_t nm_estimate_known_ns(const void *function, uint64_t blocks);
/* A new kernel with that handle, which is expected to take first_ns. */
void nm_estimate_begin(const void *function, uint64_t blocks, uint64_t first_ns);

static inline uint64_t nm_estimate_ns(const struct nm_estimate *kernel)
{
    uint64_t estimate_ns = atomic_load_explicit(&kernel->estimate_ns, memory_order_relaxed);
    if (estimate_ns == 0)
        estimate_ns = atomic_load_explicit(&kernel->first_ns, memory_order_relaxed);
    return estimate_ns > 0 ? estimate_ns : NM_FIRST_ESTIMATE_NS;
}

/* The room that a launch needs in the window. Of kernels that were never measured few may queue. */
static inline uint64_t nm_estimate_room_ns(const struct nm_estimate *kernel)
{
    bool measured = atomic_load_explicit(&kernel->estimate_ns, memory_order_relaxed) > 0;
    return nm_estimate_ns(kernel) + (measured ? 0 : NM_UNMEASURED_ROOM_NS);
}

/* The expected time of `count` kernels together, by the present estimates. */
uint64_t nm_estimates_sum(struct nm_estimate *const *kernels, uint32_t count);
/* `count` kernels together took measured_ns. The ratio to the present estimates counts: to those at
   the launch it would be applied once for each of many pieces in flight. */
void nm_estimates_learn(struct nm_estimate *const *kernels, uint32_t count, uint64_t measured_ns);
/* `count` kernels together took least_ns or more, which is far above their estimates. */
void nm_estimates_raise(struct nm_estimate *const *kernels, uint32_t count, uint64_t least_ns);

#endif
