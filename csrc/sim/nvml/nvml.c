/* nvml.c: the simulated libnvidia-ml.so.1: reads the node as an administrator.
 *
 * Knows: the node, NVML's conventions for buffers and counts. Must not know: CUDA,
 * CUDA_VISIBLE_DEVICES.
 *
 * Before an answer about memory or processes it clears the slots of the dead, so that a killed
 * process holds nothing. A lost device answers NVML_ERROR_GPU_IS_LOST to all but its count.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sim/abi/abi.h"
#include "sim/lost/lost.h"
#include "sim/node/gate.h"
#include "sim/node/node.h"
#include "sim/node/older.h"
#include "sim/node/partitions.h"
#include "sim/node/suspended.h"
#include "sim/node/visible.h"

#define NM_NVML NM_SIM_API nm_nvml_result

enum {
    NEWEST_CUDA_VERSION = 13050,
    BAR1_BYTES_SHIFT = 37, /* 128 GiB */
};
static const char driver_version[] = "615.71.05";
static const char nvml_version[] = "13.615.71.05";

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static nm_sim_node node = {.descriptor = -1, .slot = -1};
static pid_t opened_by;
static int users; /* of nvmlInit */

/* ---- init
   ----------------------------------------------------------------------------- */

/* The mutex may have been another thread's at the fork. */
static void free_mutex_in_child(void) {
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    mutex = unlocked;
}

/* A forked child shares its parent's file description, and with it the right to reap: it needs
 * one of its own. The inherited descriptor stays open, since closing could drop a lock that the
 * child's driver holds. */
static nm_nvml_result open_node(void) {
    char path[PATH_MAX];
    nm_sim_node opened;
    if (!nm_sim_node_find(path, sizeof path) || nm_sim_node_open(&opened, path, false) != 0)
        return NM_NVML_ERROR_DRIVER_NOT_LOADED;
    if (opened_by == 0) pthread_atfork(NULL, NULL, free_mutex_in_child);
    if (opened_by == getpid()) nm_sim_node_close(&node);
    node = opened;
    nm_sim_outlive(node.state, sizeof *node.state);
    opened_by = getpid();
    return NM_NVML_SUCCESS;
}

static nm_nvml_result init(void) {
    pthread_mutex_lock(&mutex);
    nm_nvml_result result = users == 0 || opened_by != getpid() ? open_node() : NM_NVML_SUCCESS;
    if (result == NM_NVML_SUCCESS) users++;
    pthread_mutex_unlock(&mutex);
    return result;
}

NM_NVML nvmlInit(void) { return init(); }
NM_NVML nvmlInit_v2(void) { return init(); }
NM_NVML nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return init();
}

NM_NVML nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    nm_nvml_result result = users > 0 ? NM_NVML_SUCCESS : NM_NVML_ERROR_UNINITIALIZED;
    if (users > 0) users--;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* ---- entering
   ----------------------------------------------------------------------------- */

static char handles[NM_SIM_DEVICES]; /* a device's handle is an address in here */

static nm_nvml_device handle_of(int index) { return &handles[index]; }

/* With the mutex held: whether this call may go on. */
static nm_nvml_result enter(void) {
    pthread_mutex_lock(&mutex);
    if (users == 0) return NM_NVML_ERROR_UNINITIALIZED;
    nm_nvml_result result = opened_by == getpid() ? NM_NVML_SUCCESS : open_node();
    return result != NM_NVML_SUCCESS || nm_sim_node_is_there(&node) ? result
                                                                    : NM_NVML_ERROR_GPU_IS_LOST;
}
static nm_nvml_result leave(nm_nvml_result result) {
    pthread_mutex_unlock(&mutex);
    return result;
}

static bool is_lost(int index) { return atomic_load(&node.state->device[index].lost) != 0; }

/* The same for a call about a device. `out` is what the call will write to. */
static nm_nvml_result enter_device(nm_nvml_device handle, const void *out, int *index) {
    nm_nvml_result result = enter();
    if (result != NM_NVML_SUCCESS) return result;
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
    if (offset >= node.state->device_count || !out) return NM_NVML_ERROR_INVALID_ARGUMENT;
    *index = (int)offset;
    return is_lost(*index) ? NM_NVML_ERROR_GPU_IS_LOST : NM_NVML_SUCCESS;
}

/* One call that writes `expression` about `device` (an nm_sim_device) to an out-parameter. */
#define DEVICE_GETTER(name, type, expression) \
    NM_NVML name(nm_nvml_device handle, type *out) { \
        int index; \
        nm_nvml_result result = enter_device(handle, out, &index); \
        if (result == NM_NVML_SUCCESS) { \
            nm_sim_device *device = &node.state->device[index]; \
            (void)device; \
            *out = (expression); \
        } \
        return leave(result); \
    }

/* The same for one parameter between. */
#define DEVICE_GETTER_OF(name, argument, type, expression) \
    NM_NVML name(nm_nvml_device handle, argument, type *out) { \
        int index; \
        nm_nvml_result result = enter_device(handle, out, &index); \
        if (result == NM_NVML_SUCCESS) *out = (expression); \
        return leave(result); \
    }

static const nm_sim_model *model_of(int index) { return nm_sim_model_of(node.state, index); }

static unsigned power_limit_mw(int index) { return model_of(index)->watts * 1000; }

/* NVML's numbers of architectures. */
static unsigned architecture(const nm_sim_model *model) {
    enum { VOLTA = 5, TURING, AMPERE, ADA, HOPPER };
    if (model->major >= 9) return HOPPER;
    if (model->major == 8) return model->minor == 9 ? ADA : AMPERE;
    return model->minor == 5 ? TURING : VOLTA;
}

static unsigned clock_mhz(int index, int which) {
    enum { MEMORY_CLOCK = 2 };
    return (unsigned)(which == MEMORY_CLOCK ? model_of(index)->memory_mhz
                                            : model_of(index)->clock_mhz);
}

static nm_nvml_result put_text(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return NM_NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NM_NVML_SUCCESS;
}

/* ---- the system
   ----------------------------------------------------------------------------- */

static nm_nvml_result system_text(char *out, unsigned size, const char *text) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS)
        result = out ? put_text(out, size, text) : NM_NVML_ERROR_INVALID_ARGUMENT;
    return leave(result);
}
NM_NVML nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return system_text(out, size, driver_version);
}
NM_NVML nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return system_text(out, size, nvml_version);
}

NM_NVML nvmlSystemGetCudaDriverVersion(int *out) {
    if (!out) return NM_NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&mutex);
    *out = node.state ? (int)node.state->driver_version : NEWEST_CUDA_VERSION;
    return leave(NM_NVML_SUCCESS);
}
NM_NVML nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

NM_NVML nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    char path[64], name[512];
    if (!out || size == 0) return NM_NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = descriptor < 0 ? -1 : read(descriptor, name, sizeof name - 1);
    if (descriptor >= 0) close(descriptor);
    if (count <= 0) return NM_NVML_ERROR_NOT_FOUND;
    name[count] = '\0';
    snprintf(out, size, "%s", name);
    return NM_NVML_SUCCESS;
}

#define X(name, value) {value, #name},
static const struct {
    int code;
    const char *name;
} results[] = {NM_NVML_RESULTS(X) NM_SIM_NVML_RESULTS(X)};
#undef X

NM_SIM_API const char *nvmlErrorString(nm_nvml_result code) {
    for (size_t index = 0; index < sizeof results / sizeof *results; index++) {
        if (results[index].code == code) return results[index].name;
    }
    return "NVML_ERROR_UNKNOWN";
}

/* ---- finding devices
   ----------------------------------------------------------------------------- */

NM_NVML nvmlDeviceGetCount_v2(unsigned *out) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS && !out) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS) *out = node.state->device_count;
    return leave(result);
}
NM_NVML nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

static nm_nvml_result found(int index, nm_nvml_device *out, nm_nvml_result missing) {
    if (index < 0 || index >= nm_sim_devices(node.state)) return missing;
    if (is_lost(index)) return NM_NVML_ERROR_GPU_IS_LOST;
    if (nm_gate_is_shut(index)) return NM_NVML_ERROR_NO_PERMISSION;
    *out = handle_of(index);
    return NM_NVML_SUCCESS;
}

NM_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nm_nvml_device *out) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS && !out) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS)
        result =
            found(index < NM_SIM_DEVICES ? (int)index : -1, out, NM_NVML_ERROR_INVALID_ARGUMENT);
    return leave(result);
}
NM_NVML nvmlDeviceGetHandleByIndex(unsigned index, nm_nvml_device *out) {
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

NM_NVML nvmlDeviceGetHandleByUUID(const char *text, nm_nvml_device *out) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS && (!text || !out)) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    int index = -1;
    for (int each = 0; result == NM_NVML_SUCCESS && each < nm_sim_devices(node.state); each++) {
        char uuid[NM_UUID_TEXT_BYTES];
        nm_uuid_text(node.state->device[each].uuid, uuid);
        if (strcasecmp(uuid, text) == 0) index = each;
    }
    if (result == NM_NVML_SUCCESS) result = found(index, out, NM_NVML_ERROR_NOT_FOUND);
    return leave(result);
}

NM_NVML nvmlDeviceGetHandleByPciBusId_v2(const char *text, nm_nvml_device *out) {
    nm_nvml_result result = enter();
    unsigned domain = 0, bus = 0, slot = 0;
    if (result == NM_NVML_SUCCESS && (!text || !out)) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS && sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        result = NM_NVML_ERROR_INVALID_ARGUMENT;
    int index = -1;
    for (int each = 0; result == NM_NVML_SUCCESS && each < nm_sim_devices(node.state); each++) {
        if (domain == 0 && slot == 0 && node.state->device[each].pci_bus == bus) index = each;
    }
    if (result == NM_NVML_SUCCESS) result = found(index, out, NM_NVML_ERROR_NOT_FOUND);
    return leave(result);
}
NM_NVML nvmlDeviceGetHandleByPciBusId(const char *text, nm_nvml_device *out) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

static void write_serial(int index, char *text) {
    snprintf(text, 32, "165%010u", node.state->device[index].pci_bus);
}

NM_NVML nvmlDeviceGetHandleBySerial(const char *text, nm_nvml_device *out) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS && (!text || !out)) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    int index = -1;
    for (int each = 0; result == NM_NVML_SUCCESS && each < nm_sim_devices(node.state); each++) {
        char serial[32];
        write_serial(each, serial);
        if (strcmp(serial, text) == 0) index = each;
    }
    if (result == NM_NVML_SUCCESS) result = found(index, out, NM_NVML_ERROR_NOT_FOUND);
    return leave(result);
}

NM_NVML nvmlDeviceGetHandleByUUIDV(const nm_nvml_uuid *uuid, nm_nvml_device *out) {
    char text[sizeof uuid->text + 1] = "";
    if (!uuid || !out) return NM_NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != NM_NVML_UUID_VERSION) return NM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NM_NVML_UUID_TYPE_ASCII) memcpy(text, uuid->text, sizeof uuid->text);
    if (uuid->type == NM_NVML_UUID_TYPE_BINARY) nm_uuid_text(uuid->bytes, text);
    return nvmlDeviceGetHandleByUUID(text, out);
}

/* ---- sets of devices: all are alike near, and all hang on the one unit
   --------------------------------------------- */

static nm_nvml_result device_set(nm_nvml_result result, int without, unsigned *count,
                                 nm_nvml_device *out) {
    unsigned room = count ? *count : 0, all = 0;
    if (result == NM_NVML_SUCCESS && (!count || (room > 0 && !out)))
        result = NM_NVML_ERROR_INVALID_ARGUMENT;
    for (int index = 0; result == NM_NVML_SUCCESS && index < nm_sim_devices(node.state);
         index++) {
        if (index == without) continue;
        if (all < room) out[all] = handle_of(index);
        all++;
    }
    if (result == NM_NVML_SUCCESS) *count = room > 0 && room < all ? room : all;
    return leave(result);
}
NM_NVML nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nm_nvml_device *out) {
    (void)cpu;
    return device_set(enter(), -1, count, out);
}
NM_NVML nvmlDeviceGetTopologyNearestGpus(nm_nvml_device handle, int level, unsigned *count,
                                         nm_nvml_device *out) {
    (void)level;
    int index = -1;
    nm_nvml_result result = enter_device(handle, count, &index);
    return device_set(result, index, count, out);
}

static char unit;
NM_NVML nvmlUnitGetHandleByIndex(unsigned index, void **out) {
    if (index != 0 || !out) return NM_NVML_ERROR_INVALID_ARGUMENT;
    *out = &unit;
    return NM_NVML_SUCCESS;
}
NM_NVML nvmlUnitGetDevices(void *which, unsigned *count, nm_nvml_device *out) {
    nm_nvml_result result = enter();
    if (result == NM_NVML_SUCCESS && (which != &unit || !count || !out))
        result = NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS && *count < node.state->device_count) {
        *count = node.state->device_count;
        result = NM_NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return device_set(result, -1, count, out);
}

/* ---- identity
   ----------------------------------------------------------------------------- */

static nm_nvml_result device_text(nm_nvml_device handle, char *out, unsigned size,
                                  void (*write)(int, char *)) {
    int index;
    char text[NM_SIM_NAME_BYTES + 64];
    nm_nvml_result result = enter_device(handle, out, &index);
    if (result == NM_NVML_SUCCESS) {
        write(index, text);
        result = put_text(out, size, text);
    }
    return leave(result);
}

static void write_name(int index, char *text) {
    snprintf(text, NM_SIM_NAME_BYTES, "%s", nm_sim_name(node.state, index));
}
static void write_uuid(int index, char *text) {
    nm_uuid_text(node.state->device[index].uuid, text);
}
static void write_vbios(int index, char *text) {
    (void)index;
    strcpy(text, "96.00.00.00.00");
}

NM_NVML nvmlDeviceGetName(nm_nvml_device handle, char *out, unsigned size) {
    return device_text(handle, out, size, write_name);
}
NM_NVML nvmlDeviceGetUUID(nm_nvml_device handle, char *out, unsigned size) {
    return device_text(handle, out, size, write_uuid);
}
NM_NVML nvmlDeviceGetSerial(nm_nvml_device handle, char *out, unsigned size) {
    return device_text(handle, out, size, write_serial);
}
NM_NVML nvmlDeviceGetVbiosVersion(nm_nvml_device handle, char *out, unsigned size) {
    return device_text(handle, out, size, write_vbios);
}

DEVICE_GETTER(nvmlDeviceGetIndex, unsigned, (unsigned)index)
DEVICE_GETTER(nvmlDeviceGetMinorNumber, unsigned, (unsigned)index)
DEVICE_GETTER(nvmlDeviceGetBoardId, unsigned, device->pci_bus << 8)
DEVICE_GETTER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
DEVICE_GETTER(nvmlDeviceGetBrand, int, 14)
DEVICE_GETTER(nvmlDeviceGetArchitecture, unsigned, architecture(model_of(index)))
DEVICE_GETTER(nvmlDeviceGetNumGpuCores, unsigned,
              (unsigned)(model_of(index)->multiprocessors * model_of(index)->cores_each))
DEVICE_GETTER(nvmlDeviceGetMemoryBusWidth, unsigned, (unsigned)model_of(index)->bus_bits)

static nm_nvml_pci_info pci_info(const nm_sim_device *device) {
    nm_nvml_pci_info info = {
        .bus = device->pci_bus,
        .pci_device_id = nm_sim_model_at(device->model)->pci_device,
        .pci_subsystem_id = 0x16c110de,
    };
    snprintf(info.bus_id_legacy, sizeof info.bus_id_legacy, "0000:%02X:00.0",
             device->pci_bus & 0xff);
    snprintf(info.bus_id, sizeof info.bus_id, "00000000:%02X:00.0", device->pci_bus & 0xff);
    return info;
}
DEVICE_GETTER(nvmlDeviceGetPciInfo_v3, nm_nvml_pci_info, pci_info(device))

/* The older structures are the beginning of the newest: all but the long bus id, and of the
 * first also without the subsystem's. */
static nm_nvml_result old_pci_info(nm_nvml_device handle, nm_nvml_pci_info *out, size_t bytes) {
    nm_nvml_pci_info info;
    nm_nvml_result result = nvmlDeviceGetPciInfo_v3(handle, out ? &info : NULL);
    if (result == NM_NVML_SUCCESS) memcpy(out, &info, bytes);
    return result;
}
NM_NVML nvmlDeviceGetPciInfo_v2(nm_nvml_device handle, nm_nvml_pci_info *out) {
    return old_pci_info(handle, out, offsetof(nm_nvml_pci_info, bus_id));
}
NM_NVML nvmlDeviceGetPciInfo(nm_nvml_device handle, nm_nvml_pci_info *out) {
    return old_pci_info(handle, out, offsetof(nm_nvml_pci_info, pci_subsystem_id));
}

NM_NVML nvmlDeviceGetCudaComputeCapability(nm_nvml_device handle, int *major, int *minor) {
    int index;
    nm_nvml_result result = enter_device(handle, major && minor ? major : NULL, &index);
    if (result == NM_NVML_SUCCESS) {
        *major = model_of(index)->major;
        *minor = model_of(index)->minor;
    }
    return leave(result);
}

/* ---- memory
   ----------------------------------------------------------------------------- */

static uint64_t used_bytes(int index) {
    nm_sim_node_reap(&node);
    return nm_sim_tally_bytes(&node.state->device[index].memory);
}

static uint64_t total_bytes(int index) { return node.state->device[index].memory_bytes; }

static nm_nvml_memory memory(int index) {
    uint64_t used = node.state->reserved_bytes + used_bytes(index);
    return (nm_nvml_memory){
        .total = total_bytes(index), .used = used, .free = total_bytes(index) - used};
}
DEVICE_GETTER(nvmlDeviceGetMemoryInfo, nm_nvml_memory, memory(index))
/* As where all memory is protected. */
DEVICE_GETTER(nvmlDeviceGetConfComputeProtectedMemoryUsage, nm_nvml_memory, memory(index))

static nm_nvml_memory_v2 memory_v2(int index) {
    uint64_t used = used_bytes(index);
    return (nm_nvml_memory_v2){
        .version = NM_NVML_MEMORY_V2_VERSION,
        .total = total_bytes(index),
        .reserved = node.state->reserved_bytes,
        .used = used,
        .free = nm_sim_capacity(node.state, index) - used,
    };
}
NM_NVML nvmlDeviceGetMemoryInfo_v2(nm_nvml_device handle, nm_nvml_memory_v2 *out) {
    int index;
    nm_nvml_result result = enter_device(handle, out, &index);
    if (result == NM_NVML_SUCCESS && out->version != NM_NVML_MEMORY_V2_VERSION)
        result = NM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NM_NVML_SUCCESS) *out = memory_v2(index);
    return leave(result);
}

/* Hardly used: mappings by a client are not simulated. */
static nm_nvml_bar1_memory bar1(void) {
    unsigned long long total = 1ULL << BAR1_BYTES_SHIFT, used = 1ULL << 20;
    return (nm_nvml_bar1_memory){.bar1_total = total, .bar1_used = used, .bar1_free = total - used};
}
DEVICE_GETTER(nvmlDeviceGetBAR1MemoryInfo, nm_nvml_bar1_memory, bar1())

/* ---- a cgroup's share of a device
   ----------------------------------------------------------------------------- */

/* The owner of the node's file is its administrator. */
static bool is_administrator(void) {
    struct stat status;
    return geteuid() == 0 ||
           (nm_sim_fstat(node.descriptor, &status) == 0 && status.st_uid == geteuid());
}

static nm_nvml_result partition_result(int error) {
    switch (error) {
    case 0: return NM_NVML_SUCCESS;
    case ESRCH: return NM_NVML_ERROR_NOT_FOUND;
    case ENOSPC: return NM_NVML_ERROR_INSUFFICIENT_RESOURCES;
    default: return NM_NVML_ERROR_OPERATING_SYSTEM;
    }
}

static nm_nvml_result set_limits(int index, const nm_nvml_set_memory_limits *limits) {
    uint64_t soft = limits->soft_limit, hard = limits->hard_limit, total = total_bytes(index);
    bool is_possible = limits->cgroup_path && soft <= hard && soft <= total &&
                       (hard <= total || hard == NM_SIM_NO_LIMIT);
    if (!is_possible) return NM_NVML_ERROR_INVALID_ARGUMENT;
    if (!is_administrator()) return NM_NVML_ERROR_NO_PERMISSION;
    return partition_result(nm_sim_partition_set(&node, index, limits->cgroup_path, soft, hard));
}
NM_NVML nvmlDeviceSetMemoryLimits_v1(nm_nvml_device handle, nm_nvml_set_memory_limits *limits) {
    int index;
    nm_nvml_result result = enter_device(handle, limits, &index);
    if (result == NM_NVML_SUCCESS) result = set_limits(index, limits);
    return leave(result);
}

NM_NVML nvmlDeviceGetMemoryLimits_v1(nm_nvml_device handle, nm_nvml_get_memory_limits *limits) {
    int index;
    nm_sim_partition_limits found;
    nm_nvml_result result = enter_device(handle, limits ? limits->cgroup_path : NULL, &index);
    if (result == NM_NVML_SUCCESS)
        result = partition_result(nm_sim_partition_get(&node, index, limits->cgroup_path, &found));
    if (result == NM_NVML_SUCCESS) {
        limits->soft_limit = found.soft_bytes;
        limits->hard_limit = found.hard_bytes;
        limits->current_used = found.used_bytes;
    }
    return leave(result);
}

/* ---- processes
   ----------------------------------------------------------------------------- */

/* Living processes with a context on the device, and the bytes of each there. A process in an
   invisible PID namespace has no PID here and is left out; its memory is in the device's sum. */
static unsigned list_processes(int index, unsigned modes,
                               nm_nvml_process_info_v2 out[NM_SIM_SLOTS]) {
    nm_sim_device *device = &node.state->device[index];
    unsigned count = 0;
    nm_sim_node_reap(&node);
    nm_sim_node_settle(&node, index);
    for (int slot = 0; slot < nm_sim_slots(node.state); slot++) {
        if (atomic_load(&device->account[slot].contexts) == 0) continue;
        if (!(modes & 1u << atomic_load(&node.state->slot_mode[slot]))) continue;
        int pid = nm_sim_node_owner(&node, slot);
        bool is_away = atomic_load(&node.state->slot_state[slot]) == NM_SIM_SUSPENDED;
        if (pid <= 0 || is_away) continue;
        out[count++] = (nm_nvml_process_info_v2){
            .pid = (unsigned)pid,
            .used_gpu_memory = nm_sim_account_bytes(&device->account[slot]),
            .gpu_instance_id = UINT32_MAX,
            .compute_instance_id = UINT32_MAX,
        };
    }
    return count;
}

/* NVML's convention: *count is the room, then the number; too little room is reported. */
static nm_nvml_result put_processes(nm_nvml_device handle, unsigned modes, unsigned *count,
                                    void *out, size_t record_bytes) {
    static nm_nvml_process_info_v2 processes[NM_SIM_SLOTS]; /* under the mutex */
    int index;
    nm_nvml_result result = enter_device(handle, count, &index);
    if (result != NM_NVML_SUCCESS) return leave(result);
    unsigned room = *count;
    *count = list_processes(index, modes, processes);
    if (*count > room || (*count > 0 && !out)) return leave(NM_NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned each = 0; each < *count; each++)
        memcpy((char *)out + each * record_bytes, &processes[each], record_bytes);
    return leave(NM_NVML_SUCCESS);
}

#define PROCESS_LIST(name, modes, record) \
    NM_NVML name(nm_nvml_device handle, unsigned *count, record *out) { \
        return put_processes(handle, modes, count, out, sizeof *out); \
    }
#define PROCESS_LISTS(name, modes) \
    PROCESS_LIST(name, modes, nm_nvml_process_info_v1) \
    PROCESS_LIST(name##_v2, modes, nm_nvml_process_info_v2) \
    PROCESS_LIST(name##_v3, modes, nm_nvml_process_info_v2)
enum {
    COMPUTE = 1 << NM_SIM_COMPUTE,
    GRAPHICS = 1 << NM_SIM_GRAPHICS,
    MPS = 1 << NM_SIM_MPS,
    ALL = COMPUTE | GRAPHICS | MPS
};
PROCESS_LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESS_LISTS(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESS_LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

static nm_nvml_result detail_list(int index, nm_nvml_process_detail_list *list) {
    static nm_nvml_process_info_v2 processes[NM_SIM_SLOTS];
    unsigned room = list->num_entries;
    list->num_entries = list_processes(index, ALL, processes);
    if (list->num_entries > room || (list->num_entries > 0 && !list->entries))
        return NM_NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned each = 0; each < list->num_entries; each++) {
        list->entries[each] = (nm_nvml_process_detail){
            .pid = processes[each].pid,
            .used_gpu_memory = processes[each].used_gpu_memory,
            .gpu_instance_id = UINT32_MAX,
            .compute_instance_id = UINT32_MAX,
        };
    }
    return NM_NVML_SUCCESS;
}

NM_NVML nvmlDeviceGetRunningProcessDetailList(nm_nvml_device handle,
                                              nm_nvml_process_detail_list *list) {
    int index;
    nm_nvml_result result = enter_device(handle, list, &index);
    if (result == NM_NVML_SUCCESS && list->version != NM_NVML_PROCESS_DETAIL_LIST_VERSION)
        result = NM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NM_NVML_SUCCESS) result = detail_list(index, list);
    return leave(result);
}

/* ---- utilisation: the share of the last complete period in which a kernel ran
   ----------------------------------------------------------------------------- */

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const nm_sim_schedule *schedule_of(int index) {
    static nm_sim_schedule schedule; /* under the mutex */
    nm_sim_engine_look(&node, index, now_ns(CLOCK_MONOTONIC), &schedule);
    return &schedule;
}

static unsigned percent(const nm_sim_busy *busy) {
    return (unsigned)((busy->last_ns * 100 + NM_SIM_PERIOD_NS / 2) / NM_SIM_PERIOD_NS);
}

/* The figure that was set by hand, else the measured one. */
static unsigned sm_percent(int index) {
    uint32_t set = atomic_load(&node.state->device[index].utilization_percent);
    return set != NM_SIM_MEASURED ? set : percent(&schedule_of(index)->busy);
}

/* When the last period ended, in NVML's time. */
static uint64_t period_end_us(uint64_t period) {
    uint64_t since_ns = now_ns(CLOCK_MONOTONIC) - period * NM_SIM_PERIOD_NS;
    return (now_ns(CLOCK_REALTIME) - since_ns) / 1000;
}

typedef struct {
    unsigned pid, sm_percent, mem_percent;
    uint64_t time_us;
} sample;

static unsigned measured_percent(const nm_sim_schedule *schedule, int pid) {
    for (uint32_t which = 0; which < schedule->count; which++) {
        const nm_sim_runner *runner = &schedule->runners[which];
        if (nm_sim_node_owner(&node, nm_sim_runner_slot(runner)) == pid)
            return percent(&runner->busy);
    }
    return 0;
}

/* One for each process with a context. A device's figure that was set is divided in equal parts. */
static unsigned sample_processes(int index, uint64_t last_seen_us, sample out[NM_SIM_SLOTS]) {
    static nm_nvml_process_info_v2 processes[NM_SIM_SLOTS];
    unsigned count = list_processes(index, ALL, processes);
    nm_sim_device *device = &node.state->device[index];
    uint32_t set = atomic_load(&device->utilization_percent);
    const nm_sim_schedule *schedule = schedule_of(index);
    uint64_t time_us = period_end_us(schedule->period);
    if (set == NM_SIM_MEASURED && time_us <= last_seen_us) return 0;
    for (unsigned each = 0; each < count; each++) {
        out[each] = (sample){
            .pid = processes[each].pid,
            .sm_percent = set != NM_SIM_MEASURED
                              ? set / count
                              : measured_percent(schedule, (int)processes[each].pid),
            .mem_percent = atomic_load(&device->memory_utilization_percent) / count,
            .time_us = set != NM_SIM_MEASURED ? last_seen_us + 1 : time_us,
        };
    }
    return count;
}

NM_NVML nvmlDeviceGetProcessUtilization(nm_nvml_device handle,
                                        nm_nvml_process_utilization_sample *out, unsigned *count,
                                        unsigned long long last_seen_us) {
    static sample samples[NM_SIM_SLOTS];
    int index;
    nm_nvml_result result = enter_device(handle, count, &index);
    if (result != NM_NVML_SUCCESS) return leave(result);
    unsigned room = *count;
    *count = sample_processes(index, last_seen_us, samples);
    if (*count == 0) return leave(NM_NVML_ERROR_NOT_FOUND);
    if (*count > room || !out) return leave(NM_NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned each = 0; each < *count; each++) {
        out[each] = (nm_nvml_process_utilization_sample){
            .pid = samples[each].pid,
            .time_stamp_us = samples[each].time_us,
            .sm_percent = samples[each].sm_percent,
            .mem_percent = samples[each].mem_percent,
        };
    }
    return leave(NM_NVML_SUCCESS);
}

NM_NVML nvmlDeviceGetProcessesUtilizationInfo(nm_nvml_device handle,
                                              nm_nvml_processes_utilization *list) {
    static sample samples[NM_SIM_SLOTS];
    int index;
    nm_nvml_result result = enter_device(handle, list, &index);
    if (result == NM_NVML_SUCCESS && list->version != NM_NVML_PROCESSES_UTILIZATION_VERSION)
        result = NM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result != NM_NVML_SUCCESS) return leave(result);
    unsigned room = list->count;
    list->count = sample_processes(index, list->last_seen_us, samples);
    if (list->count == 0) return leave(NM_NVML_ERROR_NOT_FOUND);
    if (list->count > room || !list->entries) return leave(NM_NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned each = 0; each < list->count; each++) {
        list->entries[each] = (nm_nvml_process_utilization){
            .time_stamp_us = samples[each].time_us,
            .pid = samples[each].pid,
            .sm_percent = samples[each].sm_percent,
            .mem_percent = samples[each].mem_percent,
        };
    }
    return leave(NM_NVML_SUCCESS);
}

/* One sample, of now. */
NM_NVML nvmlDeviceGetSamples(nm_nvml_device handle, int kind, unsigned long long last_seen_us,
                             int *value_type, unsigned *count, nm_nvml_sample *out) {
    int index;
    nm_nvml_result result = enter_device(handle, count, &index);
    if (result != NM_NVML_SUCCESS) return leave(result);
    if (kind != NM_NVML_GPU_UTILIZATION_SAMPLES) return leave(NM_NVML_ERROR_NOT_SUPPORTED);
    if (!value_type || (out && *count == 0)) return leave(NM_NVML_ERROR_INVALID_ARGUMENT);
    *value_type = NM_NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    if (out)
        *out = (nm_nvml_sample){
            .time_stamp_us = last_seen_us + 1,
            .value.number = sm_percent(index),
        };
    return leave(NM_NVML_SUCCESS);
}

/* Accounting: of the living alone. */
NM_NVML nvmlDeviceGetAccountingPids(nm_nvml_device handle, unsigned *count, unsigned *out) {
    return put_processes(handle, ALL, count, out, sizeof *out);
}

static nm_nvml_result find_process(nm_nvml_device handle, unsigned pid, const void *out,
                                   nm_nvml_process_info_v2 *found) {
    static nm_nvml_process_info_v2 processes[NM_SIM_SLOTS];
    int index;
    nm_nvml_result result = enter_device(handle, out, &index);
    if (result != NM_NVML_SUCCESS) return leave(result);
    result = NM_NVML_ERROR_NOT_FOUND;
    unsigned count = list_processes(index, ALL, processes);
    for (unsigned each = 0; each < count; each++) {
        if (processes[each].pid != pid) continue;
        *found = processes[each];
        result = NM_NVML_SUCCESS;
    }
    return leave(result);
}

NM_NVML nvmlDeviceGetAccountingStats(nm_nvml_device handle, unsigned pid,
                                     nm_nvml_accounting_stats *out) {
    nm_nvml_process_info_v2 process;
    nm_nvml_result result = find_process(handle, pid, out, &process);
    if (result == NM_NVML_SUCCESS)
        *out = (nm_nvml_accounting_stats){.max_memory_usage = process.used_gpu_memory,
                                          .is_running = 1};
    return result;
}

NM_NVML nvmlDeviceGetAccountingStats_v2(nm_nvml_device handle, nm_nvml_accounting_stats_v2 *out) {
    nm_nvml_process_info_v2 process;
    nm_nvml_result result = find_process(handle, out ? out->pid : 0, out, &process);
    if (result == NM_NVML_SUCCESS)
        *out = (nm_nvml_accounting_stats_v2){
            .pid = process.pid, .max_memory_usage = process.used_gpu_memory, .is_running = 1};
    return result;
}

/* ---- sensors and modes
   ----------------------------------------------------------------------------- */

static nm_nvml_utilization utilization(int index) {
    return (nm_nvml_utilization){
        sm_percent(index), atomic_load(&node.state->device[index].memory_utilization_percent)};
}
DEVICE_GETTER(nvmlDeviceGetUtilizationRates, nm_nvml_utilization, utilization(index))
DEVICE_GETTER_OF(nvmlDeviceGetTemperature, int sensor __attribute__((unused)), unsigned,
                 atomic_load(&node.state->device[index].temperature_celsius))
DEVICE_GETTER_OF(nvmlDeviceGetTemperatureThreshold, int which __attribute__((unused)), unsigned, 90)
DEVICE_GETTER(nvmlDeviceGetPowerUsage, unsigned, atomic_load(&device->power_milliwatts))
DEVICE_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, power_limit_mw(index))
DEVICE_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, power_limit_mw(index))
DEVICE_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit_mw(index))
DEVICE_GETTER(nvmlDeviceGetPowerManagementMode, int, NM_NVML_FEATURE_ENABLED)
DEVICE_GETTER(nvmlDeviceGetPerformanceState, int, NM_NVML_PSTATE_0)
DEVICE_GETTER(nvmlDeviceGetPowerState, int, NM_NVML_PSTATE_0)
DEVICE_GETTER(nvmlDeviceGetComputeMode, int, NM_NVML_COMPUTEMODE_DEFAULT)
DEVICE_GETTER(nvmlDeviceGetPersistenceMode, int, NM_NVML_FEATURE_ENABLED)
DEVICE_GETTER(nvmlDeviceGetDisplayMode, int, NM_NVML_FEATURE_DISABLED)
DEVICE_GETTER(nvmlDeviceGetDisplayActive, int, NM_NVML_FEATURE_DISABLED)
DEVICE_GETTER(nvmlDeviceGetAccountingMode, int, NM_NVML_FEATURE_ENABLED)
DEVICE_GETTER_OF(nvmlDeviceGetClockInfo, int which, unsigned, clock_mhz(index, which))
DEVICE_GETTER_OF(nvmlDeviceGetMaxClockInfo, int which, unsigned, clock_mhz(index, which))
DEVICE_GETTER(nvmlDeviceIsMigDeviceHandle, unsigned, 0)
DEVICE_GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned, 0)

NM_NVML nvmlDeviceGetMigMode(nm_nvml_device handle, unsigned *current, unsigned *pending) {
    int index;
    nm_nvml_result result = enter_device(handle, current && pending ? current : NULL, &index);
    if (result == NM_NVML_SUCCESS) *current = *pending = 0;
    return leave(result);
}

NM_NVML nvmlDeviceGetMigDeviceHandleByIndex(nm_nvml_device handle, unsigned which,
                                            nm_nvml_device *out) {
    (void)which;
    int index;
    nm_nvml_result result = enter_device(handle, out, &index);
    return leave(result == NM_NVML_SUCCESS ? NM_NVML_ERROR_NOT_FOUND : result);
}

NM_NVML nvmlDeviceGetTemperatureV(nm_nvml_device handle, nm_nvml_temperature *out) {
    int index;
    nm_nvml_result result = enter_device(handle, out, &index);
    if (result == NM_NVML_SUCCESS && out->version != NM_NVML_TEMPERATURE_VERSION)
        result = NM_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NM_NVML_SUCCESS)
        out->temperature = (int)atomic_load(&node.state->device[index].temperature_celsius);
    return leave(result);
}

NM_NVML nvmlDeviceGetPowerManagementLimitConstraints(nm_nvml_device handle, unsigned *least,
                                                     unsigned *most) {
    int index;
    nm_nvml_result result = enter_device(handle, least && most ? least : NULL, &index);
    if (result == NM_NVML_SUCCESS) {
        *least = power_limit_mw(index) / 4;
        *most = power_limit_mw(index);
    }
    return leave(result);
}

/* ---- events
   ----------------------------------------------------------------------------- */

enum {
    EVENT_TYPES = NM_nvmlEventTypeDoubleBitEccError | NM_nvmlEventTypeXidCriticalError,
    NS_PER_MS = 1000000,
};

typedef struct {
    unsigned long long types[NM_SIM_DEVICES];
    uint32_t seen; /* the incidents before its creation, and those that it has reported */
} event_set;

NM_NVML nvmlEventSetCreate(nm_nvml_event_set *out) {
    nm_nvml_result result = enter();
    event_set *set = result == NM_NVML_SUCCESS && out ? calloc(1, sizeof *set) : NULL;
    if (result == NM_NVML_SUCCESS && !out) result = NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS && !set) result = NM_NVML_ERROR_MEMORY;
    if (set) {
        set->seen = nm_sim_incidents(&node);
        *out = set;
    }
    return leave(result);
}

NM_NVML nvmlEventSetFree(nm_nvml_event_set set) {
    if (!set) return NM_NVML_ERROR_INVALID_ARGUMENT;
    free(set);
    return NM_NVML_SUCCESS;
}

DEVICE_GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, EVENT_TYPES)

NM_NVML nvmlDeviceRegisterEvents(nm_nvml_device handle, unsigned long long types,
                                 nm_nvml_event_set set) {
    int index;
    nm_nvml_result result = enter_device(handle, set, &index);
    if (result == NM_NVML_SUCCESS && (types & ~(unsigned long long)EVENT_TYPES) != 0)
        result = NM_NVML_ERROR_NOT_SUPPORTED;
    if (result == NM_NVML_SUCCESS) ((event_set *)set)->types[index] |= types;
    return leave(result);
}

/* With the mutex held: the next incident that the set asks for. */
static bool next_event(event_set *set, nm_nvml_event_data *out) {
    uint32_t raised = nm_sim_incidents(&node);
    nm_sim_incident found;
    if (raised - set->seen > NM_SIM_INCIDENTS) set->seen = raised - NM_SIM_INCIDENTS;
    while (set->seen != raised) {
        bool is_known = nm_sim_incident_at(&node, set->seen++, &found);
        if (!is_known || found.device >= NM_SIM_DEVICES) continue;
        if ((set->types[found.device] & found.type) == 0) continue;
        *out = (nm_nvml_event_data){handle_of((int)found.device), found.type, found.data,
                                    UINT_MAX, UINT_MAX};
        return true;
    }
    return false;
}

NM_NVML nvmlEventSetWait_v2(nm_nvml_event_set set, nm_nvml_event_data *out, unsigned timeout_ms) {
    if (!set || !out) return NM_NVML_ERROR_INVALID_ARGUMENT;
    uint64_t end_ns = now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * NS_PER_MS;
    for (;;) {
        nm_nvml_result result = enter();
        bool is_found = result == NM_NVML_SUCCESS && next_event(set, out);
        uint32_t seen = ((event_set *)set)->seen;
        nm_sim_node mapped = node;
        leave(result);
        uint64_t at_ns = now_ns(CLOCK_MONOTONIC);
        if (result != NM_NVML_SUCCESS || is_found) return result;
        if (at_ns >= end_ns) return NM_NVML_ERROR_TIMEOUT;
        nm_sim_incident_wait(&mapped, seen, end_ns - at_ns);
    }
}
NM_NVML nvmlEventSetWait(nm_nvml_event_set set, nm_nvml_event_data *out, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
