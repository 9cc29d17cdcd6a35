"""The verbs about the node and its environments: views, records, quotas.

Knows: which event or view answers each. Must not know: sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from client_plugin import fields
from client_plugin.fields import WHEN_IDLE
from client_plugin.messages.form import stated
from client_plugin.units import (
    MAX_DURATION_MS,
    format_size,
)
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.lifecycle import queue_settings
from nodemgr.core.model import events
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.entities import MS, Env, Quota
from nodemgr.core.state import accounting
from nodemgr.core.views import snapshot
from nodemgr.core.views.cdi import DEVICE_FORM, is_device_name
from nodemgr.edge.api.verb_table import ADMIN, ENV, VIEWERS, Needs, Right, Speaker, verb
from nodemgr.edge.api.views import Views
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host.rundir import SOCKET_NAME, RunDirError, check_socket_path
from nodemgr.edge.kernel.processes import group_id, user_id
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    Reply,
    access,
    check_argument,
    choice,
    duration,
    env_name,
    flag,
    integer,
    members,
    named,
    of_field,
)
from nodemgr.messages import environments as messages
from nodemgr.paths import env_dir

SCHEMA_VERSION = 1
CLIENT_ABI = 1
MAX_EVENTS = 10_000
MAX_WAITING = 1_000
"""Readers that wait for events; one more ends the wait of the oldest."""
MAX_RECORDS = 2_000
"""The most records of an env for its users, the last ones: they fit the parts and take 20 ms."""


def _judged_later(value: object) -> object:
    """The name of a queue, as far as no state is known."""
    return value


BY_ENV = {"env": Argument(env_name)}
NAMED = {"env": Argument(env_name, required=True)}
QUOTA = {
    **NAMED,
    **{
        row.name: of_field(row, {fields.QUEUE: _judged_later})
        for row in fields.QUOTA
        if row.is_ordered
    },
    **members(user_id, group_id),
}
SINCE = Argument(integer(0, 2**63 - 1))


class AdminOperations:
    """The verbs, on a daemon."""

    def __init__(
        self, daemon: Daemon, views: Views, forget_tokens: Callable[[str, str], None]
    ) -> None:
        """`forget_tokens`: of an environment that is removed by this administrator."""
        self._daemon = daemon
        self._views = views
        self._forget_tokens = forget_tokens
        self._waiting: list[tuple[int, int, Reply]] = []
        """The readers that wait for events after a number, at most so many."""
        daemon.journal.observe_with(self._published)

    # -- views --

    @verb("ping", ADMIN)
    def _ping(self, _who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        return {**self._views.identity(), "abi": CLIENT_ABI}

    @verb("status", ENV | ADMIN, needs=Needs.STATUS)
    def _status(self, who: Speaker, _given: dict[str, Any]) -> Later:
        return self._views.status(who.env)

    @verb("figures", ENV | ADMIN, needs=Needs.FIGURES)
    def _figures(self, who: Speaker, _given: dict[str, Any]) -> Later:
        return self._views.figures(who.env)

    @verb("holdings", ENV)
    def _holdings(self, who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        assert who.env is not None
        return self._views.holdings(who.env)

    @verb("doctor", ENV | ADMIN, needs=Needs.AUDIT)
    def _doctor(self, who: Speaker, _given: dict[str, Any]) -> Any:
        if who.env is None or who.session is None:
            return self._views.doctor()
        checks = self._views.env_checks(who.env, who.session.pid)
        return {"schema_version": SCHEMA_VERSION, "checks": checks}

    # -- quotas --

    @verb("quota_set", ADMIN | Right.ADMIN_TOKEN, QUOTA, changes=True)
    def _quota_set(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        name = given.pop("env")
        before = self._daemon.state.envs.get(name)
        if before is None and "gpus" not in given:
            raise OperationError(
                f"there is no environment {name!r} yet", "say how many GPUs it may have (--gpus N)"
            )
        had = None if before is None else before.quota
        given = named(had, given)
        quota = Quota(**given) if had is None else replace(had, **given)
        self._check_quota(name, quota, given)
        self._daemon.submit_or_refuse(
            events.SetQuota(name, quota, who.user, self._daemon.clock.wall_ns())
        )
        return {
            "quota": snapshot.quota(name, self._daemon.state.envs[name].quota),
            "warnings": self._warnings(name, quota),
            **access(had, quota),
        }

    def _check_quota(self, name: str, quota: Quota, given: dict[str, Any]) -> None:
        """Raises OperationError for what fits together in no case."""
        try:
            check_socket_path(env_dir(self._views.run_dir, name) / SOCKET_NAME)
        except RunDirError as error:
            raise OperationError(error.line) from None
        if quota.default_gpus is not None and quota.default_gpus > quota.gpus:
            raise OperationError(
                f"default_gpus: a request without a wish would get {quota.default_gpus} GPUs, more "
                f"than the quota's {quota.gpus}",
                "lower --default-gpus",
            )
        known = queue_settings.rows(self._daemon.state)
        for argument in ("priority", "max_priority"):
            if given.get(argument) is not None:
                check_argument(argument, choice(*known), given[argument])
        if (
            quota.max_priority in known
            and quota.priority in known
            and known[quota.max_priority].rank < known[quota.priority].rank
        ):
            raise OperationError(
                f"max_priority: {quota.max_priority} is below {quota.priority}, the quota's own "
                "queue",
                "name that or a higher one, or none",
            )
        if quota.when_idle != WHEN_IDLE[0] and quota.idle_ms is None:
            raise OperationError(
                f"--when-idle {quota.when_idle} needs the time after which a task is idle",
                "name it (--idle 30min), or --when-idle keep",
            )
        if (
            quota.memory_bytes is not None
            and quota.gpus == 0
            and given.get("memory_bytes") is not None
        ):
            raise OperationError(
                "memory_bytes: a quota of no GPU has no memory either",
                "say --gpus, or leave --memory out",
            )

    def _warnings(self, name: str, quota: Quota) -> list[str]:
        state = self._daemon.state
        warnings: list[str] = []
        if quota.gpus > len(state.gpus):
            warnings.append(
                stated(
                    f"{name} may have {quota.gpus} GPUs, but the node has {len(state.gpus)}, and a "
                    "request for more is refused",
                    f"set --gpus {len(state.gpus)}, unless GPUs will be added",
                )
            )
        per_gpu = quota.memory_per_gpu_bytes
        largest = max((gpu.memory_total_bytes for gpu in state.gpus.values()), default=0)
        if per_gpu is not None and per_gpu > largest > 0:
            warnings.append(
                stated(
                    f"{format_size(per_gpu)} per GPU is more than any GPU here has "
                    f"({format_size(largest)}), so each grant of {name} is a whole GPU",
                    "set less with --memory, unless that is meant",
                )
            )
        if quota.idle_ms is not None and quota.when_idle == "release":
            warnings.append(
                stated(
                    f"--when-idle release ends no job of {name}: an idle job keeps its GPUs",
                    "`--when-idle suspend` reaches jobs too",
                )
            )
        for (env, uuid), grant in state.grants.items():
            missing = accounting.target(state, grant) - grant.memory_bytes
            if env == name and missing > 0:
                warnings.append(
                    stated(
                        f"{format_size(missing)} more on GPU {state.gpus[uuid].index} is pending "
                        "until others there give memory back",
                        "`nodemgr allocations` names them",
                    )
                )
        if fault := self._daemon.envs.faults.get(name):
            warnings.append(fault)
        return warnings

    @verb("quota_show", ADMIN | VIEWERS, BY_ENV)
    def _quota_show(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        envs, named = self._daemon.state.envs, who.env or given.get("env")
        shown = [self._env(named)] if named is not None else [envs[name] for name in sorted(envs)]
        return {
            "schema_version": SCHEMA_VERSION,
            "quotas": [snapshot.quota(env.name, env.quota) for env in shown],
        }

    @verb("quota_rm", ADMIN, {**NAMED, "force": Argument(flag)}, changes=True)
    def _quota_rm(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        env, state = self._env(given["env"]), self._daemon.state
        tasks = len(state.env_tasks.get(env.name, ()))
        waiting = sum(1 for request in state.requests.values() if request.env == env.name)
        jobs = len(self._views.other_jobs(env.name))
        if (tasks or waiting or jobs) and not given.get("force", False):
            held = ", ".join(
                f"{count} {what}"
                for count, what in (
                    (tasks, "running"),
                    (waiting, "waiting"),
                    (jobs, "more job" if jobs == 1 else "more jobs"),
                )
                if count
            )
            raise OperationError(
                f"{env.name} is not removed, since it is in use ({held})",
                "--force takes its GPUs and ends its jobs",
                "refused",
            )
        self._daemon.submit_or_refuse(
            events.RemoveQuota(env.name, who.user, self._daemon.clock.wall_ns())
        )
        self._forget_tokens(env.name, who.user)
        warnings: list[str] = []
        if tasks:
            warnings.append(
                stated(
                    f"{tasks} running task(s) of {env.name} lost their GPUs and can allocate no "
                    "more memory",
                    "end their programs",
                )
            )
        if waiting:
            warnings.append(
                stated(
                    f"{waiting} waiting request(s) of {env.name} were refused",
                    "its users need another environment",
                )
            )
        return {"env": env.name, "warnings": warnings}

    # -- environments, as containers are given them --

    @verb("env_create", ADMIN, QUOTA, changes=True)
    def _env_create(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        name = given["env"]
        if name in self._daemon.state.envs:
            raise OperationError(
                f"there is an environment {name!r} already",
                f"`nodemgr quota set {name}` changes it",
                "refused",
            )
        if not is_device_name(name):
            raise OperationError(
                f"no container could be given {name!r}", f"CDI wants {DEVICE_FORM}"
            )
        made = self._quota_set(who, given)
        del made["quota"]
        return {"env": self._views.env(name), **made}

    @verb(
        "env_rekey",
        ADMIN,
        {**NAMED, "grace_ms": Argument(duration(0, MAX_DURATION_MS))},
        changes=True,
    )
    def _env_rekey(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        name, grace_ms = self._env(given["env"]).name, given.get("grace_ms", 0)
        try:
            directory = self._daemon.envs.renew_key(name, grace_ms * MS)
        except (OSError, RunDirError) as error:
            raise OperationError(
                f"the key of {name} stays as it was: {error}",
                f"mend that and run `nodemgr env rekey {name}` again",
                "refused",
            ) from None
        self._daemon.journal.note("env.rekeyed", env=name, by=who.user, grace_ms=grace_ms)
        return {"env": name, "key_directory": directory}

    @verb("env_show", ADMIN, BY_ENV)
    def _env_show(self, _who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        names = (
            [self._env(given["env"]).name] if "env" in given else sorted(self._daemon.state.envs)
        )
        return {"schema_version": SCHEMA_VERSION, "envs": [self._views.env(name) for name in names]}

    def _env(self, name: str) -> Env:
        env = self._daemon.state.envs.get(name)
        if env is None:
            raise self._no_env(name)
        return env

    def _no_env(self, name: str) -> OperationError:
        meant = did_you_mean(name, self._daemon.state.envs)
        return OperationError(messages.NO_ENV(env=name, meant=meant))

    @verb("allocations", ENV | ADMIN, {**BY_ENV, "since_wall_ns": SINCE})
    def _allocations(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """The records of an environment, also of a removed one."""
        env = who.scope(given)
        if who.env is not None:
            return self._views.allocations(env, given.get("since_wall_ns", 0), MAX_RECORDS)
        found = self._views.allocations(env, given.get("since_wall_ns", 0))
        if (
            env is not None
            and env not in self._daemon.state.envs
            and not self._views.allocations(env, 0, 1)["allocations"]
        ):
            raise self._no_env(env)
        return found

    # -- the rest --

    @verb(
        "events",
        ADMIN,
        {"since": SINCE, "limit": Argument(integer(1, MAX_EVENTS)), "wait": Argument(flag)},
    )
    def _events(self, _who: Speaker, given: dict[str, Any]) -> Any:
        """With `wait`: once there is an event after `since`."""
        since, limit = given.get("since"), given.get("limit", 1_000)
        found = self._past(since, limit)
        if found["events"] or since is None or not given.get("wait"):
            return found
        return Later(lambda reply: self._wait(since, limit, reply))

    def _past(self, since: int | None, limit: int) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "events": self._daemon.journal.events(since, limit),
        }

    def _wait(self, since: int, limit: int, reply: Reply) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.pop(0)[2](
                OperationError(
                    f"{MAX_WAITING} readers wait for events already",
                    "end some of them, and ask again",
                    "busy",
                )
            )
        self._waiting.append((since, limit, reply))

    def _published(self, _event: Publish) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._daemon.loop.call_soon(self._wake, waiting)

    def _wake(self, waiting: list[tuple[int, int, Reply]]) -> None:
        for since, limit, reply in waiting:
            found = self._past(since, limit)
            if found["events"]:
                reply(found)
            else:
                self._wait(since, limit, reply)
