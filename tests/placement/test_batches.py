"""Batches from a trace, and traces that are refused in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pytest

from nodemgr.placement import batches
from nodemgr.placement.batches import HOUR_MS, BadTrace, TraceJob

HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ROWS = HEAD + (
    "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    "2017-10-09 06:13:03,2951.4,16,2951.0,6214e9\n"
    "2017-10-09 07:13:33,0,8,0,6214e9\n"
)  # fmt: skip
JOBS = [TraceJob(0, 2951, 16), TraceJob(2932, 66, 1), TraceJob(3630, 1, 8)]


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_trace_is_read_in_the_order_of_submission(tmp_path: Path) -> None:
    assert batches.read_trace(trace(tmp_path, ROWS)) == JOBS


def test_a_packed_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(ROWS.encode()))
    assert batches.read_trace(path) == JOBS


def test_jobs_wider_than_the_cluster_are_left_out_and_counted(tmp_path: Path) -> None:
    fitting = batches.fitting(JOBS, 8, tmp_path)
    assert (fitting.jobs, fitting.left_out) == (tuple(JOBS[1:]), 1)
    with pytest.raises(BadTrace, match="more than 4 GPUs"):
        batches.fitting(JOBS[:1], 4, tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has no job"),
        (HEAD, "has no job"),
        (ROWS + "2017-10-09 07:01:55,-5,1,,\n", "-5.0 seconds in line 5"),
        (ROWS + "2017-10-09 07:01:55,nan,1,,\n", "nan seconds in line 5"),
        (ROWS + "2017-10-09 07:01:55,1e12,1,,\n", "seconds in line 5"),
        (ROWS + "2017-10-09 07:01:55,5,0,,\n", "0 GPUs in line 5"),
        (ROWS + "2017-10-09 07:01:55,5,-3,,\n", "-3 GPUs in line 5"),
        (ROWS + "yesterday,5,1,,\n", "no job in line 5"),
        (ROWS + "2017-10-09 07:01:55,5\n", "no job in line 5"),
        ("a,b\n1,2\n", "no job in line 2"),
    ],
)
def test_a_bad_trace_is_refused_in_one_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(BadTrace) as caught:
        batches.read_trace(trace(tmp_path, text))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08garbage", b"no gzip at all", b""])
def test_a_damaged_or_missing_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.csv.gz"
    if content:
        path.write_bytes(content)
    with pytest.raises(BadTrace, match="cannot be read"):
        batches.read_trace(path)


def test_batches_fit_the_cluster_and_are_those_of_their_seed() -> None:
    for gpus in (1, 4, 16):
        jobs = batches.made_up(Random(1), 50, gpus)
        assert jobs == batches.made_up(Random(1), 50, gpus)
        assert all(1 <= job.gpus <= gpus for job in jobs)
        assert all(0.1 * HOUR_MS <= job.work_ms <= 24 * HOUR_MS for job in jobs)
    found = batches.from_trace(Random(1), JOBS, 2)
    assert [job.number for job in found] == [0, 1]
    assert [job.gpus for job in found] in ([16, 1], [1, 8])
