"""The manager's views of jobs: waiting and running now, ended, and the outcome.

Knows: the core's rows, where the past is asked for. Must not know: the asker, and the asker's
rights.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nodemgr.core.leases.begins import record_id
from nodemgr.core.lifecycle import queue_settings
from nodemgr.core.model import job_ids
from nodemgr.core.model.entities import Ended, Job, Request, Resize, Task
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import start_estimates
from nodemgr.core.scheduler.preference import chosen_line
from nodemgr.core.views import figures, gpu_health, job_rows
from nodemgr.core.views.figures import Readings
from nodemgr.edge.api import job_arguments
from nodemgr.edge.api.views import Views, internal_fault
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.cost import STEP_UNITS, UNIT_NS, Units
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply
from nodemgr.edge.rpc.turns import Took, Work, in_turns
from nodemgr.edge.store.database import StoreFailed
from nodemgr.edge.store.reader import AttemptOutcome, HistoryQuery, HistoryReader, PastFault
from nodemgr.messages import orders as messages

SCHEMA_VERSION = 1
PAGE_NS = STEP_UNITS * UNIT_NS
"""The longest time for one page of the queue; the client requests the next page."""
MAX_EXPECTED = 200
"""The most jobs at the head of the queues that get a start estimate.

All other requests wait during this work.
"""
MAX_FIGURED = 200
"""The most jobs of a page with figures; those of further jobs are null."""
STORIES = Units.STORY.within()
"""The most stories of jobs in one turn of the loop."""
SECOND_NS = 1_000_000_000
EXPECTED_NS = 1_000_000_000
"""How long the estimates count while nothing changes: for all pages of one list."""

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class JobViews:
    """Reads everything, changes nothing."""

    def __init__(self, daemon: Daemon, past: HistoryReader, views: Views) -> None:
        """`views` has the readings of the tasks' figures."""
        self._daemon = daemon
        self._past = past
        self._views = views
        self._expected_starts: dict[str, start_estimates.StartEstimate] = {}
        self._expected_version = -1
        self._expected_until_ns = 0

    def queue(
        self, env: str | None, after: job_rows.Cursor, limit: int, reply: Reply, took: Took
    ) -> None:
        """A page of all waiting requests and running jobs.

        With a task of a job on it, it waits for the figures.
        """

        def told(page: dict[str, Any]) -> None:
            if any(self._task_of(row) for row in page["queue"]):
                self._views.when_figures(lambda: write(page))
            else:
                write(page)

        def write(page: dict[str, Any]) -> None:
            in_turns(self._daemon.loop, self._written(page), reply, failed, took)

        def failed(error: Exception) -> None:
            reply(internal_fault(error))

        in_turns(self._daemon.loop, self._page(env, after, limit), told, failed, took)

    def _written(self, page: dict[str, Any]) -> Work[JsonText]:
        told = self._with_figures(page)
        yield
        return JsonText(_to_text(told))

    def _page(self, env: str | None, after: job_rows.Cursor, limit: int) -> Work[dict[str, Any]]:
        """The rows, and then, in a turn of its own, when they may expect to start."""
        clock = self._daemon.clock
        now_ns = clock.monotonic_ns()
        rows, end = job_rows.page(
            self._daemon.state,
            now_ns,
            env=env,
            after=after,
            limit=limit,
            enough=lambda: clock.monotonic_ns() - now_ns > PAGE_NS,
        )
        yield
        for row, expected in zip(rows, self._expected(row["request"] for row in rows), strict=True):
            row |= expected
        health = {"store": self._daemon.journal.health(), "launcher": self._daemon.jobs.health()}
        return {
            "schema_version": SCHEMA_VERSION,
            "queue": rows,
            "queues": self._queues(),
            **health,
            "after": None if end is None else job_arguments.written(end),
        }

    def _task_of(self, row: Mapping[str, Any]) -> Task | None:
        """The task of the row's job, while it has one."""
        job = self._daemon.state.jobs.get(row["job"] or "")
        return None if job is None else self._daemon.state.tasks.get(job.task_id or "")

    def _with_figures(self, told: dict[str, Any]) -> dict[str, Any]:
        """The page with the present figures of the first MAX_FIGURED tasks of its jobs."""
        readings, left = self._views.readings(), MAX_FIGURED
        for row in told["queue"]:
            task = self._task_of(row) if left else None
            left -= task is not None
            row |= self._figures(task, readings)
        return told

    def _figures(self, task: Task | None, readings: Readings) -> dict[str, int | None]:
        """The fields that stand beside a job's forecast."""
        if task is None:
            return dict.fromkeys(("peak_bytes", "utilization_percent", "duration_seconds"))
        daemon = self._daemon
        now_bytes = daemon.peaks.of_task(task.task_id)
        known = now_bytes is not None and task.peak_bytes is not None
        return {
            "peak_bytes": max(now_bytes or 0, task.peak_bytes or 0) or None if known else None,
            "utilization_percent": figures.of_task(
                daemon.state, task, readings
            ).utilization_percent,
            "duration_seconds": max(0, daemon.clock.monotonic_ns() - task.since_ns) // SECOND_NS,
        }

    def _queues(self) -> list[dict[str, Any]]:
        """The queues, the highest rank first."""
        return [
            {
                "name": row.name,
                **queue_settings.settings(row),
                "length": self._daemon.state.queued.get(row.name, 0),
            }
            for row in queue_settings.rows(self._daemon.state).values()
        ]

    def request(self, request: Request) -> dict[str, Any]:
        """An interactive one."""
        state, now_ns = self._daemon.state, self._daemon.clock.monotonic_ns()
        standing = notify.Standings(state, now_ns).of(request)
        row = job_rows.waiting(state, request, standing, now_ns)
        return {
            "schema_version": SCHEMA_VERSION,
            "jobs": [{**row, **self._expected((request.request_id,))[0]}],
        }

    def _expected(self, request_ids: Iterable[str]) -> list[dict[str, Any]]:
        """When each of these may expect to start."""
        daemon = self._daemon
        now_ns, wall_ns = daemon.clock.monotonic_ns(), daemon.clock.wall_ns()
        if daemon.state.version != self._expected_version or now_ns > self._expected_until_ns:
            self._expected_starts = start_estimates.start_estimates(
                daemon.state, now_ns, daemon.journal.spread, MAX_EXPECTED
            )
            self._expected_version, self._expected_until_ns = (
                daemon.state.version,
                now_ns + EXPECTED_NS,
            )
        expected = self._expected_starts
        return [
            job_rows.expectation(expected.get(request_id), now_ns, wall_ns)
            for request_id in request_ids
        ]

    def jobs(self, living: Iterable[Job], ended: Iterable[Ended], reply: Reply, took: Took) -> None:
        """Whole stories: of one job, or of an array's elements (then without what they wrote)."""
        work = self._stories(list(living), list(ended))
        in_turns(self._daemon.loop, work, reply, lambda error: reply(internal_fault(error)), took)

    def array(
        self, env: str | None, name: str, living: list[Job], reply: Reply, took: Took
    ) -> None:
        """The stories of the elements that have ended, up to MAX_ROWS, and of these living ones."""

        def found(ended: Any) -> None:
            if isinstance(ended, PastFault):
                reply(OperationError(messages.STORE_FAILED(fault=ended)))
                return
            rows = {row.job.job_id: row for row in ended}
            rows |= self._daemon.journal.pending_ended(name)
            self.jobs(living, [row for row in rows.values() if row is not None], reply, took)

        self._past.ask(env or "", lambda past: past.ended(name, job_arguments.MAX_ROWS), found)

    def _stories(self, living: list[Job], ended: list[Ended]) -> Work[dict[str, Any]]:
        tails = len(living) + len(ended) == 1
        directories = self._directories([*living, *(row.job for row in ended)])
        waits = {**job_rows.expectation(None, 0, 0), **job_rows.unplaced_for("")}
        rows, index_of, is_least = [], self._index_of(), self._daemon.clock.is_least
        for start in range(0, len(ended), STORIES):
            for row in ended[start : start + STORIES]:
                directory = directories.get(row.job.spec_id)
                told = job_rows.told(row.job, directory, index_of, is_least, tails=tails)
                rows.append({**told, **waits})
            if start + STORIES < len(ended) or living:
                yield
        for start in range(0, len(living), STORIES):
            rows += self._living(living[start : start + STORIES], directories, tails=tails)
            if start + STORIES < len(living):
                yield
        rows.sort(key=lambda row: job_ids.order(row["job"]))
        return {"schema_version": SCHEMA_VERSION, "jobs": rows}

    def _living(
        self, living: list[Job], directories: Mapping[str, str], *, tails: bool
    ) -> list[dict[str, Any]]:
        """Their rows as they are now; one that has ended meanwhile stands as it was."""
        state, rows = self._daemon.state, []
        standings = notify.Standings(state, self._daemon.clock.monotonic_ns())
        index_of, is_least = self._index_of(), self._daemon.clock.is_least
        present = [state.jobs.get(job.job_id, job) for job in living]
        for job, expected in zip(
            present, self._expected(job.request_id or "" for job in present), strict=True
        ):
            told = job_rows.told(job, directories.get(job.spec_id), index_of, is_least, tails=tails)
            shown = job_rows.job_state(state, job)
            placed = job_rows.place(state, standings, job)
            rows.append({**told, **expected, **placed, "state": shown})
        return rows

    def _directories(self, jobs: Iterable[Job]) -> dict[str, str]:
        with contextlib.suppress(StoreFailed):  # the rest of the answer does not need it
            return self._daemon.journal.directories({job.spec_id for job in jobs})
        return {}

    def _index_of(self) -> dict[str, int]:
        return {gpu.uuid: gpu.index for gpu in self._daemon.state.gpus.values()}

    # -- the past, which answers later: what is told is made in its thread --

    def history(
        self, env: str | None, since_wall_ns: int, before: int | None, limit: int, reply: Reply
    ) -> None:
        """The jobs that ended last, oldest first.

        `before`: only those before this number of an earlier page.
        """
        index_of, is_least = self._index_of(), self._daemon.clock.is_least

        def told(past: HistoryQuery) -> JsonText:
            rows = past.history(env, since_wall_ns, before, limit)
            jobs = [
                job_rows.told(row.ended.job, row.cwd, index_of, is_least, tails=False)
                for row in rows
            ]
            return _text(
                {"history": jobs, "before": rows[0].number if len(rows) == limit else None}
            )

        self._past.ask(env or "", told, answer_of_past(reply))

    def leases(
        self,
        env: str | None,
        span_wall_ns: tuple[int, int],
        before: int | None,
        limit: int,
        reply: Reply,
    ) -> None:
        """Leases that overlap the time (since, until), newest first.

        `before`: only those before this number of an earlier page.
        """
        index_of, is_least = self._index_of(), self._daemon.clock.is_least

        def told(past: HistoryQuery) -> JsonText:
            rows = past.leases(env, *span_wall_ns, before, limit)
            leases = [_lease(number, record, index_of, is_least) for number, record in rows]
            return _text({"leases": leases, "before": rows[-1][0] if len(rows) == limit else None})

        self._past.ask(env or "", told, answer_of_past(reply))

    def lease(self, env: str | None, task_id: str, reply: Reply) -> None:
        """One lease with its resizes, also after its end."""
        index_of, is_least = self._index_of(), self._daemon.clock.is_least

        def told(past: HistoryQuery) -> JsonText | OperationError:
            number = record_id(task_id)
            record = past.lease(env, number)
            if record is None:
                return OperationError(
                    f"no task {task_id} is recorded",
                    "`nodemgr status` shows the tasks that run, `nodemgr allocations` those that "
                    "have ended",
                    "not_found",
                )
            return _text({"tasks": [_lease(number, record, index_of, is_least)]})

        self._past.ask(env or "", told, answer_of_past(reply))

    def outcomes(self, env: str | None, job_ids: tuple[str, ...], reply: Reply) -> None:
        """How each of these ended; of an array the first that did not end well."""
        self._past.ask(
            env or "",
            lambda past: _text({"jobs": [_outcome(one, past.outcomes(one)) for one in job_ids]}),
            answer_of_past(reply),
        )

    def report(self, env: str | None, since_wall_ns: int, reply: Reply) -> None:
        """Each environment's share since then."""
        clock, gpus = self._daemon.clock, len(self._daemon.state.gpus)
        now, boots_ns = (clock.wall_ns(), clock.monotonic_ns()), clock.boots_ns[1:]
        health = {"gpus": gpu_health.rows(self._daemon.state, env)}
        envs = sorted(name for name in self._daemon.state.envs if env in (None, name))
        self._past.ask(
            env or "",
            lambda past: _text(
                {**past.report(env, since_wall_ns, now, boots_ns, gpus, envs), **health}
            ),
            answer_of_past(reply),
        )


def _text(told: Mapping[str, Any]) -> JsonText:
    return JsonText(_to_text({"schema_version": SCHEMA_VERSION, **told}))


def answer_of_past(reply: Reply) -> Callable[[Any], None]:
    """Replies with an answer of the past; its fault is the store's."""
    return lambda result: reply(
        OperationError(messages.STORE_FAILED(fault=result))
        if isinstance(result, PastFault)
        else result
    )


def _lease(
    number: int,
    record: Mapping[str, Any],
    index_of: Mapping[str, int],
    is_least: job_rows.IsLeast,
) -> dict[str, Any]:
    gpus = [*record["gpus_new"], *record["gpus_reused"]]
    ended_wall_ns = record["ended_wall_ns"]
    return {
        "record": number,
        "task": record["task_id"],
        "env": record["env"],
        "user": record.get("user") or None,
        "job": record.get("job_id"),
        "gpus": gpus,
        "gpu_indices": [index_of.get(uuid) for uuid in gpus],
        "chosen": chosen_line(record.get("chosen", ""), is_fresh=bool(record["gpus_new"])),
        "command": record["command"],
        "asked": record["asked_wall_ns"] // SECOND_NS,
        "began": record["granted_wall_ns"] // SECOND_NS,
        "ended": None if ended_wall_ns is None else ended_wall_ns // SECOND_NS,
        **job_rows.duration("waited", record["asked_ns"], record["granted_ns"], is_least),
        **job_rows.duration("ran", record["granted_ns"], record["ended_ns"], is_least),
        "why": record["why"],
        "resizes": job_rows.resizes(map(_resize, record.get("resizes", ())), index_of),
    }


def _resize(row: Mapping[str, Any]) -> Resize:
    return Resize(**row)


def _outcome(job_id: str, outcomes: list[AttemptOutcome]) -> dict[str, Any]:
    """One row for a name: the first job of it that did not end well."""
    outcomes.sort(key=lambda outcome: job_ids.order(outcome.job_id))
    exits = [
        (job_rows.exit_of(outcome.state, outcome.exit_code, outcome.signal), outcome)
        for outcome in outcomes
    ]
    code, told = next((row for row in exits if row[0] != 0), exits[0] if exits else (1, None))
    if told is None:
        return {
            "job": job_id,
            "of": job_id,
            "state": None,
            "exit": 1,
            "why": "the history does not reach back to its end",
        }
    return {"job": job_id, "of": told.job_id, "state": told.state, "exit": code, "why": told.why}
