"""Elastic training with NCCL, as far as one GPU shows it: communicators that follow each other.

NCCL may refuse two workers on one GPU. A refusal must break the generation alone: each worker goes
on in its next one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.manager import Manager
from tests.support.programs import Program

pytestmark = pytest.mark.gpu
COUNT, GENERATIONS = 1_000, 5
"""As in programs/nccl_groups.py."""
Start = Callable[..., Program]


def test_a_worker_forms_one_communicator_after_the_other(
    node: Manager, program: Start, tmp_path: Path
) -> None:
    node.quota("alice", 1)
    worker = program("alice", "nccl_groups.py", "alone", tmp_path)
    for generation in range(1, GENERATIONS + 1):
        said = worker.line()
        print(
            f"generation {generation}: formed and summed in {said['formed_s']:.2f} s,"
            f" ended in {said['ended_s']:.2f} s"
        )
        assert (said["generation"], said["total"]) == (generation, COUNT * generation)
    assert worker.end()[0] == 0


def test_two_workers_on_one_gpu_are_summed_or_refused_and_go_on(
    node: Manager, program: Start, tmp_path: Path
) -> None:
    node.quota("alice", 1)
    results = program("alice", "nccl_groups.py", "two", tmp_path).line()["results"]
    assert [rank for rank, _, _ in results] == [0, 1]
    for rank, said, alone in results:
        print(f"worker {rank} of 2 on one GPU: {said}")
        assert said == f"sum {3.0 * COUNT}" or said.startswith("refused: ")
        assert alone == 2.0 * COUNT
    assert len({said.split()[0] for _, said, _ in results}) == 1
