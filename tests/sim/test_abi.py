"""csrc/base/abi.h and csrc/sim/abi against NVIDIA's headers: each constant, size and offset.

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

# A row is our type, theirs, and fields; an indented line goes on with the row above it. A field has
# our name, and the same in camel case there, or else `ours=theirs`. A row without fields compares
# sizes alone.
DRIVER_LAYOUTS = """
nm_cu_device CUdevice
nm_cu_deviceptr CUdeviceptr
nm_cu_mem_handle CUmemGenericAllocationHandle
nm_cu_context CUcontext
nm_cu_uuid CUuuid bytes
nm_cu_mem_location CUmemLocation type id
nm_cu_mem_access_desc CUmemAccessDesc location flags
nm_cu_mem_allocation_prop CUmemAllocationProp type requested_handle_types location
    win32_handle_meta_data alloc_flags.compression_type
    alloc_flags.gpu_direct_rdma_capable=allocFlags.gpuDirectRDMACapable alloc_flags.usage
nm_cu_mem_pool_props CUmemPoolProps alloc_type handle_types location win32_security_attributes
    max_size usage
nm_cu_mem_pool_ptr_export CUmemPoolPtrExportData
nm_cu_ipc_mem_handle CUipcMemHandle
nm_cu_array_descriptor CUDA_ARRAY_DESCRIPTOR width=Width height=Height format=Format
    num_channels=NumChannels
nm_cu_array3d_descriptor CUDA_ARRAY3D_DESCRIPTOR width=Width height=Height depth=Depth
    format=Format num_channels=NumChannels flags=Flags
nm_cu_array_memory_requirements CUDA_ARRAY_MEMORY_REQUIREMENTS size alignment
nm_cu_array_sparse_properties CUDA_ARRAY_SPARSE_PROPERTIES tile_width=tileExtent.width
    tile_depth=tileExtent.depth miptail_first_level miptail_size flags
nm_cu_array_map_info CUarrayMapInfo resource_type resource subresource_type
    subresource.sparse_level.extent_depth subresource.miptail.size mem_operation_type
    mem_handle_type mem_handle offset device_bit_mask flags
nm_cu_memcpy2d CUDA_MEMCPY2D src_memory_type src_pitch dst_memory_type dst_host dst_device
    width_bytes=WidthInBytes height=Height
nm_cu_memcpy3d CUDA_MEMCPY3D src_memory_type src_height dst_x_bytes=dstXInBytes dst_device
    dst_height depth=Depth
nm_cu_external_memory_handle_desc CUDA_EXTERNAL_MEMORY_HANDLE_DESC type handle.fd size flags
nm_cu_external_memory_buffer_desc CUDA_EXTERNAL_MEMORY_BUFFER_DESC offset size flags
nm_cu_external_memory_mipmapped_array_desc CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC offset
    array_desc num_levels
nm_cu_multicast_object_prop CUmulticastObjectProp num_devices size handle_types flags
nm_cu_mem_alloc_node_params CUDA_MEM_ALLOC_NODE_PARAMS pool_props access_descs access_desc_count
    bytesize dptr
nm_cu_graph_node_params CUgraphNodeParams type as.alloc.bytesize=alloc.bytesize
    as.alloc.dptr=alloc.dptr as.free.dptr=free.dptr as.graph.graph=graph.graph reserved2
nm_cu_graph_instantiate_params CUDA_GRAPH_INSTANTIATE_PARAMS flags upload_stream=hUploadStream
    error_node=hErrNode_out result=result_out
nm_cu_graph_exec_update_info CUgraphExecUpdateResultInfo result error_node error_from_node
nm_cu_kernel_node_params CUDA_KERNEL_NODE_PARAMS_v2 function=func grid_x=gridDimX
    block_z=blockDimZ shared_mem_bytes arguments=kernelParams extra kernel=kern context=ctx
nm_cu_launch_config CUlaunchConfig grid_x=gridDimX block_z=blockDimZ shared_mem_bytes
    stream=hStream attrs num_attrs
nm_cu_device_properties CUdevprop max_threads_dim simd_width=SIMDWidth texture_align
"""

NVML_LAYOUTS = """
nm_nvml_device nvmlDevice_t
nm_nvml_memory nvmlMemory_t total free used
nm_nvml_memory_v2 nvmlMemory_v2_t version total reserved free used
nm_nvml_event_data nvmlEventData_t device event_type event_data gpu_instance_id
    compute_instance_id
nm_nvml_bar1_memory nvmlBAR1Memory_t bar1_total bar1_free bar1_used
nm_nvml_process_info_v1 nvmlProcessInfo_v1_t pid used_gpu_memory
nm_nvml_process_info_v2 nvmlProcessInfo_v2_t pid used_gpu_memory gpu_instance_id
    compute_instance_id
nm_nvml_process_detail nvmlProcessDetail_v1_t pid used_gpu_memory used_gpu_cc_protected_memory
nm_nvml_process_detail_list nvmlProcessDetailList_v1_t version mode
    num_entries=numProcArrayEntries entries=procArray
nm_nvml_utilization nvmlUtilization_t gpu memory
nm_nvml_process_utilization_sample nvmlProcessUtilizationSample_t pid time_stamp_us=timeStamp
    sm_percent=smUtil mem_percent=memUtil enc_percent=encUtil dec_percent=decUtil
nm_nvml_sample nvmlSample_t time_stamp_us=timeStamp value=sampleValue
nm_nvml_process_utilization nvmlProcessUtilizationInfo_v1_t time_stamp_us=timeStamp pid
    sm_percent=smUtil ofa_percent=ofaUtil
nm_nvml_processes_utilization nvmlProcessesUtilizationInfo_v1_t version count=processSamplesCount
    last_seen_us=lastSeenTimeStamp entries=procUtilArray
nm_nvml_uuid nvmlUUID_v1_t version type text=value
nm_nvml_accounting_stats_v2 nvmlAccountingStats_v2_t pid is_running max_memory_usage
    sum_memory_utilization=sumFbUtil start_time
nm_nvml_pci_info nvmlPciInfo_t bus_id_legacy domain bus device pci_device_id
    pci_subsystem_id=pciSubSystemId bus_id
nm_nvml_temperature nvmlTemperature_v1_t version sensor_type temperature
nm_nvml_accounting_stats nvmlAccountingStats_t max_memory_usage time start_time is_running
nm_nvml_set_memory_limits nvmlSetMemoryLimits_v1_t cgroup_path=nameSpace soft_limit hard_limit
nm_nvml_get_memory_limits nvmlGetMemoryLimits_v1_t cgroup_path=nameSpace hard_limit current_used
"""

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


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _assertions(header_text: str, constants: list[str], layouts: str) -> list[str]:
    lines = [
        f'_Static_assert((long long)NM_{name} == (long long){name}, "{name}");'
        for name in constants
        if _is_in(header_text, name)
    ]
    for row in layouts.replace("\n    ", " ").split("\n"):
        ours, theirs, *fields = row.split() or ("", "")
        if not ours or not _is_in(header_text, theirs):
            continue
        lines.append(f'_Static_assert(sizeof({ours}) == sizeof({theirs}), "sizeof {ours}");')
        for field in fields:
            our_field, _, their_field = field.partition("=")
            their_field = their_field or _camel_case(our_field)
            same = f"offsetof({ours}, {our_field}) == offsetof({theirs}, {their_field})"
            lines.append(f'_Static_assert({same}, "offset of {ours}.{our_field}");')
            same = f"sizeof((({ours} *)0)->{our_field}) == sizeof((({theirs} *)0)->{their_field})"
            lines.append(f'_Static_assert({same}, "size of {ours}.{our_field}");')
    return lines


def _compile(
    directory: Path, header: Path, assertions: list[str]
) -> subprocess.CompletedProcess[str]:
    source = directory / "compare.c"
    includes = [f'#include "{header}"', '#include "sim/abi/abi.h"']
    source.write_text("\n".join([*includes, *assertions, ""]))
    command = ["cc", "-std=gnu11", "-fsyntax-only", f"-I{CSRC}", f"-I{header.parent}", str(source)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )


def _cases() -> list[object]:
    cases = []
    for name, part, layouts in (
        ("cuda.h", "CU", DRIVER_LAYOUTS),
        ("nvml.h", "NVML", NVML_LAYOUTS),
    ):
        found = headers.find(name)
        cases += [
            pytest.param(path, part, layouts, id=f"{name}-{n}") for n, path in enumerate(found)
        ]
        if not found:
            skip = pytest.mark.skip(reason=headers.WHY_SKIPPED.format(name))
            cases.append(pytest.param(None, part, layouts, id=name, marks=skip))
    return cases


@pytest.mark.frameworks
@pytest.mark.parametrize(("header", "part", "layouts"), _cases())
def test_abi_agrees_with_the_vendors_header(
    header: Path, part: str, layouts: str, tmp_path: Path
) -> None:
    constants = [
        name
        for place, prefix in (("base", "NM_"), ("sim/abi", "NM_SIM_"))
        for table in ("RESULTS", "CONSTANTS")
        for name in _table((CSRC / place / "abi.h").read_text(), f"{prefix}{part}_{table}")
    ]
    assertions = _assertions(header.read_text(), constants, layouts)

    assert len(assertions) > 2 * layouts.count("\n")
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
