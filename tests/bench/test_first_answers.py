"""The decisions of `python bench/first` on what its programs printed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.manager import ROOT

GIB = 1 << 30
RIGHT = {"memory": 8 * GIB, "result": 512.0, "refused": "OutOfMemoryError: CUDA out of memory",
    "again": GIB}  # fmt: skip


def answer_of(expression: str, *values: object) -> Any:
    """In the programs' own folder, where their modules find each other; `v` are the values."""
    code = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); v = json.loads(sys.argv[2]);"
        " import answers, frameworks, training;"
        f" print(json.dumps({expression}))"
    )
    folders = [str(ROOT / "bench" / "first"), str(ROOT / "bench"), str(ROOT)]
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(folders), json.dumps(values)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_faults_of_a_framework() -> None:
    wrong: list[tuple[dict[str, object], list[str]]] = [
        ({}, []),
        ({"result": 8.0}, ["result 8.0 instead of 512.0"]),
        ({"refused": "SystemError: it died"}, ["beyond the memory: SystemError: it died"]),
        ({"refused": 9 * GIB}, [f"beyond the memory: {9 * GIB}"]),
        ({"refused": "CudaAPIError: [2] results in CUDA_ERROR_OUT_OF_MEMORY"}, []),
        ({"refused": "cudaErrorMemoryAllocation", "again": "cudaSuccess"}, []),
        ({"again": "RuntimeError: no"}, ["again: RuntimeError: no"]),
        ({"memory": 80 * GIB}, [f"sees {80 * GIB} of {8 * GIB}"]),
    ]
    rows = [RIGHT | changed for changed, _ in wrong]
    faults = f"[list(frameworks.faults(row, frameworks.RUNS[0], {8 * GIB})) for row in v[0]]"
    assert answer_of(faults, rows) == [expected for _, expected in wrong]
    assert answer_of("list(frameworks.faults({}, frameworks.RUNS[0], 1))") == [
        "it printed no answer"
    ]


def test_a_hook_of_the_table_is_no_difference_and_any_other_is() -> None:
    bare = ["after cuInit 2000 0 0 0 libcuda+10", "after cuGone 2000 0 0 1 0",
        "after cuOther 2000 0 0 0 libcuda+20", "after cuInit dlsym libcuda+10"]  # fmt: skip
    shim = ["after cuInit 2000 0 0 0 libnodemgr+1", "after cuGone 2000 0 0 1 libnodemgr+2",
        "after cuOther 2000 0 500 0 0", "after cuInit dlsym libnodemgr+1"]  # fmt: skip
    hooks, others = answer_of("answers.differing(*v)", bare, shim)
    assert hooks == 2
    assert others == [f"{bare[1]} -> {shim[1]}", f"{bare[2]} -> {shim[2]}"]


def test_one_hook_for_two_functions_of_one_name_is_named() -> None:
    asked = "after cuLaunchHostFunc"
    bare = [f"{asked} 10000 0 0 0 libcuda+1", f"{asked} 13010 0 0 0 libcuda+2",
        f"{asked} 10000 2 0 0 libcuda+3"]  # fmt: skip
    one = [f"{asked} 10000 0 0 0 libnodemgr+7", f"{asked} 13010 0 0 0 libnodemgr+7",
        f"{asked} 10000 2 0 0 libnodemgr+7"]  # fmt: skip
    two = [one[0], f"{asked} 13010 0 0 0 libnodemgr+8", one[2]]
    assert answer_of("answers.shared_hooks(*v)", bare, two) == []
    assert answer_of("answers.shared_hooks(*v)", bare, one) == [
        "cuLaunchHostFunc with flags 0: one hook for libcuda+1 libcuda+2"
    ]


def test_the_differences_of_trainings_are_paired_by_turns() -> None:
    """In the order of the resident processes; the second turn is twice as fast for all."""
    rates = [[10, 20], [9, 18], [5, 10], [10, 20], [9, 18]]
    line = answer_of("training.differences(v[0])", rates)
    assert line.startswith("15.00 steps/s bare, 2 turns; shim -10.00 % (0.00), gated -50.00 %")
    assert "second bare +0.00 % (0.00)" in line
