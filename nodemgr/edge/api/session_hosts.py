"""Where whoever speaks is at home, as far as jobs are concerned: on the node, in a container, or
where no job can be run.

Knows: what the kernel and the node's container engines say of a process. Must not know: jobs, what
is done there.

A place is an environment, a user and a container. Nothing of it is said by the speaker: the
environment is the socket that he came by, the user and the process are the kernel's, and the
container is what its engine on this node called it.
"""

from __future__ import annotations

from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.kernel import namespaces
from nodemgr.edge.kernel.process_locations import location_of
from nodemgr.edge.kernel.processes import start_ticks
from nodemgr.edge.rpc.operation import OperationError

NODE = ""
"""The place that is no container's."""


class LaunchHosts:
    """Of sessions."""

    def __init__(self) -> None:
        self._node = namespaces.NodeNamespaces()

    def is_on_node(self, session: Connection) -> bool:
        """A process of the node itself, by the node's own socket."""
        return not session.listener.for_all and self._node.is_home_of(session.identity.pid)

    def of(self, session: Session | None) -> str:
        """NODE, or ENV/UID/CONTAINER.

        Raises OrderError, in one line for him, where no job can be run.
        """
        if not isinstance(session, Connection):
            raise OperationError(
                "a job is submitted on the node or in a container: over UDP nobody knows as whom it"
                " should run",
                "refused",
            )
        pid, uid, is_home = (
            session.identity.pid,
            session.identity.uid,
            self._node.is_home_of(session.identity.pid),
        )
        if is_home and not session.listener.for_all:
            return NODE
        if is_home:
            raise OperationError(
                "this is the way for containers: on the node itself, submit without"
                " NODEMGR_ENV_DIR",
                "refused",
            )
        if not session.listener.for_all:
            raise OperationError(
                "a job is submitted on the node itself, or in a container that was "
                "started with its environment's device: "
                "from another sandbox it would run outside of it",
                "refused",
            )
        found, inodes = location_of(pid), namespaces.of(pid)
        if (
            start_ticks(pid) != session.identity.start_ticks
        ):  # what was looked at may have been the next of this number
            raise OperationError("who asked has ended", "refused")
        return (
            f"{session.env}/{uid}/{found.container_name or found.container or f'mnt:{inodes[0]}'}"
        )
