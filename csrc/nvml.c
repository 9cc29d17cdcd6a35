/* nvml.c: what NVML tells a program about memory, for the GPUs of its lease.
 *
 * Knows: NVML's structures.
 * Must not know: the ledger (charge.h gives figures by UUID).
 *
 * NVML sees the whole node whatever CUDA_VISIBLE_DEVICES says, so a GPU is recognised by the UUID of its handle.
 */
#include "charge.h"
#include "client.h"
#include "interpose.h"

static bool figures_of(nm_nvml_device device, uint64_t driver_total, uint64_t driver_used, struct nm_figures *out)
{
    char uuid[NM_NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    if (!nm_is_managed() || nm_real_nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NM_NVML_SUCCESS)
        return false;
    uuid[sizeof uuid - 1] = '\0';
    return nm_figures_of_uuid(uuid, driver_total, driver_used, out);
}

int nm_hook_nvmlDeviceGetMemoryInfo(nm_nvml_device device, nm_nvml_memory *memory)
{
    struct nm_figures figures;
    int result = nm_real_nvmlDeviceGetMemoryInfo(device, memory);
    if (result == NM_NVML_SUCCESS && memory != NULL && figures_of(device, memory->total, memory->used, &figures)) {
        memory->total = figures.total_bytes;
        memory->used = figures.used_bytes;
        memory->free = figures.total_bytes - figures.used_bytes;
    }
    return result;
}

int nm_hook_nvmlDeviceGetMemoryInfo_v2(nm_nvml_device device, nm_nvml_memory_v2 *memory)
{
    struct nm_figures figures;
    int result = nm_real_nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (result == NM_NVML_SUCCESS && memory != NULL && figures_of(device, memory->total, memory->used, &figures)) {
        memory->total = figures.total_bytes;
        memory->reserved = 0; /* what the driver keeps is in nobody's quota */
        memory->used = figures.used_bytes;
        memory->free = figures.total_bytes - figures.used_bytes;
    }
    return result;
}
