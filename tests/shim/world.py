"""A node, an env and programs in it: what the shim's tests are made of.

Knows: the built library, the simulator, the manager stub, the probe. Must not know: any one test.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from nodemgr import simulator
from tests.client_c.compiled import objects_dir
from tests.shim.manager_stub import ManagerStub
from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PROGRAMS = Path(__file__).with_name("programs")
# mutate_rows.py: another
LIBRARY = Path(
    os.environ.get("NODEMGR_TEST_SHIM") or ROOT / "client_plugin" / "_lib" / "libnodemgr.so"
)
PRELOAD_VARIABLE = "TEST_PRELOAD"
"""The library to preload instead: under a sanitizer (tests/sanitizers)."""
MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY, NO_DEVICE, INVALID_VALUE, NOT_INITIALIZED = 2, 100, 1, 3
GROUP = "test"  # of the simulator's books
ROUTES = ("linked", "dlsym", "getproc")
KINDS = ("HOOK", "LAUNCH", "COPY", "USE", "CHANGE")


LINKED_WITH_DRIVER = tuple(
    f"-Wl,--no-as-needed,{simulator.library_directory() / name}"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1")
)


@dataclass(frozen=True)
class Hook:
    """A row of csrc/hooks/hooks.def."""

    library: str
    name: str
    base: str
    since: int
    stream: str
    away: str
    types: tuple[str, ...]


@cache
def hooks_table() -> str:
    """csrc/hooks/hooks.def without its comments."""
    return re.sub(r"/\*.*?\*/", "", (CSRC / "hooks" / "hooks.def").read_text(), flags=re.DOTALL)


@cache
def hooks(kind: str = "HOOK") -> Mapping[str, Hook]:
    """The rows of one kind: all but HOOK are those of gated processes."""
    text = hooks_table()
    row = rf"NM_{kind}\((\w+), (\w+), (\w+), (\d+), (\w+), (\w+),\s*\((\d+)(?:,\s+([^()]*))?\)\)"
    found = {}
    for library, name, base, since, stream, away, count, types in re.findall(row, text):
        arguments = tuple(part.strip() for part in types.split(",")) if types else ()
        assert len(arguments) == int(count), name
        found[name] = Hook(library, name, base, int(since), stream, away, arguments)
    assert len(found) == len(re.findall(rf"^NM_{kind}\(", text, flags=re.MULTILINE)), (
        "a row that this reader does not understand"
    )
    return found


def every_row() -> list[Hook]:
    return [row for kind in KINDS for row in hooks(kind).values()]


@cache
def plain_calls() -> tuple[Hook, ...]:
    """The rows NM_CALL: the library calls these functions, and programs get the driver's own."""
    row = r"^NM_CALL\((\w+), (\w+), \(\d+, ([^()]*)\)\)"
    return tuple(
        Hook(library, name, name, 0, "ANY", "THROUGH", tuple(types.split(", ")))
        for library, name, types in re.findall(row, hooks_table(), flags=re.MULTILINE)
    )


@cache
def compiled(source: str, *flags: str) -> Path:
    """A C program of programs/, or the text of one, compiled once per run."""
    import hashlib

    directory = objects_dir()
    text = (PROGRAMS / source).read_text() if source.endswith(".c") else source
    included = [
        (CSRC / name).read_text()
        for name in re.findall(r'#include "([\w./]+)"', text)
        if (CSRC / name).exists()
    ]
    output = (
        directory / hashlib.sha256("\0".join((text, *included, *flags)).encode()).hexdigest()[:20]
    )
    if not output.exists():
        fresh = output.with_suffix(f".{os.getpid()}")
        command = [
            "cc",
            "-std=gnu11",
            "-D_GNU_SOURCE",
            "-O1",
            "-g",
            "-I",
            str(CSRC),
            "-x",
            "c",
            "-",
            "-o",
            str(fresh),
        ]
        command += [*flags, "-ldl", "-lpthread"]
        subprocess.run(command, input=text, text=True, check=True)
        fresh.replace(output)
    return output


@dataclass
class World:
    """A simulated node in `directory`, and one env with the stub as its manager."""

    directory: Path
    node: simulator.SimulatedNode
    manager: ManagerStub
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def uuids(self) -> list[str]:
        return self.manager.uuids

    def environment(self, *, shim: bool = True, managed: bool = True) -> dict[str, str]:
        environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("NODEMGR_", "CUDA_", "LD_", "PYTHON"))
        }
        environ["LD_LIBRARY_PATH"] = str(self.directory / "sim")
        environ["NODEMGR_SIM_GROUP"] = GROUP
        if shim:
            environ["LD_PRELOAD"] = os.environ.get(PRELOAD_VARIABLE, str(LIBRARY))
        if managed:
            environ["NODEMGR_ENV_DIR"] = str(self.manager.directory)
        return environ | self.environ

    def run(
        self, *command: str | Path, shim: bool = True, managed: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """A program to its end, output captured."""
        return subprocess.run(
            [str(part) for part in command], env=self.environment(shim=shim, managed=managed),
            capture_output=True, text=True,
            timeout=WAIT_LIMIT_S, check=False, **options,
        )  # type: ignore[call-overload,no-any-return]  # fmt: skip

    def python(self, source: str, **options: object) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-I", "-c", source, **options)  # type: ignore[arg-type]

    def probe(self, route: str = "dlsym", *, started: bool = True, **options: bool) -> Probe:
        probe = Probe(self, route, self.environment(**options))
        if started:
            probe.start()
        return probe

    def held(self, index: int = 0) -> int:
        """Bytes that programs have explicitly allocated on a GPU, by the simulator's own books."""
        return self.node.group(index, GROUP)[0]

    def implicit(self, kind: str, index: int = 0) -> int:
        """Bytes of all processes' contexts ("context") or modules ("module"), by those books."""
        return sum(
            process.kind_bytes.get(kind, 0) for process in self.node.books()[index].processes
        )

    def peak(self, index: int = 0) -> int:
        """The most that they ever held at one instant."""
        return self.node.group(index, GROUP)[1]

    def used(self, index: int = 0) -> int:
        """The same by the ledger."""
        return self.manager.used(index)

    def agree(self, expected: int, index: int = 0) -> None:
        """Ledger and books say the same, and as expected."""
        seen = (self.used(index), self.held(index))
        assert seen == (expected, expected), f"ledger and books {seen}, expected {expected}"


@contextmanager
def world(
    directory: Path,
    *,
    devices: int = 1,
    memory: int = 8 * GIB,
    limit: int = 1 * GIB,
    **options: object,
) -> Iterator[World]:
    """`directory` must be short: a socket lies in it."""
    with simulator.create(directory / "sim", devices, memory) as node:
        uuids = [device.uuid for device in node.books()]
        with ManagerStub(directory / "env", uuids, memory, limit, **options) as manager:
            # reading takes the dead out of the books; only then is their part of the quota free
            manager.at_death = node.books
            yield World(directory, node, manager)


class Probe:
    """tests/shim/programs/probe.c, obeying.

    Functions are attributes: probe.cuMemAlloc_v2(out, 4096) is the CUresult.
    """

    def __init__(self, world: World, route: str, environ: dict[str, str]) -> None:
        self.world = world
        self.route = route
        self._addresses: dict[str, int] = {}
        program = compiled("probe.c", *(LINKED_WITH_DRIVER if route == "linked" else ()))
        self.process = subprocess.Popen(
            [program],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self) -> None:
        assert self.cuInit(0) == 0, self.end().stderr
        context = self.alloc(8)
        assert self.cuDevicePrimaryCtxRetain(context, 0) == 0
        assert self.call("cuCtxSetCurrent", self.u64(context)) == 0

    def tell(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        answer = self.process.stdout.readline()
        assert answer, f"the probe ended: {self.process.wait()}"
        return answer.strip()

    def resolve(self, name: str, route: str | None = None, flags: int | None = None) -> int:
        hook = hooks().get(name)
        route = route or (
            self.route
            if hook and not (self.route == "getproc" and hook.library == "NVML")
            else "dlsym"
        )
        base, since, stream = (hook.base, hook.since, hook.stream) if hook else (name, 13000, "ANY")
        if flags is None:
            flags = 2 if stream == "PER_THREAD" else 0
        return int(self.tell("resolve", route, name, base, since, flags))

    def look_up(self, get: str, base: str, version: int, flags: int) -> int:
        """The result of cuGetProcAddress or cuGetProcAddress_v2 itself; 0 if it refuses."""
        symbol, found = self.alloc(content=base.encode() + b"\0"), self.alloc(8)
        return (
            self.u64(found)
            if self.call(get, symbol, found, version, flags, self.alloc(8)) == 0
            else 0
        )

    def call(self, name: str, *arguments: int) -> int:
        if name not in self._addresses:
            self._addresses[name] = self.resolve(name)
        assert self._addresses[name], f"no {name} by {self.route}"
        return int(self.tell("call", self._addresses[name], *arguments))

    def __getattr__(self, name: str) -> object:
        if not name.startswith(("cu", "nvml")):
            raise AttributeError(name)
        return lambda *arguments: self.call(name, *arguments)

    def memory(self, size: int) -> int:
        """The address of linear memory that it must get."""
        out = self.alloc(8)
        assert self.call("cuMemAlloc_v2", out, size) == 0
        return self.u64(out)

    def alloc(self, size: int = 8, content: bytes = b"") -> int:
        """Memory of the probe's own, zeroed except for `content`."""
        address = int(self.tell("alloc", max(size, len(content))))
        if content:
            self.tell("poke", address, content.hex())
        return address

    def peek(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.tell("peek", address, size))

    def u64(self, address: int) -> int:
        return int(struct.unpack("<Q", self.peek(address, 8))[0])

    def u32(self, address: int) -> int:
        return int(struct.unpack("<I", self.peek(address, 4))[0])

    def end(self, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Its exit code, and all that it wrote beside the answers."""
        stdout, stderr = self.process.communicate(f"quit {code}\n", timeout=WAIT_LIMIT_S)
        return subprocess.CompletedProcess([], self.process.returncode, stdout, stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def copy_library(directory: Path) -> Path:
    """A payload of the library alone, readable by all users."""
    directory.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(LIBRARY, directory / LIBRARY.name))
