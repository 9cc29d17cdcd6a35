"""The device gates in the kernel, an env's or the node's: its map and its program, pinned.

They outlive the process that made them.

Knows: csrc/manager/gate.h, the BPF file system. Must not know: GPUs, leases, containers. Cheap to
import.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from nodemgr._native import ffi, lib
from nodemgr.edge.kernel.device_nodes import DeviceNode

BPF_FS = Path("/sys/fs/bpf")
MAP, PROGRAM = "map", "program"


def pin_directory(run_dir: Path) -> Path:
    """The pins of the manager of this run directory; another manager has others."""
    return BPF_FS / f"nodemgr-{hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:16]}"


def env_pins(run_dir: Path, env: str) -> Path:
    """A BPF file system takes no dots in names."""
    return pin_directory(run_dir) / env.replace(".", "%")


def node_pins(run_dir: Path) -> Path:
    """Beside those of the envs, because an env may have any name."""
    directory = pin_directory(run_dir)
    return directory.with_name(f"{directory.name}-node")


class PlacedDevice(NamedTuple):
    """A device node for the processes of one cgroup."""

    cgroup: int
    """The inode of its directory."""
    major: int
    minor: int


def pinned_envs(run_dir: Path) -> list[Path]:
    """The env_pins() that are there.

    systemd mounts the BPF file system with mode 0700 for root: a manager that may not enter it, an
    ordinary user's or one in a user namespace, has never pinned anything there.
    """
    try:
        return [path for path in pin_directory(run_dir).iterdir() if path.is_dir()]
    except (FileNotFoundError, PermissionError):
        return []


def prepare_bpf(*, is_node: bool = False) -> str | None:
    """Mount the BPF file system if it is missing, and try to load the program.

    Returns None, or the reason of a failure in one line.
    """
    try:
        _result(lib.nm_gate_mount(os.fsencode(BPF_FS)), f"mount a BPF file system on {BPF_FS}")
    except OSError as error:
        return str(error)
    return try_bpf(is_node=is_node)


def try_bpf(*, is_node: bool = False) -> str | None:
    """The same without the file system."""
    try:
        with ExitStack() as tried:
            map_fd = _owned(tried, _result(lib.nm_gate_new_map(is_node), "make a map"))
            _owned(tried, _result(lib.nm_gate_load(-1, map_fd, is_node), "load the program"))
    except OSError as error:
        return str(error)
    return None


class PinnedGate:
    """The map and the program of an env. Made by make() or found(); owns both descriptors."""

    IS_NODE: ClassVar[bool] = False

    def __init__(self, map_fd: int, program_fd: int) -> None:
        self._map_fd = map_fd
        self._program_fd = program_fd

    @classmethod
    def make(cls, directory: Path, caps_major: int | None) -> Self:
        """Take an earlier manager's map with its open entries, or make a new map without any.

        The program is an earlier one's if that is the same (containers have it). OSError: the
        kernel refuses, or another object is pinned there.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as owned:
            map_fd = _owned(owned, _open_map(directory / MAP, cls.IS_NODE))
            loaded = _owned(
                owned,
                _result(
                    lib.nm_gate_load(-1 if caps_major is None else caps_major, map_fd, cls.IS_NODE),
                    "load the program",
                ),
            )
            pinned = lib.nm_gate_open_pin(os.fsencode(directory / PROGRAM))
            if pinned >= 0:
                _owned(owned, pinned)
            if pinned < 0 or not lib.nm_gate_is_same(loaded, pinned):
                _replace(loaded, directory / PROGRAM)
                pinned = loaded
            return cls(os.dup(map_fd), os.dup(pinned))

    @classmethod
    def found(cls, directory: Path) -> Self:
        """The gate that a manager pinned there. OSError (ENOENT: there is none)."""
        map_fd = _result(
            lib.nm_gate_open_pin(os.fsencode(directory / MAP)), f"open {directory / MAP}"
        )
        try:
            return cls(
                map_fd,
                _result(
                    lib.nm_gate_open_pin(os.fsencode(directory / PROGRAM)),
                    f"open {directory / PROGRAM}",
                ),
            )
        except OSError:
            os.close(map_fd)
            raise

    def open_devices(self) -> set[DeviceNode]:
        return {DeviceNode(key.major, key.minor) for key in self._keys("struct nm_device *")}

    def set_open(self, devices: set[DeviceNode]) -> None:
        """Opens exactly these devices; shuts the others first."""
        now = self.open_devices()
        for device in now - devices:
            self._move("struct nm_device *", device, is_open=False)
        for device in devices - now:
            self._move("struct nm_device *", device, is_open=True)

    def _keys(self, kind: str) -> Iterator[Any]:
        before, key = ffi.NULL, ffi.new(kind)
        while _result(lib.nm_gate_next_open(self._map_fd, before, key), "read the map"):
            yield key
            before, key = key, ffi.new(kind)

    def _move(self, kind: str, key: tuple[int, ...], *, is_open: bool) -> None:
        move = lib.nm_gate_set_open if is_open else lib.nm_gate_set_shut
        _result(move(self._map_fd, ffi.new(kind, key)), f"{'open' if is_open else 'shut'} {key}")

    def attach(self, cgroup: Path) -> bool:
        """Attaches to a cgroup and all below it; False: it was attached already."""
        with _directory(cgroup) as descriptor:
            if self._is_attached(descriptor):
                return False
            try:
                _result(lib.nm_gate_attach(descriptor, self._program_fd), f"attach to {cgroup}")
            except OSError as error:  # hook and manager may meet: it is attached now
                if error.errno != errno.EINVAL or not self._is_attached(descriptor):
                    raise
                return False
            return True

    def is_attached(self, cgroup: Path) -> bool:
        """Whether the program is attached at the cgroup or above it."""
        with _directory(cgroup) as descriptor:
            return self._is_attached(descriptor)

    def _is_attached(self, descriptor: int) -> bool:
        return bool(
            _result(lib.nm_gate_is_attached(descriptor, self._program_fd), "ask for programs")
        )

    def close(self) -> None:
        """Nothing changes in the kernel."""
        os.close(self._map_fd)
        os.close(self._program_fd)


class PinnedNodeGate(PinnedGate):
    """The map and the program of the node's logins and jobs."""

    IS_NODE = True

    def entries(self) -> set[PlacedDevice]:
        kind = "struct nm_place *"
        return {PlacedDevice(key.cgroup, key.major, key.minor) for key in self._keys(kind)}

    def move(self, place: PlacedDevice, *, is_open: bool) -> None:
        self._move("struct nm_place *", place, is_open=is_open)

    def detach(self, cgroup: Path) -> None:
        """No fault where it is not attached."""
        with _directory(cgroup) as descriptor:
            _result(lib.nm_gate_detach(descriptor, self._program_fd), f"detach from {cgroup}")


def unpin(directory: Path, devices: set[DeviceNode] | None = None) -> None:
    """Opens these devices (default: none), then removes the env's pins.

    Its containers keep their gate as it is now for ever.
    """
    try:
        gate = PinnedGate.found(directory)
    except FileNotFoundError:
        pass
    else:
        gate.set_open(devices or set())
        gate.close()
    remove_pins(directory)


def remove_pins(directory: Path) -> None:
    """Attached programs go on without."""
    for path in directory.iterdir() if directory.is_dir() else ():
        path.unlink()
    if directory.is_dir():
        directory.rmdir()
        with suppress(OSError):  # other envs are there
            directory.parent.rmdir()


def _open_map(path: Path, is_node: bool) -> int:
    result = lib.nm_gate_open_pin(os.fsencode(path))
    if result >= 0:
        if lib.nm_gate_is_map(result, is_node):
            return int(result)
        os.close(result)
        raise FileExistsError(f"{path} is no map of a device gate: remove it (rm {path})")
    fresh = _result(lib.nm_gate_new_map(is_node), "make a map")
    try:
        _result(lib.nm_gate_pin(fresh, os.fsencode(path)), f"pin {path}")
    except OSError:
        os.close(fresh)
        raise
    return fresh


def _replace(program_fd: int, path: Path) -> None:
    """Replaces the pin by a rename, so that a starting container always finds one."""
    fresh = path.with_name(f"{path.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    _result(lib.nm_gate_pin(program_fd, os.fsencode(fresh)), f"pin {fresh}")
    fresh.rename(path)


def _result(value: Any, what: str) -> int:
    """The result of a function of gate.h. OSError names the attempted action."""
    if value < 0:
        raise OSError(-value, f"{os.strerror(-value)} (device gate: {what})")
    return int(value)


def _owned(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
