"""libnodemgr.so through ctypes: the C client (csrc/client/client.h) with Python's types.

Knows: the C signatures. Must not know: what the states are good for. Every call releases the GIL;
none blocks longer than its timeout.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import os
from pathlib import Path
from typing import Any, Callable

ABI = 1
LINE_BYTES = 2048
LIBRARY = Path(__file__).parent / "_lib" / "libnodemgr.so"


class ClientState(enum.IntEnum):
    """enum nodemgr_state."""

    NONE = 0
    WAITING = 1
    HELD = 2
    DENIED = 3
    LOST = 4
    NO_MANAGER = 5
    CPU = 6
    UNMANAGED = 7


WAITER = ctypes.CFUNCTYPE(ctypes.c_int)
RAISER = ctypes.CFUNCTYPE(None, ctypes.py_object)

# Function -> (result, arguments): csrc/client/client.h.
_TEXT = (ctypes.c_char_p, ctypes.c_size_t)
_SIGNATURES = {
    "nodemgr_abi": (ctypes.c_int, ()),
    "nodemgr_preloaded": (ctypes.c_int, ()),
    "nodemgr_managed": (ctypes.c_int, ()),
    "nodemgr_setting": (ctypes.c_int, (ctypes.c_char_p, *_TEXT)),
    "nodemgr_begin": (
        ctypes.c_int,
        (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p),
    ),
    "nodemgr_begin_program": (ctypes.c_int, (ctypes.c_char_p,)),
    "nodemgr_timed_out": (ctypes.c_int, ()),
    "nodemgr_poll": (ctypes.c_int, (ctypes.c_int, *_TEXT)),
    "nodemgr_cancel": (ctypes.c_int, ()),
    "nodemgr_state": (ctypes.c_int, _TEXT),
    "nodemgr_lease": (ctypes.c_int, _TEXT),
    "nodemgr_ask_file": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.c_char_p, *_TEXT, ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    ),
    "nodemgr_progress": (None, (ctypes.c_uint64, ctypes.c_uint64)),
    "nodemgr_is_stderr": (ctypes.c_int, (ctypes.c_int,)),
    "nodemgr_report_status": (ctypes.c_int, (ctypes.c_int,)),
    "nodemgr_set_waiter": (None, (WAITER,)),
    "nodemgr_set_raiser": (None, (RAISER,)),
    "nodemgr_set_checker": (None, (ctypes.c_void_p,)),
    "nodemgr_publish_env": (None, (ctypes.c_char_p, ctypes.c_char_p)),
    "getenv": (ctypes.c_char_p, (ctypes.c_char_p,)),
}


class Native:
    """The process's one client.

    Texts are decoded as the file system's names are, so that no byte is lost or refused.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """AttributeError: a function is missing. OSError: the library has another version."""
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        if library.nodemgr_abi() != ABI:
            raise OSError(
                f"libnodemgr.so has version {library.nodemgr_abi()} of the interface, this hook"
                f" needs {ABI}"
            )
        self._library = library
        self._waiter: object = None
        self._raiser: object = None
        self._checker: object = None

    def preloaded(self) -> bool:
        """Whether the library stands before the driver (LD_PRELOAD).

        It then enforces the memory quota without this package.
        """
        return bool(self._library.nodemgr_preloaded())

    def managed(self) -> bool:
        return bool(self._library.nodemgr_managed())

    def setting(self, key: str) -> str | None:
        """A value of client.conf."""
        out = ctypes.create_string_buffer(LINE_BYTES)
        length = self._library.nodemgr_setting(key.encode(), out, LINE_BYTES)
        return None if length < 0 else os.fsdecode(out.value)

    def begin(self, gpus: int = -1) -> ClientState:
        """Ask for what the process's environment variables wish; `gpus`, unless -1, goes first."""
        return ClientState(self._library.nodemgr_begin(gpus, -1, -1, None))

    def begin_program(self, command: str) -> ClientState:
        """Ask for the program that this process is about to become."""
        return ClientState(self._library.nodemgr_begin_program(os.fsencode(command)))

    def timed_out(self) -> bool:
        """Whether the last refusal was the end of the wait's limit."""
        return bool(self._library.nodemgr_timed_out())

    def poll(self, timeout_ms: int) -> tuple[ClientState, str]:
        out = ctypes.create_string_buffer(LINE_BYTES)
        state = self._library.nodemgr_poll(timeout_ms, out, LINE_BYTES)
        return ClientState(state), os.fsdecode(out.value)

    def state(self) -> tuple[ClientState, str]:
        out = ctypes.create_string_buffer(LINE_BYTES)
        state = self._library.nodemgr_state(out, LINE_BYTES)
        return ClientState(state), os.fsdecode(out.value)

    def cancel(self) -> None:
        self._library.nodemgr_cancel()

    def lease(self) -> dict[str, str]:
        """The lease's fields, {} where none is held."""
        out = ctypes.create_string_buffer(2 * LINE_BYTES)
        if self._library.nodemgr_lease(out, 2 * LINE_BYTES) < 0:
            return {}
        pairs = (line.partition("=") for line in os.fsdecode(out.value).splitlines())
        return {key: value for key, _, value in pairs}

    def ask(
        self, what: str, argument: str | None, out: ctypes.Array[ctypes.c_char], timeout_ms: int
    ) -> tuple[int, int]:
        """One question to the manager.

        Returns the answer's length in `out`, or -1 with a reason in `out`; and a descriptor that
        came with the answer, or -1.
        """
        said = None if argument is None else os.fsencode(argument)
        fd = ctypes.c_int(-1)
        length: int = self._library.nodemgr_ask_file(
            what.encode(), said, out, len(out), timeout_ms, ctypes.byref(fd)
        )
        return length, fd.value

    def progress(self, done: int, total: int) -> None:
        """The parts of the task's work that are done; `total` 0: their number is not known."""
        self._library.nodemgr_progress(done, total)

    def is_stderr(self, adopt: bool = False) -> bool:
        """Whether descriptor 2 is the process's first stderr; `adopt`: from now on it is."""
        return bool(self._library.nodemgr_is_stderr(adopt))

    def report_status(self, fd: int) -> bool:
        """Write the exit status to this socket at the process's normal end."""
        return bool(self._library.nodemgr_report_status(fd) == 0)

    def set_waiter(self, waiter: Callable[[], int]) -> None:
        self._waiter = WAITER(waiter)  # the C side keeps only the address
        self._library.nodemgr_set_waiter(self._waiter)

    def set_raiser(self, raiser: Callable[[BaseException], None]) -> None:
        """`raiser` gets an exception that ends a wait in the launch gate."""
        self._raiser = RAISER(raiser)
        self._library.nodemgr_set_raiser(self._raiser)

    def set_checker(self, checker: Callable[[], int], raised: Callable[..., None]) -> None:
        """On PyPy: `checker` runs during a wait in the launch gate, and after a grant in a thread.

        `raised` gets the type, the exception and the traceback where one raised, even before the
        first instruction of `checker`; ctypes would print and lose that, so it is cffi's callback.
        """
        backend: Any = importlib.import_module("_cffi_backend")  # PyPy's own
        number = backend.new_primitive_type("int")
        signature = backend.new_function_type((), number)
        self._checker = backend.callback(signature, checker, 1, raised)
        address = int(backend.cast(backend.new_primitive_type("intptr_t"), self._checker))
        self._library.nodemgr_set_checker(address)

    def publish(self, name: str, value: str) -> None:
        """Set a variable of the C environment; safe beside other threads' getenv."""
        self._library.nodemgr_publish_env(os.fsencode(name), os.fsencode(value))

    def environment(self, name: str) -> str | None:
        """A variable of the C environment."""
        value = self._library.getenv(os.fsencode(name))
        return None if value is None else os.fsdecode(value)


def load() -> Native:
    """The library that is in the process already (preloaded), else the one beside this package.

    Raises OSError where neither is there, ImportError where this Python has no ctypes.
    """
    process = ctypes.CDLL(None)
    return Native(process if hasattr(process, "nodemgr_abi") else ctypes.CDLL(str(LIBRARY)))
