"""Queries of the store's past: history, the sums of `report`, the use of GPUs by the minute.

They have a thread and a connection of their own, so that long ones do not block the loop.

Knows: the store's tables of past things, SQL. Must not know: the state, the asker, the form of an
answer.

The sums are SQLite's work, which lets the manager's loop run meanwhile. A GPU counts once for an
environment even if several of its tasks share it: each span of its leases on that GPU counts from
the end of all earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.messages.form import SpokenError
from nodemgr.core.model import encoding, job_ids
from nodemgr.core.model.array_rows import element
from nodemgr.core.model.entities import Ended
from nodemgr.core.views.gpu_minutes import MAX_STEPS, MINUTE_S, Steps, steps
from nodemgr.edge.host import threads
from nodemgr.edge.store import gpu_minute_rows

BUSY_MS = 1_000
MAX_QUESTIONS = 8
"""The most waiting questions of one environment."""
SECOND_NS = 1_000_000_000

SPANS = """
WITH leases AS (
  SELECT env, json_extract(value, '$.gpus_new') AS news,
         json_extract(value, '$.gpus_reused') AS reused,
         json_extract(value, '$.granted_ns') AS granted,
         min(coalesce(json_extract(value, '$.ended_ns'), :now_ns), :now_ns) AS ended,
         CASE WHEN granted_wall_ns >= :since THEN :now_ns - json_extract(value, '$.granted_ns')
         ELSE max(0, min(coalesce(json_extract(value, '$.ended_wall_ns'), :now), :now) - :since)
         END AS most
  FROM records WHERE :env IS NULL OR env = :env
), held AS (
  SELECT env, news, reused, max(granted, ended - most) AS began, ended FROM leases
), spans AS (
  SELECT env, began, ended, gpu.value AS gpu
  FROM held, json_each(held.news) AS gpu WHERE ended > began
  UNION ALL
  SELECT env, began, ended, gpu.value AS gpu
  FROM held, json_each(held.reused) AS gpu WHERE ended > began
), seen AS (
  SELECT {whose} AS whose, began, ended, max(ended) OVER (
    PARTITION BY {whose}, gpu ORDER BY began, ended
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM spans
)
SELECT whose, sum(max(0, ended - max(began, coalesce(before, began)))),
  max(EXISTS (SELECT 1 FROM json_each(:boots) AS boot
              WHERE began < boot.value AND boot.value <= ended))
FROM seen GROUP BY whose
"""
WAITS = """
WITH waits AS (
  SELECT env, json_extract(value, '$.granted_ns') - json_extract(value, '$.asked_ns') AS waited
  FROM records WHERE granted_wall_ns >= :since AND (:env IS NULL OR env = :env)
), ranked AS (
  SELECT env, waited, row_number() OVER (PARTITION BY env ORDER BY waited) AS place,
         count(*) OVER (PARTITION BY env) AS total FROM waits
)
SELECT env, total, max(CASE WHEN place = (total + 1) / 2 THEN waited END),
       max(CASE WHEN place = (total * 9 + 9) / 10 THEN waited END),
       max(waited) FROM ranked GROUP BY env
"""
JOBS = """
SELECT env, json_extract(value, '$.job.state'), count(*), sum(json_extract(value, '$.job.restarts'))
FROM history WHERE ended_wall_ns >= :since AND (:env IS NULL OR env = :env) GROUP BY 1, 2
"""
HOST_USE = """
SELECT env, sum(json_extract(attempt.value, '$.host.cpu_ms')),
       max(json_extract(attempt.value, '$.host.memory_bytes')),
       sum(json_extract(attempt.value, '$.host.read_bytes')),
       sum(json_extract(attempt.value, '$.host.written_bytes'))
FROM history, json_each(history.value, '$.job.attempts') AS attempt
WHERE ended_wall_ns >= :since AND (:env IS NULL OR env = :env) GROUP BY 1
"""
ARRAYS = """
SELECT value FROM history WHERE ended_wall_ns >= :since AND (:env IS NULL OR env = :env)
  AND json_extract(value, '$.job.indices') != ''
"""
"""The rows that stand for several jobs."""
HISTORY = """
SELECT number, value, (SELECT cwd FROM payloads WHERE payloads.spec_id = history.spec_id)
FROM history
WHERE ended_wall_ns >= :since {narrowed} ORDER BY number DESC LIMIT :limit
"""
LEASES = """
SELECT record_id, value FROM records
WHERE granted_wall_ns < :until {narrowed}
  AND (granted_wall_ns >= :since
       OR coalesce(json_extract(value, '$.ended_wall_ns'), :until) >= :since)
ORDER BY record_id DESC LIMIT :limit
"""
LEASE = "SELECT value FROM records WHERE record_id = :number AND (:env IS NULL OR env = :env)"
OUTCOMES = """
SELECT job_id, json_extract(value, '$.job.state'),
       json_extract(value, '$.job.attempts[#-1].exit_code'),
       json_extract(value, '$.job.attempts[#-1].signal'), json_extract(value, '$.job.why')
FROM history
WHERE job_id = :job OR (job_id >= :job || '.' AND job_id < :job || '/')
"""
FIRST = "SELECT min(granted_wall_ns), min(json_extract(value, '$.granted_ns')) FROM records"


class PastFault(SpokenError):
    """The history could not be read. One line."""


class AttemptOutcome(NamedTuple):
    """How a job's last attempt ended."""

    job_id: str
    state: str
    exit_code: int | None
    signal: int | None
    why: str


class EndedRow(NamedTuple):
    """A job that has ended."""

    number: int
    ended: Ended
    cwd: str | None
    """None: the store has what it ran no more."""


class HistoryReader:
    """Questions to it, one after the other. `close` waits for the one that is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._questions: deque[tuple[str, Callable[[HistoryQuery], Any], Callable[[Any], None]]] = (
            deque()
        )
        self._waiting: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(
        self, owner: str, question: Callable[[HistoryQuery], Any], then: Callable[[Any], None]
    ) -> None:
        """Call `then` in the loop with the result of `question`, or with a PastFault.

        `owner`: the name of the environment that asks.
        """
        if self._waiting[owner] >= MAX_QUESTIONS:
            then(
                PastFault(
                    f"{MAX_QUESTIONS} such questions are waiting already: try again in a moment"
                )
            )
            return
        self._waiting[owner] += 1
        self._questions.append((owner, question, then))
        if self._thread is None:
            self._begin()

    def _begin(self) -> None:
        owner, question, then = self._questions.popleft()
        self._thread = threads.start(partial(self._answer, owner, question, then), "past")

    def _answer(
        self, owner: str, question: Callable[[HistoryQuery], Any], then: Callable[[Any], None]
    ) -> None:
        try:
            with contextlib.closing(
                sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1_000)
            ) as db:
                result = question(HistoryQuery(db))
        except (sqlite3.Error, encoding.EncodingError) as error:
            result = PastFault(f"the store's past cannot be read ({error})")
        except Exception as error:  # an answer is owed in any case
            result = PastFault(f"internal fault: {error!r}")
        with contextlib.suppress(RuntimeError):  # the manager has ended meanwhile
            self._loop.call_soon_threadsafe(self._answered, owner, then, result)

    def _answered(self, owner: str, then: Callable[[Any], None], result: Any) -> None:
        self._thread = None
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]
        if self._closed:
            return
        if self._questions:
            self._begin()
        then(result)

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._thread.join()


class HistoryQuery:
    """The open database, for one question."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def history(
        self, env: str | None, since_wall_ns: int, before: int | None, limit: int
    ) -> list[EndedRow]:
        """The last `limit` jobs that ended since then and before number `before`; oldest first."""
        query = HISTORY.format(narrowed=_narrowed("number", env, before))
        rows = self._db.execute(
            query, {"env": env, "since": since_wall_ns, "before": before, "limit": limit}
        ).fetchall()
        return [
            EndedRow(
                number, encoding.decode("history", value), None if cwd is None else os.fsdecode(cwd)
            )
            for number, value, cwd in reversed(rows)
        ]

    def ended(self, name: str, limit: int) -> list[Ended]:
        """A job, or the first ended elements of an array."""
        query = (
            "SELECT value FROM history WHERE job_id = :name"
            " OR (job_id > :name || '.' AND job_id < :name || '/')"
            " ORDER BY job_id != :name, number LIMIT :limit"
        )
        rows = self._db.execute(query, {"name": name, "limit": limit})
        return [encoding.decode("history", value) for (value,) in rows]

    def leases(
        self,
        env: str | None,
        since_wall_ns: int,
        until_wall_ns: int,
        before: int | None,
        limit: int,
    ) -> list[tuple[int, dict[str, Any]]]:
        """The last `limit` records before number `before` that overlap the time, newest first."""
        scope = {"env": env, "since": since_wall_ns, "until": until_wall_ns}
        query = LEASES.format(narrowed=_narrowed("record_id", env, before))
        rows = self._db.execute(query, {**scope, "before": before, "limit": limit})
        return [(number, json.loads(value)) for number, value in rows]

    def lease(self, env: str | None, number: int) -> dict[str, Any] | None:
        """The record of this number, if there is one, and it is the env's."""
        found = self._db.execute(LEASE, {"env": env, "number": number}).fetchone()
        return None if found is None else json.loads(found[0])

    def gpu_minutes(self, since_s: int, until_s: int) -> tuple[Steps, gpu_minute_rows.Means]:
        """The use of the GPUs in the span (epoch seconds), `since_s` <= `until_s`.

        A span of more than MAX_STEPS minutes begins no earlier than the store's first row.
        """
        if until_s - since_s > MAX_STEPS * MINUTE_S:
            first = gpu_minute_rows.first_minute(self._db)
            earliest_s = until_s if first is None else first * MINUTE_S
            since_s = min(until_s, max(since_s, earliest_s))
        shown = steps(since_s, until_s)
        return shown, gpu_minute_rows.means(self._db, shown)

    def outcomes(self, job_id: str) -> list[AttemptOutcome]:
        """The outcomes of a job, or of all ended elements of an array."""
        rows = [AttemptOutcome(*row) for row in self._db.execute(OUTCOMES, {"job": job_id})]
        array = job_ids.array_of(job_id)
        if rows or array is None:
            return rows
        within = [row.job for row in self.ended(array, 1) if element(row.job, job_id) is not None]
        return [AttemptOutcome(job_id, job.state, None, None, job.why) for job in within]

    def report(
        self,
        env: str | None,
        since_wall_ns: int,
        now: tuple[int, int],
        boots_ns: tuple[int, ...],
        gpus: int,
        envs: list[str],
    ) -> dict[str, Any]:
        """GPU time, waits and jobs of each env, and of the node if all are meant.

        `now`: on the wall and the node's clock, which measures. `gpus`: the number of the node's
        GPUs.
        """
        now_wall_ns, now_ns = now
        first, first_ns = self._db.execute(FIRST).fetchone()
        began = min(max(since_wall_ns, first or since_wall_ns or now_wall_ns), now_wall_ns)
        scope = {
            "env": env, "since": began, "now": now_wall_ns, "now_ns": now_ns,
            "boots": json.dumps(boots_ns),
        }  # fmt: skip
        held = {
            name: (held_ns, bool(at_least))
            for name, held_ns, at_least in self._db.execute(SPANS.format(whose="env"), scope)
        }
        waits = {
            name: figures
            for name, *figures in self._db.execute(WAITS, {"env": env, "since": began})
        }
        jobs = self._jobs(env, since_wall_ns)
        hosts = {
            name: figures
            for name, *figures in self._db.execute(HOST_USE, {"env": env, "since": since_wall_ns})
        }
        span_ns = now_wall_ns - began
        capacity_ns = gpus * (span_ns if first_ns is None else min(span_ns, now_ns - first_ns))
        named = sorted({*envs, *held, *waits, *jobs})
        rows = [
            _row(
                name,
                held.get(name, (0, False)),
                capacity_ns,
                waits.get(name, [0, None, None, None]),
                jobs.get(name, {}),
                hosts.get(name, []),
            )
            for name in named
        ]
        told: dict[str, Any] = {
            "since": began // SECOND_NS,
            "until": now_wall_ns // SECOND_NS,
            "envs": rows,
        }
        if env is None:
            busy = self._db.execute(SPANS.format(whose="''"), scope).fetchone()
            told["node"] = {"gpus": gpus, **_share(busy[1:] if busy else (0, False), capacity_ns)}
        return told

    def _jobs(self, env: str | None, since_wall_ns: int) -> dict[str, dict[str, tuple[int, int]]]:
        """The number of jobs of each env in each final state, and of their restarts."""
        jobs: dict[str, dict[str, tuple[int, int]]] = {}
        scope = {"env": env, "since": since_wall_ns}
        for name, state, count, restarts in self._db.execute(JOBS, scope):
            jobs.setdefault(name, {})[state] = count, restarts or 0
        for (value,) in self._db.execute(ARRAYS, scope):
            job = encoding.decode("history", value).job
            count, restarts = jobs[job.env][job.state]
            jobs[job.env][job.state] = count + job.size - 1, restarts
        return jobs


def _narrowed(number: str, env: str | None, before: int | None) -> str:
    """The conditions of a page, as text: an index serves no condition that a NULL may lift."""
    of_env = "" if env is None else "AND env = :env"
    return of_env if before is None else f"{of_env} AND {number} < :before"


def _share(held: tuple[int, bool], capacity_ns: int) -> dict[str, Any]:
    """`held`: nanoseconds, and whether they are the least, since a boot lies between."""
    held_ns, at_least = held
    ratio = round(held_ns / capacity_ns, 4) if capacity_ns else 0.0
    return {
        "gpu_seconds": held_ns // SECOND_NS,
        "gpu_seconds_at_least": bool(at_least),
        "utilisation_ratio": ratio,
    }


def _row(
    name: str,
    held: tuple[int, bool],
    capacity_ns: int,
    waits: list[int | None],
    jobs: dict[str, tuple[int, int]],
    host: list[int | None],
) -> dict[str, Any]:
    count, *quantiles = waits
    median, most_of_all, longest = (
        None if wait is None else wait // SECOND_NS for wait in quantiles
    )
    return {
        "env": name,
        **_share(held, capacity_ns),
        "allocations": count,
        "wait_median_seconds": median,
        "wait_p90_seconds": most_of_all,
        "wait_max_seconds": longest,
        **{
            f"jobs_{state}": jobs.get(state, (0, 0))[0] for state in ("done", "failed", "withdrawn")
        },
        "restarts": sum(restarts for _, restarts in jobs.values()),
        **_host(*host),
    }


def _host(
    cpu_ms: int | None = None, peak_bytes: int | None = None, read_bytes: int | None = None,
    written_bytes: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The use of the host by ended jobs; None: no job of the env had a cgroup."""
    return {
        "jobs_cpu_seconds": None if cpu_ms is None else cpu_ms / 1_000,
        "jobs_host_peak_bytes": peak_bytes,
        "jobs_read_bytes": read_bytes,
        "jobs_written_bytes": written_bytes,
    }
