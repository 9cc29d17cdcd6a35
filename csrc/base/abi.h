/* abi.h: the part of the binary interface of the CUDA driver and of NVML that the shim uses. The
 * part of the simulator alone is sim/abi.
 *
 * Knows: result codes, constants, handle types and layouts of structures, as facts of the 64-bit
 * Linux ABI. Must not know: a vendor header, since the project builds with a C compiler alone.
 *
 * A constant has the public name with NM_ in front; a type is nm_cu_... or nm_nvml_..., so that
 * tests/sim/test_abi.py can compare this file with a vendor's header in one unit. Structures are
 * those of 12.x and 13.x clients, except where a name has _v1.
 */
#ifndef NM_ABI_H
#define NM_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NM_AS_ENUMERATOR(name, value) NM_##name = (value),

/* ---- the driver: results and constants
   ------------------------------------------------------------------- */

#define NM_CU_RESULTS(X) \
    X(CUDA_SUCCESS, 0) \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2) \
    X(CUDA_ERROR_NO_DEVICE, 100) \
    X(CUDA_ERROR_NOT_READY, 600) \
    X(CUDA_ERROR_NOT_PERMITTED, 800)

/* The result of a driver entry point. An int, not the enum, so that an unknown code stays
   representable. */
typedef int nm_cu_result;
enum { NM_CU_RESULTS(NM_AS_ENUMERATOR) };

/* All other numbers, grouped as in the driver's documentation. */
#define NM_CU_CONSTANTS(X) \
    /* nm_cu_mem_location.type */ \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1) \
    /* exportable handle types (a bit mask) */ \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) \
    /* pools; values are uint64_t */ \
    X(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4) \
    X(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5) \
    X(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 7) \
    /* graph memory; values are uint64_t */ \
    X(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0) \
    X(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 2) \
    X(CU_GRAPH_NODE_TYPE_KERNEL, 0) \
    X(CU_GRAPH_NODE_TYPE_GRAPH, 4) \
    X(CU_GRAPH_NODE_TYPE_MEM_ALLOC, 10) \
    X(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, 2) \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0) \
    X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) \
    /* arrays */ \
    X(CUDA_ARRAY3D_LAYERED, 0x01) \
    X(CUDA_ARRAY3D_CUBEMAP, 0x04) \
    X(CUDA_ARRAY3D_SPARSE, 0x40) \
    X(CUDA_ARRAY3D_DEFERRED_MAPPING, 0x80) \
    X(CU_MEM_OPERATION_TYPE_MAP, 1) \
    /* contexts */ \
    X(CU_LIMIT_STACK_SIZE, 0) \
    X(CU_LIMIT_PRINTF_FIFO_SIZE, 1) \
    X(CU_LIMIT_MALLOC_HEAP_SIZE, 2) \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 39) \
    /* cuGetProcAddress: flags, then the answer's symbolStatus */ \
    X(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 2)
enum { NM_CU_CONSTANTS(NM_AS_ENUMERATOR) };

/* ---- the driver: types
   ----------------------------------------------------------------------------- */

typedef int nm_cu_device;         /* an ordinal after CUDA_VISIBLE_DEVICES */
typedef uint64_t nm_cu_deviceptr; /* a device address */
typedef uint64_t nm_cu_mem_handle; /* CUmemGenericAllocationHandle: a number, not a pointer */

/* Handles. Plain pointers: only the driver reads behind them. */
typedef void *nm_cu_context;
typedef void *nm_cu_green_context;
typedef void *nm_cu_module;
typedef void *nm_cu_library;
typedef void *nm_cu_kernel;
typedef void *nm_cu_function;
typedef void *nm_cu_stream;
typedef void *nm_cu_event;
typedef void *nm_cu_array;
typedef void *nm_cu_mipmapped_array;
typedef void *nm_cu_memory_pool;
typedef void *nm_cu_external_memory;
typedef void *nm_cu_graph;
typedef void *nm_cu_graph_node;
typedef void *nm_cu_graph_exec;

/* The two stream handles that are numbers. */
#define NM_CU_STREAM_LEGACY ((nm_cu_stream)1)
#define NM_CU_STREAM_PER_THREAD ((nm_cu_stream)2)

typedef struct {
    unsigned char bytes[16];
} nm_cu_uuid;

/* Where memory lives. id is a device ordinal for CU_MEM_LOCATION_TYPE_DEVICE, a NUMA node or
   nothing otherwise. */
typedef struct {
    int type;
    int id;
} nm_cu_mem_location;

typedef struct {
    nm_cu_mem_location location;
    int flags;
} nm_cu_mem_access_desc;

/* cuMemCreate: the allocation. Charge `location`, never the current device. */
typedef struct {
    int type;
    int requested_handle_types;
    nm_cu_mem_location location;
    void *win32_handle_meta_data;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } alloc_flags;
} nm_cu_mem_allocation_prop;

typedef struct {
    int alloc_type;
    int handle_types;
    nm_cu_mem_location location;
    void *win32_security_attributes;
    size_t max_size; /* bytes; 0 asks for the driver's own bound */
    unsigned short usage;
    unsigned char reserved[54];
} nm_cu_mem_pool_props;

typedef struct {
    char reserved[64];
} nm_cu_ipc_mem_handle;

typedef struct {
    size_t width;
    size_t height;
    int format;
    unsigned num_channels;
} nm_cu_array_descriptor;

typedef struct {
    size_t width;
    size_t height;
    size_t depth;
    int format;
    unsigned num_channels;
    unsigned flags;
} nm_cu_array3d_descriptor;

/* The first CUDA's descriptors, with 32-bit extents. */
typedef struct {
    unsigned width;
    unsigned height;
    int format;
    unsigned num_channels;
} nm_cu_array_descriptor_v1;

typedef struct {
    unsigned width;
    unsigned height;
    unsigned depth;
    int format;
    unsigned num_channels;
    unsigned flags;
} nm_cu_array3d_descriptor_v1;

/* cuMemMapArrayAsync: one (un)mapping of a sparse array's tile or mip tail. */
typedef struct {
    int resource_type;
    union {
        nm_cu_mipmapped_array mipmap;
        nm_cu_array array;
    } resource;
    int subresource_type;
    union {
        struct {
            unsigned level;
            unsigned layer;
            unsigned offset_x, offset_y, offset_z;
            unsigned extent_width, extent_height, extent_depth;
        } sparse_level;
        struct {
            unsigned layer;
            unsigned long long offset;
            unsigned long long size;
        } miptail;
    } subresource;
    int mem_operation_type;
    int mem_handle_type;
    nm_cu_mem_handle mem_handle;
    unsigned long long offset;
    unsigned device_bit_mask;
    unsigned flags;
    unsigned reserved[2];
} nm_cu_array_map_info;

typedef struct {
    unsigned num_devices;
    size_t size;
    unsigned long long handle_types;
    unsigned long long flags;
} nm_cu_multicast_object_prop;

/* cuGraphAddMemAllocNode; `dptr` is an output. */
typedef struct {
    nm_cu_mem_pool_props pool_props;
    const nm_cu_mem_access_desc *access_descs;
    size_t access_desc_count;
    size_t bytesize;
    nm_cu_deviceptr dptr;
} nm_cu_mem_alloc_node_params;

typedef struct {
    unsigned long long flags;
    nm_cu_stream upload_stream;
    nm_cu_graph_node error_node; /* output */
    int result;                  /* output: 0 is success */
} nm_cu_graph_instantiate_params;

/* cuGraphKernelNodeGetParams_v2; the first version ends before `kernel`. */
typedef struct {
    nm_cu_function function; /* NULL: `kernel` counts */
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_mem_bytes;
    void **arguments;
    void **extra;
    nm_cu_kernel kernel;
    nm_cu_context context;
} nm_cu_kernel_node_params;

/* cuLaunchKernelEx */
typedef struct {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_mem_bytes;
    nm_cu_stream stream;
    void *attrs;
    unsigned num_attrs;
} nm_cu_launch_config;

/* cuLaunchCooperativeKernelMultiDevice: one for each device. */
typedef struct {
    nm_cu_function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_mem_bytes;
    nm_cu_stream stream;
    void **arguments;
} nm_cu_launch_params;

/* ---- NVML: results and constants
   ------------------------------------------------------------------------- */

#define NM_NVML_RESULTS(X) \
    X(NVML_SUCCESS, 0) \
    X(NVML_ERROR_INVALID_ARGUMENT, 2) \
    X(NVML_ERROR_NO_PERMISSION, 4) \
    X(NVML_ERROR_NOT_FOUND, 6) \
    X(NVML_ERROR_INSUFFICIENT_SIZE, 7) \
    X(NVML_ERROR_LIBRARY_NOT_FOUND, 12) \
    X(NVML_ERROR_MEMORY, 20) \
    X(NVML_ERROR_GPU_NOT_FOUND, 28)

typedef int nm_nvml_result;
enum { NM_NVML_RESULTS(NM_AS_ENUMERATOR) };

#define NM_NVML_CONSTANTS(X) \
    X(NVML_DEVICE_UUID_V2_BUFFER_SIZE, 96)
enum { NM_NVML_CONSTANTS(NM_AS_ENUMERATOR) };

/* A versioned structure's `version` field: its size, and its generation in the top byte. */
#define NM_NVML_STRUCT_VERSION(type, generation) \
    ((unsigned)(sizeof(type) | ((unsigned)(generation) << 24)))

/* ---- NVML: types
   ----------------------------------------------------------------------------- */

typedef void *nm_nvml_device;

/* nvmlDeviceGetMemoryInfo: `used` includes what the driver keeps for itself; total = free +
   used. */
typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nm_nvml_memory;

/* nvmlDeviceGetMemoryInfo_v2: total = reserved + free + used. */
typedef struct {
    unsigned version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nm_nvml_memory_v2;
#define NM_NVML_MEMORY_V2_VERSION NM_NVML_STRUCT_VERSION(nm_nvml_memory_v2, 2)

/* The process lists: the unversioned symbols fill 16-byte records, _v2 and _v3 both fill the
   24-byte ones. */
typedef struct {
    unsigned pid;
    unsigned long long used_gpu_memory; /* bytes; all ones where unknown */
} nm_nvml_process_info_v1;

typedef struct {
    unsigned pid;
    unsigned long long used_gpu_memory; /* bytes; all ones where unknown */
    unsigned gpu_instance_id;           /* all ones without MIG, as the next */
    unsigned compute_instance_id;
} nm_nvml_process_info_v2;

/* nvmlDeviceGetRunningProcessDetailList. */
typedef struct {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id;
    unsigned compute_instance_id;
    unsigned long long used_gpu_cc_protected_memory;
} nm_nvml_process_detail;

typedef struct {
    unsigned version;
    unsigned mode;
    unsigned num_entries;
    nm_nvml_process_detail *entries;
} nm_nvml_process_detail_list;
#define NM_NVML_PROCESS_DETAIL_LIST_VERSION NM_NVML_STRUCT_VERSION(nm_nvml_process_detail_list, 1)

typedef struct {
    unsigned pid;
    unsigned long long time_stamp_us;
    unsigned sm_percent, mem_percent, enc_percent, dec_percent;
} nm_nvml_process_utilization_sample;

/* nvmlDeviceGetProcessesUtilizationInfo. */
typedef struct {
    unsigned long long time_stamp_us;
    unsigned pid;
    unsigned sm_percent, mem_percent, enc_percent, dec_percent, jpg_percent, ofa_percent;
} nm_nvml_process_utilization;

typedef struct {
    unsigned version;
    unsigned count;
    unsigned long long last_seen_us;
    nm_nvml_process_utilization *entries;
} nm_nvml_processes_utilization;
#define NM_NVML_PROCESSES_UTILIZATION_VERSION \
    NM_NVML_STRUCT_VERSION(nm_nvml_processes_utilization, 1)

typedef struct {
    unsigned gpu_utilization;    /* percent over the process's life */
    unsigned memory_utilization; /* percent over the process's life */
    unsigned long long max_memory_usage;
    unsigned long long time;       /* ms; 0 while the process runs */
    unsigned long long start_time; /* us */
    unsigned is_running;
    unsigned reserved[5];
} nm_nvml_accounting_stats;

typedef struct {
    unsigned pid;
    unsigned is_running;
    unsigned gpu_utilization;
    unsigned memory_utilization;
    unsigned long long max_memory_usage;
    unsigned sample_count;
    unsigned long long sum_gpu_utilization;
    unsigned long long sum_memory_utilization;
    unsigned long long time;       /* ms; 0 while the process runs */
    unsigned long long start_time; /* us */
} nm_nvml_accounting_stats_v2;

#endif
