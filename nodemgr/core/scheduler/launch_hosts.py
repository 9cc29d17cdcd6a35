"""Where jobs run: which places are up, and the message for one that is down.

Knows: that a place is this node itself, or a container of it. Must not know: how a place is found
to be up, and which component starts a job there.

A scheduling pass skips a job if its place is down: the job is not served, keeps nothing from other
requests and delays none. It has its turn where it stands as soon as the place is up again.
"""

from __future__ import annotations

from nodemgr.core.model.entities import Request
from nodemgr.core.model.events import LaunchHostChanged
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

HERE = ""
"""This node itself."""

NAMELESS = "mnt:"
"""Prefix of a mount namespace's number, the only name of a container without an engine.

The place ends with it.
"""


def container(place: str) -> str:
    """The name in ENV/UID/CONTAINER."""
    return place.split("/", 2)[-1]


def is_up(draft: Draft, request: Request) -> bool:
    """Whether the job's place is up; true for all other requests."""
    return request.job_id is None or draft.launch_hosts.get(request.run.place) == ""


def why_down(draft: Draft | State, place: str) -> str:
    """Message to its jobs: reason and remedy."""
    why = draft.launch_hosts.get(place)
    if place == HERE:
        return why or "no job can be started now"
    more = f" ({why})" if why else ""
    name = container(place)
    if name.startswith(NAMELESS):
        return (
            f"waits for its container, of which no engine here knows ({name}){more}: run `nodemgr "
            "queue` there while it lives, or withdraw it"
        )
    return f"waits for its container {name}{more}: start it, then run `nodemgr queue` there"


def changed(draft: Draft, event: LaunchHostChanged) -> None:
    """Records the event.

    A change wakes the scheduler: a job keeps nothing while its place is down.
    """
    before = draft.launch_hosts.get(event.place)
    if event.is_up:
        draft.launch_hosts.put(event.place, "")
    elif event.why:
        draft.launch_hosts.put(event.place, event.why)
    else:
        draft.launch_hosts.drop(event.place)
    if (before == "") is not event.is_up:
        draft.wake_scheduler()
        if before is None and event.place == HERE:
            return  # no change: the manager has just started
        draft.publish(
            "place.up" if event.is_up else "place.down", {"place": event.place, "reason": event.why}
        )
