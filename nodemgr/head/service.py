"""The main of a head: opens its directory, its sockets and its store, runs until a signal.

Knows: the order of a start and of an end, the files of a head's directory. Must not know: a verb's
work, a decision.

The directory has the store, the keys (0600) and settings.json: the address, if there is one. Two
heads on one directory, or one run directory, are refused by a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from client_plugin.messages.form import stated
from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import Counters
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.pilots import PoolConfig
from nodemgr.core.cluster.state import ClusterState
from nodemgr.core.model.encoding import EncodingError
from nodemgr.edge.host import descriptors, rundir, stderr_log
from nodemgr.edge.host.clock import Clock, RealClock
from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.host.systemd import ServiceManager, Watchdog
from nodemgr.edge.links import keys
from nodemgr.edge.links.head_links import HeadLinks
from nodemgr.edge.store import node_time
from nodemgr.edge.store.database import CommitHook, StoreFailed
from nodemgr.edge.store.migrations import StoreUnusable
from nodemgr.head.control_socket import ControlSocket
from nodemgr.head.engine import HeadEngine, Links
from nodemgr.head.node_orders import NodeOrders
from nodemgr.head.node_sessions import NodeSessions
from nodemgr.head.pool_keeper import PoolKeeper
from nodemgr.head.slurm import Slurm
from nodemgr.head.store import HeadStore
from nodemgr.head.verbs import HeadVerbs

SETTINGS_FILE, KEY_FILE = "settings.json", "key"
GROUP = "nodemgr"


class HeadSettings(NamedTuple):
    name: str
    address: str = ""
    """HOST:PORT; "": it listens on none."""
    pool: PoolConfig | None = None
    """The nodes that Slurm lends."""

    def text(self) -> str:
        pool = None if self.pool is None else asdict(self.pool)
        return json.dumps({**self._asdict(), "pool": pool}, indent=2) + "\n"


class HeadFault(Exception):
    """The head cannot start. The message is one line, with the remedy."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


def read_settings(directory: Path) -> HeadSettings:
    """Raises HeadFault."""
    try:
        said = json.loads((directory / SETTINGS_FILE).read_text())
        pool = said.get("pool")
        if pool is not None:
            listed = {name: tuple(pool[name]) for name in ("always", "options") if name in pool}
            pool = PoolConfig(**{**pool, **listed})
        return HeadSettings(str(said["name"]), str(said.get("address", "")), pool)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadFault(
            stated(
                f"{directory} is no head's directory ({error})",
                "make one with nodemgr head setup",
                "usage",
            )
        ) from None


def make(directory: Path, name: str, address: str, pool: PoolConfig | None = None) -> HeadSettings:
    """Makes a head's directory, or gives the one that is there another address or pool.

    The name gets a sign of its own, so that keys of two heads of one name are never the same.
    Raises RunDirError, HeadFault.
    """
    rundir.own_directory(directory, 0o700)
    if (directory / SETTINGS_FILE).exists():
        before = read_settings(directory)
        settings = before._replace(address=address or before.address, pool=pool or before.pool)
    else:
        settings = HeadSettings(f"{name}-{secrets.token_hex(3)}", address, pool)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, rundir.lock_state(directory))
        keys.load(directory / KEY_FILE)
        store = opened(directory)
        stack.callback(store.close)
        if store.is_new:
            clock = RealClock()
            first = ("counters", "", Counters(settings.name))
            store.commit([first], clock.monotonic_ns(), clock.wall_ns())
    rundir.replace(directory / SETTINGS_FILE, settings.text(), 0o600)
    return settings


def opened(directory: Path, hook: CommitHook | None = None) -> HeadStore:
    """Raises HeadFault."""
    try:
        return HeadStore(directory, hook)
    except StoreUnusable as error:
        raise HeadFault(error.line) from None


class HeadService:
    """One head. `open` may raise HeadFault and then leaves nothing behind."""

    def __init__(
        self,
        directory: Path,
        run_dir: Path,
        clock: Clock | None = None,
        hook: CommitHook | None = None,
        make_links: Callable[[NodeSessions], Links | None] | None = None,
    ) -> None:
        """Tests replace `clock`, `hook` and `make_links` (None: edge/links)."""
        self.directory, self.run_dir = directory, run_dir
        self.clock = clock or RealClock()
        self._hook, self._make_links = hook, make_links or self._listen
        self.loop, self._selector = new_loop()
        self._closing = contextlib.ExitStack()
        self._supervisor = ServiceManager(os.environ)
        self.links: Links | None = None
        self.pool: PoolKeeper | None = None
        self.settings: HeadSettings
        self.engine: HeadEngine
        self.verbs: HeadVerbs
        self.sessions: NodeSessions

    def open(self) -> None:
        """Raises HeadFault."""
        with contextlib.ExitStack() as stack:
            try:
                self._open(stack)
            except (rundir.RunDirError, StoreUnusable, StoreFailed) as error:
                raise HeadFault(error.line) from None
            except (EncodingError, OSError, zmq.ZMQError) as error:
                raise HeadFault(
                    stated(
                        f"the head cannot start ({error})", "see the head's directory and address"
                    )
                ) from None
            self._closing = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        stack.callback(self.loop.close)
        self.settings = read_settings(self.directory)
        rundir.own_directory(self.run_dir, 0o755)
        for descriptor in (rundir.lock(self.run_dir), rundir.lock_state(self.directory)):
            stack.callback(os.close, descriptor)
        store = opened(self.directory, self._hook)
        stack.callback(store.close)
        node_time.go_on(self.clock, store)
        state = store.state(self.settings.name)
        self.engine = HeadEngine(self.loop, self.clock, store, state, lambda: self.links)
        stack.callback(self.engine.close)
        orders = NodeOrders(state, lambda: self.links)
        lent = 0 if self.settings.pool is None else self.settings.pool.gpus
        self.verbs = HeadVerbs(self.engine, store, self.clock, orders, lent)
        own = keys.load(self.directory / KEY_FILE)
        self.sessions = NodeSessions(
            self.engine, self.clock, orders, self.verbs, lambda: self.links, own.public
        )
        control = ControlSocket(
            self.loop, self._selector, self.clock, self.run_dir / rundir.CONTROL_SOCKET, GROUP,
            self.sessions.of_admin,
        )  # fmt: skip
        stack.callback(control.close)
        self.links = self._make_links(self.sessions)
        if self.settings.pool is not None:
            self.pool = self._open_pool(self.settings.pool, own.public)
            stack.callback(self.pool.close)

    def _open_pool(self, config: PoolConfig, own_public: str) -> PoolKeeper:
        address = self.settings.address
        if isinstance(self.links, HeadLinks):
            address = f"{address.rpartition(':')[0]}:{self.links.address.rpartition(':')[2]}"
        slurm = Slurm(self.settings.name, config, address)
        return PoolKeeper(
            self.loop, self.clock, self.engine, lambda: self.links, own_public, config, slurm
        )

    def _listen(self, sessions: NodeSessions) -> Links | None:
        state = self.engine.state
        head = state.counters[""]
        if not self.settings.address:
            stderr_log.say(
                f"head {head.name} has no address, so no node can reach it",
                "name one with nodemgr head setup --address HOST:PORT",
            )
            return None
        links = HeadLinks(
            self.loop,
            self.settings.address,
            keys.load(self.directory / KEY_FILE),
            KnownKeys(state),
            sessions.is_word,
            {"head": head.name, "generation": head.generation},
            sessions,
        )
        stderr_log.say(
            f"head {head.name} (generation {head.generation}) is ready: nodes reach it at "
            f"{links.address}"
        )
        return links

    def run(self) -> None:
        """Until SIGTERM, SIGINT or SIGHUP."""
        descriptors.raise_limit()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.loop.add_signal_handler(number, self.loop.stop)
        self._supervisor.notify("READY=1")
        Watchdog(self.loop, self._supervisor).pat()
        self.loop.run_forever()

    def close(self) -> None:
        links, self.links = self.links, None
        if isinstance(links, HeadLinks):
            links.close()
        self._closing.close()


class KnownKeys(Mapping[str, str]):
    """The public key of each node that has joined, as the rows say now."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def __getitem__(self, node: str) -> str:
        key = self._state.nodes[node].key
        if not key:
            raise KeyError(node)
        return key

    def __iter__(self) -> Any:
        return (name for name, node in list(self._state.nodes.items()) if node.key)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def serve(directory: Path, run_dir: Path) -> None:
    """Raises HeadFault."""
    head = HeadService(directory, run_dir)
    head.open()
    try:
        head.run()
    finally:
        head.close()


def restore(directory: Path, copy: Path | None) -> list[str]:
    """Lets a copy of the store go on as the head's, under a later generation. Returns lines.

    `copy` None: the store in the directory is one already. Raises HeadFault, RunDirError, OSError.
    """
    settings, clock = read_settings(directory), RealClock()
    descriptor = rundir.lock_state(directory)
    try:
        generation = 0
        if copy is not None:
            generation = _put_in_place(directory, copy)
        store = opened(directory)
        try:
            node_time.go_on(clock, store)
            state = store.state(settings.name)
            made_ns = store.wall_seen_ns()
            made = step(state, events.Restored(generation), clock.monotonic_ns())
            store.commit(made.saved, clock.monotonic_ns(), clock.wall_ns())
            made.apply()
        finally:
            store.close()
    finally:
        os.close(descriptor)
    head, gap_s = state.counters[""], max(0, clock.wall_ns() - made_ns) // 10**9
    return [
        f"the copy's last change was {gap_s} s ago: jobs that were submitted since and are on no "
        "node are lost",
        f"the head goes on with generation {head.generation}, assignment {head.number + 1} and job "
        f"c{head.job + 1}",
        f"it gives no job until it has heard {', '.join(sorted(state.nodes)) or 'a node'} (or "
        "nodemgr node lost NODE)",
    ]


def _put_in_place(directory: Path, copy: Path) -> int:
    """The generation of the store that it replaces, which is moved aside."""
    if not copy.is_file():
        raise HeadFault(stated(f"{copy} is no file", "name a copy of state.db", "usage"))
    path, generation = directory / "state.db", 0
    with contextlib.suppress(HeadFault, StoreFailed, EncodingError, OSError):
        before = opened(directory)
        try:
            generation = before.state("").counters[""].generation
        finally:
            before.close()
    fresh = directory / "state.db-fresh"
    shutil.copyfile(copy, fresh)
    fresh.chmod(0o600)
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{end}").replace(f"{path}{end}.before-restore")
    fresh.replace(path)
    return generation
