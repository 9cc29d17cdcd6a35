"""A node without hardware: creates it, breaks it, and reads its books.

Used by `nodemgr serve --simulate` and by tests.

Knows: the directory of a simulated node (the two libraries that clients load, and the state file
that all processes share), and the control library, through ctypes. Must not know: the manager, the
shim, what a client does.

Clients run on the node with its directory first in LD_LIBRARY_PATH; a process may name the group
that it counts in with NODEMGR_SIM_GROUP. Sizes are bytes.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client_plugin.messages.form import SpokenError
from client_plugin.units import UnitError, parse_node

CLIENT_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
CONTROL_LIBRARY = "libnodesim.so"
STATE_FILE = "node.state"

MEBIBYTE = 1 << 20
MAX_DEVICES = 16
MEMORY_LIMIT_BYTES = 1 << 40

MEASURED = (1 << 32) - 1
"""A device's utilisation, where it is not set."""
POLICIES = ("time-slicing", "fifo")
DOUBLE_BIT_ECC_EVENT, XID_EVENT = 0x2, 0x8
"""Event types of NVML."""

_MOST_PROCESSES = 1024
_MOST_SEATS = 64


class SimulatorError(SpokenError):
    """One line: what happened, and what to do about it."""


class NodeInUse(SimulatorError):
    """A node cannot be replaced: clients live on it, or a process has a handle to it."""


@dataclass(frozen=True)
class ProcessBooks:
    """The memory that one living process holds on one device.

    `pid` is as seen from here; -1 if it is not visible from here.
    """

    pid: int
    used_bytes: int
    contexts: int
    kind_bytes: dict[str, int]


@dataclass(frozen=True)
class DeviceBooks:
    """One device: its living processes' memory, and the peak of their sum since the last reset."""

    index: int
    uuid: str
    total_bytes: int
    reserved_bytes: int
    used_bytes: int
    peak_bytes: int
    lost: bool
    processes: tuple[ProcessBooks, ...]

    def of(self, pid: int) -> ProcessBooks | None:
        """The process's part, None where it holds nothing."""
        return next((process for process in self.processes if process.pid == pid), None)


@dataclass(frozen=True)
class GpuModel:
    """A row of csrc/sim/node/models.def. The rates are peaks."""

    number: int
    word: str
    """The word of `--simulate 2xWORD`."""
    name: str
    memory_bytes: int
    """0: a device of this model has any size."""
    capability: tuple[int, int]
    multiprocessors: int
    flops: int
    """FP32."""
    tensor_flops: int
    """FP16, dense."""
    memory_bytes_per_s: int
    host_bytes_per_s: int
    """One direction of the bus."""


@dataclass(frozen=True)
class SimulatedGpu:
    """One device of a node to be made: a model's word, and the memory that NVML reports."""

    memory_bytes: int
    model: str = "any"


@dataclass(frozen=True)
class GpuTimes:
    """The time for which kernels ran on a device, up to now."""

    busy_ns: int
    """Of all processes, also of those that have ended."""
    by_pid: dict[int, int]
    waiting: dict[int, int]
    """The number of kernels of a process that have not ended."""
    launched: dict[int, int]
    """The number of kernels that a living process has launched; a graph counts once."""


class _DeviceShape(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_ubyte * 16),
        ("model", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint64),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("reserved_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("module_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char * 64),
        ("devices", _DeviceShape * MAX_DEVICES),
    )


class _ProcessTime(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("waiting", ctypes.c_uint32),
        ("busy_ns", ctypes.c_uint64),
        ("launched", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("memory_bytes", ctypes.c_uint64),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("flops", ctypes.c_uint64),
        ("tensor_flops", ctypes.c_uint64),
        ("memory_bytes_per_s", ctypes.c_uint64),
        ("host_bytes_per_s", ctypes.c_uint64),
    )


class _SimulatedDevice(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 48),
        ("pci_bus", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("used_bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("faults", ctypes.c_uint32 * 16),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("contexts", ctypes.c_uint32),
        ("used_bytes", ctypes.c_uint64),
        ("kind_bytes", ctypes.c_uint64 * 16),
    )


def library_directory() -> Path:
    """The directory of the built libraries."""
    return Path(__file__).resolve().parent / "_sim"


@functools.cache
def _library() -> ctypes.CDLL:
    path = library_directory() / CONTROL_LIBRARY
    if not path.exists():
        raise SimulatorError(
            f"the simulator is not built, since {path} is missing",
            "install the project, or run `python -m csrc.build`",
        )
    library = ctypes.CDLL(str(path))
    for function in ("nm_sim_kind_name", "nm_sim_fault_name"):
        getattr(library, function).restype = ctypes.c_char_p
    library.nm_sim_close.restype = None
    return library


@functools.cache
def models() -> dict[str, GpuModel]:
    """The known GPU models by their words; `any` is a device of any size."""
    known: dict[str, GpuModel] = {}
    row = _Model()
    while _library().nm_sim_read_model(len(known), ctypes.byref(row)) == 0:
        word = row.model.decode()
        known[word] = GpuModel(
            number=len(known),
            word=word,
            name=row.name.decode(),
            memory_bytes=row.memory_bytes,
            capability=(row.major, row.minor),
            multiprocessors=row.multiprocessors,
            flops=row.flops,
            tensor_flops=row.tensor_flops,
            memory_bytes_per_s=row.memory_bytes_per_s,
            host_bytes_per_s=row.host_bytes_per_s,
        )
    return known


def _names(function: str) -> tuple[str, ...]:
    """The control library's list of names, which stands in C alone."""
    answers = (getattr(_library(), function)(number) for number in range(16))
    return tuple(name.decode() for name in answers if name is not None)


def _check(error: int, what: str) -> None:
    if error == errno.EBUSY:
        raise NodeInUse(
            f"{what}: the node there is in use",
            "end its clients and its manager first, or open it instead",
        )
    if error == errno.ENOENT:
        raise SimulatorError(
            f"{what}: there is no simulated node", "start a manager with --simulate first"
        )
    if error != 0:
        raise SimulatorError(
            f"{what}: {os.strerror(error)}",
            "name another --run-dir if the disk or its rights are the reason",
        )


def _uuid(directory: Path, index: int) -> bytes:
    """Stable for a place: a node that is created anew there has the devices it had."""
    return hashlib.sha256(f"{directory.resolve()}/{index}".encode()).digest()[:16]


def _install_libraries(directory: Path) -> None:
    for name in CLIENT_LIBRARIES:
        fresh = directory / f".{name}.{os.getpid()}"
        shutil.copy(library_directory() / name, fresh)
        fresh.replace(directory / name)  # running clients keep the file that they have mapped


class SimulatedNode:
    """A handle to a node; the node lives on without it. Also a context manager."""

    def __init__(self, directory: Path) -> None:
        """Use `create` or `open`."""
        self.directory = directory
        self._handle: ctypes.c_void_p | None = None
        self._kinds = _names("nm_sim_kind_name")
        self._faults = _names("nm_sim_fault_name")

    @classmethod
    def open(cls, directory: Path) -> SimulatedNode:
        """The node that is in `directory`.

        SimulatorError where there is none, or one of another build.
        """
        node = cls(directory)
        handle = ctypes.c_void_p()
        path = os.fsencode(directory / STATE_FILE)
        _check(_library().nm_sim_open(path, ctypes.byref(handle)), f"open {directory}")
        node._handle = handle
        return node

    def close(self) -> None:
        if self._handle is not None:
            _library().nm_sim_close(self._handle)
            self._handle = None

    def __enter__(self) -> SimulatedNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self, group: str | None = None) -> dict[str, str]:
        """The variables that a client needs beside its own.

        `group` is the set of processes that it counts in.
        """
        before = os.environ.get("LD_LIBRARY_PATH")
        path = f"{self.directory.resolve()}:{before}" if before else str(self.directory.resolve())
        return {"LD_LIBRARY_PATH": path} | ({"NODEMGR_SIM_GROUP": group} if group else {})

    # -- reading --

    def _shape(self) -> _Shape:
        shape = _Shape()
        self._call("nm_sim_shape_of", ctypes.byref(shape))
        return shape

    @property
    def count(self) -> int:
        return int(self._shape().count)

    @property
    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """The devices, as the node was made."""
        shape, words = self._shape(), tuple(models())
        rows = shape.devices[: shape.count]
        return tuple(SimulatedGpu(int(row.memory_bytes), words[row.model]) for row in rows)

    def times(self, index: int) -> GpuTimes:
        """The device's kernels, of all processes and of each living one."""
        rows = (_ProcessTime * _MOST_SEATS)()
        busy, count = ctypes.c_uint64(), ctypes.c_uint32()
        self._call(
            "nm_sim_read_times", index, ctypes.byref(busy), rows, _MOST_SEATS, ctypes.byref(count)
        )
        present = rows[: count.value]
        return GpuTimes(
            busy.value,
            {row.pid: row.busy_ns for row in present},
            {row.pid: row.waiting for row in present},
            {row.pid: row.launched for row in present},
        )

    def books(self) -> tuple[DeviceBooks, ...]:
        """Every device, with the living processes that hold something of it."""
        shape = self._shape()
        return tuple(self._device_books(shape, index) for index in range(shape.count))

    def group(self, index: int, name: str) -> tuple[int, int]:
        """(now, peak) of the explicit allocations of a group's processes.

        Contexts and modules are left out.
        """
        used, peak = ctypes.c_uint64(), ctypes.c_uint64()
        self._call(
            "nm_sim_read_group", index, name.encode(), ctypes.byref(used), ctypes.byref(peak)
        )
        return used.value, peak.value

    def _device_books(self, shape: _Shape, index: int) -> DeviceBooks:
        device = _SimulatedDevice()
        self._call("nm_sim_read_device", index, ctypes.byref(device))
        return DeviceBooks(
            index=index,
            uuid=device.uuid.decode(),
            total_bytes=int(shape.devices[index].memory_bytes),
            reserved_bytes=int(shape.reserved_bytes),
            used_bytes=device.used_bytes,
            peak_bytes=device.peak_bytes,
            lost=bool(device.faults[self._faults.index("lost")]),
            processes=tuple(self._process_books(process) for process in self._processes(index)),
        )

    def _processes(self, index: int) -> list[_Process]:
        rows = (_Process * _MOST_PROCESSES)()
        count = ctypes.c_uint32()
        self._call(
            "nm_sim_read_processes", index, ctypes.byref(rows), _MOST_PROCESSES, ctypes.byref(count)
        )
        return rows[: count.value]

    def _process_books(self, row: _Process) -> ProcessBooks:
        kinds = {
            kind: int(row.kind_bytes[number])
            for number, kind in enumerate(self._kinds)
            if row.kind_bytes[number]
        }
        return ProcessBooks(
            pid=row.pid, used_bytes=row.used_bytes, contexts=row.contexts, kind_bytes=kinds
        )

    def reset_peaks(self) -> None:
        """Begins the peaks anew."""
        self._call("nm_sim_reset_peaks")

    # -- breaking --

    def lose(self, index: int) -> None:
        """The device falls off the bus.

        A context there is lost for good, even if the device comes back.
        """
        self._call("nm_sim_lose", index)
        self._touch()

    def raise_xid(self, index: int, xid: int) -> None:
        """The driver reports this XID of the device to all that wait for its events."""
        self._raise(index, XID_EVENT, xid)

    def raise_ecc_error(self, index: int) -> None:
        """The driver reports an uncorrectable error of the device's memory."""
        self._raise(index, DOUBLE_BIT_ECC_EVENT, 0)

    def _raise(self, index: int, kind: int, data: int) -> None:
        if not 0 <= data < 1 << 32:
            raise ValueError(f"event data {data} is not in 0 .. 2^32 - 1")
        self._call("nm_sim_raise", index, kind, ctypes.c_uint64(data))

    def restore(self, index: int) -> None:
        """The device is back, for new contexts."""
        self._set(index, "lost", 0)
        self._touch()

    def _touch(self) -> None:
        """Wake the watchers of the node's file: a device has changed."""
        os.utime(self.directory / STATE_FILE)

    def fail_next(self, index: int, count: int) -> None:
        """Refuse the next `count` allocations on the device, of any process; 0 ends that."""
        self._set(index, "fail_next", count)

    def fail_checkpoints(self, count: int) -> None:
        """The next `count` checkpoints of processes find no host memory; 0 ends that."""
        self._set(0, "fail_checkpoints", count)

    def set_latency(self, index: int, latency_us: int) -> None:
        """Every allocation on the device takes so much longer."""
        self._set(index, "latency_us", latency_us)

    def set_utilisation(self, index: int, gpu_percent: int | None, memory_percent: int = 0) -> None:
        """Set the utilisation that NVML reports for the device.

        None: the share of time in which kernels ran, as at first.
        """
        self._set(index, "utilization_percent", MEASURED if gpu_percent is None else gpu_percent)
        self._set(index, "memory_utilization_percent", memory_percent)

    def set_scheduling(self, index: int, policy: str, slice_us: int = 2_000) -> None:
        """Set how processes share the device: one of POLICIES, from now on.

        `time-slicing`: by turns of `slice_us`. `fifo`: kernel by kernel, as they were launched.
        """
        if policy not in POLICIES:
            raise ValueError(f"{policy!r} is no policy: one of {', '.join(POLICIES)}")
        if slice_us < 1:
            raise ValueError(f"a slice of {slice_us} us is too short: at least 1")
        self._set(index, "slice_us", slice_us)
        self._set(index, "scheduling", POLICIES.index(policy))

    def set_kernel_time(self, index: int, wave_ns: int) -> None:
        """Set the time of a kernel with one block for each multiprocessor; at first 1 us.

        A kernel with up to twice as many takes twice as long, and so on.
        """
        self._set(index, "wave_ns", wave_ns)

    def set_temperature(self, index: int, temperature_c: int) -> None:
        """Set the temperature that NVML reports for the device."""
        self._set(index, "temperature_celsius", temperature_c)

    def set_power(self, index: int, power_w: float) -> None:
        """Set the power that NVML reports for the device."""
        self._set(index, "power_milliwatts", round(power_w * 1_000))

    def _set(self, index: int, fault: str, value: int) -> None:
        if not 0 <= value < 1 << 32:
            raise ValueError(f"{fault}: {value} is not in 0 .. 2^32 - 1")
        self._call("nm_sim_set_fault", index, self._faults.index(fault), value)

    def _call(self, function: str, *arguments: object) -> None:
        if self._handle is None:
            raise SimulatorError(
                f"{self.directory}: the handle of the simulated node is closed", "open it again"
            )
        _check(
            getattr(_library(), function)(self._handle, *arguments),
            f"{function} on {self.directory}",
        )


def parse_gpus(text: str) -> tuple[SimulatedGpu, ...]:
    """The devices of `4x80GiB`, or of `2xA100-80GiB,2xT4-16GiB`. Raises UnitError."""
    gpus: list[SimulatedGpu] = []
    known = {word.lower(): model for word, model in models().items() if model.memory_bytes}
    for part in text.split(","):
        count, _, word = part.strip().partition("x")
        model = known.get(word.strip().lower())
        if model is not None:
            number, _ = parse_node(f"{count}x1GiB")
            gpus.extend([SimulatedGpu(model.memory_bytes, model.word)] * number)
        elif word[:1].isalpha():
            words = ", ".join(each.word for each in known.values())
            raise UnitError(f"{part.strip()[:40]!r}: unknown GPU model; the known ones: {words}")
        else:
            number, memory_bytes = parse_node(part[:40])
            gpus.extend([SimulatedGpu(memory_bytes)] * number)
        if len(gpus) > MAX_DEVICES:
            raise UnitError(f"{text[:40]!r}: a node has 1 to {MAX_DEVICES} GPUs")
    return tuple(gpus)


def create(
    directory: Path,
    count: int,
    memory_bytes: int,
    name: str = "",
    *,
    reserved_bytes: int = 0,
    context_bytes: int = 64 * MEBIBYTE,
    module_bytes: int = 2 * MEBIBYTE,
    driver_version: int = 0,
) -> SimulatedNode:
    """A new node of `count` equal devices of `memory_bytes`; see `create_of`."""
    return create_of(
        directory,
        [SimulatedGpu(memory_bytes)] * count,
        name,
        reserved_bytes=reserved_bytes,
        context_bytes=context_bytes,
        module_bytes=module_bytes,
        driver_version=driver_version,
    )


def create_of(
    directory: Path,
    gpus: Sequence[SimulatedGpu],
    name: str = "",
    *,
    reserved_bytes: int = 0,
    context_bytes: int = 64 * MEBIBYTE,
    module_bytes: int = 2 * MEBIBYTE,
    driver_version: int = 0,
) -> SimulatedNode:
    """A new node in `directory` (made if need be), in place of an unused one.

    No process can have the `reserved_bytes` of each device. A context costs `context_bytes` of its
    device, a module `module_bytes`. `driver_version`: of CUDA, 12040 for 12.4; younger calls are
    absent, such as those of checkpoints before 12080. `name`: of the devices, in place of their
    models'.
    SimulatorError: a node there is still in use.
    """
    count = len(gpus)
    if not 1 <= count <= MAX_DEVICES:
        raise SimulatorError(
            f"a simulated node must have 1 to {MAX_DEVICES} devices, not {count}", code="usage"
        )
    for gpu in gpus:
        if not 0 < gpu.memory_bytes < MEMORY_LIMIT_BYTES:
            raise SimulatorError(
                "a simulated device must have less than 1 TiB and more than nothing, not "
                f"{gpu.memory_bytes} bytes",
                code="usage",
            )
    directory.mkdir(parents=True, exist_ok=True)
    encoded = name.encode()[:63]
    shape = _Shape(count, driver_version, reserved_bytes, context_bytes, module_bytes, encoded)
    for index, gpu in enumerate(gpus):
        uuid = (ctypes.c_ubyte * 16)(*_uuid(directory, index))
        shape.devices[index] = _DeviceShape(uuid, models()[gpu.model].number, 0, gpu.memory_bytes)
    path = os.fsencode((directory / STATE_FILE).resolve())  # a link there stays
    _check(
        _library().nm_sim_create(path, ctypes.byref(shape)),
        f"create {count} devices in {directory}",
    )
    _install_libraries(directory)
    return SimulatedNode.open(directory)


def open_or_create(directory: Path, gpus: Sequence[SimulatedGpu]) -> SimulatedNode:
    """The node in `directory` if it has these devices, else a new one, for a restarted manager.

    Containers have mounted the very state file, so a node that can stay does. SimulatorError where
    clients live on a node of another shape.
    """
    present, other = _open_if_usable(directory), "another build"
    if present is not None:
        if present.gpus == tuple(gpus):
            _install_libraries(directory)
            return present
        other = describe(present.gpus)
        present.close()
    try:
        return create_of(directory, gpus)
    except NodeInUse:
        raise SimulatorError(
            f"{directory}: clients still use a node of {other}", "end them, or simulate that one"
        ) from None


def describe(gpus: Sequence[SimulatedGpu]) -> str:
    """`2 devices of 1073741824 bytes, 1 T4-16GiB`."""
    words = []
    for gpu, equal in itertools.groupby(gpus):
        count = len(list(equal))
        words.append(
            f"{count} devices of {gpu.memory_bytes} bytes"
            if gpu.model == "any"
            else f"{count} {gpu.model}"
        )
    return ", ".join(words)


def _open_if_usable(directory: Path) -> SimulatedNode | None:
    try:
        return SimulatedNode.open(directory)
    except SimulatorError:  # none, or one of another build
        return None
