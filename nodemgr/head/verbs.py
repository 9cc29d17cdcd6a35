"""The head's verbs: one table for its own socket and for what nodes relay of their users.

Knows: the right to each verb (here and nowhere else). Must not know: sockets, frames, which node a
job gets, what a submission is refused for (submissions.py).

A user's verb comes with the environment of the socket on which it was said: its node vouches for
the caller as the kernel named it. A user acts on that environment; jobs of others are reported as
absent. An order without an environment is an administrator's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from client_plugin import fields
from client_plugin.messages.form import relayed
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.cluster import events, job_orders, listing
from nodemgr.core.cluster.entities import ClusterJob, EndedJob
from nodemgr.core.cluster.state import QUEUE
from nodemgr.core.model import array_rows
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.api.bulk_actions import Wanted
from nodemgr.edge.api.verb_table import ADMIN, Right, answer_to, rows_of, verb
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    Reply,
    check,
    choice,
    env_name,
    flag,
    integer,
    members,
    of_field,
    optional,
    text,
)
from nodemgr.edge.store.database import StoreFailed
from nodemgr.head import health, rows
from nodemgr.head.engine import HeadEngine
from nodemgr.head.node_orders import NodeOrders
from nodemgr.head.store import HeadStore
from nodemgr.head.submissions import (
    MANY,
    SUBMISSION,
    NewJob,
    Submissions,
    Who,
    job_name,
    job_names,
)
from nodemgr.messages import head as messages

S = 1_000_000_000
MAX_WAITS = 1_000
"""For one job. Those of askers that are gone stay until it has ended."""

MATCHED_AT_ONCE = 250
"""So many rows are looked at in one answer to a filter."""
ORDERS: dict[str, Callable[[str], job_orders.JobOrder]] = {
    "withdraw": events.Withdraw, "hold": events.HoldWaiting, "free": events.Unhold,
    "requeue": events.Requeue,
}  # fmt: skip


_PLAIN = members(lambda _name: 0, lambda _name: 0)
"""A user need not be known on the head's machine."""
ENV = {
    "env": Argument(env_name, required=True),
    "per_node": Argument(optional(integer(0, 1_024))),
    **{
        row.name: of_field(row, {fields.QUEUE: kinds.queue})
        for row in fields.QUOTA
        if row.is_ordered
    },
    **_PLAIN,
}


USER, USERS = Right.ENV, Right.ENV | Right.ADMIN
"""A verb of USERS is one of administrators, too."""
PLACE = Argument(optional(integer(0, listing.MOST)))
CURSOR = Argument(optional(kinds.cursor))
SCOPE = {"env": Argument(optional(env_name))}
PAGE = {**SCOPE, "limit": Argument(kinds.limit)}
JOB = {"job": Argument(job_name, required=True)}
JOBS = {"jobs": Argument(job_names, required=True)}
ORDER = {"order": Argument(choice(*ORDERS), required=True)}
NODE = {"node": Argument(text, required=True)}
FILTER = {
    **SCOPE, **ORDER, "after": PLACE, "name": Argument(kinds.name), "state": Argument(text),
    "user": Argument(text), "mine": Argument(flag),
}  # fmt: skip
MOVE = {**JOB, "queue": Argument(optional(kinds.queue)), "first": Argument(flag)}
PIECE = {
    **JOB, "offset": Argument(kinds.cursor), "wait": Argument(flag),
    "attempt": Argument(optional(kinds.number)),
}  # fmt: skip
PAST = {**PAGE, "before": CURSOR, "since_wall_ns": Argument(integer(0, 2**63 - 1))}


def _page(
    rest: Iterator[tuple[int, ClusterJob]], limit: int
) -> tuple[list[ClusterJob], int | None]:
    """The next rows, and the place of the last; None: it is the last of all."""
    page = list(islice(rest, limit))
    more = next(rest, None)
    while more is not None and more[0] == page[-1][0]:  # of equal places none is left out
        page.append(more)
        more = next(rest, None)
    return [job for _, job in page], None if more is None else page[-1][0]


class HeadVerbs:
    """The verbs, on an engine."""

    def __init__(
        self,
        engine: HeadEngine,
        store: HeadStore,
        clock: Clock,
        orders: NodeOrders,
        lent_gpus: int = 0,
    ) -> None:
        """`lent_gpus`: those of a node that Slurm may lend."""
        self._engine, self._store, self._clock, self._orders = engine, store, clock, orders
        self._submissions = Submissions(engine.state, store, lent_gpus)
        self._waits: dict[str, list[Callable[[], None]]] = {}
        """By job, what looks again when it has ended."""
        engine.on_ended.append(self._ended)
        self.rows = rows_of([self])

    # -- the two ways --

    def of_admin(self, name: str, verb: str, given: dict[str, Any], reply: Reply) -> None:
        """Of the head's own socket, which administrators alone can open."""
        self.asked(Who(name, 0, 0, None), verb, given, reply)

    def asked(self, who: Who, verb: object, given: object, reply: Reply) -> None:
        """Calls `reply` once, with the answer or an OperationError."""
        answer_to(lambda: self._perform(who, verb, given), reply)

    def _perform(self, who: Who, verb: object, given: object) -> Any:
        row = self.rows.get(verb) if isinstance(verb, str) else None
        if row is None:
            known = ", ".join(sorted(self.rows))
            raise OperationError(
                f"unknown verb {str(verb)[:40]!r}", f"the verbs are {known}", "usage"
            )
        if who.env is not None and not row.who & USER:
            raise OperationError(
                f"{verb} is an order of administrators of the cluster",
                "give it as root on a node, or on the head's machine",
                "forbidden",
            )
        try:
            return row.perform(who, check(row.arguments, given))
        except StoreFailed as error:
            raise OperationError(messages.STORE_FAILS(fault=error), code="store") from None

    def _happens(self, event: events.ClusterEvent, payloads: Sequence[dict[str, Any]] = ()) -> None:
        if self._engine.happens(event, payloads) is None:
            raise OperationError(messages.STORE_FAILS(fault=self._engine.store_fault), code="store")

    # -- submitting --

    @verb("cluster_submit", USERS, SUBMISSION)
    def _submit(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        new = self._submissions.read(who, given, self._clock.wall_ns())
        if isinstance(new, NewJob):
            self._happens(events.Submit((new.job,)), [new.payload])
            new = f"c{self._engine.state.counters[''].job}"
        return {"job": new}

    @verb("cluster_submit_many", USERS, MANY)
    def _submit_many(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        """One commit. Answers for each job, in order, with its id or the reason for refusal."""
        read = self._submissions.read_many(who, given, self._clock.wall_ns())
        new = [one for one in read if isinstance(one, NewJob)]
        if new:
            jobs = tuple(one.job for one in new)
            self._happens(events.Submit(jobs), [one.payload for one in new])
        number = self._engine.state.counters[""].job - len(new)
        rows_of: list[dict[str, Any]] = []
        for one in read:
            if isinstance(one, OperationError):
                rows_of.append(one.answer())
                continue
            number += isinstance(one, NewJob)
            rows_of.append({"job": f"c{number}" if isinstance(one, NewJob) else one})
        return {"jobs": rows_of}

    # -- jobs --

    def _living(self, who: Who, name: str) -> list[ClusterJob]:
        """The job, or what lives of an array."""
        return [job for job in self._engine.state.living(name) if who.env in (None, job.env)]

    def _past(self, who: Who, name: str) -> list[EndedJob]:
        """The same of what has ended. Raises OperationError if there is neither."""
        found = [row for row in self._store.ended(name) if who.env in (None, row.job.env)]
        if not found and not self._living(who, name):
            raise OperationError(
                f"the cluster has no job {name}",
                "nodemgr queue and nodemgr history list jobs",
                "not_found",
            )
        return found

    def _row(self, job: ClusterJob) -> dict[str, Any]:
        state = self._engine.state
        given = state.assignments.get(job.assigned or 0)
        silent_s = None if given is None else self._silent_s(given.node)
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        row: dict[str, Any] = rows.living(state, job, now_ns, wall_ns, silent_s)
        return row

    def _silent_s(self, node: str) -> int | None:
        if node in self._engine.state.sessions:
            return None
        now_ns = self._clock.monotonic_ns()
        return (now_ns - self._engine.silent_ns.get(node, now_ns)) // S

    def _scope(self, who: Who, given: dict[str, Any]) -> str | None:
        env = given.get("env")
        return who.env if who.env is not None else env

    @verb("cluster_queue", USERS, {**PAGE, "after": PLACE})
    def _queue(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        """In the order of core/cluster/listing.py. `after`: the place of the page before."""
        state, after = self._engine.state, given.get("after") or 0
        rest = listing.behind(state, self._scope(who, given), after)
        page, more = _page(rest, given.get("limit", kinds.MAX_ROWS))
        queue = {
            "name": "normal", "rank": 0, "length": len(state.queue), "cap": None,
            "max_restarts": None, "users": [], "groups": [],
        }  # fmt: skip
        jobs = list(map(self._row, page))
        return {"schema_version": 1, "queue": jobs, "queues": [queue], "after": more}

    @verb("cluster_match", USERS, FILTER)
    def _match(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        """A page of the ids that a filter matches, of jobs that the order can change."""
        state, order = self._engine.state, ORDERS[given["order"]]
        user = who.name if given.get("mine") else given.get("user")
        asked = Wanted(self._scope(who, given), given.get("name"), given.get("state"), user)
        rest = listing.behind(state, asked.env, given.get("after") or 0)
        page, more = _page(rest, MATCHED_AT_ONCE)
        found = [
            array_rows.waiting(job)
            for job in page
            if asked.takes(job.env, job.name, rows.state_of(job), (job.user,))
            and job_orders.against(job, order(job.job_id)) is None
        ]
        return {"schema_version": 1, "matched": found, "after": more}

    @verb("cluster_show", USERS, JOB)
    def _show(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        past = map(rows.ended, self._past(who, given["job"]))
        found = [*past, *map(self._row, self._living(who, given["job"]))]
        return {"schema_version": 1, "jobs": found}

    @verb("cluster_order", USERS, {**JOB, **ORDER})
    def _order(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name, kind = given["job"], given["order"]
        if not self._living(who, name):
            past = self._past(who, name)
            if kind != "withdraw":
                raise OperationError(f"{name} has ended", "submit it again", "refused")
            return {"job": name, "state": past[0].job.stage.value}
        self._give(events.HoldWaiting(name, who.name) if kind == "hold" else ORDERS[kind](name))
        living = self._engine.state.living(name)
        return {"job": name, "state": living[0].stage.value if living else "withdrawn"}

    def _give(self, event: job_orders.JobOrder) -> None:
        if (refusal := job_orders.objection(self._engine.state, event)) is not None:
            raise OperationError(relayed(refusal), code="refused")
        self._happens(event)

    @verb("cluster_orders", USERS, {**JOBS, **ORDER})
    def _order_each(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        """A row for each job: its error, or none."""
        done: list[dict[str, Any]] = []
        for name in given["jobs"]:
            try:
                self._order(who, {"job": name, "order": given["order"]})
                done.append({"job": name, "error": None})
            except OperationError as error:
                done.append({"job": name, **error.answer()})
        return {"schema_version": 1, "jobs": done, "after": None}

    @verb("cluster_move", USERS, MOVE)
    def _move(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("queue") not in (None, QUEUE) or not given.get("first"):
            raise OperationError(
                "the cluster has one queue yet", "--first moves a job to its front", "refused"
            )
        if not self._living(who, given["job"]):
            self._past(who, given["job"])
            raise OperationError(f"{given['job']} has ended", "submit it again", "refused")
        self._give(events.ToFront(given["job"]))
        return {"job": given["job"], "state": "queued"}

    @verb("cluster_wait", USERS, JOBS)
    def _wait(self, who: Who, given: dict[str, Any]) -> Later | dict[str, Any]:
        names = given["jobs"]
        for name in names:
            self._past(who, name)
        left = list(names)

        def begin(reply: Reply) -> None:
            def go_on() -> None:
                while left and not self._living(who, left[-1]):
                    left.pop()
                if left:
                    waits = self._waits.setdefault(left[-1], [])
                    if len(waits) < MAX_WAITS:
                        waits.append(go_on)
                    else:
                        line = f"{MAX_WAITS} programs wait for {left[-1]} already"
                        reply(OperationError(line, "ask again in a moment", "busy"))
                    return
                outcomes = [rows.outcome(name, self._past(who, name)) for name in names]
                reply({"schema_version": 1, "jobs": outcomes})

            go_on()

        return Later(begin)

    def _ended(self, ended: EndedJob) -> None:
        for name in {ended.job.job_id, ended.job.array}:
            for go_on in self._waits.pop(name, ()):
                go_on()

    @verb("cluster_history", USERS, PAST)
    def _history(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        found, before = self._store.history(
            self._scope(who, given), given.get("since_wall_ns", 0), given.get("before"),
            given.get("limit", kinds.MAX_ROWS),
        )  # fmt: skip
        return {"schema_version": 1, "history": list(map(rows.ended, found)), "before": before}

    @verb("cluster_logs", USERS, PIECE)
    def _logs(self, who: Who, given: dict[str, Any]) -> Later:
        """Read on the node of the start, by default the last one, where the output is."""
        living, past = self._living(who, given["job"]), self._past(who, given["job"])
        if len(living) + len(past) > 1:
            raise OperationError(
                f"{given['job']} is an array", f"name one of its jobs ({given['job']}.0)", "usage"
            )
        job = living[0] if living else past[0].job
        starts = {start.number: (start.node, start.node_job, "") for start in job.past}
        row = self._engine.state.assignments.get(job.assigned or 0)
        if row is not None and (row.began_ns is not None or not starts):
            starts[job.starts + 1] = row.node, row.node_job, row.key
        number = given.get("attempt") or max(starts, default=0)
        node, node_job, key = starts.get(number, ("", "", ""))
        if not node_job:
            what, remedy = "no node has begun it", "nodemgr queue says where it stands"
            if starts:
                what, remedy = f"of start {number} none is known", f"nodemgr history {job.job_id}"
            raise OperationError(f"{given['job']} has no output: {what}", remedy, "not_found")
        arguments = {
            "key": key, "job": node_job, "offset": given.get("offset", 0),
            "wait": given.get("wait", False),
        }  # fmt: skip

        def begin(reply: Reply) -> None:
            def told(answer: Any) -> None:
                if isinstance(answer, dict):
                    more = {"job": given["job"], "node": node, "living": bool(living)}
                    answer = {**answer, **more, "attempt": number}
                reply(answer)

            self._orders.order(node, "log_read", arguments, told)

        return Later(begin)

    @verb("cluster_status", USERS)
    def _status(self, who: Who, _given: dict[str, Any]) -> Later:
        """Merged from what the nodes say now; one that is silent has its row alone.

        Of a user each node is asked for the environment's part.
        """
        state = self._engine.state
        jobs: dict[str, dict[str, str]] = {}
        ahead = 0  # those that wait at a node
        for row in state.assignments.values():
            ahead += row.began_ns is None
            if row.node_job and who.env in (None, row.env):
                jobs.setdefault(row.node, {})[row.node_job] = row.job_id
        told = {
            "schema_version": 1,
            "head": self._engine.state.counters[""].name,
            "envs": self._envs(who, {})["envs"],
            "nodes": self._nodes(who, {})["nodes"],
            "waiting": len(state.queue) + ahead,
            "jobs": jobs,
        }

        def begin(reply: Reply) -> None:
            up = sorted(state.sessions)
            asked = ("snapshot", {}) if who.env is None else ("snapshot_env", {"env": who.env})
            snapshots: dict[str, Any] = {}

            def came(node: str, answer: Any) -> None:
                snapshots[node] = answer if isinstance(answer, dict) else None
                if len(snapshots) == len(up):
                    reply({**told, "snapshots": snapshots})

            if not up:
                reply({**told, "snapshots": {}})
            for node in up:
                self._orders.order(node, *asked, partial(came, node))

        return Later(begin)

    # -- nodes --

    @verb("node_list", USERS)
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
            raise OperationError(
                f"{name} is no node of this cluster", "nodemgr node list names them", "not_found"
            )
        return name

    @verb("node_show", USERS, NODE)
    def _node(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name, state = self._known(given["node"]), self._engine.state
        jobs = [
            self._row(state.jobs[state.assignments[number].job_id])
            for number in state.of_node.get(name, ())
        ]
        shown = [row for row in jobs if who.env in (None, row["env"])]
        return {**rows.node(state, state.nodes[name], self._silent_s(name)), "rows": shown}

    @verb("node_drain", ADMIN, {**NODE, "note": Argument(text)})
    def _drain(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        self._happens(events.DrainNode(self._known(given["node"]), given.get("note", "")))
        return self._node(who, given)

    @verb("node_resume", ADMIN, NODE)
    def _resume(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        self._happens(events.ResumeNode(self._known(given["node"])))
        return self._node(who, given)

    @verb("node_lost", ADMIN, NODE)
    def _lost(self, who: Who, given: dict[str, Any]) -> dict[str, Any]:
        name = self._known(given["node"])
        if name in self._engine.state.sessions:
            rows_of = self._engine.state.of_node.get(name, ())
            present = self._engine.state.nodes[name].generation
            given_rows = [self._engine.state.assignments[number] for number in rows_of]
            if all(row.node_generation == present for row in given_rows):
                raise OperationError(
                    f"{name} speaks", f"drain it (nodemgr node drain {name})", "refused"
                )
        self._happens(events.NodeLost(name, self._clock.wall_ns()))
        return self._node(who, given)

    @verb("node_remove", ADMIN, NODE)
    def _remove(self, _who: Who, given: dict[str, Any]) -> Later:
        name = self._known(given["node"])
        count = len(self._engine.state.of_node.get(name, ()))
        if count:
            raise OperationError(
                f"{name} has {count} jobs of the cluster",
                f"nodemgr node drain {name} and wait for them, or, where it is gone, nodemgr node "
                f"lost {name}",
                "refused",
            )
        self._happens(events.RemoveNode(name))

        def begin(reply: Reply) -> None:
            reply({"node": name})  # the node itself may ask, and its session ends now
            self._orders.left(name)

        return Later(begin)

    # -- environments --

    @verb("env_set", ADMIN, ENV)
    def _env_set(self, _who: Who, given: dict[str, Any]) -> dict[str, Any]:
        state, name = self._engine.state, given.pop("env")
        before = state.envs.get(name)
        gpus = given.pop("gpus", None if before is None else before.gpus)
        if gpus is None:
            raise OperationError(
                f"environment {name} is new", f"say its GPUs, e.g. --gpus {4}", "usage"
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

    @verb("env_rm", ADMIN, {"env": Argument(env_name, required=True)})
    def _env_rm(self, _who: Who, given: dict[str, Any]) -> dict[str, Any]:
        state, name = self._engine.state, given["env"]
        if name not in state.envs:
            meant = did_you_mean(name, state.envs)
            raise OperationError(
                f"the cluster has no environment {name}{meant}", "see nodemgr status --cluster",
                "unknown_env",
            )  # fmt: skip
        if count := state.env_jobs[name]:
            raise OperationError(
                f"{name} has {count} jobs in the cluster", "cancel them, or wait for their end",
                "refused",
            )  # fmt: skip
        self._happens(events.DropEnv(name))
        self._orders.env_changed(name)
        return {"schema_version": 1, "env": name}

    # -- the head itself --

    @verb("head_checks", ADMIN)
    def _checks(self, _who: Who, _given: dict[str, Any]) -> dict[str, Any]:
        engine = self._engine
        silent_s = {name: self._silent_s(name) for name in engine.state.nodes}
        facts = health.HeadFacts(
            engine.store_fault, engine.address, engine.behind_s, engine.ahead_s, silent_s
        )
        found = health.checks(engine.state, facts)
        return {"schema_version": 1, "checks": found, "address": engine.address}

    @verb("head_metrics", ADMIN)
    def _metrics(self, _who: Who, _given: dict[str, Any]) -> dict[str, Any]:
        engine = self._engine
        spans = {"pass": engine.pass_time, "step": engine.step_time}
        return {
            "text": health.metrics(engine.state, spans, engine.frames, self._clock.monotonic_ns())
        }

    @verb("env_list", USERS)
    def _envs(self, who: Who, _given: dict[str, Any]) -> dict[str, Any]:
        state = self._engine.state
        names = [name for name in sorted(state.envs) if who.env in (None, name)]
        return {"schema_version": 1, "envs": [rows.env(state, name) for name in names]}
