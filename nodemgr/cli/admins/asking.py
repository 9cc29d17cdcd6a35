"""The ways of administrators' verbs to the manager.

Knows: the control socket, the stream of events; both ways are client_plugin/ways'. Must not know:
the question.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from client_plugin.ways import choice, locations
from client_plugin.ways.control import CONTROL_SOCKET, ControlConnection
from client_plugin.ways.faults import Exit, Fault


def follow(run_dir: str, since: int) -> Iterator[dict[str, Any]]:
    """The manager's events after sequence number `since`, past and future, over its restarts.

    Raises Fault.
    """
    from pathlib import Path  # imported for a stream alone

    from nodemgr.edge.admin.control_client import EventStream, ManagerUnreachable

    try:
        with EventStream(Path(run_dir)) as stream:
            yield from stream.follow(since)
    except ManagerUnreachable as away:
        raise Fault(away.line, Exit.UNREACHABLE) from None


HEAD_RUN_DIR = "/run/nodemgr-head"


def head_run_dir() -> str:
    """NODEMGR_HEAD_RUN_DIR, else that of the service, or a user's own."""
    named = os.environ.get("NODEMGR_HEAD_RUN_DIR")
    own = HEAD_RUN_DIR if os.geteuid() == 0 else f"{locations.default_run_dir()}-head"
    return named or own


def head(run_dir: str | None) -> ControlConnection:
    """The socket of the head that is meant; it is on the head's machine alone."""
    return ControlConnection(run_dir or head_run_dir())


def cluster(run_dir: str | None) -> ControlConnection:
    """The head where it runs here; else this node's manager, which passes the order on."""
    here = head_run_dir()
    if run_dir is None and os.path.exists(os.path.join(here, CONTROL_SOCKET)):
        return ControlConnection(here)
    return ControlConnection(run_dir or locations.find_run_dir())


def control(run_dir: str | None) -> ControlConnection:
    """The control socket of the manager that is meant; for verbs that only admins have."""
    directory = run_dir or locations.find_run_dir()
    choice.refuse_users(directory)
    return ControlConnection(directory)
