"""The way of administrators' verbs to the manager, or to the head of a cluster.

Knows: the control sockets, by client_plugin/ways. Must not know: the question.
"""

from __future__ import annotations

import os
from typing import NoReturn

from client_plugin.ways import choice, locations
from client_plugin.ways.control import CONTROL_SOCKET, ControlConnection
from client_plugin.ways.faults import Away, Lost

HEAD_RUN_DIR = "/run/nodemgr-head"


def head_run_dir() -> str:
    """NODEMGR_HEAD_RUN_DIR, else that of the service, or a user's own."""
    named = os.environ.get("NODEMGR_HEAD_RUN_DIR")
    own = HEAD_RUN_DIR if os.geteuid() == 0 else f"{locations.default_run_dir()}-head"
    return named or own


class HeadConnection(ControlConnection):
    """One conversation with a head."""

    def _give_up(self, error: BaseException) -> NoReturn:
        """In the head's words where no head has answered."""
        try:
            super()._give_up(error)
        except Lost:
            what = f"the head on {self._run_dir} ended before it answered"
            raise Lost(what, "look what it has done, and give the order again") from None
        except Away:
            remedy = "start it: nodemgr head serve (or: systemctl start nodemgr-head)"
            raise Away(f"no head answers on {self._run_dir}", remedy) from None


def head(run_dir: str | None) -> ControlConnection:
    """The socket of the head that is meant; it is on the head's machine alone."""
    return HeadConnection(run_dir or head_run_dir())


def cluster(run_dir: str | None) -> ControlConnection:
    """The head where it runs here; else this node's manager, which passes the order on.

    Where neither runs, and a head was made here, the head is meant. --run-dir names the manager (or
    the head) alone; NODEMGR_RUN_DIR does not: it is in the environment of each job.
    """
    if run_dir == os.environ.get("NODEMGR_RUN_DIR"):
        run_dir = None
    here, node = head_run_dir(), run_dir or locations.find_run_dir()
    runs_here, runs_node = (
        os.path.exists(os.path.join(path, CONTROL_SOCKET)) for path in (here, node)
    )
    if run_dir is None and (runs_here or (not runs_node and _a_head_was_made())):
        return HeadConnection(here)
    return ControlConnection(node)


def _a_head_was_made() -> bool:
    from nodemgr.paths import head_dir  # with pathlib: where neither runs

    return os.path.exists(head_dir() / "settings.json")


def control(run_dir: str | None) -> ControlConnection:
    """The control socket of the manager that is meant; for verbs that only admins have."""
    directory = run_dir or locations.find_run_dir()
    choice.refuse_users(directory)
    return ControlConnection(directory)
