"""The ways of administrators' verbs to the manager.

Knows: the control socket, the stream of events; both ways are client_plugin/ways'. Must not know:
the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from client_plugin.ways import choice, locations
from client_plugin.ways.control import ControlConnection
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


def control(run_dir: str | None) -> ControlConnection:
    """The control socket of the manager that is meant; for verbs that only admins have."""
    directory = run_dir or locations.find_run_dir()
    choice.refuse_users(directory)
    return ControlConnection(directory)
