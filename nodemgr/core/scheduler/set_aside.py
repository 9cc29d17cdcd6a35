"""Entries whose decision failed by a fault of this program: set aside, so that others go on.

Knows: which entry a fault belongs to, and when the entry is tried again. Must not know: the fault.

A step in which the decision about one entry raises is made anew without that entry: its changes are
gone, those of all others stay. The entry keeps no GPU. A pass tries it again after a minute at the
earliest, once its own request, quota or task, or a GPU, is another than at the fault. A part of
the pass that belongs to no entry (the offers to elastic tasks) is set aside in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nodemgr.core.model.entities import MS, SetAside
from nodemgr.core.model.schema import ASIDE
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft

AGAIN_MS = 60_000
WHY_CHARS = 200
MOST_IN_A_STEP = 16
"""So many entries are set aside in one step; the next pass goes on with further ones."""


class EntryFailed(Exception):
    """The decision about `entry` (a request's id, or the name of a part) raised its cause."""

    def __init__(self, entry: str, cause: Exception) -> None:
        super().__init__(f"{entry}: {cause!r}")
        self.entry, self.cause = entry, cause


@contextmanager
def attempt(draft: Draft, entry: str) -> Iterator[bool]:
    """Yields whether the decision is to be tried now; a fault of it is one of this entry."""
    try:
        yield not has(draft, entry)
    except Exception as error:
        raise EntryFailed(entry, error) from error


def are_too_many(draft: Draft) -> bool:
    """Whether this step has set aside as many entries as one may."""
    return len(draft.set_aside.old) >= MOST_IN_A_STEP


def has(draft: Draft, entry: str) -> bool:
    return entry in draft.set_aside


def put(draft: Draft, failed: EntryFailed) -> None:
    """The entry is set aside in the step that `draft` makes anew."""
    row = SetAside(failed.entry, repr(failed.cause)[:WHY_CHARS], 0, draft.now_ns + AGAIN_MS * MS)
    draft.set_aside.put(failed.entry, row)
    draft.at_latest(ASIDE, row.again_ns)


def settle(draft: Draft, failed: EntryFailed) -> None:
    """At the end of that step: the entry's rows are those that it is tried with again."""
    row = draft.set_aside[failed.entry]
    draft.set_aside.put(failed.entry, replace(row, facts=_facts(draft, failed.entry)))
    request = draft.requests.get(failed.entry)
    draft.publish(
        "entry.set_aside",
        {
            "env": None if request is None else request.env,
            "request": failed.entry,
            "job": None if request is None else request.job_id,
            "reason": row.why,
        },
    )


def take_back(draft: Draft) -> None:
    """At the begin of a pass: entries that are to be tried again take part in it."""
    for row in list(draft.set_aside.values()):
        if row.again_ns > draft.now_ns:
            draft.at_latest(ASIDE, row.again_ns)
        elif row.facts != _facts(draft, row.entry):
            draft.set_aside.drop(row.entry)


def _facts(draft: Draft, entry: str) -> int:
    """A number that changes with the entry's own rows and with those of the GPUs."""
    request = draft.requests.get(entry)
    own: tuple[object, ...] = ()
    if request is not None:
        own = (
            request,
            draft.envs.get(request.env),
            None if request.resumes is None else draft.tasks.get(request.resumes),
        )
    gpus = [(gpu, tuple(draft.gpu_tasks.members(gpu.uuid))) for gpu in draft.gpus.values()]
    return hash((own, tuple(gpus)))
