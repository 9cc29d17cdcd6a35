/* toolkit.c: a CUDA program as written against NVIDIA's cuda.h: what that header makes of a call is
 * what is called.
 *
 *   toolkit [BYTES]
 *
 * Prints one line of JSON. Must not know: on what it runs.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUresult said(CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return code;
    const char *name = "?";
    cuGetErrorName(code, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}
#define SAID(call) said(call, #call)

/* Each path's answer to a request for so much, and everything given back. */
static CUresult linear(size_t bytes, CUdevice device, CUstream stream) {
    (void)device, (void)stream;
    CUdeviceptr address;
    CUresult code = cuMemAlloc(&address, bytes);
    return code == CUDA_SUCCESS ? cuMemFree(address) : code;
}

static CUresult pitched(size_t bytes, CUdevice device, CUstream stream) {
    (void)device, (void)stream;
    CUdeviceptr address;
    size_t pitch;
    CUresult code = cuMemAllocPitch(&address, &pitch, 512, bytes / 512 + 1, 4);
    return code == CUDA_SUCCESS ? cuMemFree(address) : code;
}

static CUresult managed(size_t bytes, CUdevice device, CUstream stream) {
    (void)device, (void)stream;
    CUdeviceptr address;
    CUresult code = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
    return code == CUDA_SUCCESS ? cuMemFree(address) : code;
}

static CUresult stream_ordered(size_t bytes, CUdevice device, CUstream stream) {
    (void)device;
    CUdeviceptr address;
    CUresult code = cuMemAllocAsync(&address, bytes, stream);
    if (code == CUDA_SUCCESS) code = cuMemFreeAsync(address, stream);
    return code == CUDA_SUCCESS ? cuStreamSynchronize(stream) : code;
}

static CUresult physical(size_t bytes, CUdevice device, CUstream stream) {
    (void)stream;
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    size_t granule;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    SAID(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUresult code = cuMemCreate(&handle, (bytes + granule - 1) / granule * granule, &prop, 0);
    return code == CUDA_SUCCESS ? cuMemRelease(handle) : code;
}

static CUresult array(size_t bytes, CUdevice device, CUstream stream) {
    (void)device, (void)stream;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUarray made;
    memset(&desc, 0, sizeof desc);
    desc.Width = 1024;
    desc.Height = 1024;
    desc.Depth = bytes / (1024 * 1024 * 4) + 1;
    desc.Format = CU_AD_FORMAT_FLOAT;
    desc.NumChannels = 1;
    CUresult code = cuArray3DCreate(&made, &desc);
    return code == CUDA_SUCCESS ? cuArrayDestroy(made) : code;
}

static CUresult graph_memory(size_t bytes, CUdevice device, CUstream stream) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUgraph graph;
    CUgraphNode taking, giving;
    CUgraphExec ready;
    memset(&params, 0, sizeof params);
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.poolProps.location.id = device;
    params.bytesize = bytes;
    SAID(cuGraphCreate(&graph, 0));
    SAID(cuGraphAddMemAllocNode(&taking, graph, NULL, 0, &params));
    SAID(cuGraphAddMemFreeNode(&giving, graph, &taking, 1, params.dptr));
    SAID(cuGraphInstantiate(&ready, graph, 0));
    CUresult code = cuGraphLaunch(ready, stream);
    SAID(cuStreamSynchronize(stream));
    SAID(cuGraphExecDestroy(ready));
    SAID(cuGraphDestroy(graph));
    SAID(cuDeviceGraphMemTrim(device));
    return code;
}

static const struct {
    const char *name;
    CUresult (*take)(size_t, CUdevice, CUstream);
} paths[] = {
    {"linear", linear},
    {"pitched", pitched},
    {"managed", managed},
    {"stream_ordered", stream_ordered},
    {"physical", physical},
    {"array", array},
    {"graph_memory", graph_memory},
};

int main(int count, char **words) {
    size_t bytes = count > 1 ? strtoull(words[1], NULL, 10) : 1 << 20, free_before, free_after,
           total;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    int devices;
    SAID(cuInit(0));
    SAID(cuDeviceGetCount(&devices));
    SAID(cuDeviceGet(&device, 0));
    SAID(cuDevicePrimaryCtxRetain(&context, device));
    SAID(cuCtxSetCurrent(context));
    SAID(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAID(cuMemGetInfo(&free_before, &total));
    printf("{\"pid\": %d, \"devices\": %d, \"total_bytes\": %zu, \"refused\": {", (int)getpid(),
           devices, total);
    for (size_t index = 0; index < sizeof paths / sizeof *paths; index++) {
        const char *name = NULL;
        CUresult code = paths[index].take(bytes, device, stream);
        if (code != CUDA_SUCCESS) SAID(cuGetErrorName(code, &name));
        printf("%s\"%s\": ", index ? ", " : "", paths[index].name);
        printf(name ? "\"%s\"" : "null", name);
    }
    SAID(cuMemGetInfo(&free_after, &total));
    printf("}, \"free_bytes\": %zu, \"free_bytes_after\": %zu}\n", free_before, free_after);
    return 0;
}
