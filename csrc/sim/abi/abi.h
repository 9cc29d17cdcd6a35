/* abi.h: the part of the binary interface of the CUDA driver and of NVML that the simulator alone
 * uses.
 *
 * Knows: as base/abi.h, the same facts of the 64-bit Linux ABI, which tests/sim/test_abi.py compares
 * with a vendor's header. Must not know: the shim, which uses base/abi.h alone.
 */
#ifndef NM_SIM_ABI_H
#define NM_SIM_ABI_H

#include "base/abi.h"

/* ---- the driver
   ------------------------------------------------------------------- */

/* With NM_CU_RESULTS every CUresult: cuGetErrorName answers from both tables. */
#define NM_SIM_CU_RESULTS(X) \
    X(CUDA_ERROR_INVALID_VALUE, 1) \
    X(CUDA_ERROR_NOT_INITIALIZED, 3) \
    X(CUDA_ERROR_DEINITIALIZED, 4) \
    X(CUDA_ERROR_PROFILER_DISABLED, 5) \
    X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6) \
    X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7) \
    X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8) \
    X(CUDA_ERROR_STUB_LIBRARY, 34) \
    X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36) \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46) \
    X(CUDA_ERROR_MULTICAST_RESOURCE_FULL, 47) \
    X(CUDA_ERROR_INVALID_DEVICE, 101) \
    X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102) \
    X(CUDA_ERROR_INVALID_IMAGE, 200) \
    X(CUDA_ERROR_INVALID_CONTEXT, 201) \
    X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202) \
    X(CUDA_ERROR_MAP_FAILED, 205) \
    X(CUDA_ERROR_UNMAP_FAILED, 206) \
    X(CUDA_ERROR_ARRAY_IS_MAPPED, 207) \
    X(CUDA_ERROR_ALREADY_MAPPED, 208) \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209) \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210) \
    X(CUDA_ERROR_NOT_MAPPED, 211) \
    X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212) \
    X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213) \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214) \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215) \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216) \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217) \
    X(CUDA_ERROR_INVALID_PTX, 218) \
    X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219) \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220) \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221) \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222) \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223) \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224) \
    X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225) \
    X(CUDA_ERROR_CONTAINED, 226) \
    X(CUDA_ERROR_INSUFFICIENT_LOADER_VERSION, 227) \
    X(CUDA_ERROR_INVALID_SOURCE, 300) \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301) \
    X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302) \
    X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303) \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304) \
    X(CUDA_ERROR_INVALID_HANDLE, 400) \
    X(CUDA_ERROR_ILLEGAL_STATE, 401) \
    X(CUDA_ERROR_LOSSY_QUERY, 402) \
    X(CUDA_ERROR_NOT_FOUND, 500) \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700) \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701) \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702) \
    X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703) \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704) \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705) \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708) \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709) \
    X(CUDA_ERROR_ASSERT, 710) \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711) \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713) \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714) \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715) \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716) \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717) \
    X(CUDA_ERROR_INVALID_PC, 718) \
    X(CUDA_ERROR_LAUNCH_FAILED, 719) \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720) \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721) \
    X(CUDA_ERROR_NOT_SUPPORTED, 801) \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802) \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803) \
    X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
    X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805) \
    X(CUDA_ERROR_MPS_RPC_FAILURE, 806) \
    X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807) \
    X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808) \
    X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809) \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810) \
    X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811) \
    X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812) \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900) \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901) \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902) \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903) \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904) \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905) \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906) \
    X(CUDA_ERROR_CAPTURED_EVENT, 907) \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908) \
    X(CUDA_ERROR_TIMEOUT, 909) \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910) \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911) \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912) \
    X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913) \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914) \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915) \
    X(CUDA_ERROR_KEY_ROTATION, 916) \
    X(CUDA_ERROR_STREAM_DETACHED, 917) \
    X(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, 918) \
    X(CUDA_ERROR_FABRIC_NOT_READY, 919) \
    X(CUDA_ERROR_UNKNOWN, 999)
enum { NM_SIM_CU_RESULTS(NM_AS_ENUMERATOR) };

#define NM_SIM_CU_CONSTANTS(X) \
    /* cuMemAllocManaged flags */ \
    X(CU_MEM_ATTACH_GLOBAL, 1) \
    X(CU_MEM_ATTACH_HOST, 2) \
    /* nm_cu_mem_location.type */ \
    X(CU_MEM_LOCATION_TYPE_HOST, 2) \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3) \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 4) \
    /* allocation types of cuMemCreate and of pools */ \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1) \
    X(CU_MEM_ALLOCATION_TYPE_MANAGED, 2) \
    /* nm_cu_mem_access_desc.flags */ \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3) \
    /* pools; values are int for the three REUSE ones, uint64_t for the rest */ \
    X(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1) \
    X(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 2) \
    X(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 3) \
    X(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 6) \
    X(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 8) \
    /* graph memory; values are uint64_t */ \
    X(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, 1) \
    X(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, 3) \
    X(CU_GRAPH_NODE_TYPE_MEMCPY, 1) \
    X(CU_GRAPH_NODE_TYPE_MEMSET, 2) \
    X(CU_GRAPH_NODE_TYPE_HOST, 3) \
    X(CU_GRAPH_NODE_TYPE_EMPTY, 5) \
    X(CU_GRAPH_NODE_TYPE_WAIT_EVENT, 6) \
    X(CU_GRAPH_NODE_TYPE_EVENT_RECORD, 7) \
    X(CU_GRAPH_NODE_TYPE_MEM_FREE, 11) \
    X(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, 1) \
    /* arrays */ \
    X(CU_AD_FORMAT_UNSIGNED_INT8, 0x01) \
    X(CU_AD_FORMAT_UNSIGNED_INT16, 0x02) \
    X(CU_AD_FORMAT_UNSIGNED_INT32, 0x03) \
    X(CU_AD_FORMAT_SIGNED_INT8, 0x08) \
    X(CU_AD_FORMAT_SIGNED_INT16, 0x09) \
    X(CU_AD_FORMAT_SIGNED_INT32, 0x0a) \
    X(CU_AD_FORMAT_HALF, 0x10) \
    X(CU_AD_FORMAT_FLOAT, 0x20) \
    X(CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, 1) \
    X(CU_MEM_OPERATION_TYPE_UNMAP, 2) \
    /* copies and pointers */ \
    X(CU_MEMORYTYPE_HOST, 1) \
    X(CU_MEMORYTYPE_DEVICE, 2) \
    X(CU_MEMORYTYPE_ARRAY, 3) \
    X(CU_MEMORYTYPE_UNIFIED, 4) \
    X(CU_POINTER_ATTRIBUTE_CONTEXT, 1) \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2) \
    X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3) \
    X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4) \
    X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6) \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7) \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8) \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9) \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10) \
    X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11) \
    X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12) \
    X(CU_POINTER_ATTRIBUTE_MAPPED, 13) \
    X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14) \
    X(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 16) \
    X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17) \
    /* imports */ \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1) \
    X(CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, 1) \
    X(CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD, 9) \
    X(CUDA_EXTERNAL_MEMORY_DEDICATED, 1) \
    /* contexts */ \
    X(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3) \
    X(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 4) \
    X(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 5) \
    X(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 6) \
    X(CU_GREEN_CTX_DEFAULT_STREAM, 1) \
    X(CU_DEV_RESOURCE_TYPE_SM, 1) \
    /* cuGetProcAddress: flags, then the answer's symbolStatus */ \
    X(CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1) \
    X(CU_GET_PROC_ADDRESS_SUCCESS, 0) \
    X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, 1) \
    X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, 2) \
    /* process states of cuCheckpointProcessGetState */ \
    X(CU_PROCESS_STATE_RUNNING, 0) \
    X(CU_PROCESS_STATE_LOCKED, 1) \
    X(CU_PROCESS_STATE_CHECKPOINTED, 2)
enum { NM_SIM_CU_CONSTANTS(NM_AS_ENUMERATOR) };

typedef struct {
    unsigned char reserved[64];
} nm_cu_mem_pool_ptr_export;

typedef struct {
    size_t size;
    size_t alignment;
    unsigned reserved[4];
} nm_cu_array_memory_requirements;

typedef struct {
    unsigned tile_width, tile_height, tile_depth; /* elements */
    unsigned miptail_first_level;
    unsigned long long miptail_size;
    unsigned flags;
    unsigned reserved[4];
} nm_cu_array_sparse_properties;

typedef struct {
    size_t src_x_bytes, src_y;
    int src_memory_type;
    const void *src_host;
    nm_cu_deviceptr src_device;
    nm_cu_array src_array;
    size_t src_pitch;
    size_t dst_x_bytes, dst_y;
    int dst_memory_type;
    void *dst_host;
    nm_cu_deviceptr dst_device;
    nm_cu_array dst_array;
    size_t dst_pitch;
    size_t width_bytes, height;
} nm_cu_memcpy2d;

typedef struct {
    size_t src_x_bytes, src_y, src_z, src_lod;
    int src_memory_type;
    const void *src_host;
    nm_cu_deviceptr src_device;
    nm_cu_array src_array;
    void *reserved0;
    size_t src_pitch, src_height;
    size_t dst_x_bytes, dst_y, dst_z, dst_lod;
    int dst_memory_type;
    void *dst_host;
    nm_cu_deviceptr dst_device;
    nm_cu_array dst_array;
    void *reserved1;
    size_t dst_pitch, dst_height;
    size_t width_bytes, height, depth;
} nm_cu_memcpy3d;

/* cuImportExternalMemory. `size` is in bytes; on success the driver owns `fd`. */
typedef struct {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvscibuf_object;
    } handle;
    unsigned long long size;
    unsigned flags;
    unsigned reserved[16];
} nm_cu_external_memory_handle_desc;

typedef struct {
    unsigned long long offset;
    unsigned long long size;
    unsigned flags;
    unsigned reserved[16];
} nm_cu_external_memory_buffer_desc;

typedef struct {
    unsigned long long offset;
    nm_cu_array3d_descriptor array_desc;
    unsigned num_levels;
    unsigned reserved[16];
} nm_cu_external_memory_mipmapped_array_desc;

/* cuGraphAddNode: of the thirteen kinds of node only those that own memory or another graph are
   spelt out. */
typedef struct {
    int type;
    int reserved0[3];
    union {
        long long reserved1[29];
        nm_cu_mem_alloc_node_params alloc;
        struct {
            nm_cu_deviceptr dptr;
        } free;
        struct {
            nm_cu_graph graph;
            int ownership;
        } graph;
    } as;
    long long reserved2;
} nm_cu_graph_node_params;

/* cuGraphExecUpdate_v2: 0 is success. */
typedef struct {
    int result;
    nm_cu_graph_node error_node;
    nm_cu_graph_node error_from_node;
} nm_cu_graph_exec_update_info;

/* CUdevResource as far as all versions of it agree; the caller's is longer. */
typedef struct {
    int type;
    unsigned char padding[92];
    unsigned sm_count;
} nm_cu_dev_resource_head;

/* cuDeviceGetProperties (deprecated, still called). */
typedef struct {
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    int shared_mem_per_block;
    int total_constant_memory;
    int simd_width;
    int mem_pitch;
    int regs_per_block;
    int clock_rate;
    int texture_align;
} nm_cu_device_properties;

/* ---- NVML
   ------------------------------------------------------------------------- */

/* With NM_NVML_RESULTS every nvmlReturn_t: nvmlErrorString answers from both tables. */
#define NM_SIM_NVML_RESULTS(X) \
    X(NVML_ERROR_UNINITIALIZED, 1) \
    X(NVML_ERROR_NOT_SUPPORTED, 3) \
    X(NVML_ERROR_ALREADY_INITIALIZED, 5) \
    X(NVML_ERROR_INSUFFICIENT_POWER, 8) \
    X(NVML_ERROR_DRIVER_NOT_LOADED, 9) \
    X(NVML_ERROR_TIMEOUT, 10) \
    X(NVML_ERROR_IRQ_ISSUE, 11) \
    X(NVML_ERROR_FUNCTION_NOT_FOUND, 13) \
    X(NVML_ERROR_CORRUPTED_INFOROM, 14) \
    X(NVML_ERROR_GPU_IS_LOST, 15) \
    X(NVML_ERROR_RESET_REQUIRED, 16) \
    X(NVML_ERROR_OPERATING_SYSTEM, 17) \
    X(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18) \
    X(NVML_ERROR_IN_USE, 19) \
    X(NVML_ERROR_NO_DATA, 21) \
    X(NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, 22) \
    X(NVML_ERROR_INSUFFICIENT_RESOURCES, 23) \
    X(NVML_ERROR_FREQ_NOT_SUPPORTED, 24) \
    X(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 25) \
    X(NVML_ERROR_DEPRECATED, 26) \
    X(NVML_ERROR_NOT_READY, 27) \
    X(NVML_ERROR_INVALID_STATE, 29) \
    X(NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, 30) \
    X(NVML_ERROR_UNKNOWN, 999)
enum { NM_SIM_NVML_RESULTS(NM_AS_ENUMERATOR) };

#define NM_SIM_NVML_CONSTANTS(X) \
    X(NVML_UUID_TYPE_ASCII, 1) \
    X(NVML_UUID_TYPE_BINARY, 2) \
    X(NVML_COMPUTEMODE_DEFAULT, 0) \
    X(NVML_FEATURE_DISABLED, 0) \
    X(NVML_FEATURE_ENABLED, 1) \
    X(nvmlEventTypeDoubleBitEccError, 0x2) \
    X(nvmlEventTypeXidCriticalError, 0x8) \
    X(NVML_PSTATE_0, 0)
enum { NM_SIM_NVML_CONSTANTS(NM_AS_ENUMERATOR) };

typedef void *nm_nvml_event_set;

/* nvmlEventSetWait_v2. */
typedef struct {
    nm_nvml_device device;
    unsigned long long event_type;
    unsigned long long event_data; /* the XID */
    unsigned gpu_instance_id;      /* all ones without MIG, as the next */
    unsigned compute_instance_id;
} nm_nvml_event_data;

typedef struct {
    unsigned long long bar1_total;
    unsigned long long bar1_free;
    unsigned long long bar1_used;
} nm_nvml_bar1_memory;

typedef struct {
    unsigned gpu;    /* percent */
    unsigned memory; /* percent */
} nm_nvml_utilization;

/* nvmlDeviceGetSamples. */
enum { NM_NVML_GPU_UTILIZATION_SAMPLES = 1, NM_NVML_VALUE_TYPE_UNSIGNED_INT = 1 };
typedef struct {
    unsigned long long time_stamp_us;
    union {
        double real;
        unsigned number;
        unsigned long long long_number;
    } value;
} nm_nvml_sample;

/* nvmlDeviceGetHandleByUUIDV: the text, or the 16 bytes. */
typedef struct {
    unsigned version;
    unsigned type;
    union {
        char text[41];
        unsigned char bytes[16];
    };
} nm_nvml_uuid;
#define NM_NVML_UUID_VERSION NM_NVML_STRUCT_VERSION(nm_nvml_uuid, 1)

typedef struct {
    char bus_id_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char bus_id[32];
} nm_nvml_pci_info;

typedef struct {
    unsigned version;
    int sensor_type;
    int temperature; /* degrees Celsius */
} nm_nvml_temperature;
#define NM_NVML_TEMPERATURE_VERSION NM_NVML_STRUCT_VERSION(nm_nvml_temperature, 1)

/* nvmlDeviceSetMemoryLimits_v1 and ...Get...: a cgroup's share of a device, in bytes. */
typedef struct {
    const char *cgroup_path;
    unsigned long long soft_limit;
    unsigned long long hard_limit; /* all ones: none */
} nm_nvml_set_memory_limits;

typedef struct {
    const char *cgroup_path;
    unsigned long long soft_limit;
    unsigned long long hard_limit;
    unsigned long long current_used;
} nm_nvml_get_memory_limits;

#endif
