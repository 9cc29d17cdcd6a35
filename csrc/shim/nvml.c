/* nvml.c: NVML as a program of an environment sees it: the environment's GPUs, its quota as their
 * memory, its processes.
 *
 * Knows: NVML's structures and conventions. Must not know: the ledger (charge.h has figures by
 * UUID), the holders of GPUs (sight.h).
 *
 * tests/shim/test_sight.py names each function of nvml.h that has a row in hooks.def, and each that
 * needs none.
 */
#include <stdlib.h>
#include <string.h>

#include "account/charge.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "shim/sight.h"

enum { UUID_BYTES = NM_NVML_DEVICE_UUID_V2_BUFFER_SIZE };

/* -- the GPUs that are shown -- */

struct shown {
    char uuid[UUID_BYTES];
    nm_nvml_device handle;
    int result; /* of getting the handle: a GPU may be lost */
    uint64_t limit_bytes, used_bytes;
};

struct view {
    unsigned count;
    bool leased;
    struct shown gpu[NM_LEDGER_ROWS];
};

static void *_Atomic handed_out[NM_LEDGER_ROWS]; /* the last handle for each number */

static int uuid_of(nm_nvml_device device, char out[UUID_BYTES])
{
    int result = nm_real_nvmlDeviceGetUUID(device, out, UUID_BYTES);
    out[UUID_BYTES - 1] = '\0';
    return result;
}

static int place_of_uuid(const struct view *view, const char *uuid)
{
    for (unsigned i = 0; i < view->count; i++)
        if (strcmp(view->gpu[i].uuid, uuid) == 0)
            return (int)i;
    return -1;
}

/* Numbers the GPUs from 0 in the lease's order, that of CUDA_VISIBLE_DEVICES, so that an index
 * is the same GPU to CUDA and to NVML. GPUs of the node stand for those that a request would
 * get, with the whole quota free; a kept handle of one means the GPU that has its number after
 * the grant. GPUs behind a closed device gate have no handle, but count, so that a program that
 * counts first goes on to ask for one. */
static void fill(struct view *view, const struct nm_sight *sight, unsigned node_count)
{
    unsigned shut = node_count == 0 ? sight->node_count : 0;
    for (unsigned i = 0; i < node_count && view->count < sight->expected; i++) {
        struct shown *gpu = &view->gpu[view->count];
        *gpu = (struct shown){.limit_bytes =
                                  sight->memory_per_gpu > 0 ? sight->memory_per_gpu : UINT64_MAX};
        gpu->result = nm_real_nvmlDeviceGetHandleByIndex_v2(i, &gpu->handle);
        shut += gpu->result == NM_NVML_ERROR_NO_PERMISSION;
        if (gpu->result != NM_NVML_SUCCESS)
            continue;
        if (uuid_of(gpu->handle, gpu->uuid) == NM_NVML_SUCCESS &&
            place_of_uuid(view, gpu->uuid) < 0)
            view->count++;
    }
    for (; shut > 0 && view->count < sight->expected; shut--)
        view->gpu[view->count++] = (struct shown){.result = NM_NVML_ERROR_NO_PERMISSION};
}

static int look(struct view *view)
{
    struct nm_sight sight;
    unsigned node_count;
    int result = nm_real_nvmlDeviceGetCount_v2(&node_count);
    if (result != NM_NVML_SUCCESS)
        return result;
    nm_sight_look(&sight);
    *view = (struct view){.count = sight.count, .leased = sight.leased};
    for (unsigned i = 0; i < sight.count; i++) {
        struct shown *gpu = &view->gpu[i];
        nm_copy(gpu->uuid, UUID_BYTES, sight.gpu[i].uuid);
        gpu->limit_bytes = sight.gpu[i].limit_bytes;
        gpu->used_bytes = sight.gpu[i].used_bytes;
        gpu->result = nm_real_nvmlDeviceGetHandleByUUID(gpu->uuid, &gpu->handle);
    }
    fill(view, &sight, node_count);
    return NM_NVML_SUCCESS;
}

/* The number of a GPU in the view, or -1. */
static int place_of(const struct view *view, nm_nvml_device device)
{
    char uuid[UUID_BYTES];
    int place = uuid_of(device, uuid) == NM_NVML_SUCCESS ? place_of_uuid(view, uuid) : -1;
    for (unsigned i = 0; place < 0 && i < view->count; i++)
        if (device != NULL && atomic_load(&handed_out[i]) == device)
            place = (int)i;
    return place;
}

/* The GPU of a call. A MIG instance or an invalid handle is left to the driver: place -1. */
static int find(nm_nvml_device *device, struct view *view, int *place)
{
    char uuid[UUID_BYTES];
    int result = look(view);
    *place = result == NM_NVML_SUCCESS ? place_of(view, *device) : -1;
    if (*place >= 0 && view->gpu[*place].result == NM_NVML_SUCCESS)
        *device = view->gpu[*place].handle;
    else if (uuid_of(*device, uuid) == NM_NVML_SUCCESS && strncmp(uuid, "GPU-", 4) == 0)
        return NM_NVML_ERROR_GPU_NOT_FOUND;
    return NM_NVML_SUCCESS;
}

/* -- counting and finding -- */

int nm_hook_nvmlDeviceGetCount_v2(unsigned *count)
{
    struct view view;
    int result = nm_real_nvmlDeviceGetCount_v2(count);
    if (result == NM_NVML_SUCCESS && nm_is_managed() && look(&view) == NM_NVML_SUCCESS)
        *count = view.count;
    return result;
}

int nm_hook_nvmlDeviceGetCount(unsigned *count)
{
    return nm_original(NM_SYMBOL_nvmlDeviceGetCount) != NULL ? nm_hook_nvmlDeviceGetCount_v2(count)
                                                             : NM_ABSENT_NVML;
}

int nm_hook_nvmlDeviceGetHandleByIndex_v2(unsigned index, nm_nvml_device *device)
{
    struct view view;
    if (device == NULL || !nm_is_managed())
        return nm_real_nvmlDeviceGetHandleByIndex_v2(index, device);
    int result = look(&view);
    if (result == NM_NVML_SUCCESS)
        result = index < view.count ? view.gpu[index].result : NM_NVML_ERROR_INVALID_ARGUMENT;
    if (result == NM_NVML_SUCCESS)
        atomic_store(&handed_out[index], *device = view.gpu[index].handle);
    return result;
}

int nm_hook_nvmlDeviceGetHandleByIndex(unsigned index, nm_nvml_device *device)
{
    return nm_original(NM_SYMBOL_nvmlDeviceGetHandleByIndex) != NULL
               ? nm_hook_nvmlDeviceGetHandleByIndex_v2(index, device)
               : NM_ABSENT_NVML;
}

/* By name: GPUs of other environments do not exist. */
static int found(int result, nm_nvml_device device, nm_nvml_device *out)
{
    struct view view;
    if (result == NM_NVML_SUCCESS && nm_is_managed() && look(&view) == NM_NVML_SUCCESS &&
        place_of(&view, device) < 0)
        return NM_NVML_ERROR_NOT_FOUND;
    if (result == NM_NVML_SUCCESS)
        *out = device;
    return result;
}

#define FIND_BY(name, type)                                          \
    int nm_hook_##name(type key, nm_nvml_device *out)                \
    {                                                                \
        nm_nvml_device device = NULL;                                \
        int result = nm_real_##name(key, out != NULL ? &device : NULL); \
        return found(result, device, out);                           \
    }
FIND_BY(nvmlDeviceGetHandleBySerial, const char *)
FIND_BY(nvmlDeviceGetHandleByUUID, const char *)
FIND_BY(nvmlDeviceGetHandleByUUIDV, const void *)
FIND_BY(nvmlDeviceGetHandleByPciBusId, const char *)
FIND_BY(nvmlDeviceGetHandleByPciBusId_v2, const char *)

int nm_hook_nvmlDeviceGetIndex(nm_nvml_device device, unsigned *index)
{
    struct view view;
    int place, result = nm_real_nvmlDeviceGetIndex(device, index);
    if (result != NM_NVML_SUCCESS || !nm_is_managed())
        return result;
    result = find(&device, &view, &place);
    if (result == NM_NVML_SUCCESS && place >= 0)
        *index = (unsigned)place;
    return result;
}

/* -- sets of GPUs: limited by the caller's room; NVML has two conventions for the count -- */

static unsigned keep_shown(nm_nvml_device *devices, unsigned count)
{
    struct view view;
    unsigned kept = 0;
    if (look(&view) != NM_NVML_SUCCESS)
        return 0;
    for (unsigned i = 0; i < count; i++)
        if (place_of(&view, devices[i]) >= 0)
            devices[kept++] = devices[i];
    return kept;
}

enum { NODE_GPUS = 64 };

/* A count of zero asks for the number; otherwise at most count are written. */
static int give_set(int result, nm_nvml_device found_devices[NODE_GPUS], unsigned found_count,
                    unsigned *count, nm_nvml_device *out)
{
    if (result != NM_NVML_SUCCESS)
        return result;
    unsigned kept = keep_shown(found_devices, found_count), room = *count;
    if (room != 0 && out == NULL)
        return NM_NVML_ERROR_INVALID_ARGUMENT;
    *count = room != 0 && room < kept ? room : kept;
    if (room != 0)
        memcpy(out, found_devices, *count * sizeof *out);
    return NM_NVML_SUCCESS;
}

int nm_hook_nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nm_nvml_device *out)
{
    nm_nvml_device devices[NODE_GPUS];
    unsigned all = 0;
    if (count == NULL || !nm_is_managed())
        return nm_real_nvmlSystemGetTopologyGpuSet(cpu, count, out);
    int result = nm_real_nvmlSystemGetTopologyGpuSet(cpu, &all, NULL);
    all = all < NODE_GPUS ? all : NODE_GPUS;
    if (result == NM_NVML_SUCCESS && all > 0)
        result = nm_real_nvmlSystemGetTopologyGpuSet(cpu, &all, devices);
    return give_set(result, devices, all, count, out);
}

int nm_hook_nvmlDeviceGetTopologyNearestGpus(nm_nvml_device device, int level, unsigned *count,
                                             nm_nvml_device *out)
{
    nm_nvml_device devices[NODE_GPUS];
    unsigned all = 0;
    if (count == NULL || !nm_is_managed())
        return nm_real_nvmlDeviceGetTopologyNearestGpus(device, level, count, out);
    int result = nm_real_nvmlDeviceGetTopologyNearestGpus(device, level, &all, NULL);
    all = all < NODE_GPUS ? all : NODE_GPUS;
    if (result == NM_NVML_SUCCESS && all > 0)
        result = nm_real_nvmlDeviceGetTopologyNearestGpus(device, level, &all, devices);
    return give_set(result, devices, all, count, out);
}

int nm_hook_nvmlUnitGetDevices(void *unit, unsigned *count, nm_nvml_device *out)
{
    nm_nvml_device devices[NODE_GPUS];
    unsigned all = NODE_GPUS;
    if (count == NULL || out == NULL || !nm_is_managed())
        return nm_real_nvmlUnitGetDevices(unit, count, out);
    int result = nm_real_nvmlUnitGetDevices(unit, &all, devices);
    if (result != NM_NVML_SUCCESS)
        return result;
    unsigned kept = keep_shown(devices, all), room = *count;
    *count = kept;
    if (kept > room)
        return NM_NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, devices, kept * sizeof *out);
    return NM_NVML_SUCCESS;
}

/* -- memory -- */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* False: the driver's own figures hold. */
static bool figures_of(const struct view *view, int place, uint64_t driver_total,
                       struct nm_figures *out)
{
    if (place < 0)
        return false;
    const struct shown *gpu = &view->gpu[place];
    if (view->leased && !nm_figures_of_uuid(gpu->uuid, out))
        return false;
    if (!view->leased)
        *out = (struct nm_figures){
            .total_bytes = gpu->limit_bytes > gpu->used_bytes ? gpu->limit_bytes : gpu->used_bytes,
            .used_bytes = gpu->used_bytes};
    out->total_bytes =
        smaller(out->total_bytes > 0 ? out->total_bytes : driver_total, driver_total);
    out->used_bytes = smaller(out->used_bytes, out->total_bytes);
    return true;
}

typedef int memory_function(nm_nvml_device device, nm_nvml_memory *memory);

static int tell_memory(memory_function *real, nm_nvml_device device, nm_nvml_memory *memory)
{
    struct nm_figures figures;
    struct view view;
    int place = -1, result = NM_NVML_SUCCESS;
    if (nm_is_managed())
        result = find(&device, &view, &place);
    if (result == NM_NVML_SUCCESS)
        result = real(device, memory);
    if (result == NM_NVML_SUCCESS && memory->total > 0 &&
        figures_of(&view, place, memory->total, &figures)) {
        memory->total = figures.total_bytes;
        memory->used = figures.used_bytes;
        memory->free = figures.total_bytes - figures.used_bytes;
    }
    return result;
}

int nm_hook_nvmlDeviceGetMemoryInfo(nm_nvml_device device, nm_nvml_memory *memory)
{
    return tell_memory(nm_real_nvmlDeviceGetMemoryInfo, device, memory);
}

/* If all memory is protected, this is the GPU's; else its total is 0. */
int nm_hook_nvmlDeviceGetConfComputeProtectedMemoryUsage(nm_nvml_device device,
                                                         nm_nvml_memory *memory)
{
    return tell_memory(nm_real_nvmlDeviceGetConfComputeProtectedMemoryUsage, device, memory);
}

int nm_hook_nvmlDeviceGetMemoryInfo_v2(nm_nvml_device device, nm_nvml_memory_v2 *memory)
{
    struct nm_figures figures;
    struct view view;
    int place = -1, result = NM_NVML_SUCCESS;
    if (nm_is_managed())
        result = find(&device, &view, &place);
    if (result == NM_NVML_SUCCESS)
        result = nm_real_nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (result == NM_NVML_SUCCESS && figures_of(&view, place, memory->total, &figures)) {
        memory->total = figures.total_bytes;
        memory->reserved = 0; /* the driver's own memory is in no quota */
        memory->used = figures.used_bytes;
        memory->free = figures.total_bytes - figures.used_bytes;
    }
    return result;
}

/* -- processes: all are fetched, those of the environment are returned -- */

struct records {
    void *data;
    unsigned count;
    size_t record_bytes, pid_offset;
};

/* One call of the driver's: *count is the room, then the number; NVML_ERROR_INSUFFICIENT_SIZE if
   the room is too small. */
typedef int fetch_function(nm_nvml_device device, unsigned *count, void *out, const void *question);

/* On a GPU of the view. The caller frees records->data. A list that grows meanwhile is read
   again, a few times. */
static int fetch_own(fetch_function *fetch, nm_nvml_device device, const void *question,
                     struct records *records)
{
    enum { ATTEMPTS = 5, SPARE = 8 };
    struct view view;
    int place;
    unsigned count = 0;
    int result = find(&device, &view, &place);
    if (result == NM_NVML_SUCCESS)
        result = fetch(device, &count, NULL, question);
    for (int attempt = 0; attempt < ATTEMPTS && result == NM_NVML_ERROR_INSUFFICIENT_SIZE;
         attempt++) {
        unsigned room = count += SPARE;
        free(records->data);
        records->data = calloc(room, records->record_bytes);
        if (records->data == NULL)
            return NM_NVML_ERROR_MEMORY;
        result = fetch(device, &count, records->data, question);
        records->count = count < room ? count : room;
    }
    if (result == NM_NVML_SUCCESS && records->data != NULL)
        records->count = nm_sight_keep_own(records->data, records->count, records->record_bytes,
                                           records->pid_offset);
    return result;
}

/* By the same convention. */
static int give_records(int result, struct records *records, unsigned *count, void *out)
{
    if (result == NM_NVML_SUCCESS) {
        unsigned room = *count;
        *count = records->count;
        if (records->count > room || (records->count > 0 && out == NULL))
            result = NM_NVML_ERROR_INSUFFICIENT_SIZE;
        else if (records->count > 0)
            memcpy(out, records->data, records->count * records->record_bytes);
    }
    free(records->data);
    return result;
}

typedef int list_function(nm_nvml_device device, unsigned *count, void *out);

static int fetch_list(nm_nvml_device device, unsigned *count, void *out, const void *question)
{
    return (*(list_function *const *)question)(device, count, out);
}

static int list(list_function *real, nm_nvml_device device, unsigned *count, void *out,
                size_t record_bytes)
{
    struct records records = {.record_bytes = record_bytes};
    if (count == NULL || !nm_is_managed())
        return real(device, count, out);
    int result = fetch_own(fetch_list, device, &real, &records);
    return give_records(result, &records, count, out);
}

/* The first symbol of each name fills shorter records. */
#define LIST(name, record)                                                          \
    int nm_hook_##name(nm_nvml_device device, unsigned *count, void *out)           \
    {                                                                               \
        return list(nm_real_##name, device, count, out, sizeof(record));            \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, nm_nvml_process_info_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nm_nvml_process_info_v1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nm_nvml_process_info_v1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nm_nvml_process_info_v2)
LIST(nvmlDeviceGetAccountingPids, unsigned)

static int fetch_details(nm_nvml_device device, unsigned *count, void *out, const void *question)
{
    nm_nvml_process_detail_list list = *(const nm_nvml_process_detail_list *)question;
    list.num_entries = *count;
    list.entries = out;
    int result = nm_real_nvmlDeviceGetRunningProcessDetailList(device, &list);
    *count = list.num_entries;
    return result;
}

int nm_hook_nvmlDeviceGetRunningProcessDetailList(nm_nvml_device device,
                                                  nm_nvml_process_detail_list *list)
{
    struct records records = {.record_bytes = sizeof(nm_nvml_process_detail)};
    if (list == NULL || list->version != NM_NVML_PROCESS_DETAIL_LIST_VERSION || !nm_is_managed())
        return nm_real_nvmlDeviceGetRunningProcessDetailList(device, list);
    int result = fetch_own(fetch_details, device, list, &records);
    return give_records(result, &records, &list->num_entries, list->entries);
}

/* These two report an empty list as an error. */
static int give_samples(int result, struct records *records, unsigned *count, void *out)
{
    if (result == NM_NVML_SUCCESS && records->count == 0)
        result = NM_NVML_ERROR_NOT_FOUND;
    return give_records(result, records, count, out);
}

static int fetch_samples(nm_nvml_device device, unsigned *count, void *out, const void *question)
{
    return nm_real_nvmlDeviceGetProcessUtilization(device, out, count,
                                                   *(const unsigned long long *)question);
}

int nm_hook_nvmlDeviceGetProcessUtilization(nm_nvml_device device,
                                            nm_nvml_process_utilization_sample *out,
                                            unsigned *count, unsigned long long last_seen_us)
{
    struct records records = {.record_bytes = sizeof *out};
    if (count == NULL || !nm_is_managed())
        return nm_real_nvmlDeviceGetProcessUtilization(device, out, count, last_seen_us);
    int result = fetch_own(fetch_samples, device, &last_seen_us, &records);
    return give_samples(result, &records, count, out);
}

static int fetch_utilization(nm_nvml_device device, unsigned *count, void *out,
                             const void *question)
{
    nm_nvml_processes_utilization list = *(const nm_nvml_processes_utilization *)question;
    list.count = *count;
    list.entries = out;
    int result = nm_real_nvmlDeviceGetProcessesUtilizationInfo(device, &list);
    *count = list.count;
    return result;
}

int nm_hook_nvmlDeviceGetProcessesUtilizationInfo(nm_nvml_device device,
                                                  nm_nvml_processes_utilization *list)
{
    struct records records = {.record_bytes = sizeof(nm_nvml_process_utilization),
                              .pid_offset = offsetof(nm_nvml_process_utilization, pid)};
    if (list == NULL || list->version != NM_NVML_PROCESSES_UTILIZATION_VERSION || !nm_is_managed())
        return nm_real_nvmlDeviceGetProcessesUtilizationInfo(device, list);
    int result = fetch_own(fetch_utilization, device, list, &records);
    return give_samples(result, &records, &list->count, list->entries);
}

/* One process by its pid; one of another environment does not exist. */
static int find_process(nm_nvml_device *device, unsigned pid)
{
    struct view view;
    int place;
    if (!nm_is_managed())
        return NM_NVML_SUCCESS;
    return nm_sight_is_own(pid) ? find(device, &view, &place) : NM_NVML_ERROR_NOT_FOUND;
}

int nm_hook_nvmlDeviceGetAccountingStats(nm_nvml_device device, unsigned pid,
                                         nm_nvml_accounting_stats *stats)
{
    int result = find_process(&device, pid);
    return result == NM_NVML_SUCCESS ? nm_real_nvmlDeviceGetAccountingStats(device, pid, stats)
                                     : result;
}

int nm_hook_nvmlDeviceGetAccountingStats_v2(nm_nvml_device device,
                                            nm_nvml_accounting_stats_v2 *stats)
{
    int result = stats != NULL ? find_process(&device, stats->pid) : NM_NVML_SUCCESS;
    return result == NM_NVML_SUCCESS ? nm_real_nvmlDeviceGetAccountingStats_v2(device, stats)
                                     : result;
}
