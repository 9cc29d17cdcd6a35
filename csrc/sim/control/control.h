/* control.h: a node from outside: create it, break it, read its sums. For nodemgr/simulator.py, by
 * ctypes.
 *
 * Knows: the node. Must not know: CUDA, NVML. Plain C types of fixed size, so that Python repeats
 * these structures and no list.
 */
#ifndef NM_SIM_CONTROL_H
#define NM_SIM_CONTROL_H

#include "sim/node/node.h"

typedef struct {
    unsigned char uuid[16];
    uint32_t model; /* see nm_sim_read_model */
    uint32_t unused;
    uint64_t memory_bytes;
} nm_sim_device_shape;

typedef struct {
    uint32_t count;
    uint32_t driver_version; /* 0: the youngest that is simulated */
    uint64_t reserved_bytes, context_bytes, module_bytes;
    char name[NM_SIM_NAME_BYTES];
    nm_sim_device_shape devices[NM_SIM_DEVICES];
} nm_sim_shape;

typedef struct {
    char uuid[48];
    uint32_t pci_bus;
    uint32_t unused;
    uint64_t used_bytes, peak_bytes;
    uint32_t faults[16]; /* by number: see nm_sim_fault_name */
} nm_sim_device_books;

typedef struct {
    int32_t pid; /* -1: alive, in a PID namespace that is not visible from here */
    uint32_t contexts;
    uint64_t used_bytes;
    uint64_t kind_bytes[16]; /* by number: see nm_sim_kind_name */
} nm_sim_process_books;

/* The time that kernels of a process have had on a device. */
typedef struct {
    int32_t pid; /* as above */
    uint32_t waiting; /* kernels that have not ended */
    uint64_t busy_ns;
    uint32_t launched; /* kernels ever; a graph counts once for each part between its functions */
    uint32_t unused;
} nm_sim_process_time;

typedef struct {
    const char *model, *name;
    uint64_t memory_bytes; /* 0: any */
    int32_t major, minor, multiprocessors, unused;
    uint64_t flops, tensor_flops, memory_bytes_per_s, host_bytes_per_s; /* peaks */
} nm_sim_model_row;

typedef struct nm_sim_handle nm_sim_handle;

/* All that return int: 0, or an errno. */

/* Creates the state file at `path`, or replaces it. EBUSY while a client of the old one lives or
   a handle to it is open. */
NM_SIM_API int nm_sim_create(const char *path, const nm_sim_shape *shape);
NM_SIM_API int nm_sim_open(const char *path, nm_sim_handle **out);
NM_SIM_API void nm_sim_close(nm_sim_handle *handle);
NM_SIM_API int nm_sim_shape_of(nm_sim_handle *handle, nm_sim_shape *out);

/* These clear the slots of the dead first. EINVAL for a device that is not there. */
NM_SIM_API int nm_sim_read_device(nm_sim_handle *handle, uint32_t device, nm_sim_device_books *out);
/* Returns the number of living processes that hold something on the device, and writes the first
   `room` of them. */
NM_SIM_API int nm_sim_read_processes(nm_sim_handle *handle, uint32_t device,
                                     nm_sim_process_books *out, uint32_t room, uint32_t *count);
/* The explicit allocations of the processes started with NODEMGR_SIM_GROUP=name, now and at
   their highest. */
NM_SIM_API int nm_sim_read_group(nm_sim_handle *handle, uint32_t device, const char *name,
                                 uint64_t *used, uint64_t *peak);

/* Up to now: of the device, of processes that have ended too; and of the living ones, as above. */
NM_SIM_API int nm_sim_read_times(nm_sim_handle *handle, uint32_t device, uint64_t *busy_ns,
                                 nm_sim_process_time *out, uint32_t room, uint32_t *count);

NM_SIM_API int nm_sim_set_fault(nm_sim_handle *handle, uint32_t device, uint32_t fault,
                                uint32_t value);
/* Off the bus. Every context there now is broken, also after nm_sim_set_fault(lost, 0). */
NM_SIM_API int nm_sim_lose(nm_sim_handle *handle, uint32_t device);
/* The driver reports an event of NVML: an XID, or an uncorrectable error of the memory. */
NM_SIM_API int nm_sim_raise(nm_sim_handle *handle, uint32_t device, uint32_t type, uint64_t data);
/* Peaks start again from the present values. */
NM_SIM_API int nm_sim_reset_peaks(nm_sim_handle *handle);

/* ENOENT beyond the last. */
NM_SIM_API int nm_sim_read_model(uint32_t model, nm_sim_model_row *out);
/* NULL beyond the last. */
NM_SIM_API const char *nm_sim_kind_name(uint32_t kind);
NM_SIM_API const char *nm_sim_fault_name(uint32_t fault);

#endif
