"""The names of jobs, and the token of each attempt: `j12`, an array's element `j12.3`.

Knows: how they are written. Must not know: what a job is.
"""

from __future__ import annotations

_INDEX_BITS = 32
WAITING = "*"
"""`j12.*`: the elements of an array that wait as one row (array_rows.py)."""


def array_of(job_id: str) -> str | None:
    """`j12` of `j12.3`; None for a job that is no element."""
    array, dot, _ = job_id.partition(".")
    return array if dot else None


def index_of(job_id: str) -> int | None:
    """3 of `j12.3`."""
    _, _, index = job_id.partition(".")
    return int(index) if index.isdigit() else None


def order(job_id: str) -> tuple[int, int]:
    """By submission, then by index."""
    number, index = listed(job_id)
    return number, max(0, index)


def listed(job_id: str) -> tuple[int, int]:
    """The same; `j12` and `j12.*`, which have no index, stand before `j12.0`."""
    number, _, index = job_id[1:].partition(".")
    return int(number), int(index) if index.isdigit() else -1


def token(job_id: str, attempt: int, salt: int = 0) -> str:
    """The task token of an attempt, 32 hexadecimal digits.

    Each attempt has another, so that a process that an earlier one left behind is no member of the
    next. `salt`: makes yet another one.
    """
    number, index = order(job_id)
    return f"{number + (salt << 48):016x}{index & ((1 << _INDEX_BITS) - 1):08x}{attempt:08x}"
