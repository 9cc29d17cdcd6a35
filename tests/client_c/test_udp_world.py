"""Both real ends of the UDP protocol in a seeded world.

The world loses, doubles, reorders, corrupts and delays packets.

The clients are the C client (simulated.c), the manager is its daemon with core, journal and UDP
server; time is simulated, so minutes of it pass in a moment. Held through all of it: a request of a
client's becomes one lease at most, and what both ends believe agrees once the network heals; in the
end nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import json
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import Draft
from nodemgr.core.model import encoding, events
from nodemgr.core.model.entities import Config, Gpu, Quota
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.engine.informer import QUEUE_CHANGED
from nodemgr.edge.gate.node_gate import NO_NODE_GATE
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.ledger.registry import Ledgers
from nodemgr.edge.store.database import CommitBatch
from nodemgr.edge.store.journal import Journal
from tests.client_c.compiled import CLIENT_SOURCES, HIDDEN, compile_c
from tests.core.invariants import promises
from tests.edge.simulated_clock import SimulatedClock
from tests.support.examples import examples

MS = 1_000_000
S = 1_000 * MS
GIB = 2**30
WRAPPED = ("nm_now_ns", "nm_random", "poll", "nm_thread_start", "nm_env_get", "nm_env_publish")
NONE, WAITING, HELD, DENIED, LOST, NO_MANAGER = range(6)
UNDERWAY = (WAITING, NO_MANAGER)
SEEDS = range(examples(12))
LOST_BY_SILENCE = 108
"""In this world no packet of a client arrives for longer than the timeout, just as it is served."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    source = Path(__file__).with_name("simulated.c")
    return compile_c(
        tmp_path_factory.mktemp("world") / "client.so",
        [*CLIENT_SOURCES, source],
        "-shared",
        HIDDEN,
        "-Wl,-Bsymbolic",
        *wraps,
    )


class Loop:
    """As much of a loop as the daemon asks for, in the world's time."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._timers: list[tuple[int, int, SimpleNamespace]] = []
        self._numbers = itertools.count()

    def call_later(self, delay_s: float, action: Callable[..., object], *arguments: object) -> Any:
        timer = SimpleNamespace(action=lambda: action(*arguments))
        timer.cancel = lambda: setattr(timer, "action", lambda: None)
        heapq.heappush(
            self._timers,
            (self._clock.monotonic_ns() + round(delay_s * 1e9), next(self._numbers), timer),
        )
        return timer

    def call_soon(self, action: Callable[..., object], *arguments: object) -> Any:
        return self.call_later(0, action, *arguments)

    def add_reader(self, *_: object) -> None: ...

    def remove_reader(self, *_: object) -> None: ...

    def due_ns(self) -> int:
        return self._timers[0][0] if self._timers else 1 << 62

    def run_due(self) -> None:
        while self._timers and self._timers[0][0] <= self._clock.monotonic_ns():
            heapq.heappop(self._timers)[2].action()


class Store:
    """Rows in memory: what a kill -9 leaves."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.db"
        self.rows: dict[tuple[str, str], str] = {}
        self.sequence = 0
        self.granted: dict[tuple[str, str], set[str]] = {}
        """By client and request, the tasks that were made of it."""
        self.silenced: set[str] = set()
        """Tasks that ended since nothing of them was heard for too long."""

    @property
    def is_new(self) -> bool:
        return not self.rows

    def meta(self) -> dict[str, str]:
        return {}

    def counter(self, key: str) -> int:
        return int(self.rows.get(("counter", key), 0))

    def last_sequence(self) -> int:
        return self.sequence

    def refusal(self, _batch: CommitBatch) -> None:
        """There is always room."""

    def commit(self, batch: CommitBatch, *, durable: bool = False) -> None:
        for key, text in batch.current.items():
            if text is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = text
                if key[0] == "process":
                    process: Any = encoding.decode(key[0], text)
                    self.granted.setdefault((process.key, process.rid), set()).add(process.task_id)
        ended = [
            event
            for text in batch.events
            if (event := json.loads(text.value))["name"] == "task.ended"
        ]
        self.silenced |= {event["task"] for event in ended if "silent" in event["why"]}
        self.sequence = max([self.sequence, *(event.sequence for event in batch.events)])


class Client:
    """One process beyond the network, and its socket's other end."""

    def __init__(self, world: World, number: int, env: str, library: Path) -> None:
        self.world = world
        self.address = (f"10.0.0.{number}", 1_000)
        self.directory = world.directory / f"client{number}"
        self.directory.mkdir()
        self.wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.wire.bind(("127.0.0.1", 0))
        self.wire.setblocking(False)
        self._own: tuple[str, int] | None = None
        host, port = self.wire.getsockname()
        (self.directory / "key").write_text(world.keys[env].hex())
        (self.directory / "client.conf").write_text(
            f"env={env}\naddress=udp:{host}:{port}\nkey=key\nbeat_ms=1000\ntimeout_ms=5000\n"
        )
        self.lib = ctypes.CDLL(str(shutil.copy(library, self.directory / "client.so")))
        for name in ("sim_due_ns", "sim_rid"):
            getattr(self.lib, name).restype = ctypes.c_uint64
        self._now = ctypes.c_uint64.in_dll(self.lib, "sim_now_ns")
        self._waits = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._wait)
        ctypes.c_void_p.in_dll(self.lib, "sim_wait").value = ctypes.cast(
            self._waits, ctypes.c_void_p
        ).value
        self.lib.sim_begin(
            str(self.directory).encode(), ctypes.c_uint64(world.chance.getrandbits(64))
        )
        self.busy = False
        """It is inside a call, and waits there."""
        self.leases: dict[int, set[str]] = {}
        """By the request's number, what it was told it holds."""
        self.asked = 0

    def at(self) -> None:
        self._now.value = self.world.clock.monotonic_ns()

    def _wait(self, timeout_ms: int) -> None:
        end_ns = self.world.clock.monotonic_ns() + timeout_ms * MS
        while not self._has_mail() and self.world.clock.monotonic_ns() < end_ns:
            self.world.go_on(end_ns)
        self.at()

    def _has_mail(self) -> bool:
        return self.world.mail.pop(self.address, False)

    def do(self, verb: str, *arguments: int) -> int:
        self.at()
        self.busy = True
        state: int = getattr(self.lib, verb)(*(ctypes.c_int64(argument) for argument in arguments))
        self.busy = False
        self.sent()
        return state

    def begin(self) -> None:
        self.at()
        self.lib.nodemgr_begin(ctypes.c_int64(1), ctypes.c_int64(-1), ctypes.c_int64(-1), b"train")
        self.asked += 1
        self.sent()

    def step(self) -> None:
        if not self.busy:
            self.at()
            self.lib.sim_step()
            self.sent()
            if self.state() == HELD:
                self.leases.setdefault(self.lib.sim_rid(), set()).add(self.lease())

    def state(self) -> int:
        return int(self.lib.nodemgr_state(None, ctypes.c_size_t(0)))

    def lease(self) -> str:
        out = ctypes.create_string_buffer(4_096)
        assert self.lib.nodemgr_lease(out, ctypes.c_size_t(len(out))) > 0
        return dict(line.split("=", 1) for line in out.value.decode().splitlines())["lease"]

    def due_ns(self) -> int:
        return (1 << 62) if self.busy else int(self.lib.sim_due_ns())

    def sent(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, self._own = self.wire.recvfrom(2_000)
                self.world.carry(
                    packet, lambda packet: self.world.server._datagram(packet, self.address)
                )

    def deliver(self, packet: bytes) -> None:
        if self._own is not None:
            self.world.mail[self.address] = True
            self.wire.sendto(packet, self._own)


class Out:
    """The manager's socket, of which only sending matters."""

    def __init__(self, world: World) -> None:
        self._world = world

    def sendto(self, packet: bytes, address: tuple[str, int]) -> None:
        client = next(client for client in self._world.clients if client.address == address)
        self._world.carry(packet, client.deliver)


class Node(Daemon):
    """A daemon whose sockets but that of UDP, GPUs and jobs are stand-ins."""

    def __init__(self, base: Any, ledgers: Ledgers, stub: Any) -> None:
        self.stub = stub
        super().__init__(base, ledgers)

    def make_transports(self) -> None:
        base = self.base
        assert base.udp_socket is not None
        self.udp = self.server = UdpServer(
            base.loop, base.selector, self.hub, base.clock, base.udp_socket
        )
        self.clients = self.envs = self.context_sizes = self.stub
        self.env_of_stranger = lambda _pid: None

    def watch_gpus(self, on_reading: object) -> Any:
        return self.stub

    def has_mps(self) -> bool:
        return False

    def executor(self, listener: object) -> Any:
        return SimpleNamespace(job_of=lambda _: None)

    def suspender(self, answered: object) -> Any:
        return self.stub

    @cached_property
    def client(self) -> None:
        return None


class World:
    def __init__(self, seed: int, directory: Path, library: Path) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.clock = SimulatedClock()
        self.loop = Loop(self.clock)
        self.store = Store(self.directory)
        self.keys = {env: self.chance.randbytes(32) for env in ("alice", "bob")}
        self.bad = True
        self.mail: dict[tuple[str, int], bool] = {}
        self._packets: list[tuple[int, int, Callable[[bytes], object], bytes]] = []
        self._numbers = itertools.count()
        self._socket = UdpServer.bind("127.0.0.1", 0)
        self.config = Config()
        self.gpus = (Gpu("GPU-0", 0, "simulated", 80 * GIB),)
        self._start(Draft(self.config))
        for env in self.keys:
            self.daemon.submit(events.SetQuota(env, Quota(1, 80 * GIB), "root", 0))
        self.clients = [
            Client(self, number, env, library)
            for number, env in enumerate(("alice", "alice", "bob"), 1)
        ]

    # -- the manager --

    def _start(self, state: Draft) -> None:
        loop: Any = self.loop
        store: Any = self.store
        stub: Any = SimpleNamespace(
            last=DriverReading(self.gpus, at_ns=1 << 62),
            set_period=lambda _: None,
            read_soon=lambda then: then(stub.last),
            refresh=lambda _: None,
            can_limit=False,
            may_enter=lambda *_: True,
            uncharged_bytes=lambda *_: 0,
            charge=lambda *_: None,
            share=lambda _: None,
        )
        selector: Any = SimpleNamespace(swallow=lambda *_: None)
        base: Any = SimpleNamespace(
            settings=SimpleNamespace(
                job_log_sink="store", job_logs_bytes=0, job_logs_days=0, run_dir=Path("/")
            ),
            loop=loop,
            selector=selector,
            clock=self.clock,
            state=state,
            journal=Journal(store, self.clock),
            gate=None,
            no_gate="",
            node_gate=NO_NODE_GATE,
            udp_socket=self._socket,
        )
        daemon = self.daemon = Node(base, Ledgers(lambda *_: None), stub)
        daemon.hub.serve(lambda *_: None, lambda *_: None, (), lambda *_: None)
        self.server = daemon.server
        daemon.informer.subscribe(
            lambda _, news: (
                loop.call_soon(daemon.engine.run_pass) if QUEUE_CHANGED in news else None
            )
        )
        out: Any = Out(self)
        self.server._sock = out
        for env, key in self.keys.items():
            self.server.open(env, key)
            self.server._epochs[env] = self.chance.getrandbits(52)
        for key_, pid in state.watched():
            self.daemon.node.resume_watching(key_, pid, True)
        self.daemon.submit(events.GpusChanged(self.gpus, 0))
        self.daemon.engine.run_pass()
        self.daemon.node.tick()

    def restart(self) -> None:
        """kill -9, and another: what it had not stored is gone, and its epoch is a new one."""
        # the dead one's timers do nothing
        self.daemon.engine.submit = lambda *_: False  # type: ignore[method-assign]
        self.daemon.ledgers.forget_all()
        rows = [
            (kind, key, encoding.decode(kind, text))
            for (kind, key), text in self.store.rows.items()
        ]
        self._start(restore(self.config, rows, self.clock.monotonic_ns()))

    # -- the network --

    def carry(self, packet: bytes, deliver: Callable[[bytes], object]) -> None:
        times = 1
        if self.bad:
            times = self.chance.choices([0, 1, 2, 3], [25, 50, 20, 5])[0]
            if self.chance.random() < 0.1:
                at = self.chance.randrange(len(packet))
                packet = (
                    packet[:at]
                    + bytes([packet[at] ^ 1 << self.chance.randrange(8)])
                    + packet[at + 1 :]
                )
        for _ in range(times):
            most_ms = self.chance.choices([20, 1_500, 12_000], [60, 30, 10])[0] if self.bad else 20
            delay_ns = self.chance.randrange(1, most_ms) * MS
            heapq.heappush(
                self._packets,
                (self.clock.monotonic_ns() + delay_ns, next(self._numbers), deliver, packet),
            )

    # -- time --

    def go_on(self, end_ns: int) -> None:
        """To the next thing that happens, or to then."""
        packet_ns = self._packets[0][0] if self._packets else 1 << 62
        now_ns = self.clock.monotonic_ns()
        next_ns = min(
            end_ns, packet_ns, self.loop.due_ns(), *(client.due_ns() for client in self.clients)
        )
        self.clock.advance(
            max(0, next_ns - now_ns) or (MS if next_ns < end_ns and packet_ns > now_ns else 0)
        )
        self.loop.run_due()
        while self._packets and self._packets[0][0] <= self.clock.monotonic_ns():
            _, _, deliver, packet = heapq.heappop(self._packets)
            deliver(packet)
        for client in self.clients:
            client.step()
        assert promises.check(self.daemon.state) == []

    def passes(self, duration_ns: int) -> None:
        end_ns = self.clock.monotonic_ns() + duration_ns
        while self.clock.monotonic_ns() < end_ns:
            self.go_on(end_ns)

    def close(self) -> None:
        for client in self.clients:
            client.wire.close()
        self.daemon.ledgers.forget_all()
        self._socket.close()


@pytest.fixture
def make(tmp_path: Path, library: Path) -> Iterator[Callable[[int], World]]:
    with contextlib.ExitStack() as stack:
        yield lambda seed: stack.enter_context(contextlib.closing(World(seed, tmp_path, library)))


def lives(world: World) -> None:
    """A minute of it: clients ask, give up, give back; now and then the manager is killed."""
    for _ in range(20):
        client = world.chance.choice(world.clients)
        state = client.state()
        if state == HELD and world.chance.random() < 0.6:
            client.do("nodemgr_release")
        elif state in UNDERWAY and world.chance.random() < 0.3:
            client.do("nodemgr_cancel")
        elif state not in (HELD, *UNDERWAY):
            client.begin()
        elif world.chance.random() < 0.1:
            world.restart()
        world.passes(world.chance.randrange(6_000) * MS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_request_is_one_lease_and_none_is_left(seed: int, make: Callable[[int], World]) -> None:
    world = make(seed)
    lives(world)
    for client in world.clients:
        assert all(len(leases) == 1 for leases in client.leases.values()), "one request, one lease"
    world.bad = False
    world.passes(15 * S)
    holders = {client.lease() for client in world.clients if client.state() == HELD}
    assert set(world.daemon.state.tasks) == holders, "both ends believe the same"
    waiting = [client for client in world.clients if client.state() in UNDERWAY]
    assert len(world.daemon.state.requests) == len(waiting)
    for client in world.clients:
        client.do("nodemgr_cancel")
        client.do("nodemgr_release")
    world.passes(15 * S)
    state = world.daemon.state
    assert (state.tasks, state.requests, state.grants, state.processes) == ({}, {}, {}, {})
    for tasks in world.store.granted.values():
        assert len(tasks - world.store.silenced) <= 1, (
            "one more only where the network was silent for longer than the timeout"
        )


@pytest.mark.parametrize("seed", sorted({*SEEDS[: examples(3)], LOST_BY_SILENCE}))
def test_each_client_is_served_in_its_turn(seed: int, make: Callable[[int], World]) -> None:
    """A client that lost its lease to a silent network requests again."""
    world = make(seed)
    for client in world.clients:
        client.begin()
    served = set()
    for _ in range(60):
        world.passes(2 * S)
        for client in world.clients:
            if client.state() == HELD:
                served.add(client.address)
                client.do("nodemgr_release")
            elif client.state() == LOST and client.address not in served:
                client.begin()
    assert len(served) == 3
