"""The training process: started when due, its file whole at every moment, its faults one line."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.core.forecast import learning, network, samples
from nodemgr.core.forecast.samples import Sample
from nodemgr.edge.forecast import process, trainer
from nodemgr.edge.forecast.trainer import Trainer
from nodemgr.edge.store.database import StoreFailed
from tests.core.forecast.test_learning import ended
from tests.core.forecast.trainings import text, weights
from tests.edge.forecast.endless import ENDLESS
from tests.edge.forecast.priorities import AT_USUAL_PRIORITY
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import lasting_fds, open_fds

ROWS = ended(learning.LEAST_SAMPLES)


class Training:
    """A trainer in a loop of the test's own."""

    def __init__(self, path: Path, rows: list[Sample]) -> None:
        self.loop = asyncio.new_event_loop()
        self.path = path
        self.texts = [samples.packed(row) for row in rows]
        self.trained = 0
        self.trainer = Trainer(self.loop, path, lambda: self.texts, self._count)

    def _count(self) -> None:
        self.trained += 1

    def until_ended(self) -> None:
        async def wait() -> None:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while self.trainer.pid is not None:
                    await asyncio.sleep(0.01)

        self.loop.run_until_complete(wait())


MODULE = trainer.MODULE


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setattr(trainer, "MODULE", AT_USUAL_PRIORITY)
    made = Training(tmp_path / "weights", ROWS)
    yield made
    made.trainer.close()
    made.loop.close()


def test_a_training_writes_weights_that_the_manager_takes(training: Training) -> None:
    training.texts.insert(3, "no sample")
    training.trainer.begin()
    training.until_ended()
    assert training.trained == 1
    found = network.parse(training.path.read_text())
    assert found.time is not None
    assert found.time.card.is_better
    assert os.listdir(training.path.parent) == ["weights"]
    assert training.path.stat().st_mode & 0o777 == 0o600


def test_a_training_gives_way_to_all_other_processes(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MODULE", MODULE)
    training.trainer.begin()
    pid = training.trainer.pid
    assert pid is not None
    deadline = time.monotonic() + WAIT_LIMIT_S
    while os.sched_getscheduler(pid) != os.SCHED_IDLE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 19)


def test_a_training_is_due_after_enough_new_samples(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(Trainer, "begin", lambda self: begun.append(self._new))
    for count in range(learning.LEAST_SAMPLES):
        training.trainer.added(count)
    assert begun == []
    training.trainer.added(learning.LEAST_SAMPLES)
    assert begun == [learning.LEAST_SAMPLES + 1]
    training.trainer._new = 0
    for _ in range(199):
        training.trainer.added(2_000)
    assert len(begun) == 1
    training.trainer.added(2_000)
    assert len(begun) == 2


def test_a_killed_training_leaves_the_old_file_and_one_line(
    training: Training, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "MODULE", ENDLESS)
    training.path.write_text(text(weights()))
    training.trainer.begin()
    assert training.trainer.pid is not None
    os.kill(training.trainer.pid, signal.SIGKILL)
    training.until_ended()
    assert training.trained == 0
    assert training.path.read_text() == text(weights())
    (line,) = capfd.readouterr().err.splitlines()
    assert "training of forecasts failed: it was ended by signal 9" in line


def test_a_training_that_takes_too_long_is_ended(
    training: Training, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "LIMIT_S", 0.0)
    monkeypatch.setattr(trainer, "MODULE", ENDLESS)
    training.trainer.begin()
    training.until_ended()
    assert training.trained == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "it ran for more than 0.0 s" in line


def test_a_training_without_descriptors_leaves_no_process(
    training: Training, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []

    def none_left(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = lasting_fds()
    monkeypatch.setattr(os, "pidfd_open", none_left)
    training.trainer.begin()
    monkeypatch.undo()
    assert training.trainer.pid is None
    assert open_fds() == before
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
    assert "Too many open files" in capfd.readouterr().err
    training.trainer.close()


def test_a_store_that_cannot_be_read_trains_nothing(
    training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> list[str]:
        raise StoreFailed("/state/nodemgr.db: database disk image is malformed")

    training.trainer._texts = fails
    training.trainer.begin()
    assert training.trainer.pid is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "malformed" in line


def test_a_manager_that_ends_kills_its_training_and_does_not_wait_for_it(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MODULE", ENDLESS)
    training.trainer.begin()
    pid = training.trainer.pid
    assert pid is not None
    training.trainer.close()
    assert training.trainer.pid is None
    assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)


def test_a_training_that_cannot_write_its_file_fails(
    training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkdir(training.path)
    training.trainer.begin()
    training.until_ended()
    assert training.trained == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{training.path} cannot be written (Is a directory)" in line
    assert os.listdir(training.path.parent) == ["weights"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("old")
    os.link(path, tmp_path / "link")
    process.replace(path, "new")
    assert (path.read_text(), (tmp_path / "link").read_text()) == ("new", "old")
