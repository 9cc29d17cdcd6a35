"""The head's verbs: one table for its own socket and for what nodes relay of their users.

Knows: the right to each verb (here and nowhere else), how a submission is judged. Must not know:
sockets, frames, which node a job gets.

A user's verb comes with the environment of the socket on which it was said: its node vouches for
the caller as the kernel named it. A user acts on that environment; jobs of others are reported as
absent. An order without an environment is an administrator's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from client_plugin import fields
from client_plugin.messages.form import stated
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterJob, EndedJob
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    Reply,
    check,
    env_name,
    flag,
    integer,
    members,
    of_field,
    optional,
    text,
)
from nodemgr.edge.store.database import StoreFailed
from nodemgr.head import rows
from nodemgr.head.engine import HeadEngine
from nodemgr.head.node_orders import NodeOrders
from nodemgr.head.store import HeadStore
from nodemgr.messages import head as messages
from nodemgr.messages.orders import INTERNAL_FAULT, UNKNOWN_VERB

S = 1_000_000_000
MAX_PAYLOAD_BYTES = 900_000
"""A command and its variables in JSON: a frame to a node is no longer than 1 MiB."""
LATER = {
    "after": "jobs that wait for others", "array": "arrays", "hold": "held jobs",
    "gpus_max": "ranges of GPUs", "leader": "elastic jobs", "compute_percent": "shares of GPUs",
    "priority": "queues", "deadline_ms": "deadlines", "memory_max_bytes": "ranges of memory",
}  # fmt: skip
"""Fields of a submission that a head does not know yet, as people call them."""
OF_THE_HEAD = ("key", "gpus", "max_restarts", "features", "recognised")
"""Arguments that no node gets; `gpus` goes with its default filled in."""


class Who(NamedTuple):
    """The caller. `env` None: an administrator."""

    name: str
    uid: int
    gid: int
    env: str | None


class HeadVerb(NamedTuple):
    arguments: Mapping[str, Argument]
    perform: Callable[[Who, dict[str, Any]], Any]
    users: bool = False
    """Also for users."""


def _job(value: object) -> str:
    if not isinstance(value, str) or not value[:1] == "c" or not value[1:].isdecimal():
        raise OperationError(messages.NOT_CLUSTER_JOB())
    return value


def _jobs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= kinds.MAX_JOBS_NAMED:
        raise OperationError(messages.NOT_CLUSTER_JOBS(limit=kinds.MAX_JOBS_NAMED))
    return tuple(dict.fromkeys(map(_job, value)))


def _queue(value: object) -> str:
    return kinds.queue(value)


SUBMISSION = {
    "argv": Argument(kinds.argv, required=True),
    "cwd": Argument(kinds.directory, required=True),
    "environ": Argument(kinds.environ, required=True),
    "umask": Argument(kinds.umask),
    "key": Argument(kinds.key, required=True),
    "leader": Argument(lambda value: value),
    "features": Argument(lambda value: value),
    "recognised": Argument(lambda value: value),
    **{row.name: of_field(row, kinds.OF_KIND, is_wish=True) for row in fields.ORDERED},
}
_PLAIN = members(lambda _name: 0, lambda _name: 0)
"""A user need not be known on the head's machine."""
ENV = {
    "env": Argument(env_name, required=True),
    "per_node": Argument(optional(integer(0, 1_024))),
    **{row.name: of_field(row, {fields.QUEUE: _queue}) for row in fields.QUOTA if row.is_ordered},
    **_PLAIN,
}


class HeadVerbs:
    """The verbs, on an engine."""

    def __init__(
        self, engine: HeadEngine, store: HeadStore, clock: Clock, orders: NodeOrders
    ) -> None:
        self._engine, self._store, self._clock, self._orders = engine, store, clock, orders
        self._waits: dict[str, list[Callable[[], None]]] = {}
        """By job, what looks again when it has ended."""
        engine.on_ended.append(self._ended)
        self.table = self._table()

    def _table(self) -> Mapping[str, HeadVerb]:
        scope = {"env": Argument(optional(env_name))}
        paged = {**scope, "limit": Argument(kinds.limit)}
        job = {"job": Argument(_job, required=True)}
        node = {"node": Argument(text, required=True)}
        piece = {
            "offset": Argument(kinds.cursor), "wait": Argument(flag),
            "attempt": Argument(optional(kinds.number)),
        }  # fmt: skip
        cursor = Argument(optional(kinds.cursor))
        past = {"before": cursor, "since_wall_ns": Argument(integer(0, 2**63 - 1))}
        return {
            "cluster_submit": HeadVerb(SUBMISSION, self._submit, users=True),
            "cluster_queue": HeadVerb({**paged, "after": cursor}, self._queue, users=True),
            "cluster_show": HeadVerb(job, self._show, users=True),
            "cluster_wait": HeadVerb(
                {"jobs": Argument(_jobs, required=True)}, self._wait, users=True
            ),
            "cluster_cancel": HeadVerb(job, self._cancel, users=True),
            "cluster_logs": HeadVerb({**job, **piece}, self._logs, users=True),
            "cluster_history": HeadVerb({**paged, **past}, self._history, users=True),
            "cluster_status": HeadVerb({}, self._status, users=True),
            "node_list": HeadVerb({}, self._nodes, users=True),
            "node_show": HeadVerb(node, self._node, users=True),
            "node_drain": HeadVerb({**node, "note": Argument(text)}, self._drain),
            "node_resume": HeadVerb(node, self._resume),
            "node_lost": HeadVerb(node, self._lost),
            "node_remove": HeadVerb(node, self._remove),
            "env_set": HeadVerb(ENV, self._env_set),
            "env_list": HeadVerb({}, self._envs, users=True),
        }

    # -- the two ways --

    def of_admin(self, name: str, verb: str, given: dict[str, Any], reply: Reply) -> None:
        """Of the head's own socket, which administrators alone can open."""
        self.asked(Who(name, 0, 0, None), verb, given, reply)

    def asked(self, who: Who, verb: object, given: object, reply: Reply) -> None:
        """Calls `reply` once, with the answer or an OperationError."""
        try:
            row = self.table.get(verb) if isinstance(verb, str) else None
            if row is None:
                known = ", ".join(sorted(self.table))
                raise OperationError(UNKNOWN_VERB(verb=str(verb)[:40], known=known))
            if who.env is not None and not row.users:
                raise OperationError(messages.ADMINS_OF_CLUSTER(verb=verb))
            answer = row.perform(who, check(row.arguments, given))
        except OperationError as error:
            answer = error
        except StoreFailed as error:
            answer = OperationError(messages.STORE_FAILS(fault=error), "store")
        except Exception as error:  # an answer is owed in any case
            stderr_log.fault("in an order", error)
            answer = OperationError(INTERNAL_FAULT(error=repr(error)), "internal")
        if isinstance(answer, Later):
            answer.begin(reply)
        else:
            reply(answer)

    def _happens(self, event: events.ClusterEvent, payload: dict[str, Any] | None = None) -> None:
        if self._engine.happens(event, payload) is None:
            raise OperationError(messages.STORE_FAILS(fault=self._engine.store_fault), "store")

    # -- submitting --

    def _submit(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        if who.env is None:
            raise OperationError(
                stated("no environment is named", "submit on a node, in an environment", "usage")
            )
        state, key = self._engine.state, f"{who.uid}:{given['key']}"
        there = state.submitted.get((who.env, key)) or self._store.job_of_key(who.env, key)
        if there is not None:
            return {"job": there}
        gpus = self._judge(who, given)
        name = given.get("name") or kinds.name_of(given["argv"][0])
        payload = {k: v for k, v in given.items() if k not in OF_THE_HEAD and v is not None}
        payload |= {
            "user": who.name, "uid": who.uid, "gid": who.gid, "gpus": gpus, "name": name,
        }  # fmt: skip
        if len(json.dumps(payload)) > MAX_PAYLOAD_BYTES:
            raise OperationError(
                stated(
                    f"the command and its variables are longer than {MAX_PAYLOAD_BYTES} bytes",
                    "put them into a file",
                    "usage",
                )
            )
        self._happens(
            events.Submit(
                who.env, who.name, gpus, given.get("time_limit_ms"),
                given.get("max_restarts") or 0, uid=who.uid, name=name,
                command=kinds.command_line(given["argv"]), submit_key=key,
                wall_ns=self._clock.wall_ns(),
            ),
            payload,
        )  # fmt: skip
        return {"job": f"c{state.counters[''].job}"}

    def _judge(self, who: Who, given: dict[str, Any]) -> int:
        """The number of GPUs. Raises OperationError: the job can never run, or not yet."""
        state = self._engine.state
        env = state.envs.get(who.env or "")
        if env is None:
            meant = did_you_mean(who.env or "", state.envs)
            raise OperationError(
                stated(
                    f"the cluster has no environment {who.env}{meant}",
                    "an administrator makes it (nodemgr quota set --cluster); submit on this node "
                    "with --here",
                    "unknown_env",
                )
            )
        for field, what in LATER.items():
            if given.get(field) not in (None, False, (), ""):
                raise OperationError(messages.LATER_HERE(what=what))
        known = state.users.get(who.name)
        if known is not None and known[0] != who.uid:
            raise OperationError(
                stated(
                    f"user {who.name} has uid {who.uid} on this node, and uid {known[0]} where its "
                    "jobs in the cluster were submitted",
                    "an administrator gives the user one uid on all nodes",
                    "refused",
                )
            )
        most = env.gpus if env.per_node is None else min(env.gpus, env.per_node)
        quota = json.loads(env.quota)
        gpus = given.get("gpus")
        if gpus is None:
            gpus = quota.get("default_gpus")
        largest = max((node.gpus for node in state.nodes.values()), default=0)
        gpus = min(most, largest) if gpus is None else gpus
        if gpus > most:
            raise OperationError(
                stated(
                    f"{gpus} GPUs are more than {env.name} may use ({most} on one node)",
                    "ask for fewer",
                    "quota",
                )
            )
        if gpus > largest:
            raise OperationError(
                stated(
                    f"{gpus} GPUs are more than any node has ({largest})",
                    "ask for fewer",
                    "quota",
                )
            )
        return int(gpus)

    # -- jobs --

    def _living(self, who: Who, job_id: str) -> ClusterJob | None:
        job = self._engine.state.jobs.get(job_id)
        return job if job is not None and who.env in (None, job.env) else None

    def _past(self, who: Who, job_id: str) -> EndedJob:
        """Raises OperationError."""
        found = self._store.ended(job_id)
        if found is None or who.env not in (None, found.job.env):
            raise OperationError(messages.NOT_IN_CLUSTER(job=job_id))
        return found

    def _row(self, job: ClusterJob) -> dict[str, Any]:
        state = self._engine.state
        given = state.assignments.get(job.assigned or 0)
        silent_s = None if given is None else self._silent_s(given.node)
        row: dict[str, Any] = rows.living(state, job, self._clock.monotonic_ns(), silent_s)
        return row

    def _silent_s(self, node: str) -> int | None:
        if node in self._engine.state.sessions:
            return None
        now_ns = self._clock.monotonic_ns()
        return (now_ns - self._engine.silent_ns.get(node, now_ns)) // S

    def _scope(self, who: Who, given: dict[str, Any]) -> str | None:
        env = given.get("env")
        return who.env if who.env is not None else env

    def _queue(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        """In the order of submission. `after`: the number of the last job of the page before."""
        state, limit = self._engine.state, given.get("limit", kinds.MAX_ROWS)
        env, after = self._scope(who, given), given.get("after") or 0
        page: list[ClusterJob] = []
        for job in state.jobs.values():  # their numbers grow
            if int(job.job_id[1:]) > after and env in (None, job.env):
                page.append(job)
                if len(page) > limit:
                    break
        more = int(page[limit - 1].job_id[1:]) if len(page) > limit else None
        queue = {
            "name": "normal", "rank": 0, "length": len(state.queue), "cap": None,
            "max_restarts": None, "users": [], "groups": [],
        }  # fmt: skip
        return {
            "schema_version": 1,
            "queue": [self._row(job) for job in page[:limit]],
            "queues": [queue],
            "after": more,
        }

    def _show(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        job = self._living(who, given["job"])
        row = rows.ended(self._past(who, given["job"])) if job is None else self._row(job)
        return {"schema_version": 1, "jobs": [row]}

    def _cancel(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        job = self._living(who, given["job"])
        if job is None:
            past = self._past(who, given["job"])
            return {"job": past.job.job_id, "state": past.job.stage.value}
        self._happens(events.Withdraw(job.job_id))
        after = self._engine.state.jobs.get(job.job_id)
        return {"job": job.job_id, "state": "withdrawn" if after is None else after.stage.value}

    def _wait(self, who: Who, given: dict[str, Any]) -> Later | dict[str, Any]:
        left = [name for name in given["jobs"] if self._living(who, name) is not None]
        for name in given["jobs"]:
            if name not in left:
                self._past(who, name)

        def begin(reply: Reply) -> None:
            def go_on() -> None:
                while left and self._living(who, left[-1]) is None:
                    left.pop()
                if left:
                    self._waits.setdefault(left[-1], []).append(go_on)
                    return
                outcomes = [rows.outcome(self._past(who, name)) for name in given["jobs"]]
                reply({"schema_version": 1, "jobs": outcomes})

            go_on()

        return Later(begin)

    def _ended(self, ended: EndedJob) -> None:
        for go_on in self._waits.pop(ended.job.job_id, ()):
            go_on()

    def _history(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        found, before = self._store.history(
            self._scope(who, given), given.get("since_wall_ns", 0), given.get("before"),
            given.get("limit", kinds.MAX_ROWS),
        )  # fmt: skip
        return {"schema_version": 1, "history": list(map(rows.ended, found)), "before": before}

    def _logs(self, who: Who, given: dict[str, Any]) -> Later:
        """Read on the node of its last attempt, where the output is."""
        job = self._living(who, given["job"])
        if job is None:
            past = self._past(who, given["job"])
            node, key, node_job = past.node, "", past.node_job
        else:
            row = self._engine.state.assignments.get(job.assigned or 0)
            node, key = ("", "") if row is None else (row.node, row.key)
            node_job = "" if row is None else row.node_job
        if not node_job:
            raise OperationError(
                stated(
                    f"{given['job']} has no output: no node has begun it",
                    "nodemgr queue says where it stands",
                    "not_found",
                )
            )
        arguments = {
            "key": key, "job": node_job, "offset": given.get("offset", 0),
            "wait": given.get("wait", False),
        }  # fmt: skip

        def begin(reply: Reply) -> None:
            def told(answer: Any) -> None:
                if isinstance(answer, dict):
                    answer = {
                        **answer,
                        "job": given["job"],
                        "node": node,
                        "living": job is not None,
                    }
                reply(answer)

            self._orders.order(node, "log_read", arguments, told)

        return Later(begin)

    def _status(self, _who: Who, _given: dict[str, Any]) -> Later:
        """Merged from what the nodes say now; one that is silent has its row alone."""
        told = {
            "schema_version": 1,
            "head": self._engine.state.counters[""].name,
            "envs": self._envs(_who, {})["envs"],
            "nodes": self._nodes(_who, {})["nodes"],
            "waiting": len(self._engine.state.queue),
        }

        def begin(reply: Reply) -> None:
            up = sorted(self._engine.state.sessions)
            snapshots: dict[str, Any] = {}

            def came(node: str, answer: Any) -> None:
                snapshots[node] = answer if isinstance(answer, dict) else None
                if len(snapshots) == len(up):
                    reply({**told, "snapshots": snapshots})

            if not up:
                reply({**told, "snapshots": {}})
            for node in up:
                self._orders.order(node, "snapshot", {}, partial(came, node))

        return Later(begin)

    # -- nodes --

    def _nodes(self, _who: Who, _given: dict[str, Any]) -> dict[str, Any]:
        state = self._engine.state
        found = [rows.node(state, row, self._silent_s(name)) for name, row in state.nodes.items()]
        head = state.counters[""]
        return {
            "schema_version": 1, "nodes": sorted(found, key=lambda row: str(row["node"])),
            "head": head.name, "restoring": head.is_restoring, "copy": head.is_copy,
        }  # fmt: skip

    def _known(self, name: str) -> str:
        if name not in self._engine.state.nodes:
            raise OperationError(messages.NO_SUCH_NODE(node=name))
        return name

    def _node(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name, state = self._known(given["node"]), self._engine.state
        jobs = [
            self._row(state.jobs[state.assignments[number].job_id])
            for number in state.of_node.get(name, ())
        ]
        shown = [row for row in jobs if who.env in (None, row["env"])]
        return {**rows.node(state, state.nodes[name], self._silent_s(name)), "rows": shown}

    def _drain(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        self._happens(events.DrainNode(self._known(given["node"]), given.get("note", "")))
        return self._node(who, given)

    def _resume(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        self._happens(events.ResumeNode(self._known(given["node"])))
        return self._node(who, given)

    def _lost(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name = self._known(given["node"])
        if name in self._engine.state.sessions:
            rows_of = self._engine.state.of_node.get(name, ())
            present = self._engine.state.nodes[name].generation
            given_rows = [self._engine.state.assignments[number] for number in rows_of]
            if all(row.node_generation == present for row in given_rows):
                raise OperationError(
                    stated(f"{name} speaks", f"drain it (nodemgr node drain {name})", "refused")
                )
        self._happens(events.NodeLost(name))
        return self._node(who, given)

    def _remove(self, _who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name = self._known(given["node"])
        count = len(self._engine.state.of_node.get(name, ()))
        if count:
            raise OperationError(messages.NODE_HOLDS(node=name, count=count))
        self._happens(events.RemoveNode(name))
        self._orders.left(name)
        return {"node": name}

    # -- environments --

    def _env_set(self, _who: Who, given: dict[str, Any]) -> dict[str, Any]:
        state, name = self._engine.state, given.pop("env")
        before = state.envs.get(name)
        gpus = given.pop("gpus", None if before is None else before.gpus)
        if gpus is None:
            raise OperationError(
                stated(f"environment {name} is new", f"say its GPUs, e.g. --gpus {4}", "usage")
            )
        per_node = given.pop("per_node", None if before is None else before.per_node)
        quota: dict[str, Any] = {} if before is None else json.loads(before.quota)
        for kind in ("users", "groups"):
            listed = given.pop(kind, quota.get(kind, ()))
            gone = set(given.pop(f"drop_{kind}", ()))
            added = given.pop(f"add_{kind}", ())
            quota[kind] = [one for one in dict.fromkeys((*listed, *added)) if one not in gone]
        quota |= given
        self._happens(events.SetEnv(name, gpus, per_node, json.dumps(quota, separators=(",", ":"))))
        self._orders.env_changed(name)
        env = rows.env(state, name)
        warnings = []
        if env["gpus_used"] > gpus:
            warnings.append(
                f"{env['gpus_used']} GPUs are in use: nothing is taken away, and jobs wait until "
                "the use is below the total"
            )
        return {"schema_version": 1, "env": env, "warnings": warnings}

    def _envs(self, who: Who, _given: dict[str, Any]) -> dict[str, Any]:
        state = self._engine.state
        names = [name for name in sorted(state.envs) if who.env in (None, name)]
        return {"schema_version": 1, "envs": [rows.env(state, name) for name in names]}
