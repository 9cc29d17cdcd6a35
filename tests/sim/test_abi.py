"""csrc/base/abi.h says the same as NVIDIA's headers: every constant, every size, every offset.

The C compiler is the judge: one translation unit includes both and asserts statically. Skipped,
with the reason, where no such header is on the machine.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.sim import headers
from tests.support.limits import WAIT_LIMIT_S

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# (ours, theirs, ((our field, their field), ...)). An empty tuple compares sizes alone.
Layout = tuple[str, str, tuple[tuple[str, str], ...]]

DRIVER_LAYOUTS: tuple[Layout, ...] = (
    ("nm_cu_device", "CUdevice", ()),
    ("nm_cu_deviceptr", "CUdeviceptr", ()),
    ("nm_cu_mem_handle", "CUmemGenericAllocationHandle", ()),
    ("nm_cu_context", "CUcontext", ()),
    ("nm_cu_uuid", "CUuuid", (("bytes", "bytes"),)),
    ("nm_cu_mem_location", "CUmemLocation", (("type", "type"), ("id", "id"))),
    ("nm_cu_mem_access_desc", "CUmemAccessDesc", (("location", "location"), ("flags", "flags"))),
    (
        "nm_cu_mem_allocation_prop",
        "CUmemAllocationProp",
        (
            ("type", "type"),
            ("requested_handle_types", "requestedHandleTypes"),
            ("location", "location"),
            ("win32_handle_meta_data", "win32HandleMetaData"),
            ("alloc_flags.compression_type", "allocFlags.compressionType"),
            ("alloc_flags.gpu_direct_rdma_capable", "allocFlags.gpuDirectRDMACapable"),
            ("alloc_flags.usage", "allocFlags.usage"),
        ),
    ),
    (
        "nm_cu_mem_pool_props",
        "CUmemPoolProps",
        (
            ("alloc_type", "allocType"),
            ("handle_types", "handleTypes"),
            ("location", "location"),
            ("win32_security_attributes", "win32SecurityAttributes"),
            ("max_size", "maxSize"),
            ("usage", "usage"),
        ),
    ),
    ("nm_cu_mem_pool_ptr_export", "CUmemPoolPtrExportData", ()),
    ("nm_cu_ipc_mem_handle", "CUipcMemHandle", ()),
    (
        "nm_cu_array_descriptor",
        "CUDA_ARRAY_DESCRIPTOR",
        (
            ("width", "Width"),
            ("height", "Height"),
            ("format", "Format"),
            ("num_channels", "NumChannels"),
        ),
    ),
    (
        "nm_cu_array3d_descriptor",
        "CUDA_ARRAY3D_DESCRIPTOR",
        (
            ("width", "Width"),
            ("height", "Height"),
            ("depth", "Depth"),
            ("format", "Format"),
            ("num_channels", "NumChannels"),
            ("flags", "Flags"),
        ),
    ),
    (
        "nm_cu_array_memory_requirements",
        "CUDA_ARRAY_MEMORY_REQUIREMENTS",
        (("size", "size"), ("alignment", "alignment")),
    ),
    (
        "nm_cu_array_sparse_properties",
        "CUDA_ARRAY_SPARSE_PROPERTIES",
        (
            ("tile_width", "tileExtent.width"),
            ("tile_depth", "tileExtent.depth"),
            ("miptail_first_level", "miptailFirstLevel"),
            ("miptail_size", "miptailSize"),
            ("flags", "flags"),
        ),
    ),
    (
        "nm_cu_array_map_info",
        "CUarrayMapInfo",
        (
            ("resource_type", "resourceType"),
            ("resource", "resource"),
            ("subresource_type", "subresourceType"),
            ("subresource.sparse_level.extent_depth", "subresource.sparseLevel.extentDepth"),
            ("subresource.miptail.size", "subresource.miptail.size"),
            ("mem_operation_type", "memOperationType"),
            ("mem_handle_type", "memHandleType"),
            ("mem_handle", "memHandle"),
            ("offset", "offset"),
            ("device_bit_mask", "deviceBitMask"),
            ("flags", "flags"),
        ),
    ),
    (
        "nm_cu_memcpy2d",
        "CUDA_MEMCPY2D",
        (
            ("src_memory_type", "srcMemoryType"),
            ("src_pitch", "srcPitch"),
            ("dst_memory_type", "dstMemoryType"),
            ("dst_host", "dstHost"),
            ("dst_device", "dstDevice"),
            ("width_bytes", "WidthInBytes"),
            ("height", "Height"),
        ),
    ),
    (
        "nm_cu_memcpy3d",
        "CUDA_MEMCPY3D",
        (
            ("src_memory_type", "srcMemoryType"),
            ("src_height", "srcHeight"),
            ("dst_x_bytes", "dstXInBytes"),
            ("dst_device", "dstDevice"),
            ("dst_height", "dstHeight"),
            ("depth", "Depth"),
        ),
    ),
    (
        "nm_cu_external_memory_handle_desc",
        "CUDA_EXTERNAL_MEMORY_HANDLE_DESC",
        (("type", "type"), ("handle.fd", "handle.fd"), ("size", "size"), ("flags", "flags")),
    ),
    (
        "nm_cu_external_memory_buffer_desc",
        "CUDA_EXTERNAL_MEMORY_BUFFER_DESC",
        (("offset", "offset"), ("size", "size"), ("flags", "flags")),
    ),
    (
        "nm_cu_external_memory_mipmapped_array_desc",
        "CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC",
        (("offset", "offset"), ("array_desc", "arrayDesc"), ("num_levels", "numLevels")),
    ),
    (
        "nm_cu_multicast_object_prop",
        "CUmulticastObjectProp",
        (
            ("num_devices", "numDevices"),
            ("size", "size"),
            ("handle_types", "handleTypes"),
            ("flags", "flags"),
        ),
    ),
    (
        "nm_cu_mem_alloc_node_params",
        "CUDA_MEM_ALLOC_NODE_PARAMS",
        (
            ("pool_props", "poolProps"),
            ("access_descs", "accessDescs"),
            ("access_desc_count", "accessDescCount"),
            ("bytesize", "bytesize"),
            ("dptr", "dptr"),
        ),
    ),
    (
        "nm_cu_graph_node_params",
        "CUgraphNodeParams",
        (
            ("type", "type"),
            ("as.alloc.bytesize", "alloc.bytesize"),
            ("as.alloc.dptr", "alloc.dptr"),
            ("as.free.dptr", "free.dptr"),
            ("as.graph.graph", "graph.graph"),
            ("reserved2", "reserved2"),
        ),
    ),
    (
        "nm_cu_graph_instantiate_params",
        "CUDA_GRAPH_INSTANTIATE_PARAMS",
        (
            ("flags", "flags"),
            ("upload_stream", "hUploadStream"),
            ("error_node", "hErrNode_out"),
            ("result", "result_out"),
        ),
    ),
    (
        "nm_cu_graph_exec_update_info",
        "CUgraphExecUpdateResultInfo",
        (("result", "result"), ("error_node", "errorNode"), ("error_from_node", "errorFromNode")),
    ),
    (
        "nm_cu_kernel_node_params",
        "CUDA_KERNEL_NODE_PARAMS_v2",
        (
            ("function", "func"),
            ("grid_x", "gridDimX"),
            ("block_z", "blockDimZ"),
            ("shared_mem_bytes", "sharedMemBytes"),
            ("arguments", "kernelParams"),
            ("extra", "extra"),
            ("kernel", "kern"),
            ("context", "ctx"),
        ),
    ),
    (
        "nm_cu_launch_config",
        "CUlaunchConfig",
        (
            ("grid_x", "gridDimX"),
            ("block_z", "blockDimZ"),
            ("shared_mem_bytes", "sharedMemBytes"),
            ("stream", "hStream"),
            ("attrs", "attrs"),
            ("num_attrs", "numAttrs"),
        ),
    ),
    (
        "nm_cu_device_properties",
        "CUdevprop",
        (
            ("max_threads_dim", "maxThreadsDim"),
            ("simd_width", "SIMDWidth"),
            ("texture_align", "textureAlign"),
        ),
    ),
)

NVML_LAYOUTS: tuple[Layout, ...] = (
    ("nm_nvml_device", "nvmlDevice_t", ()),
    ("nm_nvml_memory", "nvmlMemory_t", (("total", "total"), ("free", "free"), ("used", "used"))),
    (
        "nm_nvml_memory_v2",
        "nvmlMemory_v2_t",
        (
            ("version", "version"),
            ("total", "total"),
            ("reserved", "reserved"),
            ("free", "free"),
            ("used", "used"),
        ),
    ),
    (
        "nm_nvml_event_data",
        "nvmlEventData_t",
        (
            ("device", "device"),
            ("event_type", "eventType"),
            ("event_data", "eventData"),
            ("gpu_instance_id", "gpuInstanceId"),
            ("compute_instance_id", "computeInstanceId"),
        ),
    ),
    (
        "nm_nvml_bar1_memory",
        "nvmlBAR1Memory_t",
        (("bar1_total", "bar1Total"), ("bar1_free", "bar1Free"), ("bar1_used", "bar1Used")),
    ),
    (
        "nm_nvml_process_info_v1",
        "nvmlProcessInfo_v1_t",
        (("pid", "pid"), ("used_gpu_memory", "usedGpuMemory")),
    ),
    (
        "nm_nvml_process_info_v2",
        "nvmlProcessInfo_v2_t",
        (
            ("pid", "pid"),
            ("used_gpu_memory", "usedGpuMemory"),
            ("gpu_instance_id", "gpuInstanceId"),
            ("compute_instance_id", "computeInstanceId"),
        ),
    ),
    (
        "nm_nvml_process_detail",
        "nvmlProcessDetail_v1_t",
        (
            ("pid", "pid"),
            ("used_gpu_memory", "usedGpuMemory"),
            ("used_gpu_cc_protected_memory", "usedGpuCcProtectedMemory"),
        ),
    ),
    (
        "nm_nvml_process_detail_list",
        "nvmlProcessDetailList_v1_t",
        (
            ("version", "version"),
            ("mode", "mode"),
            ("num_entries", "numProcArrayEntries"),
            ("entries", "procArray"),
        ),
    ),
    ("nm_nvml_utilization", "nvmlUtilization_t", (("gpu", "gpu"), ("memory", "memory"))),
    (
        "nm_nvml_process_utilization_sample",
        "nvmlProcessUtilizationSample_t",
        (
            ("pid", "pid"),
            ("time_stamp_us", "timeStamp"),
            ("sm_percent", "smUtil"),
            ("mem_percent", "memUtil"),
            ("enc_percent", "encUtil"),
            ("dec_percent", "decUtil"),
        ),
    ),
    (
        "nm_nvml_sample",
        "nvmlSample_t",
        (("time_stamp_us", "timeStamp"), ("value", "sampleValue")),
    ),
    (
        "nm_nvml_process_utilization",
        "nvmlProcessUtilizationInfo_v1_t",
        (
            ("time_stamp_us", "timeStamp"),
            ("pid", "pid"),
            ("sm_percent", "smUtil"),
            ("ofa_percent", "ofaUtil"),
        ),
    ),
    (
        "nm_nvml_processes_utilization",
        "nvmlProcessesUtilizationInfo_v1_t",
        (
            ("version", "version"),
            ("count", "processSamplesCount"),
            ("last_seen_us", "lastSeenTimeStamp"),
            ("entries", "procUtilArray"),
        ),
    ),
    (
        "nm_nvml_uuid",
        "nvmlUUID_v1_t",
        (("version", "version"), ("type", "type"), ("text", "value")),
    ),
    (
        "nm_nvml_accounting_stats_v2",
        "nvmlAccountingStats_v2_t",
        (
            ("pid", "pid"),
            ("is_running", "isRunning"),
            ("max_memory_usage", "maxMemoryUsage"),
            ("sum_memory_utilization", "sumFbUtil"),
            ("start_time", "startTime"),
        ),
    ),
    (
        "nm_nvml_pci_info",
        "nvmlPciInfo_t",
        (
            ("bus_id_legacy", "busIdLegacy"),
            ("domain", "domain"),
            ("bus", "bus"),
            ("device", "device"),
            ("pci_device_id", "pciDeviceId"),
            ("pci_subsystem_id", "pciSubSystemId"),
            ("bus_id", "busId"),
        ),
    ),
    (
        "nm_nvml_temperature",
        "nvmlTemperature_v1_t",
        (("version", "version"), ("sensor_type", "sensorType"), ("temperature", "temperature")),
    ),
    (
        "nm_nvml_accounting_stats",
        "nvmlAccountingStats_t",
        (
            ("max_memory_usage", "maxMemoryUsage"),
            ("time", "time"),
            ("start_time", "startTime"),
            ("is_running", "isRunning"),
        ),
    ),
    (
        "nm_nvml_set_memory_limits",
        "nvmlSetMemoryLimits_v1_t",
        (("cgroup_path", "nameSpace"), ("soft_limit", "softLimit"), ("hard_limit", "hardLimit")),
    ),
    (
        "nm_nvml_get_memory_limits",
        "nvmlGetMemoryLimits_v1_t",
        (
            ("cgroup_path", "nameSpace"),
            ("hard_limit", "hardLimit"),
            ("current_used", "currentUsed"),
        ),
    ),
)

# Rows that a header may lack, because they are younger than the header: absent there, our row is
# not compared.
YOUNGER_THAN_SOME_HEADER = (
    "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
    "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
    "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
    "CUDA_ERROR_STREAM_DETACHED",
    "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE",
    "CUDA_ERROR_FABRIC_NOT_READY",
    "CU_MEM_ALLOCATION_TYPE_MANAGED",
    "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
    "CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD",
    "nvmlSetMemoryLimits_v1_t",
    "nvmlGetMemoryLimits_v1_t",
    "nvmlTemperature_v1_t",
    "nvmlUUID_v1_t",
    "NVML_UUID_TYPE_ASCII",
    "NVML_UUID_TYPE_BINARY",
    "nvmlAccountingStats_v2_t",
)


def _is_in(header_text: str, name: str) -> bool:
    present = re.search(rf"\b{name}\b", header_text) is not None
    assert present or name in YOUNGER_THAN_SOME_HEADER, f"{name} is in no header: misspelt?"
    return present


def _table(ours: str, macro: str) -> list[str]:
    """The names of the X-macro table `macro` of abi.h."""
    body = re.search(rf"#define {macro}\(X\) \\\n((?:.*\\\n)*.*\n)", ours)
    assert body is not None
    return re.findall(r"X\((\w+),", body.group(1))


def _assertions(header_text: str, constants: list[str], layouts: tuple[Layout, ...]) -> list[str]:
    lines = [
        f'_Static_assert((long long)NM_{name} == (long long){name}, "{name}");'
        for name in constants
        if _is_in(header_text, name)
    ]
    for ours, theirs, fields in layouts:
        if not _is_in(header_text, theirs):
            continue
        lines.append(f'_Static_assert(sizeof({ours}) == sizeof({theirs}), "sizeof {ours}");')
        for our_field, their_field in fields:
            same = f"offsetof({ours}, {our_field}) == offsetof({theirs}, {their_field})"
            lines.append(f'_Static_assert({same}, "offset of {ours}.{our_field}");')
            same = f"sizeof((({ours} *)0)->{our_field}) == sizeof((({theirs} *)0)->{their_field})"
            lines.append(f'_Static_assert({same}, "size of {ours}.{our_field}");')
    return lines


def _compile(
    directory: Path, header: Path, assertions: list[str]
) -> subprocess.CompletedProcess[str]:
    source = directory / "compare.c"
    source.write_text("\n".join([f'#include "{header}"', '#include "base/abi.h"', *assertions, ""]))
    command = ["cc", "-std=gnu11", "-fsyntax-only", f"-I{CSRC}", f"-I{header.parent}", str(source)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )


def _cases() -> list[object]:
    cases = []
    for name, tables, layouts in (
        ("cuda.h", ("NM_CU_RESULTS", "NM_CU_CONSTANTS"), DRIVER_LAYOUTS),
        ("nvml.h", ("NM_NVML_RESULTS", "NM_NVML_CONSTANTS"), NVML_LAYOUTS),
    ):
        found = headers.find(name)
        cases += [
            pytest.param(path, tables, layouts, id=f"{name}-{n}") for n, path in enumerate(found)
        ]
        if not found:
            skip = pytest.mark.skip(reason=headers.WHY_SKIPPED.format(name))
            cases.append(pytest.param(None, tables, layouts, id=name, marks=skip))
    return cases


@pytest.mark.frameworks
@pytest.mark.parametrize(("header", "tables", "layouts"), _cases())
def test_abi_agrees_with_the_vendors_header(
    header: Path, tables: tuple[str, ...], layouts: tuple[Layout, ...], tmp_path: Path
) -> None:
    ours = (CSRC / "base" / "abi.h").read_text()
    constants = [name for table in tables for name in _table(ours, table)]
    assertions = _assertions(header.read_text(), constants, layouts)

    assert len(assertions) > len(layouts)
    compiled = _compile(tmp_path, header, assertions)
    assert compiled.returncode == 0, compiled.stderr

    wrong = _compile(tmp_path, header, [assertions[0].replace("==", "!=")])
    assert wrong.returncode != 0, "the comparison cannot fail: it proves nothing"


def test_abi_needs_nothing_but_a_compiler(tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text(
        '#include "base/abi.h"\nint alone(void);\nint alone(void) { return'
        " NM_CUDA_ERROR_OUT_OF_MEMORY; }\n"
    )
    command = [
        "cc",
        "-std=gnu11",
        "-nostdinc++",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{CSRC}",
        "-c",
        str(source),
    ]
    command += ["-o", str(tmp_path / "alone.o")]
    compiled = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )
    assert compiled.returncode == 0, compiled.stderr
