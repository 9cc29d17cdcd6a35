"""Where jobs run: which of these places are up, and what a person is told of one that is not.

Knows: that a place is this node itself, or a container of it. Must not know: how it is found out whether a place is up, who starts
a job there.

A job whose place is down stands in its queue as if it were not there: it is served by nobody, keeps nothing from anybody and
delays nobody, and has its turn where it stands as soon as the place is up again.
"""

from __future__ import annotations

from nodemgr.core.model.entities import Request
from nodemgr.core.model.events import LaunchHostChanged
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

HERE = ""
"""This node itself."""

NAMELESS = "mnt:"
"""Before the number of a mount namespace, which is all that is known of a container without an engine; its end is the place's."""


def container(place: str) -> str:
    """Its name, of ENV/UID/CONTAINER."""
    return place.split("/", 2)[-1]


def is_up(draft: Draft, request: Request) -> bool:
    """Could it be begun now? Nobody begins what is not a job."""
    return request.job_id is None or draft.launch_hosts.get(request.place) == ""


def why_down(draft: Draft | State, place: str) -> str:
    """To those who wait for it to be up, and what to do."""
    why = draft.launch_hosts.get(place)
    if place == HERE:
        return why or "no job can be started now"
    more = f" ({why})" if why else ""
    name = container(place)
    if name.startswith(NAMELESS):
        end = "say nodemgr queue there while it lives, or withdraw it"
        return f"waits for its container, of which no engine here knows ({name}){more}: {end}"
    return f"waits for its container {name}{more}: start it, then say nodemgr queue there"


def changed(draft: Draft, event: LaunchHostChanged, _now_ns: int) -> None:
    """Whoever comes up or goes down, all may be served otherwise: who waits for a place that is down keeps nothing any more."""
    before = draft.launch_hosts.get(event.place)
    if event.is_up:
        draft.launch_hosts.put(event.place, "")
    elif event.why:
        draft.launch_hosts.put(event.place, event.why)
    else:
        draft.launch_hosts.drop(event.place)
    if (before == "") is not event.is_up:
        draft.rescan = True
        if before is None and event.place == HERE:
            return  # no change: the manager has just started
        draft.publish("place.up" if event.is_up else "place.down", {"place": event.place, "reason": event.why})
