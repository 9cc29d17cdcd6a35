"""The manager's reports: its status, its records, its own checks.

Reads everything, changes nothing.

Knows: the core's snapshot and the edges' own facts. Must not know: the caller, the transport.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nodemgr.core.leases.begins import record_id
from nodemgr.core.model.entities import Asker, Job, Process, Task
from nodemgr.core.scheduler import reasons
from nodemgr.core.scheduler.preference import chosen_line
from nodemgr.core.state.node_state import State
from nodemgr.core.views import figures, gpu_health, job_rows, snapshot
from nodemgr.core.views.figures import UNKNOWN, Readings
from nodemgr.core.views.snapshot import SECOND_NS
from nodemgr.edge.clients.connection_report import Crowd
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.gpu.figure_reader import FigureReader
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import processes
from nodemgr.edge.rpc.operation import JsonText, Later, OperationError, Reply
from nodemgr.edge.rpc.turns import Work, in_turns
from nodemgr.edge.setup import doctor
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store.database import RETAINED_RECORDS, Store
from nodemgr.messages import doctor as found
from nodemgr.messages import orders as messages
from nodemgr.paths import container_dir, env_dir, installed_version

SCHEMA_VERSION = 1
COUNTERS = (
    "packets_malformed", "packets_forged", "packets_replayed", "packets_foreign",
    "packets_throttled", "connections_refused",
    "connections_over_limit", "connections_throttled", "connections_deaf", "descriptors_exhausted",
    "strangers_shut_out",
)  # fmt: skip
"""Counters since the start: the status has each of them, also at zero."""


TURN_ENVS = 250
"""Rows of environments per turn of the loop: they take some milliseconds."""
TURN_TASKS = 250
"""Task rows per turn of the loop: they take some milliseconds."""
FIGURED_TASKS = 1_000
"""The oldest tasks of a view have figures; those of further tasks are null."""

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Views:
    """Current figures."""

    def __init__(self, daemon: Daemon, settings: Settings, store: Store) -> None:
        self.run_dir = settings.run_dir
        self._daemon = daemon
        self._settings = settings
        self._store = store
        self._figures = FigureReader(
            daemon.state,
            daemon.clock,
            daemon.loop,
            lambda: daemon.gpus,
            daemon.ledgers,
            lambda: daemon.compute.gates.uses(),
            lambda: daemon.compute.gates.paused_tasks,
            daemon.jobs.host_limits.leaves,
        )
        self._since_wall_ns = daemon.clock.wall_ns()

    def status(self, env: str | None = None) -> Later:
        """The object of `nodemgr status --json`, as text.

        With `env`: only the facts open to that env.

        Each turn of the loop writes TURN_ENVS or TURN_TASKS rows, so that ten thousand of them do
        not block the loop. A row has the state at its turn. A task that ended before its turn has
        no row. A task that began after the call is in the next status.
        """
        return self.later(lambda reply: self.reply_status(env, reply))

    def when_figures(self, then: Callable[[], None]) -> None:
        """Call back when the next status or figures need not wait for a reading."""
        self._figures.when_read(then)

    def readings(self) -> Readings:
        """The last figures, as far as they are not too old."""
        return self._figures.now()

    def figures(self, env: str | None = None) -> Later:
        """The part of a status that changes without an event, for a view that shows it live."""
        return self.later(lambda reply: self._reply_figures(env, reply))

    def later(self, make: Callable[[Reply], None]) -> Later:
        """The answer of `make` once the figures are read; a fault of ours is an answer, too."""

        def answer(reply: Reply) -> None:
            try:
                make(reply)
            except Exception as error:
                reply(internal_fault(error))

        return Later(lambda reply: self._figures.when_read(lambda: answer(reply)))

    def reply_status(self, env: str | None, reply: Reply) -> None:
        """Replies with the status as of the last figures."""
        self._in_turns(self._status(env, self._figures.now()), reply)

    def _reply_figures(self, env: str | None, reply: Reply) -> None:
        state, readings = self._daemon.state, self._figures.now()
        frame = figures.frame(state, readings, self._daemon.gpus.last.used_bytes, env)

        def rows(tasks: list[Task], readings: Readings) -> list[str]:
            return [
                _to_text({"id": task.task_id, **figures.of_task(state, task, readings)._asdict()})
                for task in tasks
            ]

        def text() -> Work[JsonText]:
            tasks = yield from self._tasks(env, readings, rows)
            return JsonText(f'{_to_text(frame)[:-1]},"tasks":[{tasks}]}}')

        self._in_turns(text(), reply)

    def _in_turns(self, work: Work[JsonText], reply: Reply) -> None:
        """A fault is an answer, too: the caller needs one in any case."""
        in_turns(self._daemon.loop, work, reply, lambda error: reply(internal_fault(error)))

    def _status(self, env: str | None, readings: Readings) -> Work[JsonText]:
        daemon = self._daemon

        def rows(tasks: list[Task], readings: Readings) -> list[str]:
            now_ns = daemon.clock.monotonic_ns()
            return [
                _to_text({
                    **self._task(task, task.task_id in readings.paused),
                    **snapshot.task_changes(daemon.state, task, now_ns, daemon.beats, readings),
                })
                for task in tasks
            ]  # fmt: skip

        waiting = snapshot.waiting(daemon.state)
        frame = self._frame(env, readings, waiting)
        envs = yield from self._envs(env, waiting)
        tasks = yield from self._tasks(env, readings, rows)
        return JsonText(f'{frame},"envs":[{envs}],"tasks":[{tasks}]}}')

    def _envs(self, env: str | None, waiting: Mapping[str, int]) -> Work[str]:
        """The rows of the envs, in the order of their names."""
        state = self._daemon.state
        names = sorted(state.envs) if env is None else [env]
        texts: list[str] = []
        for start in range(0, len(names), TURN_ENVS):
            if start:
                yield
            rows = snapshot.envs(state, names[start : start + TURN_ENVS], waiting)
            texts.extend(map(_to_text, rows))
        return ",".join(texts)

    def _tasks(
        self,
        env: str | None,
        readings: Readings,
        rows: Callable[[list[Task], Readings], list[str]],
    ) -> Work[str]:
        """The rows of the tasks, in the order of their numbers."""
        state = self._daemon.state
        texts: list[str] = []
        ids = deque(
            sorted(state.tasks if env is None else state.env_tasks.get(env, ()), key=record_id)
        )
        most = len(ids) - FIGURED_TASKS
        while ids:
            is_figured = len(ids) > most
            some = [ids.popleft() for _ in range(min(TURN_TASKS, len(ids)))]
            tasks = [task for task_id in some if (task := state.tasks.get(task_id)) is not None]
            texts.extend(rows(tasks, readings if is_figured else UNKNOWN))
            if ids:
                yield
        return ",".join(texts)

    def _frame(self, env: str | None, readings: Readings, waiting: Mapping[str, int]) -> str:
        """The status without envs and tasks: a JSON object without its closing brace."""
        daemon = self._daemon
        now_ns = daemon.clock.monotonic_ns()
        frame = snapshot.frame(
            daemon.state,
            now_ns,
            used_bytes=daemon.gpus.last.used_bytes,
            waiting=waiting,
            env=env,
            readings=readings,
        )
        frame["store"], frame["launcher"] = daemon.journal.health(), daemon.jobs.health()
        frame["gate_node"] = daemon.jobs.closes_jobs()
        for row in frame["queue"]:
            request = daemon.state.requests.get(row["request"])  # a held job has no request
            row["places"] = self._locations(() if request is None else request.askers)
        for row, unreclaimed in zip(
            frame["residues"], snapshot.unreclaimed(daemon.state, env), strict=True
        ):
            holder = daemon.state.processes.get(unreclaimed.process)
            row["places"] = self._locations(() if holder is None else (holder,))
        if env is None:
            frame["counters"] = {name: daemon.hub.counters[name] for name in COUNTERS}
            frame["manager"] = self._manager()
            queue_loop = daemon.event_loop
            frame["queue_loop"] = {
                "wakes": queue_loop.wakes.total(),
                "scans": queue_loop.passes,
                "started": daemon.jobs.orders_given,
            }
            frame["crowds"] = [crowd.fields() for crowd in self.crowds()]
        return _to_text(frame)[:-1]

    def _task(self, task: Task, is_paused: bool) -> dict[str, Any]:
        """The core's facts about the task, and the locations of its processes."""
        state = self._daemon.state
        where = self._locations([state.processes[key] for key in task.processes])
        return {**snapshot.task_facts(state, task, is_paused=is_paused), "places": where}

    def _locations(self, members: Iterable[Process | Asker]) -> list[dict[str, Any]]:
        """Each member's PID on the node, PID inside, user and container."""
        rows = []
        for member in members:
            place = self._daemon.process_locations.of(
                member.key if isinstance(member, Process) else member.process
            )
            inside = {
                "pid_inside": place.pid_inside,
                "container": place.container,
                "container_name": place.container_name,
            }
            rows.append({"pid": member.pid, "user": member.user, **inside})
        return rows

    def identity(self) -> dict[str, Any]:
        """Distinguishes this manager from others."""
        return {
            "pid": os.getpid(),
            "version": installed_version(),
            "state_dir": str(self._settings.state_dir),
        }

    def _manager(self) -> dict[str, Any]:
        udp = self._daemon.udp
        return {
            "pid": os.getpid(),
            "version": installed_version(),
            "since": self._since_wall_ns // SECOND_NS,
            "run_dir": str(self.run_dir),
            "simulated": self._settings.simulate is not None,
            "udp": None if udp is None else f"{udp.address[0]}:{udp.address[1]}",
        }

    def crowds(self) -> list[Crowd]:
        """One for each env that accepts no further client."""
        clients = self._daemon.clients
        return [Crowd.of(env, clients.crowd(env)) for env in clients.full()]

    def holdings(self, env: str) -> dict[str, Any]:
        """The env's view of NVML, read by csrc/shim/sight.c.

        It has the PIDs of the env's processes, and its GPUs, sorted by index, as [uuid, limit,
        used] in bytes.
        """
        state, used = self._daemon.state, self._daemon.ledgers.used
        held = [
            (gpu, grant)
            for gpu in state.gpus.values()
            if (grant := state.grants.get((env, gpu.uuid))) is not None
        ]
        held.sort(key=lambda pair: pair[0].index)
        pids = [
            process.pid
            for process in state.processes.values()
            if process.env == env and process.pid is not None
        ]
        return {
            "gpus": [[gpu.uuid, grant.limit_bytes, used(env, gpu.index)] for gpu, grant in held],
            "pids": [number for pid in pids for number in processes.seen_as(pid)],
        }

    def allocations(
        self, env: str | None, since_wall_ns: int, limit: int = RETAINED_RECORDS
    ) -> dict[str, Any]:
        """The last records, with the GPU indices beside the UUIDs."""
        gpus = self._daemon.state.gpus
        records = self._daemon.journal.records(env, since_wall_ns, limit)
        for record in records:
            is_fresh = bool(record["gpus_new"])
            asked_ns, granted_ns, ended_ns = map(record.pop, ("asked_ns", "granted_ns", "ended_ns"))
            record |= job_rows.duration("waited", asked_ns, granted_ns, self._daemon.clock.is_least)
            record |= job_rows.duration("ran", granted_ns, ended_ns, self._daemon.clock.is_least)
            record["chosen"] = chosen_line(record.get("chosen", ""), is_fresh=is_fresh)
            for name in ("gpus_new", "gpus_reused"):
                record[name + "_index"] = [
                    gpus[uuid].index if uuid in gpus else None for uuid in record[name]
                ]
        return {"schema_version": SCHEMA_VERSION, "allocations": records}

    def env(self, name: str) -> dict[str, Any]:
        """An env for an admin: its quota, CDI device, mounts, directories, tasks and jobs."""
        daemon, run_dir, box = self._daemon, self._settings.run_dir, self._daemon.envs.containers
        state, paused = daemon.state, daemon.compute.gates.paused_tasks
        return {
            "env": name,
            "quota": snapshot.quota(name, state.envs[name].quota),
            "device": box.device(name),
            "companions": box.companions(),
            "mounts": [
                [mount.host_path, mount.container_path, mount.writable]
                for mount in box.mounts(name)
            ],
            "cdi_file": str(box.path),
            "cdi_fault": box.fault,
            "directory": str(env_dir(run_dir, name)),
            "container_directory": str(container_dir(run_dir, name)),
            "key_directory": (
                None if daemon.udp is None else str(self._settings.state_dir / "keys" / name)
            ),
            "tasks": [
                self._task(task, task.task_id in paused) for task in snapshot.tasks(state, name)
            ],
            "waiting": [
                request.job_id or request.request_id
                for request in state.requests.values()
                if request.env == name
            ],
            "jobs": [job.job_id for job in self.other_jobs(name)],
        }

    def other_jobs(self, env: str) -> list[Job]:
        """The env's live jobs without task or request: held, dependent, or without a GPU."""
        return [
            job
            for job in self._daemon.state.jobs.values()
            if job.env == env and job.task_id is None and job.request_id is None
        ]

    def doctor(self) -> Later:
        """All checks, after what the driver shows is judged and a suspension was tried.

        None is tried beside one that is under way, which may take longer than the caller waits.
        """
        daemon = self._daemon

        def begin(reply: Reply) -> None:
            def answer(fault: str | None) -> None:
                rows = self.checks(suspension_fault=fault)
                reply({"schema_version": SCHEMA_VERSION, "checks": rows})

            suspensions = daemon.suspensions
            if suspensions.hindrance() is None and suspensions.under_way() is None:
                daemon.node.when_audited(lambda: suspensions.when_tried(answer))
            else:
                daemon.node.when_audited(lambda: answer(None))

        return Later(begin)

    def checks(
        self, env: str | None = None, suspension_fault: str | None = None
    ) -> list[dict[str, Any]]:
        """The manager's own doctor checks; with `env`, only the violations of that env."""
        daemon = self._daemon
        used = len(os.listdir("/proc/self/fd"))
        state = daemon.state
        violations = _violations(state, env)
        now_ns, limits = daemon.clock.monotonic_ns(), daemon.node.driver_limits.line
        box, hindrance = daemon.envs.containers, daemon.suspensions.hindrance()
        moved = daemon.suspensions.under_way()
        around = doctor.CheckContext(
            self._store,
            daemon.journal.fault,
            daemon.gpus.last,
            now_ns,
            used,
            [f"{row['entry']}: {row['reason']}" for row in snapshot.set_aside(state, env)],
            violations,
            limits,
            self._udp(),
            str(box.path),
            box.fault or box.missing(),
            self._gate(),
            daemon.node_gate.state(),
            len(state.envs),
            sum(min(row.quota.gpus, len(state.gpus)) for row in state.envs.values()),
            self._settings.group,
            list(daemon.envs.faults.values()),
            [crowd.line() for crowd in self.crowds()],
            daemon.jobs.factory.state(),
            daemon.jobs.unknown(),
            shares="kept by MPS, to which a grant gives a percentage of threads; the launch gate "
            "does priority"
            if daemon.compute.has_mps()
            else found.SHARES_BY_TURNS(),
            suspension=(
                suspension_fault is None,
                suspension_fault
                or (
                    hindrance
                    and (
                        f"skipped, since {hindrance}; a latency-sensitive request has best-effort "
                        "jobs queued again instead"
                    )
                )
                or (
                    moved
                    and (
                        f"the driver moves the GPU memory of {moved} now; nothing else was tried "
                        "meanwhile"
                    )
                )
                or found.SUSPENSION_WORKS(),
            ),
            gpu_faults=gpu_health.warnings(state, by_order=False),
            gpu_drains=gpu_health.warnings(state, by_order=True),
        )
        return doctor.examine(around)

    def _udp(self) -> str | None:
        udp, counters = self._daemon.udp, self._daemon.hub.counters
        if udp is None:
            return None
        dropped = [
            f"{counters[f'packets_{kind}']} {kind}"
            for kind in ("malformed", "forged", "replayed", "throttled")
        ]
        count = udp.client_count()
        return (
            f"{udp.address[0]}:{udp.address[1]}, {count} client{'' if count == 1 else 's'}, each "
            "with whole GPUs or a fixed cap, for lack of a ledger; their deaths are seen by "
            f"silence; dropped since the start: {', '.join(dropped)}"
        )

    def _gate(self) -> tuple[bool, str]:
        daemon = self._daemon
        if daemon.gate is None:
            return True, daemon.no_gate
        reading = daemon.gpus.last
        nameless = [
            str(gpu.index) for gpu in reading.gpus if gpu.healthy and gpu.uuid not in reading.minors
        ]
        if nameless:
            return False, f"NVML names no device node of GPU {', '.join(nameless)}: it stays shut"
        return daemon.gate.state()

    def env_checks(self, env: str, pid: int | None) -> list[dict[str, Any]]:
        """The checks for an env without a GPU, and whether `pid` is behind the device gate."""
        rows = [
            check
            for check in self.checks(env)
            if check["name"] in ("store", "nvml", "gpus", "audit", "jobs")
        ]
        gate = self._daemon.gate
        ok, detail = (True, self._daemon.no_gate) if gate is None else gate.state_of(env, pid)
        return [
            *rows,
            doctor.row_of(
                "device gate",
                "start the container with the environment's CDI device; if it is so, see the "
                "manager's log",
                ok,
                detail,
            ),
        ]


def internal_fault(error: Exception) -> OperationError:
    """The answer where work in turns failed."""
    if isinstance(error, OperationError):
        return error
    stderr_log.fault("in work in turns", error)
    return OperationError(messages.INTERNAL_FAULT(error=repr(error)))


def _violations(state: State, env: str | None) -> list[str]:
    found = [
        reasons.violation(state.gpus[row.uuid], row) for row in snapshot.violations(state, env)
    ]
    found += [
        f"GPU {state.gpus[uuid].index} has {reasons.gib(unbooked_bytes)} in use that no grant"
        " explains, and promises them to no environment"
        for uuid, unbooked_bytes in state.unbooked.items()
    ]
    found += [
        f"{row.env} is charged for {reasons.gib(row.memory_bytes)} of GPU "
        f"{state.gpus[row.uuid].index} that its ended processes exported: end the processes "
        "that have it open"
        for row in snapshot.unreclaimed(state, env)
        if row.is_exported
    ]
    return found
