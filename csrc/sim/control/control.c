/* control.c: creates, breaks and reads a node from outside. See control.h.
 *
 * Knows: a new state file is written beside its place and renamed into it, so that no process maps
 * half a node. Must not know: the caller.
 */
#include "sim/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sim/lost/lost.h"
#include "sim/node/deposits.h"
#include "sim/node/visible.h"

enum { NEWEST_VERSION = 13050, FIRST_PCI_BUS = 0x18, DEFAULT_SLICE_US = 2000, DEFAULT_WAVE_NS = 1000 };

struct nm_sim_handle {
    nm_sim_node node;
    pid_t opened_by;
    char path[PATH_MAX];
};

/* one slot operation of this process at a time */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- creating
   ----------------------------------------------------------------------------- */

static int lock_byte(int descriptor, short type, off_t byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

static bool has_clients(const nm_sim_node *node) {
    for (int slot = 0; slot < nm_sim_slots(node->state); slot++) {
        if (nm_sim_node_owner(node, slot) != 0) return true;
    }
    return false;
}

static void fill(nm_sim_state *state, const nm_sim_shape *shape) {
    state->layout = sizeof *state;
    state->device_count = shape->count;
    state->driver_version = shape->driver_version ? shape->driver_version : NEWEST_VERSION;
    state->reserved_bytes = shape->reserved_bytes;
    state->context_bytes = shape->context_bytes;
    state->module_bytes = shape->module_bytes;
    memcpy(state->name, shape->name, sizeof state->name - 1);
    for (uint32_t index = 0; index < shape->count; index++) {
        nm_sim_device *device = &state->device[index];
        memcpy(device->uuid, shape->devices[index].uuid, sizeof device->uuid);
        device->model = shape->devices[index].model;
        device->memory_bytes = shape->devices[index].memory_bytes;
        device->pci_bus = FIRST_PCI_BUS + 8 * index;
        atomic_store(&device->temperature_celsius, 35);
        atomic_store(&device->power_milliwatts, 70000);
        atomic_store(&device->utilization_percent, NM_SIM_MEASURED);
        atomic_store(&device->slice_us, DEFAULT_SLICE_US);
        atomic_store(&device->wave_ns, DEFAULT_WAVE_NS);
    }
    memcpy(state->magic, nm_sim_magic, sizeof state->magic);
}

/* A new file under a name of its own. */
static int write_file(const char *path, const nm_sim_shape *shape) {
    int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) return errno;
    int error = fchmod(descriptor, 0666) != 0 || ftruncate(descriptor, sizeof(nm_sim_state)) != 0
                    ? errno
                    : 0;
    void *mapping = MAP_FAILED;
    if (error == 0)
        mapping =
            mmap(NULL, sizeof(nm_sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (error == 0 && mapping == MAP_FAILED) error = errno;
    if (mapping != MAP_FAILED) {
        fill(mapping, shape);
        munmap(mapping, sizeof(nm_sim_state));
    }
    close(descriptor);
    if (error != 0) unlink(path);
    return error;
}

/* Kept as it is, if it is there: an earlier node's exports may still be open. */
static int make_exports(const char *path) {
    char name[PATH_MAX];
    int length = snprintf(name, sizeof name, "%s" nm_sim_exports_suffix, path);
    if (length >= (int)sizeof name) return ENAMETOOLONG;
    int descriptor = open(name, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor < 0) return errno;
    fchmod(descriptor, 0666); /* fails for all but its owner, which has done it */
    close(descriptor);
    return 0;
}

static bool is_possible(const nm_sim_shape *shape) {
    if (shape->count < 1 || shape->count > NM_SIM_DEVICES) return false;
    for (uint32_t index = 0; index < shape->count; index++) {
        const nm_sim_device_shape *device = &shape->devices[index];
        if (!nm_sim_model_at(device->model) || device->memory_bytes <= shape->reserved_bytes ||
            device->memory_bytes >= NM_SIM_MEMORY_LIMIT_BYTES)
            return false;
    }
    return shape->context_bytes < NM_SIM_MEMORY_LIMIT_BYTES &&
           shape->module_bytes < NM_SIM_MEMORY_LIMIT_BYTES;
}

/* The old file, if there is one and it is a node, locked against other creators: 0 where it may
   be replaced. */
static int claim_old(const char *path, nm_sim_node *old) {
    int error = nm_sim_node_open(old, path, false);
    if (error == ENOENT || error == EINVAL || error == EAGAIN) return 0;
    if (error != 0) return error;
    if (lock_byte(old->descriptor, F_WRLCK, NM_SIM_LOCK_ADMIN) != 0) return EBUSY;
    return lock_byte(old->descriptor, F_WRLCK, NM_SIM_LOCK_KEEPER) != 0 || has_clients(old) ? EBUSY
                                                                                            : 0;
}

int nm_sim_create(const char *path, const nm_sim_shape *shape) {
    char fresh[PATH_MAX];
    if (!is_possible(shape)) return EINVAL;
    if (snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid()) >= (int)sizeof fresh)
        return ENAMETOOLONG;
    pthread_mutex_lock(&mutex);
    nm_sim_node old;
    int error = claim_old(path, &old);
    if (error == 0) error = make_exports(path);
    if (error == 0) error = write_file(fresh, shape);
    if (error == 0 && rename(fresh, path) != 0) error = errno;
    nm_sim_node_close(&old);
    pthread_mutex_unlock(&mutex);
    return error;
}

/* ---- opening
   ----------------------------------------------------------------------------- */

int nm_sim_open(const char *path, nm_sim_handle **out) {
    if (strlen(path) >= PATH_MAX) return ENAMETOOLONG;
    nm_sim_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return ENOMEM;
    int error = nm_sim_node_open(&handle->node, path, false);
    if (error == 0) error = lock_byte(handle->node.descriptor, F_RDLCK, NM_SIM_LOCK_KEEPER);
    if (error != 0) {
        nm_sim_node_close(&handle->node);
        free(handle);
        return error;
    }
    strcpy(handle->path, path);
    handle->opened_by = getpid();
    nm_sim_outlive(handle->node.state, sizeof *handle->node.state);
    *out = handle;
    return 0;
}

void nm_sim_close(nm_sim_handle *handle) {
    pthread_mutex_lock(&mutex);
    if (handle->opened_by == getpid()) nm_sim_node_close(&handle->node);
    pthread_mutex_unlock(&mutex);
    free(handle);
}

/* With the mutex held. A forked child shares its parent's file description: to reap it needs one
   of its own. */
static nm_sim_node *enter(nm_sim_handle *handle) {
    pthread_mutex_lock(&mutex);
    if (handle->opened_by != getpid()) {
        nm_sim_node own;
        if (nm_sim_node_open(&own, handle->path, false) != 0) return NULL;
        handle->node = own;
        nm_sim_outlive(handle->node.state, sizeof *handle->node.state);
        handle->opened_by = getpid();
    }
    return nm_sim_node_is_there(&handle->node) ? &handle->node : NULL;
}

static int leave(int error) {
    pthread_mutex_unlock(&mutex);
    return error;
}

/* The same for a call about a device: NULL where it is none. */
static nm_sim_device *enter_device(nm_sim_handle *handle, uint32_t index) {
    nm_sim_node *node = enter(handle);
    return node && index < node->state->device_count ? &node->state->device[index] : NULL;
}

/* ---- reading
   ----------------------------------------------------------------------------- */

int nm_sim_shape_of(nm_sim_handle *handle, nm_sim_shape *out) {
    const nm_sim_node *node = enter(handle);
    if (!node) return leave(EINVAL);
    const nm_sim_state *state = node->state;
    *out = (nm_sim_shape){
        .count = state->device_count,
        .driver_version = state->driver_version,
        .reserved_bytes = state->reserved_bytes,
        .context_bytes = state->context_bytes,
        .module_bytes = state->module_bytes,
    };
    memcpy(out->name, state->name, sizeof out->name);
    for (int index = 0; index < nm_sim_devices(state); index++) {
        out->devices[index].model = state->device[index].model;
        out->devices[index].memory_bytes = state->device[index].memory_bytes;
        memcpy(out->devices[index].uuid, state->device[index].uuid, 16);
    }
    return leave(0);
}

int nm_sim_read_device(nm_sim_handle *handle, uint32_t index, nm_sim_device_books *out) {
    nm_sim_device *device = enter_device(handle, index);
    if (!device) return leave(EINVAL);
    nm_sim_node_reap(&handle->node);
    nm_sim_node_settle(&handle->node, (int)index);
    *out = (nm_sim_device_books){
        .pci_bus = device->pci_bus,
        .used_bytes = nm_sim_tally_bytes(&device->memory),
        .peak_bytes = nm_sim_tally_peak(&device->memory),
    };
    nm_uuid_text(device->uuid, out->uuid);
    for (int fault = 0; fault < NM_SIM_FAULT_COUNT; fault++)
        out->faults[fault] = atomic_load(&device->fault[fault]);
    return leave(0);
}

int nm_sim_read_processes(nm_sim_handle *handle, uint32_t index, nm_sim_process_books *out,
                          uint32_t room, uint32_t *count) {
    nm_sim_device *device = enter_device(handle, index);
    if (!device) return leave(EINVAL);
    nm_sim_node_reap(&handle->node);
    nm_sim_node_settle(&handle->node, (int)index);
    *count = 0;
    for (int slot = 0; slot < nm_sim_slots(handle->node.state); slot++) {
        int pid = nm_sim_node_owner(&handle->node, slot);
        nm_sim_account *account = &device->account[slot];
        uint64_t used = nm_sim_account_bytes(account);
        uint32_t contexts = atomic_load(&account->contexts);
        if (pid == 0 || (used == 0 && contexts == 0)) continue;
        if (*count < room) {
            out[*count] =
                (nm_sim_process_books){.pid = pid, .contexts = contexts, .used_bytes = used};
            for (int kind = 0; kind < NM_SIM_KIND_COUNT; kind++)
                out[*count].kind_bytes[kind] = atomic_load(&account->kind_bytes[kind]);
        }
        ++*count;
    }
    return leave(0);
}

int nm_sim_read_group(nm_sim_handle *handle, uint32_t index, const char *name, uint64_t *used,
                      uint64_t *peak) {
    nm_sim_device *device = enter_device(handle, index);
    if (!device) return leave(EINVAL);
    nm_sim_node_reap(&handle->node);
    *used = *peak = 0;
    for (int group = 0; group < NM_SIM_GROUPS; group++) {
        if (atomic_load(&handle->node.state->group_key[group]) != nm_sim_group_key(name)) continue;
        *used = nm_sim_tally_bytes(&device->group[group]);
        *peak = nm_sim_tally_peak(&device->group[group]);
    }
    return leave(0);
}

int nm_sim_read_times(nm_sim_handle *handle, uint32_t index, uint64_t *busy_ns,
                      nm_sim_process_time *out, uint32_t room, uint32_t *count) {
    static nm_sim_schedule schedule; /* under the mutex */
    struct timespec now;
    if (!enter_device(handle, index)) return leave(EINVAL);
    clock_gettime(CLOCK_MONOTONIC, &now);
    nm_sim_engine_look(&handle->node, (int)index,
                       (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec, &schedule);
    *busy_ns = schedule.busy.ever_ns;
    *count = schedule.count;
    for (uint32_t which = 0; which < schedule.count && which < room; which++) {
        const nm_sim_runner *runner = &schedule.runners[which];
        out[which] = (nm_sim_process_time){
            .pid = nm_sim_node_owner(&handle->node, nm_sim_runner_slot(runner)),
            .waiting = (uint32_t)(runner->tail - runner->head),
            .busy_ns = runner->busy.ever_ns,
            .launched = runner->added,
        };
    }
    return leave(0);
}

int nm_sim_read_model(uint32_t index, nm_sim_model_row *out) {
    const nm_sim_model *model = nm_sim_model_at(index);
    if (!model) return ENOENT;
    *out = (nm_sim_model_row){
        .model = model->model,
        .name = model->name,
        .memory_bytes = (uint64_t)model->memory_mib << 20,
        .major = model->major,
        .minor = model->minor,
        .multiprocessors = model->multiprocessors,
        .flops = (uint64_t)model->tflops * UINT64_C(1000000000000),
        .tensor_flops = (uint64_t)model->tensor_tflops * UINT64_C(1000000000000),
        .memory_bytes_per_s = model->memory_gb_per_s * UINT64_C(1000000000),
        .host_bytes_per_s = model->host_gb_per_s * UINT64_C(1000000000),
    };
    return 0;
}

/* ---- breaking
   ----------------------------------------------------------------------------- */

int nm_sim_set_fault(nm_sim_handle *handle, uint32_t index, uint32_t fault, uint32_t value) {
    nm_sim_device *device = enter_device(handle, index);
    if (!device || fault >= NM_SIM_FAULT_COUNT) return leave(EINVAL);
    atomic_store(&device->fault[fault], value);
    return leave(0);
}

int nm_sim_lose(nm_sim_handle *handle, uint32_t index) {
    nm_sim_device *device = enter_device(handle, index);
    if (!device) return leave(EINVAL);
    atomic_fetch_add(&device->losses, 1);
    atomic_store(&device->lost, 1);
    return leave(0);
}

int nm_sim_raise(nm_sim_handle *handle, uint32_t index, uint32_t type, uint64_t data) {
    if (!enter_device(handle, index)) return leave(EINVAL);
    nm_sim_incident_raise(&handle->node, index, type, data);
    return leave(0);
}

int nm_sim_reset_peaks(nm_sim_handle *handle) {
    nm_sim_node *node = enter(handle);
    if (!node) return leave(EINVAL);
    nm_sim_node_reap(node);
    for (uint32_t index = 0; index < node->state->device_count; index++)
        nm_sim_node_reset_peaks(node, (int)index);
    return leave(0);
}

/* ---- names
   ----------------------------------------------------------------------------- */

#define KIND_NAME(name, implicit) #name,
#define FAULT_NAME(name) #name,

const char *nm_sim_kind_name(uint32_t kind) {
    static const char *const names[] = {NM_SIM_KINDS(KIND_NAME)};
    return kind < NM_SIM_KIND_COUNT ? names[kind] : NULL;
}

const char *nm_sim_fault_name(uint32_t fault) {
    static const char *const names[] = {NM_SIM_FAULTS(FAULT_NAME)};
    return fault < NM_SIM_FAULT_COUNT ? names[fault] : NULL;
}
