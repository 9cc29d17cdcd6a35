"""The row of an array: the set of its waiting indices, and how one of them leaves it.

An array waits as one row with the array's name. Of an element it has the index alone, so an order
or a change to all of them costs the same whatever their number. An element gets a row of its own
when it starts, or when an order names it alone.

Must not know: queues, the order in which elements start (that of their indices).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol, TypeVar

from nodemgr.core.model import job_ids
from nodemgr.core.model.entities import Ranges
from nodemgr.core.model.values import replace

MAX_INDEX = (1 << 31) - 1
"""The largest index of an array's element: it is part of a token (job_ids.py)."""
MAX_RUNS = 1_000
"""The most runs of indices in a submission: a row is written whole as each element leaves it."""
SHOWN_RUNS = 20


class ArrayRow(Protocol):
    """A job of a node, or of a head."""

    @property
    def job_id(self) -> str: ...
    @property
    def indices(self) -> Ranges: ...
    @property
    def queued_ns(self) -> int: ...


R = TypeVar("R", bound=ArrayRow)


def joined(runs: Iterable[tuple[int, int]]) -> Ranges:
    """The numbers in these runs, each from a first to a last one, as a set."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def count(indices: Ranges) -> int:
    return sum([last - first + 1 for first, last in indices])


def numbers(indices: Ranges) -> Iterator[int]:
    """Each of them, in order."""
    return chain.from_iterable(range(first, last + 1) for first, last in indices)


def written(indices: Ranges) -> str:
    """As people write them: `0-4,7`."""
    return ",".join([f"{first}-{last}" if last > first else f"{first}" for first, last in indices])


def shown(indices: Ranges) -> str:
    """The same on a line of bounded length."""
    return written(indices[:SHOWN_RUNS]) + (",…" if len(indices) > SHOWN_RUNS else "")


def rank(indices: Ranges, index: int) -> int | None:
    """How many stand before it; None: it is not among them."""
    before = 0
    for first, last in indices:
        if index <= last:
            return before + index - first if index >= first else None
        before += last - first + 1
    return None


def name(row: ArrayRow, index: int) -> str:
    """Of its element with this index."""
    return f"{row.job_id}.{index}"


def waiting(row: ArrayRow) -> str:
    """The name of those elements of the array that wait as one row, and of the job else."""
    return f"{row.job_id}.{job_ids.WAITING}" if row.indices else row.job_id


def first(row: ArrayRow) -> str:
    """The element that starts next."""
    return name(row, row.indices[0][0])


def order(job: ArrayRow) -> tuple[int, int]:
    """By submission, then by index: a row stands where its first element does."""
    return job_ids.order(first(job) if job.indices else job.job_id)


def element(row: R, job_id: str) -> R | None:
    """The job of that name as it waits within the row; None: it is none of its waiting elements."""
    index = job_ids.index_of(job_id)
    place = None if index is None else rank(row.indices, index)
    if place is None or name(row, index or 0) != job_id:
        return None
    return replace(row, job_id=job_id, indices=(), queued_ns=row.queued_ns + place)


def within(row: R | None, job_id: str) -> R | None:
    """The waiting element of that name, or the row itself by its own; None: neither."""
    if row is None or not row.indices:
        return None
    return row if job_id == waiting(row) else element(row, job_id)


def living(name: str, elements: Iterable[R], jobs: Mapping[str, R]) -> list[R]:
    """The job of that name, or an array's rows (`elements`), that have not ended; in their order.

    An element that waits within a row is as it would be in one of its own.
    """
    if rows := sorted(elements, key=order):
        return rows
    one = jobs.get(name) or within(jobs.get(job_ids.array_of(name) or ""), name)
    return [] if one is None else [one]


def over_with(job: ArrayRow, awaited: Iterable[str], *, others_left: bool) -> list[str]:
    """The names by which dependents waited for a job that has ended.

    They are its own, and its array's if no other element is to be waited for. With the row of an
    array all that waited in it have ended. `awaited`: the array's elements with dependents.
    """
    if job.indices:
        return [job.job_id, *[name for name in awaited if element(job, name) is not None]]
    array = job_ids.array_of(job.job_id)
    return [job.job_id] if array is None or others_left else [job.job_id, array]


def split(row: R, job_id: str) -> tuple[R, R | None]:
    """One waiting element in a row of its own, in no queue, and the rest; None: it was the last.

    In its queue the row stands at the place of its first element. Raises ValueError for a job that
    does not wait in the row.
    """
    own = element(row, job_id)
    if own is None:
        raise ValueError(f"{job_id} is none of {waiting(row)}")
    index = job_ids.order(job_id)[1]
    at = bisect_right(row.indices, (index, MAX_INDEX)) - 1
    first, last = row.indices[at]
    beside = [run for run in ((first, index - 1), (index + 1, last)) if run[0] <= run[1]]
    rest = (*row.indices[:at], *beside, *row.indices[at + 1 :])
    is_first = index == row.indices[0][0]
    remaining = replace(row, indices=rest, queued_ns=row.queued_ns + is_first)
    return own, remaining if rest else None
