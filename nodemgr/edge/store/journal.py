"""Writes a step's rows and events in one commit, before the step is reported.

Knows: the store, the numbering of events, the handling of a store that cannot be written.
Must not know: the meaning of a row.

While commits fail, a step that grants something is refused. A step that reports a fact (a death, a
release) holds: its rows stay in memory and are written first when the store can be written again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import c_make_encoder  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.messages.form import notice, stated
from nodemgr.core.model import array_rows, encoding, job_ids
from nodemgr.core.model.effects import Publish, Save
from nodemgr.core.model.entities import MS, Ended, Job, JobPayload, JobState, Record
from nodemgr.core.model.schema import JOBS
from nodemgr.core.model.values import replace
from nodemgr.core.views.gpu_minutes import GpuMinute
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.measures import STEP_S, Histogram
from nodemgr.edge.kernel.processes import boot_id
from nodemgr.edge.store.database import (
    RETAINED_RECORDS,
    CommitBatch,
    EventRow,
    RecordRow,
    Store,
    StoreFailed,
)
from nodemgr.edge.store.history_rows import HistoryRow, PayloadRow
from nodemgr.edge.store.sample_rows import SampleRow
from nodemgr.edge.store.web_token_rows import WebTokenRow

SCHEMA_VERSION = 1
MARK_NAME = "state.db-mark"
SPREAD_RUNS = 100
MAX_SPREADS = 10_000
"""Most commands with a cached Spread."""
MAX_PENDING_EVENTS = 10_000
"""Most events kept in memory while the store fails; the oldest are dropped first."""

NO_FACTS: Mapping[str, str | None] = {}

Publisher = Callable[[str, str], None]
"""Takes an event's name and its JSON text."""

_encoded: Callable[[object, int], tuple[str, ...]] = c_make_encoder(
    None, str, quoted, None, ":", ",", False, False, True
)
"""The encoder that JSONEncoder(separators=(",", ":"), default=str) builds anew for each text.

check_circular is False, and the argument 0 is the indentation. It is built once: a client waits for
the event.
"""
_LINE = re.compile(
    rb"(?P<boot>[0-9a-f-]{1,64}) (?P<sequence>[0-9]{20}) (?P<jobs>[0-9]{20})\n", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of the run times of a command's last SPREAD_RUNS successful runs."""

    count: int
    quarter_ms: int
    median_ms: int
    three_quarters_ms: int

    @classmethod
    def of(cls, sorted_ms: list[int]) -> Spread | None:
        if not sorted_ms:
            return None
        last = len(sorted_ms) - 1
        return cls(len(sorted_ms), *(sorted_ms[round(last * share)] for share in (0.25, 0.5, 0.75)))


class Journal:
    """The store as the daemon uses it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        there = Reached(store.last_sequence(), store.counter(JOBS))
        self._mark = StoreMark(store.path.with_name(MARK_NAME))
        self.jobs_named = max(there.jobs, self._mark.before.jobs)
        """Jobs up to this number were submitted, even if the store lacks them."""
        self.lost = "" if store.is_new else lost(self._mark.before, there)
        """One line that describes the rows the store has lost; empty: none."""
        self._sequence = (
            there.sequence if store.is_new else max(there.sequence, self._mark.before.sequence)
        )
        if store.is_new:
            self._mark.begin_anew()
        self._pending = CommitBatch.empty()
        self._untold: list[tuple[Publish, str]] = []
        """Events, and their texts, that are stored and not yet published."""
        self.commit_time = Histogram(STEP_S)
        """Of the commits that succeeded."""
        self.failed_commits = 0
        self._spreads: dict[tuple[str, str], Spread | None] = {}
        """Spreads computed from the history, by (env, command)."""
        self.refused = ""
        """The reason for the last refused write."""
        self._is_low = False
        """The store refuses tenants' data, and this was reported."""
        self._drops_minutes = False
        """The GPUs' use is not recorded, and this was reported."""
        self.fault: str | None = None
        """The reason why the store cannot be written now; None: it can."""
        self._publishers: list[Publisher] = []
        self._observers: list[Callable[[Publish], None]] = []
        self._on_failure: list[Callable[[], None]] = []
        self._on_recovery: list[Callable[[], None]] = []

    def subscribe(self, on_failure: Callable[[], None], on_recovery: Callable[[], None]) -> None:
        """`on_failure` is called when writes begin to fail; it must schedule `retry`.

        `on_recovery` is called when the store can be written again.
        """
        self._on_failure.append(on_failure)
        self._on_recovery.append(on_recovery)

    def publish_to(self, publisher: Publisher) -> None:
        """`publisher` is called with each event from now on, after it is stored."""
        self._publishers.append(publisher)

    def observe_with(self, observer: Callable[[Publish], None]) -> None:
        """`observer` is called with each event after it is published."""
        self._observers.append(observer)

    # -- writing --

    def write(
        self,
        saved: Iterable[Save],
        published: Iterable[Publish],
        *,
        must_hold: bool,
        durable: bool = False,
        reserved: bool = True,
        facts: Mapping[str, str | None] = NO_FACTS,
    ) -> bool:
        """Stores a step's rows and events, and `facts` (see `remember`).

        Returns False if refused: nothing is stored, and `refused` holds the reason. `publish` sends
        the events later. `reserved`: the write may use the disk reserve.
        """
        batch = CommitBatch({}, [], [], dict(facts))
        for save in saved:
            kind, value = save.kind, save.value
            if kind == "history":
                self._add_ended(batch, save)
                continue
            if isinstance(value, JobPayload):
                batch.payloads.append(
                    PayloadRow(save.key, os.fsencode(value.cwd), encoding.pack(value))
                )
                continue
            batch.current[kind, save.key] = None if value is None else encoding.encode(kind, value)
            if kind == "record":
                _add_record(batch, save)
        _add_specs(batch)
        if not reserved and self._lacks_room(batch):
            return False
        return self._commit(batch, published, must_hold=must_hold, durable=durable)

    def _lacks_room(self, batch: CommitBatch) -> bool:
        refusal = self._store.refusal(batch)
        if (refusal is not None) is not self._is_low:
            self._is_low = refusal is not None
            stderr_log.say(
                notice("jobs are taken again")
                if refusal is None
                else stated(f"jobs are refused: {refusal}", "make room on the disk of --state-dir")
            )
            (
                self.note("store.low", error=refusal)
                if refusal is not None
                else self.note("store.roomy")
            )
        self.refused = refusal or ""
        return refusal is not None

    def _add_ended(self, batch: CommitBatch, save: Save) -> None:
        value = save.value
        batch.history[save.key] = _history_row(value) if isinstance(value, Ended) else None
        if isinstance(value, Ended):
            self._spreads.pop((value.job.env, value.job.run.command), None)

    @property
    def commits(self) -> int:
        """The number of the last commit."""
        return self._store.commits

    @property
    def on_disk(self) -> int:
        """The number of the last commit that, with all before it, survives a power failure."""
        return self._store.on_disk

    def sync(self) -> None:
        self._store.sync()

    def publish(self) -> None:
        """Publishes the events stored since the last call.

        Call it after the clients are answered.
        """
        untold, self._untold = self._untold, []
        for event, text in untold:
            for publisher in self._publishers:
                publisher(event.name, text)
            for observe in self._observers:
                observe(event)

    def note(self, name: str, **fields: object) -> None:
        """Stores and publishes an event of the manager itself."""
        self._commit(CommitBatch.empty(), [Publish(name, fields)], must_hold=True)
        self.publish()

    def remember(self, key: str, text: str | None) -> None:
        """Stores a fact about this manager's surroundings; None deletes it."""
        self._commit(CommitBatch({}, [], [], {key: text}), [], must_hold=True)

    def save_web_tokens(
        self,
        rows: Mapping[str, WebTokenRow | None],
        published: Publish,
        facts: Mapping[str, str | None] = NO_FACTS,
        *,
        must_hold: bool,
    ) -> bool:
        """Stores tokens of the web page (None: deletes) and publishes the event.

        It survives a power failure: a token that was revoked stays so. Returns False if refused.
        """
        batch = CommitBatch({}, [], [], dict(facts), web_tokens=dict(rows))
        stored = self._commit(batch, [published], must_hold=must_hold, durable=True)
        self.publish()
        return stored

    def save_sample(self, row: SampleRow) -> None:
        """Stores it; while the store fails it waits in memory."""
        self._commit(CommitBatch({}, [], [], {}, samples=[row]), [], must_hold=True)

    def save_program(self, env: str, key: str, text: str) -> None:
        """Stores its runs; ALL as the key deletes all of the environment."""
        self._commit(CommitBatch({}, [], [], {}, programs={(env, key): text}), [], must_hold=True)

    def program(self, env: str, key: str) -> str | None:
        """Raises StoreFailed."""
        return self._store.program(env, key)

    def program_envs(self) -> list[str]:
        """Raises StoreFailed."""
        return self._store.program_envs()

    def save_gpu_minutes(self, rows: Sequence[GpuMinute]) -> None:
        """Stores them, or drops them while the store or its disk does not take them."""
        fault = self.fault
        if fault is None:
            try:
                self._store.add_gpu_minutes(rows, self._clock.monotonic_ns())
            except StoreFailed as error:
                fault = str(error)
        if (fault is not None) is not self._drops_minutes:
            self._drops_minutes = fault is not None
            stderr_log.say(
                notice("the use of the GPUs is recorded again")
                if fault is None
                else stated(
                    f"the use of the GPUs is not recorded: {fault}",
                    "make room on the disk of --state-dir, or repair it",
                )
            )

    def _commit(
        self,
        batch: CommitBatch,
        published: Iterable[Publish],
        *,
        must_hold: bool,
        durable: bool = False,
    ) -> bool:
        if self.fault is not None:
            self.retry()
        texts = []
        for sequence, event in enumerate(published, self._sequence + 1):
            text = self._event_text(sequence, event)
            batch.events.append(EventRow(sequence, text, str(event.fields.get("env") or "")))
            texts.append((event, text))
        if not batch:
            return True
        fault = self.fault or self._try(batch, durable)
        if fault is None or must_hold:
            if fault is not None:
                self._pending.add(batch)
                del self._pending.events[:-MAX_PENDING_EVENTS]
            self._sequence += len(texts)
            self._untold += texts
        if fault is None:
            self._mark.write(self._sequence, self._jobs_of(batch))
        if fault is not None:
            self.refused = fault
            if self.fault is None:
                self._begin_failing(fault)
        return fault is None or must_hold

    @staticmethod
    def _jobs_of(batch: CommitBatch) -> int | None:
        """The last job's number, if this commit writes it."""
        text = batch.current.get(("counter", JOBS))
        return None if text is None else int(text)

    def close(self) -> None:
        """Closes the mark. The caller closes the store."""
        self._mark.close()

    def _event_text(self, sequence: int, event: Publish) -> str:
        head = f'{{"schema_version":{SCHEMA_VERSION},"sequence":{sequence},"name":"{event.name}",'
        times = f'"time_ns":{self._clock.wall_ns()},"monotonic_ns":{self._clock.monotonic_ns()}'
        fields = event.fields
        return f"{head}{times},{''.join(_encoded(fields, 0))[1:]}" if fields else f"{head}{times}}}"

    def _try(self, batch: CommitBatch, durable: bool) -> str | None:
        """Returns None if written, else the reason."""
        began_ns = self._clock.monotonic_ns()
        try:
            self._store.commit(batch, durable=durable)
        except StoreFailed as error:
            self.failed_commits += 1
            return str(error)
        self.commit_time.observe(self._clock.monotonic_ns() - began_ns)
        return None

    # -- while it fails --

    def health(self) -> dict[str, str | None]:
        """The store's state, for status reports."""
        return {"state": "ok" if self.fault is None else "failing", "error": self.fault}

    def _begin_failing(self, fault: str) -> None:
        self.fault = fault
        stderr_log.say(
            f"the store cannot be written: {fault}; nothing is granted until it can, releases and "
            "running tasks go on",
            "make room on the disk of --state-dir, or repair it",
        )
        self.note("store.failed", error=fault)
        for notify in self._on_failure:
            notify()

    def retry(self) -> bool:
        """Writes the pending rows.

        Returns True if the store works and holds the manager's state.
        """
        if self.fault is None:
            return True
        fault = self._try(self._pending, durable=True)
        if fault is not None:
            self.fault = fault
            return False
        self._pending = CommitBatch.empty()
        self.fault = None
        stderr_log.say("the store can be written again")
        self.note("store.recovered")
        for notify in self._on_recovery:
            notify()
        return True

    def is_behind(self) -> bool:
        """Writes that can wait must wait now."""
        return self._store.is_behind()

    def is_late(self) -> bool:
        """The disk does not keep up with the commits."""
        return self._store.is_late()

    # -- reading --

    def rows(self) -> list[tuple[str, str, Any]]:
        """(kind, key, value) of the state, for core.restart.

        Raises ValueError if a row cannot be read.
        """
        return [
            (kind, key, encoding.decode(kind, text)) for kind, key, text in self._store.current()
        ]

    def meta(self) -> dict[str, str]:
        return self._store.meta()

    def samples(self) -> list[str]:
        return self._store.samples()

    def web_tokens(self) -> list[WebTokenRow]:
        return self._store.web_tokens()

    def events(self, since: int | None, limit: int) -> list[Any]:
        """Those after `since`, the first `limit`; None: the last ones.

        Those that wait in memory while the store fails count, too.
        """
        texts = list(self._store.events(since, limit))
        held = [row.value for row in self._pending.events if since is None or row.sequence > since]
        texts = [*texts, *held][-limit:] if since is None else [*texts, *held][:limit]
        return [json.loads(text) for text in texts]

    def records(
        self, env: str | None, since_wall_ns: int, limit: int = RETAINED_RECORDS
    ) -> list[Any]:
        return [json.loads(text) for text in self._store.records(env, since_wall_ns, limit)]

    # -- jobs that have ended --

    def history(
        self,
        env: str | None = None,
        since_wall_ns: int = 0,
        after: int | None = None,
        limit: int = 1_000,
    ) -> list[tuple[int, Any]]:
        """(number, {"job": …, "spec": …}) of jobs that ended at or after then, oldest first.

        These are the first `limit` after number `after`, or the last `limit` if `after` is None.
        """
        return [
            (number, json.loads(text))
            for number, text in self._store.history(env, since_wall_ns, after, limit)
        ]

    def ended(self, job_id: str, limit: int = RETAINED_RECORDS) -> list[Ended]:
        """An ended job, or all ended elements of an array, with rows still pending in memory."""
        rows = self._ended_rows(job_id, limit).values()
        found = [None if row is None else _named(row, job_id) for row in rows]
        return [row for row in found if row is not None]

    def ended_row(self, job_id: str) -> Job | None:
        """The row of an array in which this element has ended; None: it has one of its own."""
        row = self._ended_rows(job_id, 2).get(job_ids.array_of(job_id) or "")
        return None if row is None or array_rows.element(row.job, job_id) is None else row.job

    def _ended_rows(self, job_id: str, limit: int) -> dict[str, Ended | None]:
        stored: dict[str, Ended | None] = {
            name: encoding.decode("history", text)
            for name, text in self._store.history_of(job_id, limit)
        }
        return {**stored, **self.pending_ended(job_id)}

    def pending_ended(self, job_id: str) -> dict[str, Ended | None]:
        """Of these, the rows that the store does not have yet; None: it runs again."""
        whole = (job_id, job_ids.array_of(job_id))
        return {
            name: None if row is None else encoding.decode("history", row.value)
            for name, row in self._pending.history.items()
            if name in whole or name.startswith(f"{job_id}.")
        }

    def ended_each(self, names: Iterable[str]) -> dict[str, Ended]:
        """The first ended job of each name that has one, in one look into the store."""
        asked = list(names)
        rows = [
            (name, _named(encoding.decode("history", text), name))
            for name, text in self._store.history_of_each(asked)
        ]
        found = {name: row for name, row in rows if row is not None}
        if self._pending.history:  # while the store fails
            found = {name: some[0] for name in asked if (some := self.ended(name, 1))}
        return found

    def ended_states(self, env: str, job_ids: Iterable[str]) -> dict[str, JobState]:
        """The final states of the ended jobs among those, with ended elements of arrays."""
        found: dict[str, JobState] = {}
        for job_id in job_ids:
            if self._pending.history:  # while the store fails
                jobs = [row.job for row in self.ended(job_id) if row.job.env == env]
                found |= {job.job_id: job.state for job in jobs}
                continue
            for name, state, text in self._store.states_of(env, job_id):
                if text is None or _named(encoding.decode("history", text), job_id) is not None:
                    found[name if text is None else job_id] = JobState(state)
        return found

    def payload(self, spec_id: str) -> JobPayload | None:
        """Returns None if the store no longer has it. Raises StoreFailed, EncodingError."""
        found = self._store.payload(spec_id)
        return None if found is None else encoding.unpack(*found)

    def directories(self, spec_ids: Iterable[str]) -> dict[str, str]:
        """The working directories of these specs, as far as the store has them."""
        return {
            spec_id: os.fsdecode(cwd) for spec_id, cwd in self._store.directories(spec_ids).items()
        }

    def ended_so(
        self, env: str | None, state: JobState, after: int, limit: int, back: int
    ) -> list[tuple[int, Job]]:
        """(number, job): the first that ended so after this number, of the last `back` of all."""
        first = max(after, self._store.history_number(env, back))
        return [
            (number, encoding.decode("history", text).job)
            for number, text in self._store.history_in_state(env, state.value, first, limit)
        ]

    def last_ended(self, limit: int) -> list[tuple[str, int]]:
        """(job, end time in ns) of the last `limit` jobs, oldest first."""
        return self._store.last_ended(limit)

    def job_of_key(self, env: str, key: str) -> str | None:
        """The ended job or array that was submitted under this key in this env."""
        pending = (
            row.job_id
            for row in self._pending.history.values()
            if row is not None and (row.env, row.key) == (env, key)
        )
        job_id = next(pending, None) or self._store.job_of_key(env, key)
        return None if job_id is None else job_ids.array_of(job_id) or job_id

    def spread(self, env: str, command: str) -> Spread | None:
        """Run times of this command's successful runs in this env; None: none, or unreadable."""
        key = (env, command)
        if key not in self._spreads:
            if len(self._spreads) >= MAX_SPREADS:
                self._spreads.clear()
            try:
                self._spreads[key] = Spread.of(self._store.durations_ms(env, command, SPREAD_RUNS))
            except StoreFailed:
                return None
        return self._spreads[key]


def _named(row: Ended, name: str) -> Ended | None:
    """The job of this name in a row of the history: an element may have ended in its array's."""
    if row.job.job_id != job_ids.array_of(name):
        return row
    job = array_rows.within(row.job, name)
    return None if job is None else replace(row, job=job)


def _add_specs(batch: CommitBatch) -> None:
    """Fills `specs` for each spec that is saved or deleted without a new payload.

    (When a spec is deleted, its last job goes into the history.)
    """
    fresh = {row.spec_id for row in batch.payloads}
    env_of = {row.spec_id: row.env for row in batch.history.values() if row is not None}
    for (kind, spec_id), text in batch.current.items():
        if kind == "spec" and spec_id not in fresh:
            batch.specs[spec_id] = None if text is not None else env_of.get(spec_id, "")


def _history_row(ended: Ended) -> HistoryRow:
    job = ended.job
    ran_ms = None
    if job.state is JobState.DONE and job.attempts:
        started_ns, ended_ns = job.attempts[-1].started_ns, job.attempts[-1].ended_ns
        if started_ns is not None and ended_ns is not None:
            ran_ms = (ended_ns - started_ns) // MS
    ended_wall_ns, text = job.ended_wall_ns or 0, encoding.encode("history", ended)
    return HistoryRow(
        job.job_id,
        job.env,
        ended_wall_ns,
        job.state.value,
        job.run.command,
        ran_ms,
        job.key,
        job.spec_id,
        text,
    )


def _add_record(batch: CommitBatch, save: Save) -> None:
    """Adds the record to its env's retained records. A record that ended leaves `current`."""
    record, text = save.value, batch.current[save.kind, save.key]
    if isinstance(record, Record) and text is not None:
        batch.records.append(RecordRow(record.record_id, record.env, record.granted_wall_ns, text))
        if record.ended_wall_ns is not None:
            batch.current[save.kind, save.key] = None


# -- the mark: a file beside the store that shows whether the store has lost commits. SQLite drops
# all frames of its log behind a damaged one, without an error. So the numbers of the last event and
# of the last job are written to this file after each commit. It is not synced and counts for this
# boot only, because a power failure may cost the store its last commits by design.


class Reached(NamedTuple):
    sequence: int = 0
    """The number of the last event."""
    jobs: int = 0
    """The last job's number."""


class StoreMark:
    """The file, open; without one (a full disk) nothing is noticed."""

    def __init__(self, path: Path) -> None:
        self._boot = boot_id().encode()
        self.before = Reached()
        """The mark of an earlier manager in this boot."""
        self._reached = Reached()
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            found = _LINE.fullmatch(os.pread(self._file, 256, 0))
            if found is None:
                os.ftruncate(self._file, 0)
            elif found["boot"] == self._boot:
                self.before = self._reached = Reached(int(found["sequence"]), int(found["jobs"]))

    def begin_anew(self) -> None:
        """The store is a new one, with events of its own."""
        self._reached = Reached(0, self.before.jobs)

    def write(self, sequence: int, jobs: int | None) -> None:
        """After a commit. `jobs`: None, as before. It never goes back."""
        self._reached = Reached(
            max(sequence, self._reached.sequence), max(jobs or 0, self._reached.jobs)
        )
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, b"%s %020d %020d\n" % (self._boot, *self._reached), 0)

    def close(self) -> None:
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)


def lost(reached: Reached, there: Reached) -> str:
    """The commits that the store lacks, compared with `reached`, in one line; empty: none."""
    events = reached.sequence - there.sequence
    if events <= 0:
        return ""
    count = "its last event" if events == 1 else f"its last {events} events"
    said = (
        f"state.db lacks {count} of before this start: its log was damaged, or it is an older copy"
    )
    first, last = there.jobs + 1, reached.jobs
    if first > last:
        return said
    if first == last:
        return (
            f"{said}; job j{first} was submitted and is not known any more: submit it again, "
            "unless it runs"
        )
    return (
        f"{said}; jobs j{first} to j{last} were submitted and are not known any more: submit again "
        "those that do not run"
    )
