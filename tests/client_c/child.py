"""A user's process: the real libnodemgr.so through ctypes, driven line by line from the test.

Standard library only, and runnable by itself. Commands on stdin, one JSON list each, [name,
argument...]; one JSON answer a line on stdout. The client's lines for the user go to stderr, as
always.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

STATES = ["NONE", "WAITING", "HELD", "DENIED", "LOST", "NO_MANAGER", "CPU", "UNMANAGED"]
UNDERWAY = {"WAITING", "NO_MANAGER"}

library = ctypes.CDLL(sys.argv[1])
library.nodemgr_begin.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p]
library.nodemgr_poll.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
library.nodemgr_state.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
library.nodemgr_lease.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
library.nodemgr_setting.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
library.nodemgr_ask.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_int,
]
library.nodemgr_progress.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
library.nodemgr_publish_env.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
library.getenv = ctypes.CDLL(None).getenv
library.getenv.restype = ctypes.c_char_p

line = ctypes.create_string_buffer(2048)


def named(state: int) -> list[str]:
    return [STATES[state], line.value.decode()]


def begin(gpus: int = -1, memory: int = -1, wait_ms: int = -1, command: str | None = None) -> str:
    return STATES[
        library.nodemgr_begin(
            gpus, memory, wait_ms, command.encode() if command is not None else None
        )
    ]


def poll(timeout_ms: int = 300_000) -> list[str]:
    return named(library.nodemgr_poll(timeout_ms, line, len(line)))


def progress(done: int, total: int) -> None:
    library.nodemgr_progress(done, total)


def state() -> list[str]:
    return named(library.nodemgr_state(line, len(line)))


def until(wanted: str, text: str = "") -> list[str]:
    """Polls as Python's waiting line does until the state is `wanted` and the line has `text`."""
    while True:
        found = poll(200)
        if found[0] == wanted and text in found[1]:
            return found
        if found[0] not in UNDERWAY and wanted not in UNDERWAY:
            return found


def become(wanted: str) -> list[str]:
    """Until our own thread has brought about `wanted`."""
    while (found := state())[0] != wanted:
        threading.Event().wait(0.01)
    return found


def lease() -> dict[str, str] | None:
    text = ctypes.create_string_buffer(4096)
    if library.nodemgr_lease(text, len(text)) < 0:
        return None
    return dict(entry.split("=", 1) for entry in text.value.decode().splitlines())


def ask(
    what: str, argument: str | None = None, size: int = 1 << 16, timeout_ms: int = 300_000
) -> list[object]:
    text = ctypes.create_string_buffer(size)
    length = library.nodemgr_ask(
        what.encode(), argument.encode() if argument else None, text, size, timeout_ms
    )
    return [length, text.value.decode()]


def getenv(name: str) -> str | None:
    value = library.getenv(name.encode())
    return value.decode() if value is not None else None


def setenv(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def setting(key: str) -> str | None:
    text = ctypes.create_string_buffer(256)
    return (
        text.value.decode() if library.nodemgr_setting(key.encode(), text, len(text)) >= 0 else None
    )


def descriptors() -> dict[str, list[object]]:
    """number: [what it is, close-on-exec?]"""
    found: dict[str, list[object]] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = [os.readlink(f"/proc/self/fd/{name}"), not os.get_inheritable(int(name))]
    return found


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def fill_descriptors(left: int) -> int:
    """Opens files until only `left` numbers are free."""
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1 + left
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    opened = 0
    try:
        while True:
            os.dup(0)
            opened += 1
    except OSError:
        pass
    for number in range(limit - 1, limit - 1 - left, -1):
        with contextlib.suppress(OSError):
            os.close(number)
    return opened


def free_descriptors() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))


def close_ours(kind: str) -> list[int]:
    """Like a daemon that closes every descriptor that it does not know: all ours of that kind."""
    closed = []
    for number, (target, _) in descriptors().items():
        if int(number) > 2 and kind in str(target):
            os.close(int(number))
            closed.append(int(number))
    return closed


def occupy(number: int, path: str) -> None:
    """A file of the program's own on a number that was ours."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(fd, number)
    os.close(fd)


def close_fds(numbers: list[int]) -> None:
    for number in numbers:
        os.close(number)


def open_lowest(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def in_child(*commands: list[object]) -> list[object]:
    """The answers of a forked child to `commands`; it ends by os._exit."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump([run(command) for command in commands], out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        found: list[object] = json.load(answers)
    os.wait()
    return found


def raw_clone_state() -> list[str]:
    """The view of a child that was made by the bare system call, past every fork handler."""
    reader, writer = os.pipe()
    libc = ctypes.CDLL(None)
    clone = 56 if os.uname().machine == "x86_64" else 220
    if libc.syscall(clone, signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.write(writer, json.dumps([state()[0], library.nodemgr_lease(line, len(line))]).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 4096)
    os.wait()
    found: list[str] = json.loads(answer)
    return found


def fork_and_exit() -> int:
    """A child that leaves by exit(3), as programs do, with every destructor."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_while_polling(count: int) -> list[object]:
    """The view of forked children while two threads of the parent are in and out of the client."""
    stop = threading.Event()

    def wait() -> None:
        text = ctypes.create_string_buffer(2048)
        while not stop.is_set():
            library.nodemgr_poll(1, text, len(text))

    workers = [threading.Thread(target=wait) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [in_child(["state"])[0] for _ in range(count)]
    stop.set()
    for worker in workers:
        worker.join()
    return found


def run_program(how: str, program: list[str], commands: list[list[object]]) -> list[object]:
    """Another program of ours, given commands; started by posix_spawn (vfork) or through a fork."""
    subprocess._USE_VFORK = how == "vfork"  # type: ignore[attr-defined]
    text = "".join(json.dumps(command) + "\n" for command in commands)
    result = subprocess.run(program, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(answer) for answer in result.stdout.splitlines()]


def signal_masks() -> list[int]:
    """The blocked signals of each thread, the first one first."""
    masks = []
    for thread in sorted(os.listdir("/proc/self/task"), key=int):
        with open(f"/proc/self/task/{thread}/status") as status:
            masks += [int(text.split()[1], 16) for text in status if text.startswith("SigBlk")]
    return masks


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()


def interrupted_poll(timeout_ms: int = 300_000) -> list[object]:
    """A poll that a signal with a handler of the program's own comes into.

    The last value: whether the poll ended before its timeout.
    """
    got: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    end_s = time.monotonic() + timeout_ms / 1000
    interrupt_after(0.05)
    found = poll(timeout_ms)
    return [*found, len(got), time.monotonic() < end_s]


def poll_in_threads(count: int) -> list[list[str]]:
    """Several threads wait at once, each until the end."""
    found: list[list[str]] = []

    def wait() -> None:
        text = ctypes.create_string_buffer(2048)
        while STATES[(last := library.nodemgr_poll(200, text, len(text)))] in UNDERWAY:
            pass
        found.append([STATES[last], text.value.decode()])

    workers = [threading.Thread(target=wait) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def execute(*arguments: str) -> None:
    os.execv(arguments[0], list(arguments))


COMMANDS = {
    "begin": begin, "poll": poll, "state": state, "until": until, "become": become, "lease": lease,
    "ask": ask,
    "cancel": lambda: STATES[library.nodemgr_cancel()],
    "release": lambda: STATES[library.nodemgr_release()],
    "managed": lambda: library.nodemgr_managed(), "setting": setting, "getenv": getenv,
    "setenv": setenv,
    "publish": lambda name, value: library.nodemgr_publish_env(name.encode(),
        value.encode() if value is not None else None),
    "progress": progress, "descriptors": descriptors, "threads": threads, "fill": fill_descriptors,
    "free": free_descriptors, "close_ours": close_ours,
    "occupy": occupy, "fork": in_child, "raw_clone": raw_clone_state,
    "interrupted_poll": interrupted_poll,
    "fork_and_exit": fork_and_exit, "fork_while_polling": fork_while_polling,
    "run_program": run_program, "signal_masks": signal_masks,
    "close_fds": close_fds, "open_lowest": open_lowest, "poll_in_threads": poll_in_threads,
    "exec": execute,
}  # fmt: skip


def run(command: list[object]) -> object:
    name, *arguments = command
    return COMMANDS[str(name)](*arguments)  # type: ignore[operator]


def main() -> None:
    for text in sys.stdin:
        print(json.dumps(run(json.loads(text))), flush=True)


main()
