"""The leader with real processes, under a lease that the test makes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.elastic.led import TRAINEE, Led, children, gone


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Callable[..., Led]]:
    """Starts leaders: lead("--fail", "1", gpus=2)."""
    started: list[Led] = []

    def start(*words: str, gpus: int = 1, script: Path = TRAINEE, options: str = "") -> Led:
        started.append(Led(tmp_path, str(script), *words, gpus=gpus, options=options))
        return started[-1]

    yield start
    for led in started:
        led.close()


def assert_left(led: Led, *numbers: int) -> None:
    """Of the workers that train, without worker 1; a spare comes after two calm seconds."""
    left = set(led.workers())
    assert 1 not in left
    assert set(numbers) <= left
    assert len(left - set(numbers)) <= 1


def test_a_worker_for_each_gpu_and_lines_told_apart(lead: Callable[..., Led]) -> None:
    led = lead(gpus=2)
    led.line(r"^generation 1 rank 0 of 2 root 0 state False at boundary$")
    led.line(r"^\[worker 1\] generation 1 rank 1 of 2 root 0 state False")
    led.line("nodemgr: elastic: the training runs on 2 GPUs$")


def test_an_offered_gpu_joins_and_a_recalled_one_is_left(lead: Callable[..., Led]) -> None:
    led = lead()
    led.line("runs on 1 GPU$")
    led.lease("offer", 5)
    led.word("accepted", "GPU-5")
    led.line(r"^generation 2 rank 0 of 2 root 0 state True at boundary")
    led.line("runs on 2 GPUs$")
    led.lease("recall", 5)
    led.line("GPU 5 is asked back: bob$")
    led.word("left", "GPU-5")
    led.line(r"^generation 3 rank 0 of 1")
    assert_left(led, 0)


def test_a_spare_gets_the_next_gpu_and_ends_with_the_task(lead: Callable[..., Led]) -> None:
    led = lead()
    led.await_workers(2)
    pids = [*led.workers().values()]
    led.lease("offer", 5)
    led.line(r"^(\[worker 1\] )?given GPU-5$")
    led.line(r"^\[worker 1\] generation 2 rank 1 of 2 root 0 state True")
    led.await_workers(3)
    pids += [led.workers()[2]]
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT
    gone(*pids)


def test_a_worker_that_does_not_leave_is_killed_at_its_deadline(lead: Callable[..., Led]) -> None:
    led = lead("--deaf", gpus=2)
    led.line("runs on 2 GPUs$")
    led.lease("recall", 1, within_s=0.5)
    led.line("worker 1 was killed, since it did not leave GPU 1 in time")
    led.word("left", "GPU-1")
    assert_left(led, 0)


IMPORTS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from nodemgr_client import elastic
print("imported", flush=True)
time.sleep(1_000)
"""


def test_a_worker_that_still_loads_its_data_goes_at_once(
    lead: Callable[..., Led], tmp_path: Path
) -> None:
    """A script with a checkpoint of its own would have until the deadline, and start anew."""
    script = tmp_path / "imports.py"
    script.write_text(IMPORTS)
    site = str(Path(__file__).parents[2] / "sitecustomize")
    led = lead(site, gpus=2, script=script, options=f"--checkpoint {tmp_path / 'own'}")
    led.line("imported", times=2)
    pid = led.workers()[0]
    led.lease("recall", 1)
    led.line("worker 1 was ended, .* before elastic.* was reached: it had nothing to lose")
    led.word("left", "GPU-1")
    assert led.workers() == {0: pid}


def test_a_stopped_worker_is_named(lead: Callable[..., Led]) -> None:
    led = lead(gpus=2)
    led.line("runs on 2 GPUs$")
    pid = led.workers()[1]
    os.kill(pid, signal.SIGSTOP)
    led.line(f"worker 1 was stopped by a signal, .*: kill -CONT {pid}$")
    os.kill(pid, signal.SIGCONT)
    led.send(signal.SIGTSTP)
    os.waitid(os.P_PID, led.process.pid, os.WSTOPPED)
    led.send(signal.SIGCONT)
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT
    stopped = [line for line in led.lines if "was stopped by" in line]
    assert len(stopped) == 1, "the leader has stopped them itself"


def test_a_withdrawn_recall_gives_the_gpu_a_new_worker(lead: Callable[..., Led]) -> None:
    led = lead("--deaf", gpus=2)
    led.line("runs on 2 GPUs$")
    led.lease("recall", 1)
    led.line(r"^generation 2 rank 0 of 1")
    led.lease("withdraw", 1)
    led.line("GPU 1 stays with this task")
    os.kill(led.workers()[1], signal.SIGKILL)
    led.line(r"of 2 root 0 state True")
    assert_left(led, 0, 2)


def test_a_killed_worker_0_costs_the_others_nothing(lead: Callable[..., Led]) -> None:
    led = lead(gpus=2)
    led.line("runs on 2 GPUs$")
    os.kill(led.workers()[0], signal.SIGKILL)
    led.line("worker 0 ended with signal SIGKILL")
    led.line(r"^generation 2 rank 0 of 1 root 1 state True at now$")
    led.line(r"^generation 3 rank 0 of 2 root 1 state True at boundary$")
    led.line(r"^\[worker 2\] generation 3 rank 1 of 2 root 1")


def test_the_workers_of_a_killed_leader_end_with_what_they_started(
    lead: Callable[..., Led],
) -> None:
    led = lead("--child", gpus=2)
    led.line("runs on 2 GPUs$")
    workers = led.workers().values()
    pids = [*workers, *(child for worker in workers for child in children(worker))]
    assert len(pids) >= 4, "two workers and their children; a spare may be there already"
    led.send(signal.SIGKILL)
    assert led.process.wait() == -signal.SIGKILL
    gone(*pids)


def test_the_directory_of_a_killed_leader_is_removed_by_the_next(
    lead: Callable[..., Led], tmp_path: Path
) -> None:
    led = lead()
    led.line("runs on 1 GPU$")
    (left,) = tmp_path.glob("nodemgr-elastic-*")
    beside = lead()
    beside.line("runs on 1 GPU$")
    assert left.exists()
    led.send(signal.SIGKILL)
    led.process.wait()
    lead().line("runs on 1 GPU$")
    assert not left.exists()
    assert len(list(tmp_path.glob("nodemgr-elastic-*"))) == 2


def test_an_interrupt_ends_all_processes(lead: Callable[..., Led]) -> None:
    led = lead("--child", gpus=2)
    led.line("runs on 2 GPUs$")
    workers = led.workers().values()
    pids = [*workers, *(child for worker in workers for child in children(worker))]
    assert len(pids) >= 4, "two workers and their children; a spare may be there already"
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT
    gone(*pids)
    assert led.words[-1] == ("release", "")
    assert not list(led.directory.glob("nodemgr-elastic-*"))


def test_a_worker_that_ends_takes_its_children_along(lead: Callable[..., Led]) -> None:
    led = lead("--child", gpus=2)
    led.line("runs on 2 GPUs$")
    (child,) = children(led.workers()[1])
    os.kill(led.workers()[1], signal.SIGKILL)
    gone(child)


def test_a_failed_worker_is_replaced(lead: Callable[..., Led]) -> None:
    led = lead("--fail", "1", gpus=2)
    led.line("worker 1 ended with exit code 3")
    led.line(r"^\[worker 2\] generation \d+ rank 1 of 2 root 0 state True")


def test_the_task_ends_with_the_code_of_a_script_that_fails_everywhere(
    lead: Callable[..., Led], tmp_path: Path
) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys; print('no data'); sys.exit(4)\n")
    led = lead(gpus=2, script=script)
    assert led.end() == 4
    led.line("no data")


def test_a_finished_training_ends_with_0(lead: Callable[..., Led]) -> None:
    led = lead("--done", "1", gpus=2)
    assert led.end() == 0
    assert led.words[-1] == ("release", "")


def test_a_lost_lease_ends_the_task(lead: Callable[..., Led]) -> None:
    led = lead(gpus=2)
    led.line("runs on 2 GPUs$")
    led.lease("lost")
    assert led.end() == 1
    led.line("the task has lost its GPUs: an administrator took it away")


def test_words_to_a_manager_that_was_away_are_repeated(lead: Callable[..., Led]) -> None:
    led = lead()
    led.lease("offer", 3)
    led.word("accepted", "GPU-3")
    led.words.clear()
    led.lease("rejoin")
    led.word("accepted", "GPU-3")


def test_a_packet_that_is_no_word_harms_nothing(lead: Callable[..., Led]) -> None:
    led = lead("--garbage", gpus=2)
    led.line("runs on 2 GPUs$")


def test_a_command_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    led = Led(tmp_path, "/no/such/program", gpus=1)
    try:
        led.line("elastic: /no/such/program could not be started [(]No such file or directory[)]")
        assert led.end() == 127
    finally:
        led.close()


def test_a_path_that_is_too_long_for_sockets_is_one_line(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir()
    led = Led(directory, str(TRAINEE))
    try:
        led.line(
            r"no directory for the sockets of the workers \(AF_UNIX path too long\); free space"
        )
        assert led.end() == 1
    finally:
        led.close()
    assert list(directory.iterdir()) == []
