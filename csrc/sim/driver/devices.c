/* devices.c: the answers about devices, and about the driver itself.
 *
 * Knows: names, identities and attributes. Must not know: contexts, memory in use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sim/driver/driver.h"

enum {
    LAST_ATTRIBUTE = 200,
    ATTRIBUTE_PCI_BUS_ID = 33,
    ATTRIBUTE_PCI_DEVICE_ID = 34,
    ATTRIBUTE_PCI_DOMAIN_ID = 50,
    P2P_ACCESS_SUPPORTED = 2,
};

static const int attributes[LAST_ATTRIBUTE + 1] = {
#define X(name, number, value) [number] = value,
#include "sim/driver/attributes.def"
#undef X
};

/* CUDA_SUCCESS with the device's index, or the error. */
static nm_cu_result find(nm_cu_device ordinal, const void *out, int *device) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *device = nm_device_index(ordinal);
    return *device < 0 ? NM_CUDA_ERROR_INVALID_DEVICE : NM_CUDA_SUCCESS;
}

/* By the device's model (attributes.def has the others). */
static int attribute_of(int device, int attribute) {
    const nm_sim_model *model = nm_model(device);
    bool since_8 = model->major >= 8, since_9 = model->major >= 9;
    switch (attribute) {
    case 13: return model->clock_mhz * 1000;
    case 16: return model->multiprocessors;
    case 36: return model->memory_mhz * 1000;
    case 37: return model->bus_bits;
    case 38: return model->l2_kib * 1024;
    case 39: return model->threads_each;
    case 75: return model->major;
    case 76: return model->minor;
    case 81: return model->shared_kib_each * 1024;
    case 97: return (model->shared_kib_each - since_8) * 1024;
    case 106: return nm_sim_most_blocks(model);
    case 111: return since_8 ? 1024 : 0;
    case 120: /* clusters */
    case 132: return since_9; /* multicast */
    case ATTRIBUTE_PCI_BUS_ID: return (int)nm_device(device)->pci_bus;
    default: return attributes[attribute];
    }
}

NM_CU cuDriverGetVersion(int *out) {
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = nm_driver_version();
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetCount(int *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = nm_the_driver.device_count;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGet(nm_cu_device *out, int ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result == NM_CUDA_SUCCESS) *out = ordinal;
    return result;
}

NM_CU cuDeviceGetName(char *out, int size, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    if (size <= 0) return NM_CUDA_ERROR_INVALID_VALUE;
    snprintf(out, (size_t)size, "%s", nm_sim_name(nm_the_driver.node.state, device));
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetUuid_v2(nm_cu_uuid *out, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result == NM_CUDA_SUCCESS) memcpy(out->bytes, nm_device(device)->uuid, sizeof out->bytes);
    return result;
}
NM_CU cuDeviceGetUuid(nm_cu_uuid *out, nm_cu_device ordinal) {
    return cuDeviceGetUuid_v2(out, ordinal);
}

NM_CU cuDeviceTotalMem_v2(size_t *out, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result == NM_CUDA_SUCCESS) *out = nm_sim_capacity(nm_the_driver.node.state, device);
    return result;
}

NM_CU cuDeviceTotalMem(unsigned *out, nm_cu_device ordinal) {
    size_t bytes = 0;
    nm_cu_result result = cuDeviceTotalMem_v2(out ? &bytes : NULL, ordinal);
    if (result == NM_CUDA_SUCCESS) *out = bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
    return result;
}

NM_CU cuDeviceGetAttribute(int *out, int attribute, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    if (attribute < 1 || attribute > LAST_ATTRIBUTE) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = attribute_of(device, attribute);
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceComputeCapability(int *major, int *minor, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, major && minor ? major : NULL, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    *major = nm_model(device)->major;
    *minor = nm_model(device)->minor;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetProperties(nm_cu_device_properties *out, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    *out = (nm_cu_device_properties){
        .max_threads_per_block = attributes[1],
        .max_threads_dim = {attributes[2], attributes[3], attributes[4]},
        .max_grid_size = {attributes[5], attributes[6], attributes[7]},
        .shared_mem_per_block = attributes[8],
        .total_constant_memory = attributes[9],
        .simd_width = attributes[10],
        .mem_pitch = attributes[11],
        .regs_per_block = attributes[12],
        .clock_rate = attribute_of(device, 13),
        .texture_align = attributes[14],
    };
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetPCIBusId(char *out, int size, nm_cu_device ordinal) {
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    if (size < 13) return NM_CUDA_ERROR_INVALID_VALUE;
    snprintf(out, (size_t)size, "0000:%02x:00.0", (unsigned)(nm_device(device)->pci_bus & 0xff));
    return NM_CUDA_SUCCESS;
}

/* "[domain:]bus:device[.function]", hexadecimal. */
NM_CU cuDeviceGetByPCIBusId(nm_cu_device *out, const char *text) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    unsigned domain = 0, bus = 0, slot = 0;
    if (!out || !text) return NM_CUDA_ERROR_INVALID_VALUE;
    bool parsed = sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3;
    if (!parsed && (domain = 0, sscanf(text, "%x:%x", &bus, &slot) != 2))
        return NM_CUDA_ERROR_INVALID_VALUE;
    for (int ordinal = 0; ordinal < nm_the_driver.device_count; ordinal++) {
        if (domain != 0 || slot != 0 || nm_device(nm_the_driver.visible[ordinal])->pci_bus != bus)
            continue;
        *out = ordinal;
        return NM_CUDA_SUCCESS;
    }
    return NM_CUDA_ERROR_INVALID_DEVICE;
}

NM_CU cuDeviceGetLuid(char *luid, unsigned *mask, nm_cu_device ordinal) {
    (void)luid, (void)mask, (void)ordinal;
    return NM_CUDA_ERROR_NOT_SUPPORTED; /* as everywhere but on Windows */
}

NM_CU cuDeviceCanAccessPeer(int *out, nm_cu_device one, nm_cu_device other) {
    int device;
    nm_cu_result result = find(one, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    if (nm_device_index(other) < 0) return NM_CUDA_ERROR_INVALID_DEVICE;
    *out = one != other;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetP2PAttribute(int *out, int attribute, nm_cu_device one, nm_cu_device other) {
    int device;
    nm_cu_result result = find(one, out, &device);
    if (result != NM_CUDA_SUCCESS) return result;
    if (nm_device_index(other) < 0 || one == other) return NM_CUDA_ERROR_INVALID_DEVICE;
    *out = attribute == P2P_ACCESS_SUPPORTED;
    return NM_CUDA_SUCCESS;
}

NM_CU cuDeviceGetExecAffinitySupport(int *out, int type, nm_cu_device ordinal) {
    (void)type;
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result == NM_CUDA_SUCCESS) *out = 0;
    return result;
}

NM_CU cuDeviceGetTexture1DLinearMaxWidth(size_t *out, int format, unsigned channels,
                                         nm_cu_device ordinal) {
    (void)format, (void)channels;
    int device;
    nm_cu_result result = find(ordinal, out, &device);
    if (result == NM_CUDA_SUCCESS) *out = (size_t)attributes[69];
    return result;
}

NM_CU cuProfilerStart(void) { return NM_CUDA_SUCCESS; }
NM_CU cuProfilerStop(void) { return NM_CUDA_SUCCESS; }
