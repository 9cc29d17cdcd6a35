"""A head's store: the rows of core/cluster, payloads of its jobs, their history.

It is a database of the node's form (edge/store) under numbers of its own. Each step is one commit.

Knows: the kinds of rows, what of a job goes into the history. Must not know: why a row changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_plugin import fields
from nodemgr.core.cluster.entities import (
    ClusterEnv,
    ClusterJob,
    ClusterNode,
    ClusterStage,
    Counters,
    EndedJob,
    GivenJob,
    JoinWord,
)
from nodemgr.core.cluster.pilots import Pilot
from nodemgr.core.cluster.state import ClusterDraft, StoredRow, restore
from nodemgr.core.model import array_rows, encoding, job_ids
from nodemgr.core.model.entities import Config
from nodemgr.core.model.values import replace
from nodemgr.edge.host import stderr_log
from nodemgr.edge.store import migrations
from nodemgr.edge.store.database import CLOCK_SEEN, CommitBatch, CommitHook, Store, StoreFailed
from nodemgr.edge.store.history_rows import Bounds, HistoryRow, PayloadRow
from nodemgr.edge.store.migrations import Lineage

MIGRATIONS = migrations.head_tables, migrations.head_starts
LINEAGE = Lineage(0x4E4D4844, frozenset(), MIGRATIONS)  # "NMHD"
KINDS: Mapping[str, Any] = {
    "env": ClusterEnv,
    "node": ClusterNode,
    "job": ClusterJob,
    "assignment": GivenJob,
    "counters": Counters,
    "word": JoinWord,
    "pilot": Pilot,
}
WALL_SEEN = "wall_ns"
"""The fact with the wall time of the last commit: of a copy, when it was made."""


class HeadStore:
    """Raises what edge/store's Store raises."""

    def __init__(
        self, directory: Path, hook: CommitHook | None = None, bounds: Bounds | None = None
    ) -> None:
        self._store = Store(directory, hook, bounds, lineage=LINEAGE)
        self.is_new = self._store.is_new

    # -- a step --

    def commit(
        self,
        saved: list[StoredRow],
        now_ns: int,
        wall_ns: int,
        payloads: Mapping[str, dict[str, Any]] | None = None,
    ) -> None:
        """Writes a step's rows, all or none. `payloads`: of new jobs. Raises StoreFailed."""
        batch = CommitBatch.empty()
        for kind, key, row in saved:
            if isinstance(row, EndedJob):
                batch.history[key] = _history(row, wall_ns)
                if row.is_last:
                    batch.specs[row.job.array] = row.job.env
            else:
                value = None if row is None else encoding.encode_as(KINDS[kind], row)
                batch.current[kind, key] = value
        for job_id, said in (payloads or {}).items():
            batch.payloads.append(PayloadRow(job_id, b"", json.dumps(said).encode()))
        batch.meta = {CLOCK_SEEN: str(now_ns), WALL_SEEN: str(wall_ns)}
        self._store.commit(batch, durable=True)

    def state(self, name: str, config: Config | None = None) -> ClusterDraft:
        """The state of the rows. Raises encoding.EncodingError, StoreFailed."""
        rows: list[StoredRow] = []
        for kind, key, text in self._store.current():
            key = "" if kind == "counters" else key
            rows.append((kind, key, encoding.decode_as(KINDS[kind], kind, text)))
        return restore(name, rows, config)

    # -- payloads and history --

    def payload(self, job_id: str) -> dict[str, Any] | None:
        found = self._store.payload(job_id)
        return None if found is None else json.loads(found[1])

    def job_of_key(self, env: str, key: str) -> str | None:
        """An ended job, or array, that was submitted under this key."""
        found = self._store.job_of_key(env, key)
        return None if found is None else job_ids.array_of(found) or found

    def ended(self, name: str) -> list[EndedJob]:
        """A job, or what has ended of an array."""
        found = [_ended(text) for _, text in self._store.history_of(name, fields.MAX_ARRAY)]
        return [
            row if one is row.job else replace(row, job=one)
            for row in found
            if (one := _named(row.job, name)) is not None
        ]

    def states(self, env: str, name: str) -> list[str]:
        """The states in which it, or what has ended of an array, has ended."""
        found = [(row.job.env, row.job.stage.value) for row in self.ended(name)]
        return [state for there, state in found if there == env]

    def history(
        self, env: str | None, since_wall_ns: int, before: int | None, limit: int
    ) -> tuple[list[EndedJob], int | None]:
        """The last `limit` that ended before row `before`, the newest last; and the next `before`.

        A page of the past goes backwards, as a node's does.
        """
        after = None
        if before is not None:
            after = max(0, before - 1 - limit)
        rows = self._store.history(env, since_wall_ns, after, limit)
        if before is not None:
            rows = [row for row in rows if row[0] < before]
        left = rows[0][0] if rows and rows[0][0] > 1 else None
        return [_ended(text) for _, text in rows], left

    # -- the clock (edge/store/node_time.py) --

    def meta(self) -> Mapping[str, str]:
        return self._store.meta()

    def wall_seen_ns(self) -> int:
        """The wall time of the last change."""
        return int(self.meta().get(WALL_SEEN, 0))

    def events(self, _since: int | None, _limit: int) -> list[dict[str, Any]]:
        return []

    def remember(self, name: str, text: str) -> None:
        batch = CommitBatch.empty()
        batch.meta = {name: text}
        try:
            self._store.commit(batch)
        except StoreFailed as error:
            stderr_log.say(f"{name} failed: {error}", "`nodemgr doctor` looks for the cause")

    def close(self) -> None:
        self._store.close()


def _history(ended: EndedJob, wall_ns: int) -> HistoryRow:
    job, row = ended.job, replace(ended, ended_wall_ns=wall_ns)
    is_done = job.stage is ClusterStage.DONE
    return HistoryRow(
        job.job_id,
        job.env,
        wall_ns,
        job.stage.value,
        job.command,
        ended.ran_ms if is_done else None,
        job.submit_key,
        job.array,
        encoding.encode_as(EndedJob, row),
    )


def _named(job: ClusterJob, name: str) -> ClusterJob | None:
    """The job that a row of the history has under this name."""
    return job if name in (job.job_id, job.array) else array_rows.within(job, name)


def _ended(text: str) -> EndedJob:
    row = encoding.decode_as(EndedJob, "ended", text)
    assert isinstance(row, EndedJob)
    return row
