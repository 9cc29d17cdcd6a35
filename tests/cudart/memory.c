/* memory.c: memory of devices and hosts, pools, copies, and what a pointer is.
 *
 * Knows: which call of the driver's means the same. Must not know: what memory there is.
 */
#include <string.h>

#include "runtime.h"

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "handles that cross");
_Static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle), "handles that cross");
_Static_assert(sizeof(struct cudaMemAccessDesc) == sizeof(CUmemAccessDesc),
               "descriptions that are handed on");

/* ---- linear, managed, host
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes),
              cuMemGetInfo(free_bytes, total_bytes))
NM_IN_CONTEXT(cudaMallocManaged, (void **out, size_t bytes, unsigned flags),
              cuMemAllocManaged((CUdeviceptr *)out, bytes, flags))
NM_IN_CONTEXT(cudaHostAlloc, (void **out, size_t bytes, unsigned flags),
              cuMemHostAlloc(out, bytes, flags))
NM_IN_CONTEXT(cudaMallocHost, (void **out, size_t bytes), cuMemHostAlloc(out, bytes, 0))
NM_IN_CONTEXT(cudaHostRegister, (void *pointer, size_t bytes, unsigned flags),
              cuMemHostRegister(pointer, bytes, flags))
NM_IN_CONTEXT(cudaHostUnregister, (void *pointer), cuMemHostUnregister(pointer))
NM_IN_CONTEXT(cudaHostGetDevicePointer, (void **out, void *pointer, unsigned flags),
              cuMemHostGetDevicePointer((CUdeviceptr *)out, pointer, flags))

cudaError_t cudaMalloc(void **out, size_t bytes) {
    cudaError_t error = out ? nm_enter() : cudaErrorInvalidValue;
    if (error) return nm_note(error);
    *out = NULL;
    return nm_note(bytes ? nm_from(nm_cu.cuMemAlloc((CUdeviceptr *)out, bytes)) : cudaSuccess);
}

cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
    enum { ELEMENT_BYTES = 4 };
    cudaError_t error = nm_enter();
    return nm_note(error ? error
                         : nm_from(nm_cu.cuMemAllocPitch((CUdeviceptr *)out, pitch, width, height,
                                                         ELEMENT_BYTES)));
}

/* Of nothing, too: the old way to make the context. */
cudaError_t cudaFree(void *pointer) {
    cudaError_t error = nm_enter();
    return nm_note(error || !pointer ? error : nm_from(nm_cu.cuMemFree(nm_address(pointer))));
}

cudaError_t cudaFreeHost(void *pointer) {
    cudaError_t error = nm_enter();
    return nm_note(error || !pointer ? error : nm_from(nm_cu.cuMemFreeHost(pointer)));
}

/* ---- stream-ordered
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaMallocAsync, (void **out, size_t bytes, cudaStream_t stream),
              cuMemAllocAsync((CUdeviceptr *)out, bytes, stream))
NM_IN_CONTEXT(cudaMallocFromPoolAsync,
              (void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
              cuMemAllocFromPoolAsync((CUdeviceptr *)out, bytes, pool, stream))
NM_IN_CONTEXT(cudaFreeAsync, (void *pointer, cudaStream_t stream),
              cuMemFreeAsync(nm_address(pointer), stream))
NM_AFTER_INIT(cudaMemPoolDestroy, (cudaMemPool_t pool), cuMemPoolDestroy(pool))
NM_AFTER_INIT(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t bytes), cuMemPoolTrimTo(pool, bytes))
NM_AFTER_INIT(cudaMemPoolSetAttribute,
              (cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value),
              cuMemPoolSetAttribute(pool, (CUmemPool_attribute)which, value))
NM_AFTER_INIT(cudaMemPoolGetAttribute,
              (cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value),
              cuMemPoolGetAttribute(pool, (CUmemPool_attribute)which, value))
NM_AFTER_INIT(cudaMemPoolSetAccess,
              (cudaMemPool_t pool, const struct cudaMemAccessDesc *rows, size_t count),
              cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)rows, count))
NM_AFTER_INIT(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * out, int device),
              cuDeviceGetDefaultMemPool(out, device))
NM_AFTER_INIT(cudaDeviceGetMemPool, (cudaMemPool_t * out, int device),
              cuDeviceGetMemPool(out, device))
NM_AFTER_INIT(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool),
              cuDeviceSetMemPool(device, pool))

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *props) {
    cudaError_t error = out && props ? nm_start() : cudaErrorInvalidValue;
    if (error) return nm_note(error);
    CUmemPoolProps same = {
        .allocType = (CUmemAllocationType)props->allocType,
        .handleTypes = (CUmemAllocationHandleType)props->handleTypes,
        .location = {.type = (CUmemLocationType)props->location.type, .id = props->location.id},
        .maxSize = props->maxSize,
    };
    return nm_note(nm_from(nm_cu.cuMemPoolCreate(out, &same)));
}

/* ---- between processes
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * out, void *pointer),
              cuIpcGetMemHandle((CUipcMemHandle *)out, nm_address(pointer)))
NM_IN_CONTEXT(cudaIpcCloseMemHandle, (void *pointer), cuIpcCloseMemHandle(nm_address(pointer)))
NM_IN_CONTEXT(cudaIpcGetEventHandle, (cudaIpcEventHandle_t * out, cudaEvent_t event),
              cuIpcGetEventHandle((CUipcEventHandle *)out, event))

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    CUipcMemHandle same;
    memcpy(&same, &handle, sizeof same);
    cudaError_t error = nm_enter();
    return nm_note(error ? error
                         : nm_from(nm_cu.cuIpcOpenMemHandle((CUdeviceptr *)out, same, flags)));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle) {
    CUipcEventHandle same;
    memcpy(&same, &handle, sizeof same);
    cudaError_t error = nm_enter();
    return nm_note(error ? error : nm_from(nm_cu.cuIpcOpenEventHandle(out, same)));
}

/* ---- copies
   ----------------------------------------------------------------------------- */

/* With unified addressing the driver sees by the addresses where each end lies: `kind` adds
   nothing. */
static bool is_kind(enum cudaMemcpyKind kind) { return (unsigned)kind <= cudaMemcpyDefault; }

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t error = is_kind(kind) ? nm_enter() : cudaErrorInvalidMemcpyDirection;
    return nm_note(error ? error
                         : nm_from(nm_cu.cuMemcpy(nm_address(to), nm_address(from), bytes)));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = is_kind(kind) ? nm_enter() : cudaErrorInvalidMemcpyDirection;
    return nm_note(
        error ? error
              : nm_from(nm_cu.cuMemcpyAsync(nm_address(to), nm_address(from), bytes, stream)));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    CUcontext source = NULL, target = NULL;
    cudaError_t error = nm_enter();
    if (!error) error = nm_primary(from_device, &source);
    if (!error) error = nm_primary(to_device, &target);
    if (error) return nm_note(error);
    return nm_note(nm_from(
        nm_cu.cuMemcpyPeerAsync(nm_address(to), target, nm_address(from), source, bytes, stream)));
}

static CUDA_MEMCPY2D rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                               size_t width, size_t height)
{
    return (CUDA_MEMCPY2D){
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = nm_address(from),
        .srcPitch = from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = nm_address(to),
        .dstPitch = to_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height);
    cudaError_t error = is_kind(kind) ? nm_enter() : cudaErrorInvalidMemcpyDirection;
    return nm_note(error ? error : nm_from(nm_cu.cuMemcpy2DUnaligned(&copy)));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height);
    cudaError_t error = is_kind(kind) ? nm_enter() : cudaErrorInvalidMemcpyDirection;
    return nm_note(error ? error : nm_from(nm_cu.cuMemcpy2DAsync(&copy, stream)));
}

NM_IN_CONTEXT(cudaMemset, (void *to, int value, size_t bytes),
              cuMemsetD8(nm_address(to), (unsigned char)value, bytes))
NM_IN_CONTEXT(cudaMemsetAsync, (void *to, int value, size_t bytes, cudaStream_t stream),
              cuMemsetD8Async(nm_address(to), (unsigned char)value, bytes, stream))

/* ---- what a pointer is
   ----------------------------------------------------------------------------- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    cudaError_t error = out ? nm_enter() : cudaErrorInvalidValue;
    if (error) return nm_note(error);
    unsigned type = 0, managed = 0;
    int device = -2;
    void *at_device = NULL, *at_host = NULL;
    CUpointer_attribute wanted[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
    };
    void *answers[] = {&type, &managed, &device, &at_device, &at_host};
    error = nm_from(nm_cu.cuPointerGetAttributes(sizeof wanted / sizeof *wanted, wanted, answers,
                                                 nm_address(pointer)));
    if (error) return nm_note(error);
    memset(out, 0, sizeof *out);
    out->type = managed                        ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
    out->device = device;
    out->devicePointer = at_device;
    out->hostPointer =
        out->type == cudaMemoryTypeUnregistered ? (void *)(uintptr_t)pointer : at_host;
    return cudaSuccess;
}
