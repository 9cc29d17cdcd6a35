"""The launch host of a session: the node, a container, or none.

Knows: the facts of the kernel and of the node's container engines about a process. Must not know:
jobs, the work there.

A place is an environment, a user and a container. The speaker states none of it: the environment is
the socket of the session, the user and the process come from the kernel, and the container's name
comes from its engine on this node.
"""

from __future__ import annotations

import os

from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.kernel import namespaces
from nodemgr.edge.kernel.process_locations import location_of
from nodemgr.edge.kernel.processes import start_ticks, user_name
from nodemgr.edge.rpc.operation import OperationError

NODE = ""
"""The place that is no container's."""


class LaunchHosts:
    """The launch hosts of sessions."""

    def __init__(self) -> None:
        self._node = namespaces.NodeNamespaces()

    def is_on_node(self, session: Connection) -> bool:
        """A process of the node itself, by the node's own socket."""
        return not session.listener.for_all and self._node.is_home_of(session.identity.pid)

    def is_root(self, session: Session | None) -> bool:
        """By the kernel's word, on an env's socket; or the manager's user; not container root."""
        return (
            isinstance(session, Connection)
            and session.identity.uid in (0, os.geteuid())
            and self.is_on_node(session)
        )

    def of(self, session: Session | None) -> str:
        """NODE, or ENV/UID/CONTAINER.

        Raises OperationError, in one line for the speaker, if no job can be run there.
        """
        if not isinstance(session, Connection):
            raise OperationError(
                "over UDP the user of a job is not known",
                "submit it on the node or in a container of the node",
                "refused",
            )
        pid, uid, is_home = (
            session.identity.pid,
            session.identity.uid,
            self._node.is_home_of(session.identity.pid),
        )
        # the kernel shows an ordinary user's manager no namespaces of another user's process
        if not session.listener.for_all and os.geteuid() not in (0, uid):
            raise OperationError(
                f"this manager runs as {user_name(os.geteuid())} and can run that user's jobs "
                "alone",
                f"submit as {user_name(os.geteuid())}, or ask for a manager that runs as root",
                "refused",
            )
        if is_home and not session.listener.for_all:
            return NODE
        if is_home:
            raise OperationError(
                "this socket is for containers",
                "on the node itself, submit without NODEMGR_ENV_DIR",
                "refused",
            )
        if not session.listener.for_all:
            raise OperationError(
                "a job of this sandbox would run outside of it",
                "submit on the node itself, or in a container that was started with its "
                "environment's device",
                "refused",
            )
        found, inodes = location_of(pid), namespaces.of(pid)
        if start_ticks(pid) != session.identity.start_ticks:
            # the examined process may have been the next one of this PID
            raise OperationError(
                "the process that submitted the job has ended", "submit it again", "refused"
            )
        return (
            f"{session.env}/{uid}/{found.container_name or found.container or f'mnt:{inodes[0]}'}"
        )
