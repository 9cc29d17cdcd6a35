"""Features as the manager reads them."""

from __future__ import annotations

import pytest

from client_plugin.prediction import features
from client_plugin.prediction.features import KindTable, StepWork, intensity, packed
from nodemgr.core.forecast import features as manager

INTENSITIES = {
    (0, 100): -8, (1, 1): 0, (2, 1): 1, (3, 1): 1, (4, 1): 2, (7, 2): 1, (1, 2): -1, (1, 3): -2,
    (1, 4): -2, (3, 4): -1, (1, 1_000): -8, (1 << 40, 1): 20, (5, 0): 2,
}  # fmt: skip
OUTCOME = {
    "framework": "torch 2.13.0", "batch_size": 32, "input_elements": 32_000, "parameters": 7,
    "kinds": {"conv2d": 4_800, "relu": 0}, "activation_bytes": 5, "depth": 2, "operations": 12,
    "bytes": 8, "kernels": 3, "work": [("float32", -1, 12, 8, 3)], "reserved_peak_bytes": 2 << 20,
}  # fmt: skip


@pytest.mark.parametrize("figures", INTENSITIES)
def test_the_intensity_is_the_whole_part_of_the_logarithm(figures: tuple[int, int]) -> None:
    assert intensity(*figures) == INTENSITIES[figures]


def test_the_tables_of_client_and_manager_agree() -> None:
    assert features.KINDS == manager.GRAPH
    assert features.INTENSITIES == manager.INTENSITIES
    assert features.MAX_WORK_ROWS == manager.MAX_WORK_ROWS
    assert features.MAX_FRAMEWORK_CHARACTERS == manager.MAX_FRAMEWORK_CHARACTERS


def test_the_manager_reads_what_the_client_packs() -> None:
    read = manager.parse(packed(OUTCOME, 2_000))
    assert read.execution == (32, 2_000, 1_000)
    assert read.graph[manager.GRAPH.index("conv2d")] == 4_800
    assert read.richer == (7, 5, 2, 12, 8, 3)
    assert [tuple(vars(row).values()) if hasattr(row, "__dict__") else row for row in read.work]
    assert read.peak_bytes == 2 << 20


def test_a_batch_of_unknown_size_is_zero() -> None:
    read = manager.parse(packed({**OUTCOME, "batch_size": None, "input_elements": None}))
    assert read.execution == (0, 0, 0)


def test_kernels_of_one_intensity_are_one_row() -> None:
    work = StepWork()
    for operations in (100, 120, 200):
        work.add("float32", operations, 100)
    work.add("float16", 100, 100)
    assert work.rows() == [
        ("float16", 0, 100, 100, 1),
        ("float32", 0, 220, 200, 2),
        ("float32", 1, 200, 100, 1),
    ]
    assert (work.operations, work.moved_bytes, work.kernels) == (520, 400, 4)


def test_a_kind_has_its_largest_input() -> None:
    table = KindTable()
    for elements in (2_400, 4_800, 2_800):
        table.add("conv2d", elements)
    assert table.elements() == {**dict.fromkeys(features.KINDS, 0), "conv2d": 4_800}
