"""The ids of jobs by environment, in the order of ids: a list goes on behind any of them.

Knows: ids, environments. Must not know: what the jobs are, which of them an index has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import Protocol

from nodemgr.core.model.job_ids import listed

BEGINNING = (-1, -1)
"""Before every job."""


class Named(Protocol):
    """A job."""

    @property
    def job_id(self) -> str: ...
    @property
    def env(self) -> str: ...


class JobIndex:
    """Some jobs of a node."""

    __slots__ = ("_of", "size")

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}
        self.size = 0
        """The number of jobs, with those that wait as one row; the caller counts it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobIndex) and self._of == other._of

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """The number of rows."""
        return sum(map(len, self._of.values()))

    def rows(self, env: str) -> int:
        """The number of the env's rows."""
        return len(self._of.get(env, ()))

    def __iter__(self) -> Iterator[str]:
        """All of them, env by env."""
        return chain.from_iterable(self._of.values())

    def behind(self, env: str | None, number: tuple[int, int] = BEGINNING) -> Iterator[str]:
        """Those of the env (None: of all) behind this place (job_ids.listed), in order."""
        rows = self._of.values() if env is None else [self._of.get(env, [])]
        rest = [islice(row, bisect_right(row, number, key=listed), None) for row in rows if row]
        return rest[0] if len(rest) == 1 else merge(*rest, key=listed)

    def change(self, came: Iterable[Named], gone: Iterable[Named]) -> None:
        """Adds and removes these."""
        for env, ids in _by_env(gone):
            row = self._of[env]
            at = bisect_left(row, listed(ids[0]), key=listed)
            if row[at : at + len(ids)] == ids:
                del row[at : at + len(ids)]
            else:
                for job_id in ids:
                    del row[bisect_left(row, listed(job_id), key=listed)]
            if not row:
                del self._of[env]
        for env, ids in _by_env(came):
            row = self._of.setdefault(env, [])
            is_last = not row or listed(row[-1]) < listed(ids[0])
            if is_last:
                row += ids
            elif len(ids) > len(row):
                row += ids
                row.sort(key=listed)
            else:
                for job_id in ids:
                    insort(row, job_id, key=listed)


def _by_env(jobs: Iterable[Named]) -> Iterable[tuple[str, list[str]]]:
    """The ids of each env, in order."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        found.setdefault(job.env, []).append(job.job_id)
    for ids in found.values():
        ids.sort(key=listed)
    return found.items()
