/* runtime.h: what the files of the simulated libcudart share: the driver's functions, the way into
 * a context, the last error.
 *
 * Knows: the public headers of the runtime and of the driver. Must not know: the simulator below,
 * nodemgr, or any table of the driver's that is not public. What the real library asks of the
 * driver in private is left out, so that this one runs on a driver that has its public interface
 * alone.
 *
 * The runtime is a thin layer: a call enters the calling thread's context (the primary one of its
 * device, made at the first need) and is the driver's call of the same meaning. Both number their
 * errors alike.
 */
#ifndef NM_SIM_CUDART_RUNTIME_H
#define NM_SIM_CUDART_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

typedef struct {
#define X(name, version) PFN_##name##_v##version name;
#include "driver.def"
#undef X
} nm_runtime_driver;

extern nm_runtime_driver nm_cu;

/* cuInit, once in a process: its first answer is its answer for ever, as the real library's is. */
cudaError_t nm_start(void);
/* nm_start, and the calling thread has a context. */
cudaError_t nm_enter(void);
/* The primary context of a device, held from its first use on. */
cudaError_t nm_primary(int ordinal, CUcontext *out);
/* The device that the calling thread works on. */
cudaError_t nm_current(int *ordinal);
/* Notes what a call answers, for cudaGetLastError, and returns it. */
cudaError_t nm_note(cudaError_t error);

static inline cudaError_t nm_from(CUresult result) { return (cudaError_t)result; }
static inline CUdeviceptr nm_address(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* A runtime function that is the driver's: within a context, or after cuInit alone. */
#define NM_IN_CONTEXT(name, parameters, call) \
    cudaError_t name parameters { \
        cudaError_t error = nm_enter(); \
        return nm_note(error ? error : nm_from(nm_cu.call)); \
    }
#define NM_AFTER_INIT(name, parameters, call) \
    cudaError_t name parameters { \
        cudaError_t error = nm_start(); \
        return nm_note(error ? error : nm_from(nm_cu.call)); \
    }

#endif
