"""A task's GPUs in one line."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin import summary

GIB = 1 << 30
STATUS: dict[str, Any] = {
    "gpus": [
        {"index": 3, "uuid": "GPU-d", "memory_total_bytes": 80 * GIB, "utilization_percent": 71},
        {"index": 5, "uuid": "GPU-f", "memory_total_bytes": 80 * GIB, "utilization_percent": 40},
        {"index": 7, "uuid": "GPU-h", "memory_total_bytes": 80 * GIB, "utilization_percent": 99},
    ]
}


def task(**fields: Any) -> dict[str, Any]:
    return {"id": "t1", "gpus": ["GPU-d"], "gpu_indices": [3], **fields}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"memory_bytes": 13_314_398_618, "memory_limit_bytes": [80 * GIB]},
            "GPU 3 · 12.4/80 GiB · 71 %",
        ),
        ({"memory_bytes": None, "memory_limit_bytes": [8 * GIB]}, "GPU 3 · 8 GiB · 71 %"),
        (
            {"memory_bytes": None, "memory_limit_bytes": [8 * GIB], "memory_named_bytes": 2 * GIB},
            "GPU 3 · 2 GiB · 71 %",
        ),
        ({"state": "running", "utilization_percent": 12}, "GPU 3 · 80 GiB · 12 %"),
        (
            {"state": "suspended", "utilization_percent": 0},
            "GPU 3 · suspended · 80 GiB · 0 %",
        ),
        ({"utilization_percent": 12}, "GPU 3 · 80 GiB · 12 %"),
        ({"utilization_percent": 0, "memory_bytes": 0}, "GPU 3 · 0/80 GiB · 0 %"),
        (
            {"gpus": ["GPU-d", "GPU-f"], "gpu_indices": [3, 5], "memory_bytes": GIB},
            "GPU 3,5 · 1/160 GiB · 56 %",
        ),
        ({"gpu_indices": None}, "GPU 3 · 80 GiB · 71 %"),
        ({"gpus": [], "gpu_indices": []}, "GPU –"),  # noqa: RUF001
    ],
)
def test_the_gpus_that_are_held(fields: dict[str, Any], line: str) -> None:
    assert summary.held(task(**fields), STATUS) == line


def test_figures_that_are_unknown_are_left_out() -> None:
    status = {"gpus": [{**STATUS["gpus"][0], "utilization_percent": None}]}
    assert summary.held(task(memory_bytes=None), status) == "GPU 3 · 80 GiB"


@pytest.mark.parametrize(
    ("position", "length", "line"),
    [
        (2, 3, "GPU waiting: place 2 of 3"),
        (2, None, "GPU waiting: place 2"),
        (2, 1, "GPU waiting: place 2"),
        (None, 3, "GPU waiting"),
    ],
)
def test_the_place_of_a_request(position: int | None, length: int | None, line: str) -> None:
    assert summary.waiting({"position": position}, length) == line


def test_the_reason_of_a_request() -> None:
    assert summary.reason({"reason": "needs 1 GPU: bob"}) == "needs 1 GPU: bob"
    assert summary.reason({"reason": None}) == "its turn comes next"


def test_a_row_is_found_by_a_process() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "t1", "places": [{"pid": 7, "pid_inside": None}]},
        {"id": "t2", "places": [{"pid": 900, "pid_inside": 7}, {"pid": 901, "pid_inside": 8}]},
        {"id": "t3"},
    ]
    assert [
        (found or {}).get("id")
        for pid, inside in ((7, False), (7, True), (8, True), (8, False), (901, False))
        for found in [summary.row_of(rows, pid, inside)]
    ] == ["t1", "t1", "t2", None, "t2"]
