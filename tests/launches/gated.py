"""A simulated node whose processes launch through a gate that the test controls.

Knows: the manager's stub, the pages of a launch gate. Must not know: the rules of turns.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nodemgr import simulator
from nodemgr._native import ffi, lib
from nodemgr.edge.rpc import wire
from tests.shim.manager_stub import ManagerStub, Seat
from tests.shim.world import GIB, ROOT, World, compiled
from tests.support.packets import Packet

NORMAL = lib.NM_LAUNCH_NORMAL
URGENT = lib.NM_LAUNCH_LATENCY_SENSITIVE
BEST_EFFORT = lib.NM_LAUNCH_BEST_EFFORT
OPEN, CLOSED = lib.NM_LAUNCH_OPEN, lib.NM_LAUNCH_CLOSED
PAUSED = lib.NM_LAUNCH_PAUSED
SUSPENDED, FENCED = lib.NM_LAUNCH_SUSPENDED, lib.NM_LAUNCH_FENCED
BEAT_S = 0.3
SOURCE = ROOT / "bench" / "programs" / "tenant.c"


@dataclass(frozen=True)
class Share:
    """The share of the next process that asks."""

    percent: int
    klass: int = NORMAL
    group: int = 0
    """0: a task of its own."""


class Gate:
    """The pages of one GPU, as the manager has them."""

    def __init__(self) -> None:
        self.native: Any = ffi.new("struct nm_launch_gate *")
        assert lib.nm_launch_gate_create(self.native) == lib.NM_LAUNCH_GATE_OK

    @property
    def fds(self) -> list[int]:
        return [self.native.shares_fd, self.native.turns_fd]

    def give(self, share: Share, group: int) -> int:
        slot: int = lib.nm_launch_gate_give(self.native, _slot(share, OPEN, group))
        assert slot >= 0
        return slot

    def set(self, slot: int, share: Share, state: int = OPEN) -> None:
        now = ffi.new("struct nm_launch_slot *")
        lib.nm_launch_gate_slot(self.native, slot, now)
        fresh = _slot(share, state, now.group)
        assert lib.nm_launch_gate_set(self.native, slot, fresh) == lib.NM_LAUNCH_GATE_OK

    def use(self, slot: int) -> Any:
        use = ffi.new("struct nm_launch_use *")
        assert lib.nm_launch_gate_use(self.native, slot, use) == lib.NM_LAUNCH_GATE_OK
        return use

    def clear(self, slot: int) -> None:
        lib.nm_launch_gate_clear(self.native, slot)

    def beat(self) -> None:
        lib.nm_launch_gate_beat(self.native, time.monotonic_ns())

    def tune(self, window_us: int) -> None:
        lib.nm_launch_gate_tune(self.native, window_us * 1000, 0)

    def replace(self) -> None:
        """Fresh pages: a process has them with its next grant."""
        lib.nm_turns_retire(self.native)
        lib.nm_launch_gate_unmap(self.native)
        assert lib.nm_launch_gate_create(self.native) == lib.NM_LAUNCH_GATE_OK


def _slot(share: Share, state: int, group: int) -> Any:
    return ffi.new(
        "struct nm_launch_slot *",
        {"share": share.percent, "klass": share.klass, "state": state, "group": group},
    )


@dataclass
class GatedStub(ManagerStub):
    """A manager whose grants bring gates. `share`: of the next process."""

    share: Share = field(default_factory=lambda: Share(100))
    without_gates: bool = False
    beats: bool = True

    def __post_init__(self) -> None:
        self.settings = {"gate": "1", **self.settings}
        super().__post_init__()
        self.gates = [Gate() for _ in self.uuids]
        self.slots: dict[int, list[int]] = {}  # by pid
        self.resumes_asked: list[int] = []  # the pid of each request
        self._ended = threading.Event()
        self._beater = threading.Thread(target=self._beat, daemon=True)
        self._beater.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beater.join()
        super().__exit__()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            for gate in self.gates if self.beats else ():
                gate.beat()

    def _give(self, seat: Seat) -> list[int]:
        group = self.share.group or 1000 + seat.pid
        return [gate.give(self.share, group) for gate in self.gates]

    def _handle(self, seat: Seat, message: Packet) -> None:
        if message.verb == "ASK" and message.text("what") == "resume":
            self.resumes_asked.append(seat.pid)
        super()._handle(seat, message)

    def _bury(self, seat: Seat) -> None:
        for gate, slot in zip(self.gates, self.slots.pop(seat.pid, []), strict=False):
            gate.clear(slot)
        super()._bury(seat)

    def _send(self, seat: Seat, packet: bytes, fds: list[int] | None = None) -> None:
        if fds and not self.without_gates:
            if seat.pid not in self.slots:
                self.slots[seat.pid] = self._give(seat)
            verb, fields = wire.decode(packet, wire.Direction.DOWN)
            packet = wire.encode(verb, **{**fields, "gates": tuple(self.slots[seat.pid])})
            fds = fds + [fd for gate in self.gates for fd in gate.fds]
        super()._send(seat, packet, fds)

    def grant_again(self) -> None:
        for seat in self.seats:
            if seat.held:
                self._grant(seat)


@dataclass
class Tenant:
    """A running tenant.c."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        self.say("go")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, line: str) -> int:
        self.say(line)
        return int(self.hear())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class GatedWorld:
    """A node with one GPU whose processes are gated."""

    world: World
    gate: Gate
    manager: GatedStub
    tenants: list[Tenant] = field(default_factory=list)

    def start(self, share: Share | None, *words: object, shim: bool = True) -> Tenant:
        """A tenant that is ready. `share` None: a process without a gate, of the bare driver."""
        self.manager.share = share or Share(100)
        environ = self.world.environment(shim=share is not None and shim)
        command = [str(tenant_program()), *map(str, words)]
        tenant = Tenant(
            subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self.tenants.append(tenant)
        heard = tenant.hear()
        assert heard == "ready", heard + (
            tenant.process.stderr.read() if tenant.process.stderr and not heard else ""
        )
        return tenant

    def slot(self, tenant: Tenant) -> int:
        return self.manager.slots[tenant.pid][0]

    def busy_ns(self, tenant: Tenant) -> int:
        """The GPU time of a process by the simulator's own books."""
        return self.world.node.times(0).by_pid.get(tenant.pid, 0)

    def end(self) -> None:
        for tenant in self.tenants:
            if tenant.process.poll() is None:
                tenant.process.kill()
            tenant.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def tenant_program(driver: Path | None = None) -> Path:
    """`driver`: the libcuda.so.1 that it is linked with; None: the simulator's."""
    return launching_program(SOURCE, driver)


def launching_program(source: Path, driver: Path | None = None) -> Path:
    """A program with timed kernels (timed_kernels.h)."""
    driver = simulator.library_directory() / "libcuda.so.1" if driver is None else driver
    linked = (f"-I{SOURCE.parent}", f"-Wl,--no-as-needed,{driver}", "-lm")
    return compiled(source.read_text(), *linked)


@contextmanager
def gated_world(directory: Path, **options: Any) -> Iterator[GatedWorld]:
    """`directory` must be short: a socket lies in it."""
    with simulator.create(directory / "sim", 1, 8 * GIB) as node:
        uuids = [device.uuid for device in node.books()]
        with GatedStub(directory / "env", uuids, 8 * GIB, 1 * GIB, **options) as manager:
            manager.at_death = node.books
            world = World(directory, node, manager)
            with GatedWorld(world, manager.gates[0], manager) as gated:
                yield gated
