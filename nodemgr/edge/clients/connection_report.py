"""The owner of most connections of a full env, in one line that names the container.

An admin needs the name to end it.

Knows: processes' containers. Must not know: sockets, limits. No decision depends on this report
(kernel/process_locations.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from client_plugin.messages.form import stated
from nodemgr.edge.kernel.process_locations import SHORT_ID_CHARS, container_of, name_of

MAX_EXAMINED = 100
"""Processes, those with most connections: a look at each costs a read."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """An env's connections, the container with most of them, and the process with most.

    The container is None for the node itself.
    """

    env: str
    connections: int
    container: str | None
    container_name: str | None
    container_connections: int
    pid: int
    pid_connections: int

    @classmethod
    def of(cls, env: str, by_pid: Counter[int]) -> Crowd:
        """`by_pid` has at least one."""
        most = by_pid.most_common(MAX_EXAMINED)
        containers: Counter[str | None] = Counter()
        for pid, count in most:
            containers[container_of(pid)] += count
        ((container, here),) = containers.most_common(1)
        name = None if container is None else name_of(container)
        return cls(
            env,
            by_pid.total(),
            None if container is None else container[:SHORT_ID_CHARS],
            name,
            here,
            *most[0],
        )

    def line(self) -> str:
        place = (
            "the node itself"
            if self.container is None
            else f"container {self.container_name or self.container}"
        )
        return stated(
            f"environment {self.env} has all the {self.connections} connections that it may: its "
            f"further processes are not heard ({self.container_connections} are from {place}, "
            f"{self.pid_connections} of pid {self.pid})",
            "end some, or raise max_connections_per_env",
        )

    def fields(self) -> dict[str, Any]:
        """The fields of the event and of the status."""
        return {
            "env": self.env,
            "connections": self.connections,
            "container": self.container,
            "container_name": self.container_name,
            "container_connections": self.container_connections,
            "pid": self.pid,
            "pid_connections": self.pid_connections,
            "text": self.line(),
        }
