/* runtime.c: a program of the CUDA runtime, as nvcc would have made it: it registers a kernel when
 * it is loaded.
 *
 * runtime story      every call that the tests are about, then one line of JSON runtime fill BYTES
 * allocates blocks of BYTES until one is refused; says how many it got, and what it was told
 * runtime twice      asks for the number of devices twice, the second time with
 * CUDA_VISIBLE_DEVICES unset
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#define CHECK(call) \
    do { \
        cudaError_t error_ = (call); \
        if (error_) \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(error_)), \
                exit(1); \
    } while (0)
#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition), exit(1); \
    } while (0)

/* ---- what the compiler would have written
   --------------------------------------------------------------------- */

void **__cudaRegisterFatBinary(void *described);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *,
                            dim3 *, dim3 *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t cudaMemcpyAsync_ptsz(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemcpy_ptds(void *, const void *, size_t, enum cudaMemcpyKind);

static struct {
    int magic, version;
    const void *image;
    void *prelinked;
} described = {0x466243b1, 1, "image", NULL};
static void **handle;
static char variable[8];
static const dim3 one = {1, 1, 1};

static void kernel(void) {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    CHECK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream));
    EXPECT(grid.x == 7 && block.y == 3 && shared_bytes == 16);
    CHECK(cudaLaunchKernel((const void *)kernel, grid, block, NULL, shared_bytes, stream));
}

static void unload(void) { __cudaUnregisterFatBinary(handle); }

__attribute__((constructor)) static void load(void) {
    handle = __cudaRegisterFatBinary(&described);
    __cudaRegisterFunction(handle, (const char *)kernel, (char *)kernel, "kernel", -1, NULL, NULL,
                           NULL, NULL, NULL);
    __cudaRegisterVar(handle, variable, variable, "variable", 0, sizeof variable, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    atexit(unload);
}

/* ---- the story
   ----------------------------------------------------------------------------- */

enum { BYTES = 64, LARGE = 8 << 20 };

static void copies(void) {
    const char text[BYTES] = "there and back";
    char back[BYTES];
    void *first, *second, *host;
    cudaStream_t stream;
    CHECK(cudaMalloc(&first, LARGE));
    CHECK(cudaMalloc(&second, LARGE));
    CHECK(cudaMemcpy(first, text, BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(second, first, BYTES, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy_ptds(back, second, BYTES, cudaMemcpyDeviceToHost));
    EXPECT(strcmp(back, text) == 0);
    EXPECT(cudaMemcpy(back, second, BYTES, (enum cudaMemcpyKind)17) ==
           cudaErrorInvalidMemcpyDirection);

    CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
    CHECK(cudaMallocHost(&host, LARGE));
    strcpy(host, "asynchronously");
    CHECK(cudaMemsetAsync(first, 0, LARGE, stream));
    CHECK(cudaMemcpyAsync(first, host, BYTES, cudaMemcpyDefault, stream));
    CHECK(cudaMemcpyAsync_ptsz(back, first, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(strcmp(back, host) == 0);

    struct cudaPointerAttributes seen;
    CHECK(cudaPointerGetAttributes(&seen, first));
    EXPECT(seen.type == cudaMemoryTypeDevice && seen.device == 0 && seen.devicePointer == first);
    CHECK(cudaPointerGetAttributes(&seen, host));
    EXPECT(seen.type == cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&seen, back));
    EXPECT(seen.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFreeHost(host));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(second));
    CHECK(cudaFree(first));
}

static void pools(void) {
    struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = 0},
    };
    cudaMemPool_t pool;
    uint64_t reserved_bytes;
    void *block, *managed;
    CHECK(cudaMemPoolCreate(&pool, &props));
    CHECK(cudaMallocFromPoolAsync(&block, LARGE, pool, NULL));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved_bytes));
    EXPECT(reserved_bytes == LARGE);
    CHECK(cudaFreeAsync(block, NULL));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaMallocAsync(&block, LARGE, NULL));
    CHECK(cudaFreeAsync(block, NULL));
    CHECK(cudaMallocManaged(&managed, LARGE, cudaMemAttachGlobal));
    CHECK(cudaFree(managed));
}

static void graphs(void) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    void *block;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    CHECK(cudaMallocAsync(&block, LARGE, stream));
    CHECK(cudaFreeAsync(block, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaStreamDestroy(stream));
}

static void kernels(void) {
    const dim3 grid = {7, 1, 1}, block = {2, 3, 1};
    struct cudaFuncAttributes seen;
    int blocks;
    void *address;
    EXPECT(__cudaPopCallConfiguration(NULL, NULL, NULL, NULL) == cudaErrorMissingConfiguration);
    EXPECT(__cudaPushCallConfiguration(grid, block, 16, NULL) == 0);
    kernel();
    CHECK(cudaFuncGetAttributes(&seen, (const void *)kernel));
    EXPECT(seen.maxThreadsPerBlock == 1024);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)kernel, 128, 0));
    EXPECT(blocks > 0);
    EXPECT(cudaLaunchKernel(NULL, one, one, NULL, 0, NULL) == cudaErrorInvalidDeviceFunction);
    EXPECT(cudaLaunchKernel((const void *)load, one, one, NULL, 0, NULL) != cudaSuccess);
    /* no variable is in a simulated image */
    EXPECT(cudaGetSymbolAddress(&address, variable) == cudaErrorInvalidSymbol);
    EXPECT(cudaGetSymbolAddress(&address, &blocks) == cudaErrorInvalidSymbol);
}

static void errors(void) {
    void *block;
    cudaGetLastError();
    EXPECT(cudaMalloc(&block, SIZE_MAX / 2) == cudaErrorMemoryAllocation);
    EXPECT(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    EXPECT(cudaMalloc(NULL, 1) == cudaErrorInvalidValue);
    EXPECT(cudaSetDevice(99) == cudaErrorInvalidDevice);
    EXPECT(cudaGetDeviceCount(NULL) == cudaErrorInvalidValue);
    /* not written: a stub */
    EXPECT(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1) == cudaErrorNotSupported);
    CHECK(cudaFree(NULL));
}

static int story(void) {
    int count, device, version;
    size_t free_bytes, total_bytes, used_bytes;
    struct cudaDeviceProp seen;
    cudaEvent_t start, end;
    float elapsed_ms;
    CHECK(cudaGetDeviceCount(&count));
    CHECK(cudaRuntimeGetVersion(&version));
    EXPECT(version == CUDART_VERSION);
    CHECK(cudaGetDeviceProperties(&seen, 0));
    CHECK(cudaGetDevice(&device));
    EXPECT(device == 0);
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(start, NULL));
    copies();
    pools();
    graphs();
    kernels();
    errors();
    CHECK(cudaEventRecord(end, NULL));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&elapsed_ms, start, end));
    EXPECT(elapsed_ms >= 0);
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    used_bytes = total_bytes - free_bytes;
    CHECK(cudaSetDevice(count - 1));
    CHECK(cudaGetDevice(&device));
    EXPECT(device == count - 1);
    CHECK(cudaDeviceReset());
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    printf("{\"devices\": %d, \"name\": \"%s\", \"major\": %d, \"total_bytes\": %zu, "
           "\"used_bytes\": %zu}\n",
           count, seen.name, seen.major, seen.totalGlobalMem, used_bytes);
    return 0;
}

static int fill(size_t bytes) {
    int blocks = 0;
    size_t free_bytes, total_bytes;
    void *block;
    cudaError_t error;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    while (!(error = cudaMalloc(&block, bytes))) blocks++;
    printf("{\"blocks\": %d, \"error\": \"%s\", \"total_bytes\": %zu}\n", blocks,
           cudaGetErrorName(error), total_bytes);
    return 0;
}

static int twice(void) {
    int count;
    cudaError_t first = cudaGetDeviceCount(&count);
    unsetenv("CUDA_VISIBLE_DEVICES");
    cudaError_t second = cudaGetDeviceCount(&count);
    printf("{\"errors\": [\"%s\", \"%s\"]}\n", cudaGetErrorName(first), cudaGetErrorName(second));
    return 0;
}

int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "story") == 0) return story();
    if (count == 3 && strcmp(words[1], "fill") == 0) return fill(strtoull(words[2], NULL, 10));
    if (count == 2 && strcmp(words[1], "twice") == 0) return twice();
    fprintf(stderr, "usage: runtime story | fill BYTES | twice\n");
    return 2;
}
