"""The process's lease as the adapters need it: ask, wait, predict a grant, pass on its values.

Knows: the library's states, client.conf's keys, the environment variables of a request and their
rules. Must not know: any framework. The wait is done here and not in C so that signals reach the
program: Ctrl-C ends a wait before the driver has been called (CUDA's runtime would remember a
failed initialisation for the life of the process).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import Callable, Mapping

from . import interrupts, native, stderr, waiting

TASK = "NODEMGR_TASK"
# Variables that a grant sets in the C environment; os.environ follows.
GRANTED = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NODEMGR_VISIBLE", TASK)
POLL_MS = 200
# between polls that the library answers at once, so that no fault of it becomes a busy loop
PAUSE_S = 0.05

_client: native.Native | None = None
_started = False
_starting = threading.Lock()
_acquired = False


def start() -> bool:
    """Load the library, once; whether it serves this process.

    A library that cannot be loaded is reported and serves nothing.
    """
    global _client, _started
    with _starting:
        if not _started:
            try:
                client = native.load()
                client.set_waiter(_wait_for_driver)
                client.set_raiser(_raise_behind_driver)
                client.is_stderr(adopt=waiting.kernel() is not None)
                stderr.heed(client.is_stderr)
                _client = client
                if hasattr(sys, "pypy_version_info"):
                    client.set_checker(_attend, _raise_behind_gate)
            except (OSError, ImportError, AttributeError) as error:
                stderr.report("loading libnodemgr.so", error)
            _started = True
    return serving()


def serving() -> bool:
    return _client is not None and _client.managed()


def preloaded() -> bool:
    return _client is not None and _client.preloaded()


def say_alone() -> None:
    """Say that the preloaded library is missing in a process that would get GPUs."""
    if start() and not preloaded() and expected_gpus() != 0:
        from .messages import hook as messages  # here: most programs never need a line

        stderr.say_once(messages.HOOK_ALONE())


def setting(key: str) -> str | None:
    return None if _client is None else _client.setting(key)


def share(name: str, value: str) -> None:
    """Set a variable in os.environ and in the C environment."""
    put(name, value)
    if _client is not None:
        _client.publish(name, value)


def share_token() -> None:
    """Give the process and its children a task token, unless they have one."""
    share(TASK, os.environ.get(TASK) or new_token())


def share_defaults(defaults: Mapping[str, str]) -> None:
    """Set those of the variables that the user has not set."""
    for name, value in defaults.items():
        if name not in os.environ:
            share(name, value)


def hide_gpus() -> None:
    share("CUDA_VISIBLE_DEVICES", "")


def expected_gpus() -> int | None:
    """The GPUs that a request would make visible.

    None: a lease is held, so the framework itself has the answer.
    """
    if _client is None:
        return None
    if _is_spare():
        return 1
    state = _client.state()[0]
    if state in (native.ClientState.HELD, native.ClientState.CPU):
        _follow(_client)
    if state in (native.ClientState.HELD, native.ClientState.UNMANAGED):
        return None
    return wished_gpus(os.environ, int(_client.setting("gpus") or "0"))


def acquire(gpus: int | None = None, may_ask_again: bool = True) -> str:
    """Hold a lease, waiting as long as it takes.

    `gpus`: this number of GPUs, instead of that of the environment variables. `may_ask_again`:
    the line of a cancelled wait says so.

    "" if CUDA may be called now; else one line with the reason against it.

    Raises what a signal handler of the user raises while it waits (KeyboardInterrupt); the request
    is cancelled then.
    """
    if _client is None:
        return ""
    if _is_spare():
        from .training import channel  # here: a spare alone needs it

        channel.connected(os.environ, share)
    state, line = _client.state()
    if state is not native.ClientState.HELD:
        client, wished = _client, -1 if gpus is None else gpus
        state, line = _ask(client, lambda: client.begin(wished), may_ask_again)
    if state in (native.ClientState.HELD, native.ClientState.CPU):
        _follow(_client)
    if state is native.ClientState.HELD and not _client.preloaded():
        from .messages import hook as messages

        stderr.say_once(messages.HOOK_ALONE())
    if state is native.ClientState.CPU and line:
        stderr.say_once(line)
    global _acquired
    _acquired = state in (native.ClientState.HELD, native.ClientState.UNMANAGED)
    if state not in (native.ClientState.DENIED, native.ClientState.NO_MANAGER):
        return ""
    from .messages.form import stated  # here: most programs never need a line

    return line or stated("no GPU was granted", "`nodemgr status` shows the quota")


def acquired() -> bool:
    """Whether acquire() has led to a lease in this process, or found that none is needed.

    One memory read, for the gates of frequent calls.
    """
    return _acquired


def require(refusal: type[Exception] = RuntimeError) -> None:
    """acquire(), or `refusal` with the line that says why not."""
    reason = acquire()
    if reason:
        raise refusal(f"nodemgr: {reason}")


def _is_spare() -> bool:
    """Whether this is a worker of an elastic task that has no GPU yet; it gets one."""
    return os.environ.get("NODEMGR_WORKER_GPU") == "" and "NODEMGR_ELASTIC" in os.environ


def limits() -> list[int]:
    """Bytes that the process may use on each GPU that it sees, in CUDA's order; [] without a lease.

    If the process sees a part of the lease by index, the library does not report which part: the
    least of the limits is returned for each.
    """
    lease = {} if _client is None else _client.lease()
    if not lease.get("limits"):
        return []
    granted = [int(number) for number in lease["limits"].split(",")]
    uuids, visible = lease["gpus"].split(","), lease["visible"].split(",")
    by_entry = dict(zip(uuids, granted))
    if len(visible) == len(uuids):
        by_entry.update(zip(visible, granted))
    seen = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [by_entry.get(entry, min(granted)) for entry in seen]


def gpus() -> list[str]:
    """UUIDs of the lease's GPUs."""
    held = "" if _client is None else _client.lease().get("gpus", "")
    return held.split(",") if held else []


def task() -> str | None:
    """The id of the task that this process is in, `t17`; None without a lease."""
    return None if _client is None else _client.lease().get("lease")


def ask(what: str, argument: str | None, out: ctypes.Array[ctypes.c_char], timeout_ms: int) -> int:
    """One question to the manager; the length of the answer in `out`, -1 with a reason in it."""
    if _client is None:
        return -1
    length, descriptor = _client.ask(what, argument, out, timeout_ms)
    if descriptor >= 0:
        os.close(descriptor)
    return length


def report_progress(done: int, total: int) -> None:
    """To the library, which sends it with the beats; `total` 0: not known."""
    if _client is None:
        start()
    if _client is not None:
        _client.progress(done, total)


def report_status(fd: int) -> bool:
    """Whether this socket will get the exit status, one byte, at the process's normal end."""
    return _client is not None and _client.report_status(fd)


def left(timeout_s: float) -> bool:
    """Whether the lease is over within this time, after it was released from outside."""
    global _acquired
    end_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    while _client is not None and _client.state()[0] is native.ClientState.HELD:
        if time.monotonic_ns() > end_ns:
            return False
        time.sleep(PAUSE_S)
    _acquired = False
    return True


def acquire_for(command: str) -> tuple[native.ClientState, str]:
    """Hold a lease for the program that this process is about to become: the state, and its line.

    os.environ has the lease's variables then. Raises as acquire() does. start() served before.
    """
    assert _client is not None
    client = _client
    state, line = _ask(client, lambda: client.begin_program(command), may_ask_again=False)
    _follow(client)
    if state is native.ClientState.CPU and line:
        stderr.say_once(line)
    return state, line


def timed_out() -> bool:
    """Whether the last refusal was the end of the wait's limit."""
    return _client is not None and _client.timed_out()


def _ask(
    client: native.Native, begin: Callable[[], object], may_ask_again: bool
) -> tuple[native.ClientState, str]:
    """Ask, and wait for the answer.

    Asks again if another thread of the process has given up, or the lease was lost meanwhile.
    """
    wait = waiting.Wait()
    try:
        begin()
        state, line = client.state()
        while not _settled(client, state):
            if state in (native.ClientState.NONE, native.ClientState.LOST):
                begin()
            elif line:
                wait.show(line)
            before, began_ns = (state, line), time.monotonic_ns()
            state, line = client.poll(POLL_MS)
            if (state, line) == before and time.monotonic_ns() - began_ns < PAUSE_S * 1e9:
                time.sleep(PAUSE_S)
    except BaseException:
        client.cancel()
        wait.end("cancelled", "; the next use of CUDA asks anew" * may_ask_again)
        raise
    granted = len(gpus())
    is_held = state is native.ClientState.HELD
    wait.end(f"{granted} GPU{'s' * (granted != 1)} granted" if is_held else "", is_for_all=is_held)
    return state, line


def _settled(client: native.Native, state: native.ClientState) -> bool:
    if state is native.ClientState.NO_MANAGER:
        return client.setting("no_manager") == "error"
    return state in (
        native.ClientState.HELD,
        native.ClientState.DENIED,
        native.ClientState.CPU,
        native.ClientState.UNMANAGED,
    )


def _follow(client: native.Native) -> None:
    """os.environ takes over what the grant has set in the C environment."""
    for name in GRANTED:
        value = client.environment(name)
        if value is not None and os.environ.get(name) != value:
            put(name, value)


def _wait_for_driver() -> int:
    """Wait for the shim's cuInit, on a thread that Python knows.

    No exception may be raised into the driver's caller.
    """
    try:
        refusal = acquire(may_ask_again=False)
        if refusal:
            stderr.say_once(
                f"{refusal}; CUDA was already being initialised and may remember that it found "
                "no GPU",
                "start the program anew to try again",
            )
        state = native.ClientState.NONE if _client is None else _client.state()[0]
    except BaseException as error:
        stderr.say_once(
            "CUDA was already being initialised and may remember that it found no GPU",
            "start the program anew",
        )
        interrupts.defer(error, _wait_for_driver.__code__)
        return int(native.ClientState.NONE)
    return int(state)


def _raise_behind_driver(error: BaseException) -> None:
    """Raise what a signal handler has raised in the place of a launch's error."""
    interrupts.defer(error, _raise_behind_driver.__code__)


def _attend() -> int:
    """On PyPy: os.environ follows a grant; handlers of signals run between two instructions."""
    if _client is not None:
        _follow(_client)
    return 0


def _raise_behind_gate(_kind: object, error: BaseException, _traceback: object) -> None:
    interrupts.defer(error, _raise_behind_gate.__code__)


def put(name: str, value: str) -> None:
    """Set os.environ[name] alone.

    The C environment is the library's business: setenv would race with other threads' getenv.
    """
    environ = os.environ
    data = getattr(environ, "_data", None)
    if isinstance(data, dict):
        data[os.fsencode(name)] = os.fsencode(value)
    else:
        environ[name] = value


def new_token() -> str:
    """A task token: 32 hex digits."""
    return os.urandom(16).hex()


def visible_devices(value: str) -> list[str]:
    """The entries of a CUDA_VISIBLE_DEVICES.

    As in the driver, the list ends at the first entry that is neither an index nor a UUID.
    """
    entries = [entry.strip(" \t") for entry in value.split(",")]
    bad = (
        index
        for index, entry in enumerate(entries)
        if not (_is_number(entry) or entry[:4] in ("GPU-", "MIG-"))
    )
    return entries[: next(bad, len(entries))]


def wished_gpus(environ: Mapping[str, str], default_gpus: int) -> int:
    """How many GPUs the process would see if it asked now; 0 means CPU.

    `default_gpus`: what a request without a wish gets.

    The client in C reads the same wish when it asks (csrc/client/request.h); this one answers
    is_available() and device_count() before.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = None if value is None else visible_devices(value)
    granted = environ.get("NODEMGR_VISIBLE")
    if chosen is not None and granted is not None:
        return _seen(chosen, visible_devices(granted))
    named = _number(environ.get("NODEMGR_GPUS", "").partition("-")[0] or None, -1)
    if named >= 0:
        return named if chosen is None else min(len(chosen), named)
    asked = default_gpus if chosen is None else len(chosen)
    if not asked:
        return 0
    asked = max(asked, _number(environ.get("LOCAL_WORLD_SIZE"), 0))
    return asked if chosen is None else min(len(chosen), asked)


def _seen(chosen: list[str], granted: list[str]) -> int:
    """The length of a choice from what was granted: it ends at an entry that names none of it."""
    if all(any(_names(entry, gpu) for gpu in granted) for entry in chosen):
        return len(chosen)
    beyond = (
        position
        for position, entry in enumerate(chosen)
        if not (
            int(entry) < len(granted)
            if _is_number(entry)
            else any(_names(entry, gpu) for gpu in granted)
        )
    )
    return next(beyond, len(chosen))


def _names(entry: str, gpu: str) -> bool:
    return gpu == entry if _is_number(entry) else gpu.startswith(entry)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and _is_number(text) else default


def _after_fork() -> None:
    global _starting, _acquired
    _starting = threading.Lock()
    _acquired = False
    interrupts.forget()
    waiting.forget()


os.register_at_fork(after_in_child=_after_fork)
