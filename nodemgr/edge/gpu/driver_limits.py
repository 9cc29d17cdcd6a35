"""The driver's own limit on an env's containers (nvmlDeviceSetMemoryLimits).

A driver that has it enforces a quota that no process can bypass.

Knows: which cgroups are an env's alone, the limit of each, the limits that were set. Must not know:
NVML (gpu_inventory.py), the reason for a grant's size.

A cgroup is an env's own if a process of the env lives in it, in a mount namespace that is neither
the manager's nor the host's (a container, no session of a user beside other things), it is neither
the root nor the manager's own, and no process of another env is known in it. Each such cgroup gets
the env's whole limit on each GPU where the env holds a grant: between several, the ledger divides
it. On the other GPUs the driver is left alone. Each limit that was set is recorded, so that a later
manager lifts the unneeded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from nodemgr.core.model.entities import ProcessKey, Uuid
from nodemgr.core.state.node_state import State
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.ownership import mount_namespace, outside_namespaces
from nodemgr.edge.kernel.processes import pid_of
from nodemgr.messages import doctor
from nodemgr.messages import manager_log as log

META = "driver_limit:"
"""Key of the store's memory of a limit, before the JSON of its place."""

LimitTarget = tuple[Uuid, str]
"""A GPU, and the directory of a cgroup."""
Setter = Callable[[Uuid, str, int | None, Callable[[str | None], None]], None]
"""Sets a limit in bytes soon (None: lifts it), then calls back in the loop: the error, or None."""


class DriverLimits:
    """Keeps the driver's limits in step with the grants."""

    def __init__(
        self,
        state: State,
        known: Callable[[], Iterable[tuple[ProcessKey, str]]],
        setter: Setter | None,
        remember: Callable[[str, str | None], None],
        remembered: Iterable[str],
    ) -> None:
        """`setter`: None where the driver has no such limits.

        `remembered`: the keys of the store's facts.
        """
        self._state = state
        self._known = known
        self._setter = setter
        self._remember = remember
        self._set: dict[LimitTarget, int | None] = {
            _target(key): None for key in remembered if key.startswith(META)
        }
        """The limits that were ordered; None: an earlier manager set one of unknown size."""
        self._cgroup_of: dict[ProcessKey, str | None] = {}
        self._outside = outside_namespaces()
        self._mount = cgroups.mount_point() if setter is not None else None
        self.can_set = self._mount is not None
        """The driver has limits of its own, and cgroups are mounted."""
        self.fault: str | None = None
        """Why the last limit could not be set."""

    @property
    def line(self) -> str:
        """The state of the limits, for the doctor."""
        if self._setter is None:
            return doctor.DRIVER_KEEPS_NO_LIMITS()
        if self._mount is None:
            return (
                "no cgroup v2 here, so the driver cannot limit a container: the ledger alone holds"
            )
        if self.fault is not None:
            return log.DRIVER_LIMIT_NOT_SET(error=self.fault)
        return f"the driver keeps {len(self._set)} limits on containers, beside the ledger"

    def settle(self) -> None:
        """After grants or processes changed: sets what is new, lifts what is over."""
        if not self.can_set:
            return
        wanted = self._wanted()
        for place in [place for place in self._set if place not in wanted]:
            del self._set[place]
            self._order(place, None)
        for place, limit_bytes in wanted.items():
            if self._set.get(place) != limit_bytes:
                if place not in self._set:
                    self._remember(META + json.dumps(place), "1")
                self._set[place] = limit_bytes
                self._order(place, limit_bytes)

    def _wanted(self) -> dict[LimitTarget, int]:
        own = self._own_cgroups()
        return {
            (uuid, cgroup): grant.limit_bytes
            for (env, uuid), grant in self._state.grants.items()
            for cgroup in own.get(env, ())
            if grant.limit_bytes > 0
        }

    def _own_cgroups(self) -> Mapping[str, set[str]]:
        """The cgroups by env, without those in which another env's process is known."""
        known = dict(self._known())
        self._cgroup_of = {
            key: self._cgroup_of[key] if key in self._cgroup_of else self._cgroup(key)
            for key in known
        }
        envs: dict[str, set[str]] = {}
        for key, cgroup in self._cgroup_of.items():
            if cgroup is not None:
                envs.setdefault(cgroup, set()).add(known[key])
        own: dict[str, set[str]] = {}
        for cgroup, there in envs.items():
            if len(there) == 1:
                own.setdefault(next(iter(there)), set()).add(cgroup)
        return own

    def _cgroup(self, key: ProcessKey) -> str | None:
        pid = pid_of(key)
        if pid is None or self._mount is None or mount_namespace(pid) in (None, *self._outside):
            return None
        path = cgroups.directory_of(pid)
        is_own = path is not None and path not in (
            self._mount,
            cgroups.directory_of("self"),
        )
        return str(path) if is_own else None

    def _order(self, place: LimitTarget, limit_bytes: int | None) -> None:
        assert self._setter is not None
        self._setter(*place, limit_bytes, lambda fault: self._done(place, limit_bytes, fault))

    def _done(self, place: LimitTarget, limit_bytes: int | None, fault: str | None) -> None:
        if limit_bytes is None and place not in self._set:
            # lifted; or its cgroup is gone, and the limit with it
            self._remember(META + json.dumps(place), None)
        elif fault != self.fault:
            self.fault = fault
            if fault is not None:
                stderr_log.say(log.DRIVER_LIMIT_NOT_SET(error=fault))


def _target(key: str) -> LimitTarget:
    uuid, cgroup = json.loads(key.removeprefix(META))
    return uuid, cgroup
