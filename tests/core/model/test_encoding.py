"""Rows of the store: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.model import encoding
from nodemgr.core.model.array_rows import joined
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import JobPayload, Ranges, RunSpec, Task, TaskState
from nodemgr.core.state.node_state import STORED
from tests.support.examples import examples

TASK = Task(
    "t1", "alice", "token", ("GPU-0",), ("GPU-0",), TaskState.RUNNING,
    RunSpec("python", 1, None, None), 1, 2, ("unix:1:1",),
)  # fmt: skip

GOLDEN_ROWS = dict(
    line.split(" ", 1)
    for line in Path(__file__).with_name("golden_rows.txt").read_text().splitlines()
)
"""By kind, a row as the store holds it: all columns in their order, none at its default."""
RUN = json.loads(GOLDEN_ROWS["job"])["run"]


def test_every_stored_table_has_its_kind() -> None:
    assert list(encoding.KINDS) == [*(kind for kind, _ in STORED.values()), "history"]


@pytest.mark.parametrize("kind", encoding.KINDS)
@given(data=st.data())
@settings(max_examples=examples(20), deadline=None)
def test_whatever_a_row_holds_comes_back_through_json(kind: str, data: st.DataObject) -> None:
    value = data.draw(values(encoding.KINDS[kind]))
    assert encoding.decode(kind, encoding.encode(kind, value)) == value


@pytest.mark.parametrize("kind", encoding.KINDS)
def test_the_bytes_of_a_row_stay(kind: str) -> None:
    assert encoding.encode(kind, encoding.decode(kind, GOLDEN_ROWS[kind])) == GOLDEN_ROWS[kind]


def test_the_golden_rows_are_of_all_kinds() -> None:
    assert list(GOLDEN_ROWS) == list(encoding.KINDS)


def test_a_job_without_its_later_columns_takes_the_defaults() -> None:
    names = (
        "job_id", "env", "name", "user", "spec_id", "priority", "submitted_wall_ns", "state",
    )  # fmt: skip
    run = {"command": "python", "gpus": 1, "memory_bytes": None, "time_limit_ms": None}
    first = {**{name: json.loads(GOLDEN_ROWS["job"])[name] for name in names}, "run": run}
    row = json.loads(encoding.encode("job", encoding.decode("job", json.dumps(first))))
    defaults = {
        "after": [],
        "max_restarts": 0,
        "attempt": 0,
        "restarts": 0,
        "interruptions": 0,
        "resumes_wall_ns": None,
        "key": "",
        "request_id": None,
        "task_id": None,
        "then": None,
        "yields": False,
        "entered_wall_ns": None,
        "queued_ns": 0,
        "started_wall_ns": None,
        "ended_wall_ns": None,
        "why": "",
        "attempts": [],
        "deeds": [],
        "entered_ns": None,
        "resumes_ns": None,
        "indices": "",
        "assigned": "",
    }
    of_run = {
        "place": "",
        "task_class": "normal",
        "compute_percent": None,
        "deadline_ms": None,
        "expected_ms": None,
        "predicted": [],
        "gpu_range": None,
        "memory_most_bytes": None,
        "cpus": None,
        "host_memory_bytes": None,
        "signal": None,
        "is_memory_filled": False,
    }
    assert row == first | defaults | {"run": run | of_run}


@pytest.mark.parametrize("column", ["name", "run"])
def test_a_job_lacks_no_required_column(column: str) -> None:
    row = json.loads(GOLDEN_ROWS["job"])
    del row[column]
    with pytest.raises(EncodingError, match=f"job lacks fields: {column}"):
        encoding.decode("job", json.dumps(row))


@pytest.mark.parametrize("field", ["command", "gpus", "memory_bytes", "time_limit_ms"])
@pytest.mark.parametrize("kind", ["job", "request", "task"])
def test_no_run_lacks_a_required_field(kind: str, field: str) -> None:
    row = json.loads(GOLDEN_ROWS[kind])
    del row["run"][field]
    with pytest.raises(EncodingError, match=f"{kind}.run lacks fields: {field}"):
        encoding.decode(kind, json.dumps(row))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": RUN | {"gpus": "1"}}, "job.run.gpus is '1', not of type int"),
        ({"run": RUN | {"time_limit_ms": 1.5}}, "job.run.time_limit_ms is 1.5, not of type int"),
        ({"run": RUN | {"place": None}}, "job.run.place is None, not of type str"),
        ({"run": None}, "job.run is None, not an object"),
        ({"gpus": 1}, "job has unknown fields: gpus"),
        ({"indices": "1-2-3"}, "job.indices is '1-2-3', not a set of numbers such as 0-4,7"),
    ],
)
def test_a_wrong_job_is_refused_with_the_place_of_the_fault(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(EncodingError, match=words):
        encoding.decode("job", json.dumps(json.loads(GOLDEN_ROWS["job"]) | change))


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a row's field, from its annotation."""
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return st.builds(
            annotation,
            **{field.name: values(hints[field.name]) for field in dataclasses.fields(annotation)},
        )
    if isinstance(annotation, types.UnionType):
        return st.one_of(
            [
                st.none() if member is type(None) else values(member)
                for member in annotation.__args__
            ]
        )
    if annotation == Ranges:
        return st.sets(st.integers(0, 9)).map(lambda found: joined((i, i) for i in found))
    if typing.get_origin(annotation) is tuple:
        return st.lists(values(typing.get_args(annotation)[0]), max_size=3).map(tuple)
    if annotation is int:
        return st.integers(-(1 << 63), (1 << 64) - 1)
    return st.from_type(annotation)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": "GPU-0"}, "task.gpus is 'GPU-0', not a list"),
        ({"gpus": [0]}, r"task.gpus\[0\] is 0, not of type str"),
        ({"since_ns": "1"}, "task.since_ns is '1', not of type int"),
        ({"since_ns": True}, "task.since_ns is True, not of type int"),
        ({"since_ns": 1.0}, "task.since_ns is 1.0, not of type int"),
        ({"state": "dreaming"}, "task.state is 'dreaming', which is no TaskState"),
        ({"job_id": 1}, "task.job_id is 1, not of type str"),
        ({"mood": "good"}, "task has unknown fields: mood"),
    ],
)
def test_a_wrong_row_is_refused_with_the_place_of_the_fault(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(EncodingError, match=words):
        encoding.decode("task", json.dumps(json.loads(encoding.encode("task", TASK)) | change))


def test_a_row_of_an_older_version_takes_the_defaults() -> None:
    row = json.loads(encoding.encode("task", TASK))
    del row["world"], row["kept_bytes"]
    assert encoding.decode("task", json.dumps(row)) == TASK


def test_a_field_without_a_default_must_be_there() -> None:
    row = json.loads(encoding.encode("task", TASK))
    del row["env"]
    with pytest.raises(EncodingError, match="task lacks fields: env"):
        encoding.decode("task", json.dumps(row))


@pytest.mark.parametrize("text", ["null", "[]", '"task"', "1"])
def test_what_is_no_object_is_no_row(text: str) -> None:
    with pytest.raises(EncodingError, match="not an object"):
        encoding.decode("task", text)


@pytest.mark.parametrize("text", ["", "{", "task"])
def test_what_is_no_json_is_no_row(text: str) -> None:
    with pytest.raises(EncodingError, match="task is no JSON"):
        encoding.decode("task", text)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(EncodingError, match="dream is no kind of row"):
        encoding.decode("dream", "{}")
    with pytest.raises(KeyError):
        encoding.encode("dream", {})


def test_a_field_of_a_type_that_no_row_can_hold_is_found_when_it_is_written() -> None:
    for annotation in (float, dict[str, int], tuple[float, str]):
        for made in (encoding._reader, encoding._writer):
            with pytest.raises(TypeError, match="no row can hold"):
                made(annotation)


@pytest.mark.parametrize("features", ["", '{"schema_version":1}'])
def test_a_payload_comes_back_with_and_without_features(features: str) -> None:
    payload = JobPayload(("python", ""), "/home", ("A=b", "C="), features)
    packed = encoding.pack(payload)
    assert encoding.unpack(b"/home", packed) == payload
    assert packed.startswith(b"2+\0{" if features else b"2\0python")


@pytest.mark.parametrize("data", [b"", b"+", b"1+", b"1+\0x", b"x+\0{}\0a", b"0+\0{}\0a"])
def test_a_payload_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        encoding.unpack(b"/", data)
