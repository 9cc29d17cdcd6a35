/* process.c: the way into the driver, contexts, devices and errors.
 *
 * Knows: dlopen, dlsym and cuGetProcAddress. Must not know: what the calls behind them do.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "names.h"
#include "runtime.h"

enum { DEVICES = 64 };

nm_runtime_driver nm_cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t started = cudaErrorInitializationError;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards primary */
static CUcontext primary[DEVICES];

static __thread int chosen;
static __thread cudaError_t last_error;

/* ---- the driver
   ----------------------------------------------------------------------------- */

static CUresult absent(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void look_up(PFN_cuGetProcAddress_v12000 get, const char *name, int version, void *out) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (get(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != CUDA_SUCCESS ||
        !found)
        found = (void *)absent;
    memcpy(out, &found, sizeof found);
}

static void start(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!symbol) {
        started = cudaErrorInsufficientDriver;
        return;
    }
    PFN_cuGetProcAddress_v12000 get;
    memcpy(&get, &symbol, sizeof get);
#define X(name, version) look_up(get, #name, version, &nm_cu.name);
#include "driver.def"
#undef X
    started = nm_from(nm_cu.cuInit(0));
}

cudaError_t nm_start(void) {
    pthread_once(&once, start);
    return started;
}

/* ---- contexts
   ----------------------------------------------------------------------------- */

cudaError_t nm_primary(int ordinal, CUcontext *out) {
    CUdevice device;
    cudaError_t error = nm_from(nm_cu.cuDeviceGet(&device, ordinal));
    if (error) return error;
    if (ordinal >= DEVICES) return cudaErrorInvalidDevice;
    pthread_mutex_lock(&mutex);
    if (!primary[ordinal])
        error = nm_from(nm_cu.cuDevicePrimaryCtxRetain(&primary[ordinal], device));
    if (error) primary[ordinal] = NULL;
    *out = primary[ordinal];
    pthread_mutex_unlock(&mutex);
    return error;
}

static cudaError_t bind(int ordinal) {
    CUcontext context;
    cudaError_t error = nm_primary(ordinal, &context);
    return error ? error : nm_from(nm_cu.cuCtxSetCurrent(context));
}

cudaError_t nm_enter(void) {
    cudaError_t error = nm_start();
    CUcontext current = NULL;
    if (!error) error = nm_from(nm_cu.cuCtxGetCurrent(&current));
    return error || current ? error : bind(chosen);
}

cudaError_t nm_current(int *ordinal) {
    cudaError_t error = nm_start();
    if (error) return error;
    CUdevice device;
    *ordinal = nm_cu.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : chosen;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
    cudaError_t error = nm_start();
    if (!error) error = bind(ordinal);
    if (!error) chosen = ordinal;
    return nm_note(error);
}

cudaError_t cudaInitDevice(int ordinal, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    CUcontext context;
    cudaError_t error = nm_start();
    return nm_note(error ? error : nm_primary(ordinal, &context));
}

cudaError_t cudaGetDevice(int *ordinal)
{
    return nm_note(ordinal ? nm_current(ordinal) : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceReset(void) {
    int ordinal;
    cudaError_t error = nm_current(&ordinal);
    if (error) return nm_note(error);
    CUcontext held = NULL;
    pthread_mutex_lock(&mutex);
    if (ordinal < DEVICES) held = primary[ordinal], primary[ordinal] = NULL;
    pthread_mutex_unlock(&mutex);
    nm_cu.cuCtxSetCurrent(NULL);
    if (held) nm_cu.cuDevicePrimaryCtxRelease(ordinal);
    return nm_note(nm_from(nm_cu.cuDevicePrimaryCtxReset(ordinal)));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext context = NULL;
    cudaError_t error = nm_enter();
    if (!error) error = nm_primary(peer, &context);
    return nm_note(error ? error : nm_from(nm_cu.cuCtxEnablePeerAccess(context, flags)));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    CUcontext context = NULL;
    cudaError_t error = nm_enter();
    if (!error) error = nm_primary(peer, &context);
    return nm_note(error ? error : nm_from(nm_cu.cuCtxDisablePeerAccess(context)));
}

NM_IN_CONTEXT(cudaDeviceSynchronize, (void), cuCtxSynchronize())
NM_IN_CONTEXT(cudaDeviceSetLimit, (enum cudaLimit limit, size_t value),
              cuCtxSetLimit((CUlimit)limit, value))
NM_IN_CONTEXT(cudaDeviceGetLimit, (size_t *value, enum cudaLimit limit),
              cuCtxGetLimit(value, (CUlimit)limit))
NM_IN_CONTEXT(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest),
              cuCtxGetStreamPriorityRange(least, greatest))

/* There is no profiler here to be told. (Their header is another package's than the rest of the
   runtime's.) */
cudaError_t cudaProfilerStart(void) { return nm_note(nm_enter()); }
cudaError_t cudaProfilerStop(void) { return nm_note(nm_enter()); }

/* ---- what a device is
   ----------------------------------------------------------------------------- */

NM_AFTER_INIT(cudaDeviceGetAttribute, (int *out, enum cudaDeviceAttr which, int device),
              cuDeviceGetAttribute(out, (CUdevice_attribute)which, device))
NM_AFTER_INIT(cudaDeviceGetPCIBusId, (char *out, int size, int device),
              cuDeviceGetPCIBusId(out, size, device))
NM_AFTER_INIT(cudaDeviceGetByPCIBusId, (int *device, const char *name),
              cuDeviceGetByPCIBusId(device, name))
NM_AFTER_INIT(cudaDeviceCanAccessPeer, (int *out, int device, int peer),
              cuDeviceCanAccessPeer(out, device, peer))

cudaError_t cudaGetDeviceCount(int *count) {
    if (!count) return nm_note(cudaErrorInvalidValue);
    *count = 0;
    cudaError_t error = nm_start();
    if (!error) error = nm_from(nm_cu.cuDeviceGetCount(count));
    return nm_note(error || *count ? error : cudaErrorNoDevice);
}

typedef struct {
    size_t offset, bytes; /* of the field in cudaDeviceProp */
    CUdevice_attribute attribute;
} property;

#define FIELD(name, attribute) \
    {offsetof(struct cudaDeviceProp, name), sizeof((struct cudaDeviceProp *)0)->name, \
     CU_DEVICE_ATTRIBUTE_##attribute}
static const property properties[] = {
    FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    FIELD(warpSize, WARP_SIZE),
    FIELD(memPitch, MAX_PITCH),
    FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    FIELD(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    FIELD(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    FIELD(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    FIELD(maxGridSize[0], MAX_GRID_DIM_X),
    FIELD(maxGridSize[1], MAX_GRID_DIM_Y),
    FIELD(maxGridSize[2], MAX_GRID_DIM_Z),
    FIELD(totalConstMem, TOTAL_CONSTANT_MEMORY),
    FIELD(major, COMPUTE_CAPABILITY_MAJOR),
    FIELD(minor, COMPUTE_CAPABILITY_MINOR),
    FIELD(textureAlignment, TEXTURE_ALIGNMENT),
    FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
    FIELD(integrated, INTEGRATED),
    FIELD(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    FIELD(concurrentKernels, CONCURRENT_KERNELS),
    FIELD(ECCEnabled, ECC_ENABLED),
    FIELD(pciBusID, PCI_BUS_ID),
    FIELD(pciDeviceID, PCI_DEVICE_ID),
    FIELD(pciDomainID, PCI_DOMAIN_ID),
    FIELD(asyncEngineCount, ASYNC_ENGINE_COUNT),
    FIELD(unifiedAddressing, UNIFIED_ADDRESSING),
    FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    FIELD(l2CacheSize, L2_CACHE_SIZE),
    FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    FIELD(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    FIELD(managedMemory, MANAGED_MEMORY),
    FIELD(isMultiGpuBoard, MULTI_GPU_BOARD),
    FIELD(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
    FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
    FIELD(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    FIELD(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    FIELD(ipcEventSupported, IPC_EVENT_SUPPORTED),
    FIELD(clusterLaunch, CLUSTER_LAUNCH),
    FIELD(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
};
#undef FIELD

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal) {
    CUdevice device = 0;
    cudaError_t error = nm_start();
    if (!error) error = out ? nm_from(nm_cu.cuDeviceGet(&device, ordinal)) : cudaErrorInvalidValue;
    if (error) return nm_note(error);
    memset(out, 0, sizeof *out);
    for (size_t row = 0; row < sizeof properties / sizeof *properties; row++) {
        int value = 0;
        nm_cu.cuDeviceGetAttribute(&value, properties[row].attribute, device);
        size_t wide = (size_t)value;
        char *field = (char *)out + properties[row].offset;
        memcpy(field, properties[row].bytes == sizeof wide ? (void *)&wide : (void *)&value,
               properties[row].bytes);
    }
    nm_cu.cuDeviceGetUuid(&out->uuid, device);
    error = nm_from(nm_cu.cuDeviceGetName(out->name, sizeof out->name, device));
    return nm_note(error ? error : nm_from(nm_cu.cuDeviceTotalMem(&out->totalGlobalMem, device)));
}

/* ---- versions, entry points, errors
   ----------------------------------------------------------------------------- */

cudaError_t cudaRuntimeGetVersion(int *version) {
    if (version) *version = CUDART_VERSION;
    return nm_note(version ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaDriverGetVersion(int *version) {
    if (!version) return nm_note(cudaErrorInvalidValue);
    *version = 0;
    nm_start();
    return nm_note(nm_cu.cuDriverGetVersion ? nm_from(nm_cu.cuDriverGetVersion(version))
                                            : cudaSuccess);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    cudaError_t error = nm_start();
    if (error) return nm_note(error);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = dlsym(library, "cuGetProcAddress_v2");
    PFN_cuGetProcAddress_v12000 get;
    memcpy(&get, &found, sizeof get);
    CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SUCCESS;
    error = nm_from(get(symbol, out, (int)version, flags, &answer));
    if (status) *status = (enum cudaDriverEntryPointQueryResult)answer;
    /* that is what `status` tells */
    return nm_note(error == cudaErrorSymbolNotFound ? cudaSuccess : error);
}

cudaError_t nm_note(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
    for (const nm_error_name *row = nm_error_names; row->name; row++) {
        if (row->error == (int)error) return row->name;
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    if (nm_cu.cuGetErrorString) nm_cu.cuGetErrorString((CUresult)error, &text);
    return text ? text : cudaGetErrorName(error);
}
