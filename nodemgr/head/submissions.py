"""Submissions to a head: what each is refused for, and the job and the payload that it becomes.

Knows: the arguments of a submission, the rows, ended jobs. Must not know: the asker's way, which
node a job gets.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from client_plugin import fields
from client_plugin.units import format_size
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.cluster import gpu_shares
from nodemgr.core.cluster.entities import ClusterEnv, ClusterJob, ClusterStage
from nodemgr.core.cluster.state import ClusterState
from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.entities import TaskClass
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.rpc.operation import Argument, OperationError, check, of_field
from nodemgr.head.store import HeadStore

MAX_PAYLOAD_BYTES = 900_000
"""A command and its variables in JSON: a frame to a node is no longer than 1 MiB."""
LATER = {
    "gpus_max": "ranges of GPUs", "leader": "elastic jobs", "priority": "queues",
    "memory_max_bytes": "ranges of memory",
}  # fmt: skip
"""Fields of a submission that a head does not know yet, as people call them."""
OF_THE_HEAD = (
    "key", "gpus", "max_restarts", "features", "recognised", "after", "array", "hold",
)  # fmt: skip
"""Arguments that no node gets; `gpus` goes with its default filled in."""


class Who(NamedTuple):
    """The caller. `env` None: an administrator."""

    name: str
    uid: int
    gid: int
    env: str | None


class NewJob(NamedTuple):
    job: ClusterJob
    payload: dict[str, Any]


def job_name(value: object) -> str:
    """A job, an array, an element, or what waits of an array."""
    number, dot, index = value[1:].partition(".") if isinstance(value, str) else ("", "", "")
    is_one = number.isdecimal() and (not dot or index.isdecimal() or index == job_ids.WAITING)
    if not isinstance(value, str) or value[:1] != "c" or not is_one:
        raise OperationError("must be a job of the cluster, e.g. c17")
    return value


def job_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= kinds.MAX_JOBS_NAMED:
        raise OperationError(
            f"must be a list of at most {kinds.MAX_JOBS_NAMED} jobs of the cluster"
        )
    return tuple(dict.fromkeys(map(job_name, value)))


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
    "after": Argument(job_names),
}
AROUND = ("cwd", "environ", "umask")
MANY = {
    **{name: SUBMISSION[name] for name in AROUND},
    "jobs": Argument(kinds.submissions, required=True),
}
ONE_OF_MANY = {
    **{name: row for name, row in SUBMISSION.items() if name not in AROUND},
    "variables": Argument(kinds.environ),
}


class Submissions:
    def __init__(self, state: ClusterState, store: HeadStore, lent_gpus: int = 0) -> None:
        """`lent_gpus`: those of a node that Slurm may lend."""
        self._state, self._store, self._lent_gpus = state, store, lent_gpus
        self._added = 0
        """Jobs of one order that are not entered yet."""

    def read(self, who: Who, given: dict[str, Any], wall_ns: int) -> NewJob | str:
        """The new job; or the one that it is already. Raises OperationError."""
        self._added = 0
        return self._read(who, given, wall_ns)

    def _read(self, who: Who, given: dict[str, Any], wall_ns: int) -> NewJob | str:
        if who.env is None:
            raise OperationError(
                "no environment is named", "submit on a node, in an environment", "usage"
            )
        key = f"{who.uid}:{given['key']}"
        there = self._state.submitted.get((who.env, key)) or self._store.job_of_key(who.env, key)
        if there is not None:
            return there
        gpus = self._judge(who, given)
        task_class, percent = self._share(self._state.envs[who.env], gpus, given)
        self._check_room(who.env, array_rows.count(given.get("array") or ()) or 1)
        name = given.get("name") or kinds.name_of(given["argv"][0])
        payload = {k: v for k, v in given.items() if k not in OF_THE_HEAD and v is not None}
        payload |= {
            "user": who.name, "uid": who.uid, "gid": who.gid, "gpus": gpus, "name": name,
        }  # fmt: skip
        if (signal := given.get("signal")) is not None:
            payload["signal"] = [signal.name, signal.before_ms]
        if len(json.dumps(payload)) > MAX_PAYLOAD_BYTES:
            raise OperationError(
                f"the command and its variables are longer than {MAX_PAYLOAD_BYTES} bytes",
                "put them into a file",
                "usage",
            )
        stage = ClusterStage.HELD if given.get("hold") else ClusterStage.QUEUED
        job = ClusterJob(
            "", who.env, who.name, gpus, given.get("time_limit_ms"),
            given.get("max_restarts") or 0, stage=stage, uid=who.uid, name=name,
            command=kinds.command_line(given["argv"]), submit_key=key, submitted_wall_ns=wall_ns,
            indices=given.get("array") or (), after=self._after(who.env, given.get("after") or ()),
            held_by=who.name if given.get("hold") else "",
            task_class=task_class, compute_percent=percent,
            memory_bytes=given.get("memory_bytes"),
        )  # fmt: skip
        return NewJob(job, payload)

    def read_many(
        self, who: Who, given: dict[str, Any], wall_ns: int
    ) -> list[NewJob | str | OperationError]:
        found: list[NewJob | str | OperationError] = []
        self._added = 0
        for said in given.pop("jobs"):
            try:
                own = check(ONE_OF_MANY, said)
                environ = (*given["environ"], *own.pop("variables", ()))
                found.append(self._read(who, {**given, **own, "environ": environ}, wall_ns))
            except OperationError as error:
                found.append(error)
        return found

    def _check_room(self, env: str, more: int) -> None:
        """Raises OperationError: too many jobs wait or run."""
        state, config = self._state, self._state.config
        for whose, there, limit in (
            (env, state.env_jobs[env], config.max_env_jobs),
            ("the cluster", state.env_jobs.total(), config.max_jobs),
        ):
            if there + self._added + more > limit:
                what = f"{whose} has {there} jobs that wait or run in the cluster, of {limit}"
                raise OperationError(what, "wait for some to end", "refused")
        self._added += more

    def _after(self, env: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those that have not ended well yet. Raises OperationError for one that never can."""
        left = []
        for name in names:
            living = [job for job in self._state.living(name) if job.env == env]
            ended = self._store.states(env, name)
            if not living and not ended:
                raise OperationError(
                    f"environment {env} has no job {name} in the cluster",
                    "nodemgr queue and nodemgr history list jobs",
                    "not_found",
                )
            bad = next((state for state in ended if state != ClusterStage.DONE), None)
            if bad is not None:
                raise OperationError(
                    f"{name} ended as {bad}, so a job after it never starts",
                    "run that one again, or leave --after out",
                    "refused",
                )
            left += [name] if living else []
        return tuple(left)

    def _judge(self, who: Who, given: dict[str, Any]) -> int:
        """The number of GPUs. Raises OperationError: the job can never run, or not yet."""
        state = self._state
        env = state.envs.get(who.env or "")
        if env is None:
            meant = did_you_mean(who.env or "", state.envs)
            raise OperationError(
                f"the cluster has no environment {who.env}{meant}",
                "an administrator makes it (nodemgr quota set --cluster); submit on this node "
                "with --here",
                "unknown_env",
            )
        for field, what in LATER.items():
            if given.get(field) not in (None, False, (), ""):
                raise OperationError(
                    f"the cluster's queue takes no {what} yet",
                    "submit it on one node with --here",
                    "refused",
                )
        if len(given.get("array") or ()) > array_rows.MAX_RUNS:
            raise OperationError(
                f"an array's indices are more than {array_rows.MAX_RUNS} separate runs of numbers",
                "submit several arrays",
                "usage",
            )
        known = state.users.get(who.name)
        if known is not None and known[0] != who.uid:
            raise OperationError(
                f"user {who.name} has uid {who.uid} on this node, and uid {known[0]} where its "
                "jobs in the cluster were submitted",
                "an administrator gives the user one uid on all nodes",
                "refused",
            )
        return self._gpus(env, given.get("gpus"))

    def _share(
        self, env: ClusterEnv, gpus: int, given: dict[str, Any]
    ) -> tuple[TaskClass, int | None]:
        """The class and the share, as the node gives them to it. Raises OperationError."""
        highest = gpu_shares.class_and_share(env, None, None)[0]
        named, percent = given.get("task_class"), given.get("compute_percent")
        if not gpus:
            if (named, percent, given.get("memory_bytes")) != (None, None, None):
                raise OperationError(
                    "a class, a share and memory are of GPUs, and a job without a GPU has none",
                    "ask for a GPU, or leave --class, --compute and --memory out",
                    "usage",
                )
            return highest, None
        task_class = None if named is None else TaskClass(named)
        if (above := gpu_shares.above(env, task_class, percent)) is not None:
            field, most = above
            what = f"class {named} asked, but the highest class of {env.name} is {most}"
            if field == "compute_percent":
                what = f"{percent}% of each GPU asked, but {env.name} may have at most {most}%"
            more = f"nodemgr quota set {env.name} --cluster --class or --compute"
            raise OperationError(what, f"ask for less, or an admin for more ({more})", "quota")
        self._judge_memory(env, gpus, given.get("memory_bytes"))
        return gpu_shares.class_and_share(env, task_class, percent)

    def _judge_memory(self, env: ClusterEnv, gpus: int, memory_bytes: int | None) -> None:
        """Of the nodes that report it. Raises OperationError: no node can ever have as much."""
        if memory_bytes is None or self._state.sessions.keys() - self._state.shares.keys():
            return
        nodes = self._state.shares.values()
        most = max((gpu_shares.most_bytes(said.gpus, env) for said in nodes), default=0)
        if 0 < most < memory_bytes and not self._lent_gpus:
            raise OperationError(
                f"{format_size(memory_bytes)} of a GPU asked, but {env.name} can have at most "
                f"{format_size(most)} on any node",
                "ask for less with --memory",
                "quota",
            )

    def _gpus(self, env: ClusterEnv, gpus: int | None) -> int:
        most = env.part
        if gpus is None:
            gpus = json.loads(env.quota).get("default_gpus")
        largest = max((node.gpus for node in self._state.nodes.values()), default=0)
        largest = max(largest, self._lent_gpus)
        gpus = min(most, largest) if gpus is None else gpus
        if gpus > most:
            raise OperationError(
                f"{gpus} GPUs are more than {env.name} may use ({most} on one node)",
                "ask for fewer",
                "quota",
            )
        if gpus > largest:
            raise OperationError(
                f"{gpus} GPUs are more than any node has ({largest})", "ask for fewer", "quota"
            )
        return int(gpus)
