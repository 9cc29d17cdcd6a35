"""What the manager shows: its status, its records, its own checks. Reads everything, changes nothing.

Knows: the core's snapshot, and what only the edges know beside it. Must not know: who asks, how an answer travels.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from nodemgr.core import snapshot
from nodemgr.edge import doctor
from nodemgr.edge.daemon import Daemon
from nodemgr.edge.settings import Settings
from nodemgr.edge.store import Store

SCHEMA_VERSION = 1
COUNTERS = (
    "packets_malformed", "packets_forged", "packets_replayed", "packets_foreign", "packets_throttled", "connections_refused",
    "connections_over_limit", "connections_throttled", "connections_deaf", "descriptors_exhausted",
)  # fmt: skip
"""What was counted since the start: each is in the status, also at zero."""


class Views:
    """Figures, as they are now."""

    def __init__(self, daemon: Daemon, settings: Settings, store: Store) -> None:
        self.run_dir = settings.run_dir
        self._daemon = daemon
        self._settings = settings
        self._store = store
        self._since_wall_ns = daemon.clock.wall_ns()

    @staticmethod
    @cache
    def version() -> str:
        from importlib.metadata import PackageNotFoundError, version  # not before somebody asks

        try:
            return version("nodemgr")
        except PackageNotFoundError:  # run from a bare source tree
            return "unknown"

    def status(self, env: str | None = None) -> dict[str, Any]:
        """The object of `nodemgr status --json`; with `env` what it may know of itself."""
        daemon = self._daemon
        now_ns, used_bytes = daemon.clock.monotonic_ns(), daemon.gpus.last.used_bytes
        status = snapshot.status(daemon.state, now_ns, used_bytes=used_bytes, last_beat_ns=daemon.last_beat_ns, env=env)
        fault = daemon.journal.fault
        status["store"] = {"state": "ok" if fault is None else "failing", "error": fault}
        if env is None:
            status["counters"] = {name: daemon.counters[name] for name in COUNTERS}
            status["manager"] = self._manager()
        return status

    def _manager(self) -> dict[str, Any]:
        udp = self._daemon.udp
        return {
            "pid": os.getpid(),
            "version": self.version(),
            "since": self._since_wall_ns,
            "run_dir": str(self.run_dir),
            "simulated": self._settings.simulate is not None,
            "udp": None if udp is None else f"{udp.address[0]}:{udp.address[1]}",
        }

    def allocations(self, env: str | None, since_wall_ns: int) -> dict[str, Any]:
        """The records, with the indices that people read beside the UUIDs."""
        gpus = self._daemon.state.gpus
        records = self._daemon.journal.records(env, since_wall_ns)
        for record in records:
            for name in ("gpus_new", "gpus_reused"):
                record[name + "_index"] = [gpus[uuid].index if uuid in gpus else None for uuid in record[name]]
        return {"schema_version": SCHEMA_VERSION, "allocations": records}

    def checks(self) -> list[dict[str, Any]]:
        """The manager's own doctor."""
        daemon = self._daemon
        used = len(os.listdir("/proc/self/fd"))
        around = doctor.Surroundings(self._store, daemon.journal.fault, daemon.gpus.last, daemon.clock.monotonic_ns(), used)
        return doctor.examine(around)

    def env_checks(self) -> list[dict[str, Any]]:
        """Those that tell an env why it gets no GPU."""
        return [check for check in self.checks() if check["name"] in ("store", "nvml", "gpus")]
