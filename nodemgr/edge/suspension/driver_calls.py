"""The driver's calls on the memory of another process: cuCheckpointProcess*, by ctypes.

Knows: the functions, their arguments, the names of their errors. Must not know: an order of calls.
Only the suspension process loads the driver (process.py), never the manager.

The driver documents no right for these calls. The caller is root with CAP_SYS_PTRACE, or the user
of the process; whether the driver asks for more is to be seen on a real GPU.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Protocol

SUCCESS = 0
FIRST_VERSION = 12_080
"""CUDA 12.8, which came with driver 570, is the first that has the calls."""
SYMBOLS = tuple(
    f"cuCheckpointProcess{name}" for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
)


class ProcessState(enum.IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class CallFailed(Exception):
    """The driver refused a call on a process."""

    def __init__(self, call: str, pid: int, error: str) -> None:
        """`error`: the name of the error, such as CUDA_ERROR_NOT_SUPPORTED."""
        super().__init__(f"{call}({pid}): {error}")
        self.call, self.pid, self.error = call, pid, error


class NoCalls(Exception):
    """The driver is too old, or there is none. The text is one word, or the error of a load."""


class Calls(Protocol):
    """The calls that a procedure makes. Each raises CallFailed."""

    def state(self, pid: int) -> ProcessState: ...
    def lock(self, pid: int, timeout_ms: int) -> None: ...
    def checkpoint(self, pid: int) -> None: ...
    def restore(self, pid: int) -> None: ...
    def unlock(self, pid: int) -> None: ...


class _LockArguments(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class DriverCalls:
    """The calls of one driver."""

    def __init__(self, library: str) -> None:
        """Loads the driver and initialises it; makes no context. Raises NoCalls."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NoCalls(str(error)) from None
        if not all(hasattr(self._library, name) for name in SYMBOLS):
            raise NoCalls("old")
        result = self._library.cuInit(0)
        if result != SUCCESS:
            raise NoCalls(f"cuInit: {self._name(result)}")
        version = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(version))
        if version.value < FIRST_VERSION:
            raise NoCalls("old")

    def state(self, pid: int) -> ProcessState:
        state = ctypes.c_int()
        self._call("GetState", pid, ctypes.byref(state))
        return ProcessState(state.value)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Waits until no call and no work of the process is under way; later calls wait."""
        self._call("Lock", pid, ctypes.byref(_LockArguments(timeout_ms)))

    def checkpoint(self, pid: int) -> None:
        self._call("Checkpoint", pid, None)

    def restore(self, pid: int) -> None:
        self._call("Restore", pid, None)

    def unlock(self, pid: int) -> None:
        self._call("Unlock", pid, None)

    def _call(self, name: str, pid: int, argument: object) -> None:
        result = getattr(self._library, f"cuCheckpointProcess{name}")(pid, argument)
        if result != SUCCESS:
            raise CallFailed(f"cuCheckpointProcess{name}", pid, self._name(result))

    def _name(self, result: int) -> str:
        text = ctypes.c_char_p()
        found = self._library.cuGetErrorName(result, ctypes.byref(text)) == SUCCESS
        return text.value.decode(errors="replace") if found and text.value else f"error {result}"
