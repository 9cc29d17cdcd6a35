"""Batches of jobs: from a trace of a cluster, or made up.

Knows: the columns of a trace (as bench/trace/replay.py reads it). Must not know: GPUs, failures.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import IO, NamedTuple

from client_plugin.messages.form import SpokenError

HOUR_MS = 3_600_000
MAX_ROWS = 10_000_000
MAX_HOURS = 24 * 365.0
GPU_WEIGHTS = ((1, 0.5), (2, 0.2), (4, 0.2), (8, 0.1))
"""Of jobs that are made up: GPUs, and the part of the jobs."""
MEDIAN_HOURS, SPREAD, LONGEST_HOURS, SHORTEST_HOURS = 3.0, 1.0, 24.0, 0.1


class BadTrace(SpokenError):
    """The trace is not usable. The message has the file, the line and the reason."""


class SimJob(NamedTuple):
    """A job of a batch. Its number is its place in the order of service."""

    number: int
    gpus: int
    work_ms: int
    """The time that it runs without failures."""
    comes_ms: int = 0

    @property
    def hours(self) -> float:
        return self.work_ms / HOUR_MS


class TraceJob(NamedTuple):
    comes_s: int
    """Since the first submission of the trace."""
    lasts_s: int
    gpus: int


def read_trace(path: Path) -> list[TraceJob]:
    """The jobs of a trace in the order of submission. Raises BadTrace.

    Columns: timestamp (ISO 8601), duration (seconds), num_gpus. A name that ends in .gz is packed.
    """
    try:
        with _open(path) as text:
            rows = sorted(_rows(path, text))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(
            f"{path}, a trace, cannot be read: {error}", "name a CSV file, packed (.gz) or not"
        ) from None
    if not rows:
        raise BadTrace(f"{path}, a trace, has no job", "name a file with jobs")
    first = rows[0][0]
    return [TraceJob(comes - first, lasts, gpus) for comes, lasts, gpus in rows]


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def _rows(path: Path, text: IO[str]) -> Iterator[tuple[int, int, int]]:
    for number, row in enumerate(csv.DictReader(text), 2):
        try:
            comes = int(datetime.fromisoformat(row["timestamp"]).timestamp())
            seconds, gpus = float(row["duration"]), int(row["num_gpus"])
        except (KeyError, TypeError, ValueError):
            raise BadTrace(
                f"{path}, a trace, has no job in line {number}",
                "each line needs timestamp (ISO 8601), duration (seconds) and num_gpus",
            ) from None
        if not 0 <= seconds <= MAX_HOURS * 3600:  # a NaN too
            raise BadTrace(
                f"{path}, a trace, has a job of {seconds} seconds in line {number}",
                "durations are 0 seconds to a year",
            )
        if gpus < 1:
            raise BadTrace(
                f"{path}, a trace, has a job on {gpus} GPUs in line {number}",
                "a job needs 1 or more",
            )
        yield comes, max(1, round(seconds)), gpus


class Fitting(NamedTuple):
    jobs: tuple[TraceJob, ...]
    left_out: int
    """Jobs that need more GPUs than the cluster has."""


def fitting(jobs: Sequence[TraceJob], gpus: int, path: Path) -> Fitting:
    """The jobs that a cluster of this size can run. Raises BadTrace if it can run none."""
    found = tuple(job for job in jobs if job.gpus <= gpus)
    if not found:
        raise BadTrace(
            f"{path}, a trace, has only jobs that need more than {gpus} GPUs",
            "name a larger cluster (--gpus)",
        )
    return Fitting(found, len(jobs) - len(found))


def made_up(random: Random, count: int, gpus: int) -> tuple[SimJob, ...]:
    widths = [width for width, _ in GPU_WEIGHTS if width <= gpus] or [1]
    weights = [part for width, part in GPU_WEIGHTS if width <= gpus] or [1.0]
    found = []
    for number in range(count):
        hours = MEDIAN_HOURS * math.exp(random.gauss(0, SPREAD))
        hours = min(LONGEST_HOURS, max(SHORTEST_HOURS, hours))
        width = random.choices(widths, weights)[0]
        found.append(SimJob(number, width, round(hours * HOUR_MS)))
    return tuple(found)


def from_trace(random: Random, jobs: Sequence[TraceJob], count: int) -> tuple[SimJob, ...]:
    """A batch of consecutive jobs of the trace, all submitted at once.

    Times are bounded: a job of weeks would be the batch by itself.
    """
    start = random.randrange(max(1, len(jobs) - count + 1))
    rows = jobs[start : start + count]
    least, most = round(SHORTEST_HOURS * HOUR_MS), round(LONGEST_HOURS * HOUR_MS)
    return tuple(
        SimJob(number, row.gpus, min(most, max(least, row.lasts_s * 1_000)))
        for number, row in enumerate(rows)
    )
