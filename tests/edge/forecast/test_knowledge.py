"""The samples of the store and the file of weights, whatever state that is in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.edge.forecast import knowledge as knowledge_module
from nodemgr.edge.forecast.knowledge import Knowledge
from nodemgr.edge.store import sample_rows
from nodemgr.edge.store.database import Store, StoreFailed
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.sample_rows import SampleRow
from tests.core.forecast.trainings import sample, text, weights
from tests.edge.simulated_clock import SimulatedClock


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    store = Store(tmp_path)
    made = Journal(store, SimulatedClock())
    yield made
    made.close()
    store.close()


def test_samples_are_there_again_after_a_restart(
    loop: asyncio.AbstractEventLoop, journal: Journal, tmp_path: Path
) -> None:
    knowledge = Knowledge(loop, journal, tmp_path / "weights")
    rows = [sample(run_ms=number) for number in range(3)]
    for row in rows:
        knowledge.add(row)
    journal.save_sample(SampleRow("eve", "no sample"))
    assert knowledge.known.samples == tuple(rows)
    assert Knowledge(loop, journal, tmp_path / "weights").known.samples == tuple(rows)


def test_samples_that_cannot_be_read_are_reported_and_the_manager_starts(
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails() -> list[str]:
        raise StoreFailed("nodemgr.db: disk I/O error")

    monkeypatch.setattr(journal, "samples", fails)
    knowledge = Knowledge(loop, journal, tmp_path / "weights")
    (line,) = capfd.readouterr().err.splitlines()
    assert "without the samples of earlier tasks: nodemgr.db: disk I/O error" in line
    knowledge.add(sample())
    assert len(knowledge.known.samples) == 1


def test_memory_holds_the_samples_of_the_store_and_no_others(
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (sample_rows, knowledge_module):
        monkeypatch.setattr(module, "RETAINED_ROWS", 4)
    knowledge = Knowledge(loop, journal, tmp_path / "weights")
    for number, user in enumerate(["ann", "ann", *["eve"] * 9, "bob", "bob", "ann"]):
        knowledge.add(sample(user, run_ms=number))
        stored = Knowledge(loop, journal, tmp_path / "weights").known.samples
        assert knowledge.known.samples == stored
        assert len(stored) <= 4


def test_a_new_file_of_weights_is_used_and_a_missing_one_is_no_fault(
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "weights"
    knowledge = Knowledge(loop, journal, path)
    assert knowledge.known.networks.time is None
    path.write_text(text(weights(0.5)))
    knowledge.read_weights()
    assert knowledge.known.networks.time is not None
    path.unlink()
    knowledge.read_weights()
    assert knowledge.known.networks.time is None
    assert capfd.readouterr().err == ""


DAMAGE = [b"", b"\xff", b"{}", text(weights()).encode()[:-9], b" " * (5 * 2**20)]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda data: repr(data[:9]))
def test_a_damaged_file_is_reported_in_one_line_once_and_not_used(
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    damage: bytes,
) -> None:
    path = tmp_path / "weights"
    path.write_text(text(weights()))
    knowledge = Knowledge(loop, journal, path)
    assert knowledge.known.networks.time is not None
    path.write_bytes(damage)
    for _ in range(3):
        knowledge.read_weights()
        assert knowledge.known.networks.time is None
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]


def test_a_directory_in_the_file_s_place_is_reported(
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    os.mkdir(tmp_path / "weights")
    assert Knowledge(loop, journal, tmp_path / "weights").known.networks.time is None
    assert len(capfd.readouterr().err.splitlines()) == 1
