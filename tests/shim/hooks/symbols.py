"""The effect of each function of the driver on device memory.

A new CUDA version must be entered into this table.

Knows: names, as cuGetProcAddress is asked for them (no _v2, no _ptsz). Must not know:
csrc/hooks/hooks.def, which test_symbols.py compares with this.

A function that allocates, frees, or tells figures needs a row in hooks.def for each of its exported
ABIs. The rest is neutral, for a reason. A reason names its functions one by one, or by a family
where no member could hold memory. A name that sounds like memory (SUSPECT) is never taken for a
family's member: it must be named, so that somebody has looked at it.
"""

from __future__ import annotations

import re

STARTS = {"cuInit", "cuGetProcAddress"}

ALLOCATES = {
    "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged",
    "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemPoolCreate",
    # a pool: the shim must know the owner of its memory
    "cuMemGetDefaultMemPool", "cuMemGetMemPool",
    "cuMemCreate", "cuMemMap", "cuMemMapArrayAsync", "cuMemRetainAllocationHandle",
    "cuMemImportFromShareableHandle",
    "cuMulticastCreate", "cuMulticastBindMem", "cuMulticastBindAddr",
    # these let it leave the process, and live there
    "cuMemExportToShareableHandle", "cuMemGetHandleForAddressRange",
    "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle",
    "cuArrayCreate", "cuArray3DCreate", "cuMipmappedArrayCreate",
    "cuGraphInstantiate", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams",
    "cuGraphUpload", "cuGraphLaunch",
    "cuCtxCreate", "cuGLCtxCreate", "cuVDPAUCtxCreate", "cuGreenCtxCreate",
    "cuDevicePrimaryCtxRetain", "cuCtxAttach", "cuCtxSetLimit",
    "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
    "cuLibraryLoadData", "cuLibraryLoadFromFile",
}  # fmt: skip

FREES = {
    "cuMemFree", "cuMemFreeAsync", "cuMemPoolDestroy", "cuMemPoolTrimTo", "cuMemPoolSetAttribute",
    # a pool gives back what lies above its threshold
    "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize",
    "cuMemRelease", "cuMemUnmap", "cuMulticastUnbind",
    "cuArrayDestroy", "cuMipmappedArrayDestroy",
    "cuGraphExecDestroy", "cuDeviceGraphMemTrim",
    "cuCtxDestroy", "cuCtxDetach", "cuGreenCtxDestroy", "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuModuleUnload", "cuLibraryUnload",
}  # fmt: skip

TELLS = {"cuMemGetInfo", "cuDeviceTotalMem"}

NEEDS_ROWS = STARTS | ALLOCATES | FREES | TELLS

SUSPECT = re.compile(
    r"Alloc|Free|Create|Destroy|Pool|Map|Import|Open|Close|Load|Trim|Limit|Reset|Attach|Detach|"
    r"Retain|Release|Instantiate|Bind|Clone"
    r"|Grow|Reserve|Trans|Restore|Checkpoint|Connect"
)

NEUTRAL: dict[str, str] = {
    # named one by one
    "host memory": "cuMemAllocHost|cuMemFreeHost|cuMemHostAlloc",
    "addresses, and a view of memory under another address: no memory":
        "cuMemAddressFree|cuMemAddressReserve|cuTensorMapReplaceAddress",
    "another process's memory: its exporter is charged":
        "cuIpcOpenMemHandle|cuIpcCloseMemHandle|cuImportExternalMemory|cuDestroyExternalMemory|"
        "cuMemPoolImportPointer|cuExternalMemoryGetMappedBuffer|"
        "cuExternalMemoryGetMappedMipmappedArray",
    "names of memory that keep nothing alive: what is freed by its exporter is gone for all":
        "cuIpcGetMemHandle|cuMemPoolExportPointer|cuIpcGetEventHandle",
    "which pool later calls take from: they look it up": "cuDeviceSetMemPool|cuMemSetMemPool",
    "questions about pools, loading, mapping and limits":
        "cuDeviceGetMemPool|cuDeviceGetDefaultMemPool|cuMemPoolGetAttribute|cuMemPoolGetAccess|"
        "cuMemPoolSetAccess|"
        "cuCtxGetLimit|cuModuleGetLoadingMode|cuFuncIsLoaded|cuMemGetAllocationGranularity|"
        "cuMemGetAllocationPropertiesFromHandle|cuGraphMemAllocNodeGetParams|"
        "cuGraphMemFreeNodeGetParams|cuLogicalEndpointGetLimits|"
        "cuGraphicsResourceGetMapped(EglFrame|MipmappedArray|Pointer)|"
        "cuGraphicsSubResourceGetMappedArray",
    "nodes of a graph: their memory is charged when the graph is launched":
        "cuGraphAddMemAllocNode|cuGraphAddMemFreeNode|cuGraphAddNode|cuGraphClone|"
        "cuGraphNodeFindInClone|cuGraphCreate|cuGraphDestroy|"
        "cuGraphDestroyNode|cuGraphConditionalHandleCreate|cuGraphRetainUserObject|"
        "cuGraphReleaseUserObject|cuUserObjectCreate|"
        "cuUserObjectRetain|cuUserObjectRelease",
    (
        "code within a module that is loaded, or about to be: its memory is the manager's "
        "correction"
        ): "cuFuncLoad",
    "linking is done on the host": "cuLinkCreate|cuLinkDestroy",
    "streams, events, semaphores: part of what a context takes":
        "cuStreamCreate|cuStreamCreateWithPriority|cuGreenCtxStreamCreate|cuStreamDestroy|"
        "cuEventCreate|cuEventDestroy|"
        "cuEventCreateFromEGLSync|cuImportExternalSemaphore|cuDestroyExternalSemaphore|"
        "cuIpcOpenEventHandle|cuStreamAttachMemAsync",
    "views of arrays and of linear memory": "cuTexObject(Create|Destroy)|cuSurfObject(Create|"
                                            "Destroy)|cuTexRef(Create|Destroy)|"
        "cuTexRef[GS]etMipmap(FilterMode|LevelBias|LevelClamp)|cuTexRef[GS]etMipmappedArray|"
        "cuMipmappedArrayGet\\w+|"
        "cuTensorMap(EncodeIm2col|EncodeIm2colWide|EncodeTiled|SetAllocationClass)",
    "graphics interoperation: its memory is the graphics driver's":
        "cuGraphics(Map|Unmap)Resources|cuGraphicsResourceSetMapFlags|cuGL(Map|"
        "Unmap)BufferObject(Async)?|cuGLSetBufferObjectMapFlags|"
        "cuEGLStream(Consumer|Producer)(Connect|Disconnect)|cuEGLStreamConsumerConnectWithFlags|"
        "cuEGLStreamConsumerReleaseFrame",
    (
        "a fabric's window on memory that is charged where it was created; what only it "
        "keeps alive is the manager's correction"
        ):
        "cuLogicalEndpoint(AddDevice|BindAddr|BindMem|Create|Destroy|Export|IdRelease|IdReserve|"
        "Import|Query|Unbind)",
    "memory is moved to the host and back: it stays charged, for it needs its place again":
        "cuCheckpointOperationComplete|"
        "cuCheckpointProcess(Checkpoint|GetRestoreThreadId|GetState|Lock|Restore|Unlock)",
    "caches, not memory": "cuCtxResetPersistingL2Cache",
    "which context is current; a green one's other name": "cuCtxFromGreenCtx",
    # families
    "copying and filling": r"cuMemcpy\w*|cuMemset\w+|cuFabricCpyBatchAsync|"
                           r"cuMemBatchDecompressAsync",
    (
        "managed memory's place: it is charged to the device where it was allocated, "
        "wherever its pages are"
        ):
        r"cuMemAdvise|cuMemPrefetch\w*Async|cuMemDiscard\w+",
    "questions and settings about memory":
        r"cuMemGet(Access|AddressRange|LocationInfo)|cuMemRangeGet\w+|cuMemSetAccess|"
        r"cuMemHost(Get\w+|Register|Unregister)|cuPointer\w+|cuMulticast(AddDevice|"
        r"GetGranularity)",
    "devices, errors, versions": r"cuDevice(Get\w*|CanAccessPeer|ComputeCapability|"
                                 r"SetGraphMemAttribute|PrimaryCtx(GetState|SetFlags)|"
        r"(Unr|R)egisterAsyncNotification)|cuDriverGetVersion|cuGet(Error\w+|ExportTable)|"
        r"cuFlushGPUDirectRDMAWrites",
    "contexts' settings":
        r"cuCtx(Get|Set|Push|Pop)\w+|cuCtx(En|Dis)ablePeerAccess|cuCtx(Record|Wait)Event|"
        r"cuGreenCtx(Get\w+|RecordEvent|WaitEvent)|"
        r"cuDev(Sm)?Resource\w+",
    "running": r"cuLaunch\w*|cuFunc(Get|Set)\w+|cuKernel\w+|cuParamSet\w+|cuOccupancy\w+|"
               r"cuThreadExchangeStreamCaptureMode",
    "modules' contents": r"cuModule(Get|Enumerate)\w+|cuLibrary(Get|Enumerate)\w+|cuLink(AddData|"
                         r"AddFile|Complete)",
    "streams and events": r"cuStream(?!Synchronize)\w+|cuEvent(Record\w*|Query|ElapsedTime)|"
                          r"cu(Signal|Wait)ExternalSemaphoresAsync",
    "graphs without memory": r"cuGraph(Add|Remove|Get|Node|Debug|Kernel|Memcpy|Memset|Host|Event|"
                             r"BatchMem|Child|External|Exec)\w+",
    "textures, surfaces": r"cu(Tex|Surf)(Ref|Object)(Get|Set)\w+|cuArray(3D)?Get\w+",
    "graphics": r"cuGraphics(Unregister|GL|EGL|VDPAU)\w+|cu(GL|VDPAU|WGL)(Get|Init|Unregister|"
                r"Register)\w*|cuEGLStream\w+",
    "tools": r"cuProfiler\w+|cuCoredump\w+|cuLogs\w+",
}  # fmt: skip


def base_of(symbol: str) -> str:
    """cuMemcpyDtoH for cuMemcpyDtoH_v2_ptds."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


def is_named(base: str, pattern: str) -> bool:
    """By itself, not as one of a family."""
    return any(r"\w" not in part and re.fullmatch(part, base) for part in alternatives(pattern))


def alternatives(pattern: str) -> list[str]:
    """The parts of a|(b|c)d: a and (b|c)d."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
    return [*parts, pattern[start:]]


def reasons(base: str) -> list[str]:
    """Why it needs no row: one reason; none: it was not examined yet."""
    named = [reason for reason, pattern in NEUTRAL.items() if is_named(base, pattern)]
    if named or SUSPECT.search(base):
        return named
    return [reason for reason, pattern in NEUTRAL.items() if re.fullmatch(pattern, base)]
