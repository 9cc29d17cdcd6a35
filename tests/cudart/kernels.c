/* kernels.c: what code compiled by nvcc registers when it is loaded, and how its kernels are found
 * and launched.
 *
 * Knows: the registering functions (crt/host_runtime.h declares them for the compiler's output;
 * their wrapper of an image is that of fatbinary_section.h) and the driver's libraries. Must not
 * know: what is in an image.
 *
 * An image is handed to the driver when something of it is first used: a framework registers
 * hundreds and uses a few.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

typedef struct {
    int magic, version;
    const void *image;
    void *prelinked;
} wrapper;

typedef struct {
    const void *image;
    CUlibrary library; /* NULL until something of it is used */
} binary;

/* A kernel or variable, known to the program by the address of something of its own. */
typedef struct {
    const void *host; /* NULL: a free place */
    binary *owner;
    const char *name;
    CUkernel kernel;
} symbol;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
/* open addressing; a power of two places, half of them free */
static symbol *table;
static size_t places, taken;

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configuration;

enum { CONFIGURATIONS = 16 };
static __thread configuration pushed[CONFIGURATIONS];
static __thread unsigned pushed_count;

/* ---- the table
   ----------------------------------------------------------------------------- */

static symbol *place_of(const void *host) {
    size_t at = ((uintptr_t)host >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (places - 1);
    while (table[at].host && table[at].host != host) at = (at + 1) & (places - 1);
    return &table[at];
}

static bool grow(void) {
    symbol *before = table;
    size_t count = places;
    symbol *fresh = calloc(count ? 2 * count : 1024, sizeof *fresh);
    if (!fresh) return false;
    table = fresh;
    places = count ? 2 * count : 1024;
    for (size_t at = 0; at < count; at++) {
        if (before[at].host) *place_of(before[at].host) = before[at];
    }
    free(before);
    return true;
}

static void add(binary *owner, const void *host, const char *name) {
    pthread_mutex_lock(&mutex);
    if (owner && host && (2 * taken < places || grow())) {
        symbol *row = place_of(host);
        if (!row->host) taken++;
        *row = (symbol){host, owner, name, NULL};
    }
    pthread_mutex_unlock(&mutex);
}

static cudaError_t library_of(binary *owner, CUlibrary *out) {
    cudaError_t error = cudaSuccess;
    if (!owner->library) {
        error = nm_from(
            nm_cu.cuLibraryLoadData(&owner->library, owner->image, NULL, NULL, 0, NULL, NULL, 0));
    }
    *out = owner->library;
    return error;
}

/* What is not in the table may be a handle that the program got from the driver: that is for the
   driver to say. */
static cudaError_t kernel_of(const void *host, CUkernel *out) {
    cudaError_t error = host ? nm_enter() : cudaErrorInvalidDeviceFunction;
    if (error) return error;
    pthread_mutex_lock(&mutex);
    symbol *row = places ? place_of(host) : NULL;
    if (row && row->host) {
        CUlibrary library = NULL;
        if (!row->kernel) error = library_of(row->owner, &library);
        if (!row->kernel && !error)
            error = nm_from(nm_cu.cuLibraryGetKernel(&row->kernel, library, row->name));
        *out = row->kernel;
    } else {
        *out = (CUkernel)(uintptr_t)host;
    }
    pthread_mutex_unlock(&mutex);
    return error;
}

static cudaError_t variable_of(const void *host, CUdeviceptr *out, size_t *bytes) {
    cudaError_t error = nm_enter();
    if (error) return error;
    CUlibrary library = NULL;
    pthread_mutex_lock(&mutex);
    symbol *row = places ? place_of(host) : NULL;
    error = row && row->host ? library_of(row->owner, &library) : cudaErrorInvalidSymbol;
    if (!error) error = nm_from(nm_cu.cuLibraryGetGlobal(out, bytes, library, row->name));
    pthread_mutex_unlock(&mutex);
    return error == cudaErrorSymbolNotFound ? cudaErrorInvalidSymbol : error;
}

/* ---- registering
   ----------------------------------------------------------------------------- */

void **__cudaRegisterFatBinary(void *described) {
    binary *made = calloc(1, sizeof *made);
    if (made) made->image = ((const wrapper *)described)->image;
    return (void **)made;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

void __cudaUnregisterFatBinary(void **handle) {
    binary *ending = (binary *)handle;
    pthread_mutex_lock(&mutex);
    for (size_t at = 0; at < places; at++) {
        /* the place stays taken */
        if (table[at].owner == ending) table[at].owner = NULL, table[at].name = NULL;
    }
    pthread_mutex_unlock(&mutex);
    free(ending);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int threads, uint3 *thread, uint3 *block, dim3 *block_size,
                            dim3 *grid_size, int *warp)
{
    (void)device, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size,
        (void)warp;
    add((binary *)handle, host, name);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                       size_t bytes, int constant, int global)
{
    (void)device, (void)external, (void)bytes, (void)constant, (void)global;
    add((binary *)handle, host, name);
}

void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name,
                              int external, size_t bytes, int constant, int global)
{
    (void)device, (void)external, (void)bytes, (void)constant, (void)global;
    add((binary *)handle, host, name);
}

char __cudaInitModule(void **handle) { return handle != NULL; }

/* ---- launching
   ----------------------------------------------------------------------------- */

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream)
{
    if (pushed_count == CONFIGURATIONS) return (unsigned)nm_note(cudaErrorInvalidConfiguration);
    pushed[pushed_count++] = (configuration){grid, block, shared_bytes, stream};
    return cudaSuccess;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    if (pushed_count == 0) return nm_note(cudaErrorMissingConfiguration);
    configuration last = pushed[--pushed_count];
    *grid = last.grid;
    *block = last.block;
    *shared_bytes = last.shared_bytes;
    *(cudaStream_t *)stream = last.stream;
    return cudaSuccess;
}

cudaError_t cudaGetKernel(cudaKernel_t *out, const void *host)
{
    return nm_note(kernel_of(host, (CUkernel *)out));
}
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host)
{
    return cudaGetKernel(out, host);
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *host) {
    CUkernel kernel;
    cudaError_t error = kernel_of(host, &kernel);
    return nm_note(error ? error : nm_from(nm_cu.cuKernelGetFunction((CUfunction *)out, kernel)));
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    CUkernel kernel;
    cudaError_t error = kernel_of(host, &kernel);
    if (error) return nm_note(error);
    return nm_note(
        nm_from(nm_cu.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                     block.z, (unsigned)shared_bytes, stream, arguments, NULL)));
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                    size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                        size_t shared_bytes, cudaStream_t stream)
{
    CUkernel kernel;
    cudaError_t error = kernel_of(host, &kernel);
    if (error) return nm_note(error);
    return nm_note(nm_from(nm_cu.cuLaunchCooperativeKernel(
        (CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
        (unsigned)shared_bytes, stream, arguments)));
}

_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute),
               "attributes that are handed on");

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host,
                                void **arguments)
{
    CUkernel kernel;
    cudaError_t error = config ? kernel_of(host, &kernel) : cudaErrorInvalidValue;
    if (error) return nm_note(error);
    CUlaunchConfig same = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = (CUlaunchAttribute *)(void *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    return nm_note(nm_from(nm_cu.cuLaunchKernelEx(&same, (CUfunction)kernel, arguments, NULL)));
}

/* ---- attributes and occupancy
   ----------------------------------------------------------------------------- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    CUkernel kernel;
    int device;
    cudaError_t error = out ? kernel_of(host, &kernel) : cudaErrorInvalidValue;
    if (!error) error = nm_current(&device);
    int value[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT + 1];
    for (int which = 0; !error && which < (int)(sizeof value / sizeof *value); which++) {
        error = nm_from(
            nm_cu.cuKernelGetAttribute(&value[which], (CUfunction_attribute)which, kernel, device));
    }
    if (error) return nm_note(error);
    *out = (struct cudaFuncAttributes){
        .sharedSizeBytes = (size_t)value[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES],
        .constSizeBytes = (size_t)value[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES],
        .localSizeBytes = (size_t)value[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES],
        .maxThreadsPerBlock = value[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .numRegs = value[CU_FUNC_ATTRIBUTE_NUM_REGS],
        .ptxVersion = value[CU_FUNC_ATTRIBUTE_PTX_VERSION],
        .binaryVersion = value[CU_FUNC_ATTRIBUTE_BINARY_VERSION],
        .cacheModeCA = value[CU_FUNC_ATTRIBUTE_CACHE_MODE_CA],
        .maxDynamicSharedSizeBytes = value[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES],
        .preferredShmemCarveout = value[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT],
    };
    return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute which,
                                            int value, int device)
{
    cudaError_t error = nm_enter();
    if (error) return nm_note(error);
    return nm_note(nm_from(
        nm_cu.cuKernelSetAttribute((CUfunction_attribute)which, value, (CUkernel)kernel, device)));
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value) {
    CUkernel kernel;
    int device;
    cudaError_t error = kernel_of(host, &kernel);
    if (!error) error = nm_current(&device);
    return nm_note(
        error ? error
              : cudaKernelSetAttributeForDevice((cudaKernel_t)kernel, which, value, device));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *host,
                                                                   int threads, size_t shared_bytes,
                                                                   unsigned flags)
{
    CUkernel kernel;
    cudaError_t error = kernel_of(host, &kernel);
    if (error) return nm_note(error);
    return nm_note(nm_from(nm_cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out, (CUfunction)kernel, threads, shared_bytes, flags)));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *host, int threads,
                                                          size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, host, threads, shared_bytes,
                                                                  0);
}

/* ---- variables
   ----------------------------------------------------------------------------- */

cudaError_t cudaGetSymbolAddress(void **out, const void *host) {
    size_t bytes;
    return nm_note(variable_of(host, (CUdeviceptr *)out, &bytes));
}

cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind)
{
    CUdeviceptr address;
    size_t room;
    cudaError_t error = variable_of(host, &address, &room);
    if (!error && (offset > room || bytes > room - offset)) error = cudaErrorInvalidValue;
    return nm_note(error ? error
                         : cudaMemcpy((void *)(uintptr_t)(address + offset), from, bytes, kind));
}

/* ---- libraries that a program loads itself
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaLibraryLoadData,
              (cudaLibrary_t * out, const void *code, enum cudaJitOption *jit_options,
               void **jit_values, unsigned jit_count, enum cudaLibraryOption *options,
               void **values, unsigned count),
              cuLibraryLoadData((CUlibrary *)out, code, (CUjit_option *)jit_options, jit_values,
                                jit_count, (CUlibraryOption *)options, values, count))
NM_IN_CONTEXT(cudaLibraryLoadFromFile,
              (cudaLibrary_t * out, const char *path, enum cudaJitOption *jit_options,
               void **jit_values, unsigned jit_count, enum cudaLibraryOption *options,
               void **values, unsigned count),
              cuLibraryLoadFromFile((CUlibrary *)out, path, (CUjit_option *)jit_options, jit_values,
                                    jit_count, (CUlibraryOption *)options, values, count))
NM_IN_CONTEXT(cudaLibraryUnload, (cudaLibrary_t library), cuLibraryUnload((CUlibrary)library))
NM_IN_CONTEXT(cudaLibraryGetKernel, (cudaKernel_t * out, cudaLibrary_t library, const char *name),
              cuLibraryGetKernel((CUkernel *)out, (CUlibrary)library, name))
NM_IN_CONTEXT(cudaLibraryGetKernelCount, (unsigned *out, cudaLibrary_t library),
              cuLibraryGetKernelCount(out, (CUlibrary)library))
NM_IN_CONTEXT(cudaLibraryGetGlobal,
              (void **out, size_t *bytes, cudaLibrary_t library, const char *name),
              cuLibraryGetGlobal((CUdeviceptr *)out, bytes, (CUlibrary)library, name))
NM_IN_CONTEXT(cudaLibraryGetManaged,
              (void **out, size_t *bytes, cudaLibrary_t library, const char *name),
              cuLibraryGetManaged((CUdeviceptr *)out, bytes, (CUlibrary)library, name))
NM_IN_CONTEXT(cudaLibraryGetUnifiedFunction, (void **out, cudaLibrary_t library, const char *name),
              cuLibraryGetUnifiedFunction(out, (CUlibrary)library, name))
