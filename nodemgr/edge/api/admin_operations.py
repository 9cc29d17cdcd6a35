"""The orders of an administrator: one table of verbs, their arguments and their actions.

Knows: the control plane's words (CONTRACT "Control plane"), which event or view answers each. Must
not know: frames, sockets.
"""

from __future__ import annotations

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
from nodemgr.core.model.entities import MS, Env, Quota
from nodemgr.core.state import accounting
from nodemgr.core.views import snapshot
from nodemgr.core.views.cdi import DEVICE_FORM, is_device_name
from nodemgr.edge.api.release_names import release
from nodemgr.edge.api.views import Views
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host.rundir import SOCKET_NAME, RunDirError, check_socket_path
from nodemgr.edge.kernel.processes import group_id, user_id
from nodemgr.edge.rpc.operation import (
    Argument,
    Operation,
    OperationError,
    Operations,
    access,
    choice,
    duration,
    env_name,
    flag,
    integer,
    members,
    named,
    of_field,
    text,
)
from nodemgr.messages import environments as messages
from nodemgr.paths import env_dir

SCHEMA_VERSION = 1
CLIENT_ABI = 1
MAX_EVENTS = 10_000


class AdminOperations:
    """The verbs, on a daemon."""

    def __init__(self, daemon: Daemon, views: Views) -> None:
        self._daemon = daemon
        self._views = views

    def orders(self) -> Operations:
        env = Argument(env_name, required=True)
        quota = {
            row.name: of_field(row, {fields.QUEUE: self._queue_name})
            for row in fields.QUOTA
            if row.is_ordered
        } | members(user_id, group_id)
        by = {"by": Argument(text)}
        since = Argument(integer(0, 2**63 - 1))
        views = self._views
        return {
            "ping": Operation({}, lambda _: {**views.identity(), "abi": CLIENT_ABI}),
            "status": Operation({}, lambda _: views.status(), fresh=True),
            "figures": Operation({}, lambda _: views.figures()),
            "quota_set": Operation({"env": env, **quota, **by}, self._quota_set),
            "quota_show": Operation({"env": Argument(env_name)}, self._quota_show),
            "quota_rm": Operation({"env": env, "force": Argument(flag), **by}, self._quota_rm),
            "env_create": Operation({"env": env, **quota, **by}, self._env_create),
            "env_rekey": Operation(
                {"env": env, "grace_ms": Argument(duration(0, MAX_DURATION_MS)), **by},
                self._env_rekey,
            ),
            "env_show": Operation({"env": Argument(env_name)}, self._env_show),
            "allocations": Operation(
                {"env": Argument(env_name), "since_wall_ns": since}, self._allocations
            ),
            "release": Operation(
                {"task": Argument(text, required=True), **by},
                lambda given: release(self._daemon, given["task"], given.get("by", ""), None),
            ),
            "events": Operation(
                {"since": since, "limit": Argument(integer(1, MAX_EVENTS))}, self._events
            ),
            "doctor": Operation({}, lambda _: views.doctor()),
        }

    # -- quotas --

    def _queue_name(self, value: object) -> Any:
        """One of the present queues. Raises OperationError."""
        return choice(*queue_settings.rows(self._daemon.state))(value)

    def _quota_set(self, given: dict[str, Any]) -> dict[str, Any]:
        name, by = given.pop("env"), given.pop("by", "")
        before = self._daemon.state.envs.get(name)
        if before is None and "gpus" not in given:
            raise OperationError(messages.ENV_IS_NEW(env=name))
        had = None if before is None else before.quota
        given = named(had, given)
        quota = Quota(**given) if had is None else replace(had, **given)
        self._check_quota(name, quota, given)
        self._daemon.submit_or_refuse(
            events.SetQuota(name, quota, by, self._daemon.clock.wall_ns())
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
                messages.DEFAULT_ABOVE_QUOTA(default=quota.default_gpus, gpus=quota.gpus)
            )
        known = queue_settings.rows(self._daemon.state)
        if (
            quota.max_priority in known
            and quota.priority in known
            and known[quota.max_priority].rank < known[quota.priority].rank
        ):
            raise OperationError(
                messages.LIMIT_BELOW_QUEUE(limit=quota.max_priority, queue=quota.priority)
            )
        if quota.when_idle != WHEN_IDLE[0] and quota.idle_ms is None:
            raise OperationError(messages.IDLE_WITHOUT_TIME(action=quota.when_idle))
        if (
            quota.memory_bytes is not None
            and quota.gpus == 0
            and given.get("memory_bytes") is not None
        ):
            raise OperationError(messages.MEMORY_WITHOUT_GPU())

    def _warnings(self, name: str, quota: Quota) -> list[str]:
        state = self._daemon.state
        warnings: list[str] = []
        if quota.gpus > len(state.gpus):
            warnings.append(
                messages.MORE_THAN_NODE(env=name, gpus=quota.gpus, there=len(state.gpus))
            )
        per_gpu = quota.memory_per_gpu_bytes
        largest = max((gpu.memory_total_bytes for gpu in state.gpus.values()), default=0)
        if per_gpu is not None and per_gpu > largest > 0:
            warnings.append(
                messages.WHOLE_GPU(
                    env=name, asked=format_size(per_gpu), largest=format_size(largest)
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
                    messages.GRANT_PENDING(
                        missing=format_size(missing), index=state.gpus[uuid].index
                    )
                )
        if fault := self._daemon.envs.faults.get(name):
            warnings.append(fault)
        return warnings

    def _quota_show(self, given: dict[str, Any]) -> dict[str, Any]:
        envs = self._daemon.state.envs
        shown = (
            [self._env(given["env"])] if "env" in given else [envs[name] for name in sorted(envs)]
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "quotas": [snapshot.quota(env.name, env.quota) for env in shown],
        }

    def _quota_rm(self, given: dict[str, Any]) -> dict[str, Any]:
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
            raise OperationError(messages.ENV_IN_USE(env=env.name, held=held))
        self._daemon.submit_or_refuse(
            events.RemoveQuota(env.name, given.get("by", ""), self._daemon.clock.wall_ns())
        )
        warnings: list[str] = []
        if tasks:
            warnings.append(messages.TASKS_LOST_GPUS(tasks=tasks, env=env.name))
        if waiting:
            warnings.append(messages.REQUESTS_REFUSED(requests=waiting, env=env.name))
        return {"env": env.name, "warnings": warnings}

    # -- environments, as containers are given them --

    def _env_create(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["env"]
        if name in self._daemon.state.envs:
            raise OperationError(messages.ENV_EXISTS(env=name))
        if not is_device_name(name):
            raise OperationError(messages.NO_DEVICE_NAME(env=name, form=DEVICE_FORM))
        made = self._quota_set(given)
        del made["quota"]
        return {"env": self._views.env(name), **made}

    def _env_rekey(self, given: dict[str, Any]) -> dict[str, Any]:
        name, grace_ms = self._env(given["env"]).name, given.get("grace_ms", 0)
        try:
            directory = self._daemon.envs.renew_key(name, grace_ms * MS)
        except (OSError, RunDirError) as error:
            raise OperationError(messages.KEY_UNCHANGED(env=name, error=error)) from None
        self._daemon.journal.note(
            "env.rekeyed", env=name, by=given.get("by", ""), grace_ms=grace_ms
        )
        return {"env": name, "key_directory": directory}

    def _env_show(self, given: dict[str, Any]) -> dict[str, Any]:
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

    def _allocations(self, given: dict[str, Any]) -> dict[str, Any]:
        """The records of an environment, also of a removed one."""
        env = given.get("env")
        found = self._views.allocations(env, given.get("since_wall_ns", 0))
        if (
            env is not None
            and env not in self._daemon.state.envs
            and not self._views.allocations(env, 0, 1)["allocations"]
        ):
            raise self._no_env(env)
        return found

    # -- the rest --

    def _events(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self._daemon.journal.events(given.get("since"), given.get("limit", 1_000))
        return {"schema_version": SCHEMA_VERSION, "events": found}
