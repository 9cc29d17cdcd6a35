"""An env outside the core: its directory, its sockets, and its entry check.

Knows: quotas as the core has them, files and listeners. Must not know: leases.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Quota
from nodemgr.core.state.node_state import State
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.containers.cdi_files import Containers
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.rundir import EnvDirs, RunDirError
from nodemgr.edge.kernel.processes import Credentials, Identity, group_id, user_id


@dataclass(frozen=True, slots=True)
class _Access:
    """The users and groups of a quota, as the kernel names them."""

    uids: frozenset[int]
    gids: frozenset[int]

    @classmethod
    def of(cls, quota: Quota) -> _Access:
        uids = {uid for name in quota.users if (uid := user_id(name)) is not None}
        gids = {gid for name in quota.groups if (gid := group_id(name)) is not None}
        return cls(frozenset(uids | {0, os.geteuid()}), frozenset(gids))


class Envs:
    """All envs of the node."""

    def __init__(
        self,
        state: State,
        dirs: EnvDirs,
        clients: ClientServer,
        udp: UdpServer | None,
        udp_address: Callable[[], str],
        library_directory: Path | None,
        client: Path | None,
        context_bytes: Callable[[str], int],
        containers: Containers,
        gate: Gate | None,
    ) -> None:
        """`library_directory`: the simulated driver's, which clients find first.

        None on a real node. `client`: the copy of the client that programs load, or None.
        """
        self._state = state
        self._dirs = dirs
        self._clients = clients
        self._udp = udp
        self._udp_address = udp_address
        self._library_directory = library_directory
        self._client = client
        self._context_bytes = context_bytes
        self.containers = containers
        self._gate = gate
        self._access: dict[str, _Access] = {}
        self.faults: dict[str, str] = {}
        """Envs with files or sockets out of place now, each with the reason."""

    def may_enter(self, env: str, who: Identity | Credentials) -> bool:
        """Whether `who` is root, the manager's own user, or a user that the quota names.

        True for every caller if the env is gone: the answer then reports that.
        """
        return env not in self._access or self.is_entitled(env, who)

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        """The users and the groups of an env that there is."""
        access = self._access.get(env, _Access(frozenset(), frozenset()))
        return access.uids, access.gids

    def is_entitled(self, env: str, who: Identity | Credentials) -> bool:
        """The same, of an env that there is."""
        access = self._access.get(env)
        return access is not None and (
            who.uid in access.uids or not access.gids.isdisjoint(who.gids)
        )

    def refresh_all(self) -> None:
        for env in list(self._state.envs):
            self._refresh(env)
        self.containers.settle(self._state.envs)

    def refresh(self, env: str) -> None:
        """Updates the files for clients after a change of the quota or of the node."""
        self._refresh(env)
        self.containers.settle(self._state.envs)

    def _refresh(self, env: str) -> None:
        self.faults.pop(env, None)
        try:
            if env in self._state.envs:
                self._open(env)
            else:
                self._close(env)
        except (OSError, RunDirError) as error:
            self.faults[env] = fault = stated(
                f"the directory of env {env} could not be refreshed, its clients do not see this "
                f"change: {error}",
                "correct that, then set the quota once more (`nodemgr quota set`)",
            )
            stderr_log.say(fault)

    def _open(self, env: str) -> None:
        conf = self.conf(env)
        self._access[env] = _Access.of(self._state.envs[env].quota)
        path, container_path = self._dirs.socket_path(env), self._dirs.container_socket_path(env)
        self._dirs.write(env, conf)
        self._clients.open(env, path)
        self._clients.open(env, container_path, for_all=True)
        if self._udp is not None:
            self._udp.open(env, self._dirs.write_udp(env, self._udp_address(), conf))
        if self._gate is not None:
            self._gate.ensure(env)

    def _close(self, env: str) -> None:
        self._access.pop(env, None)
        self._clients.close(env)
        if self._udp is not None:
            self._udp.close(env)
        self._dirs.remove(env)
        if self._gate is not None:
            self._gate.remove(env)

    def renew_key(self, env: str, grace_ns: int) -> str:
        """Replaces the key of UDP clients; the old one counts for `grace_ns`. Returns its path.

        Raises OSError, RunDirError.
        """
        if self._udp is None:
            raise RunDirError(
                "this manager does not listen over UDP, so that there are no keys",
                "start it with `nodemgr serve --udp HOST:PORT`",
            )
        self._udp.renew(env, self._dirs.renew_key(env), grace_ns)
        return str(self._dirs.key_dir(env))

    def conf(self, env: str) -> dict[str, str | int | None]:
        """The keys of client.conf (CONTRACT "Run directory") except the address."""
        quota, node_gpus = self._state.envs[env].quota, len(self._state.gpus)
        wanted = quota.default_gpus if quota.default_gpus is not None else quota.gpus
        return {
            "acquire": quota.acquire,
            "no_gpu": quota.no_gpu,
            "no_manager": quota.no_manager,
            "gpus": min(wanted, quota.gpus, node_gpus),
            "node_gpus": node_gpus,
            "beat_ms": self._state.config.beat_ms,
            "timeout_ms": self._state.config.timeout_ms,
            "context_bytes": self._context_bytes(env),
            "ledger": "wanted" if self._clients.hub.expects_files(env) else None,
            "gate": 1 if quota.is_gated else None,
            "progress": 1 if quota.has_shares else None,
            "memory_per_gpu": quota.memory_per_gpu_bytes,
            "client": None if self._client is None else str(self._client),
            "library_path": (
                None if self._library_directory is None else str(self._library_directory)
            ),
        }
