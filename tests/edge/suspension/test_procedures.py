"""Suspend and resume of several processes: order, undo, and a caller killed between two calls."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from nodemgr.edge.suspension.driver_calls import CallFailed, ProcessState
from nodemgr.edge.suspension.procedures import FAILED, Outcome, Procedures

RUNNING, LOCKED, OUT = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
PIDS = (11, 12, 13)
MOVES = {
    "lock": (RUNNING, LOCKED),
    "checkpoint": (LOCKED, OUT),
    "restore": (OUT, LOCKED),
    "unlock": (LOCKED, RUNNING),
}


class Killed(Exception):
    """The caller ends here."""


class Driver:
    """The states of processes, and refusals by call and PID."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(PIDS, RUNNING)
        self.refused: dict[tuple[str, int], str] = {}
        self.dead: set[int] = set()
        self.made: list[tuple[str, int]] = []
        self.left: int | None = None
        """Calls until the caller is killed."""

    def _count(self, name: str, pid: int) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        if pid in self.dead:
            raise CallFailed(name, pid, "CUDA_ERROR_NOT_INITIALIZED")

    def state(self, pid: int) -> ProcessState:
        self._count("state", pid)
        return self.states[pid]

    def _move(self, name: str, pid: int) -> None:
        self._count(name, pid)
        before, after = MOVES[name]
        if (name, pid) in self.refused:
            raise CallFailed(name, pid, self.refused[name, pid])
        if self.states[pid] is not before:
            raise CallFailed(name, pid, "CUDA_ERROR_ILLEGAL_STATE")
        self.made.append((name, pid))
        self.states[pid] = after

    def lock(self, pid: int, timeout_ms: int) -> None:
        assert timeout_ms == 7
        self._move("lock", pid)

    def checkpoint(self, pid: int) -> None:
        self._move("checkpoint", pid)

    def restore(self, pid: int) -> None:
        self._move("restore", pid)

    def unlock(self, pid: int) -> None:
        self._move("unlock", pid)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def procedures(driver: Driver) -> Procedures:
    return Procedures(driver, lambda pid: pid not in driver.dead, 7)


def test_all_are_locked_before_the_first_memory_goes(driver: Driver) -> None:
    assert procedures(driver).suspend(PIDS) == Outcome(None, True)
    assert driver.made == [*(("lock", pid) for pid in PIDS), *(("checkpoint", pid) for pid in PIDS)]


def test_all_are_restored_before_the_first_goes_on(driver: Driver) -> None:
    procedures(driver).suspend(PIDS)
    driver.made.clear()
    assert procedures(driver).resume(PIDS) == Outcome(None, False)
    assert driver.made == [*(("restore", pid) for pid in PIDS), *(("unlock", pid) for pid in PIDS)]


@pytest.mark.parametrize(("call", "pid"), [*itertools.product(("lock", "checkpoint"), PIDS)])
def test_a_failed_suspension_is_undone(driver: Driver, call: str, pid: int) -> None:
    driver.refused[call, pid] = "CUDA_ERROR_NOT_SUPPORTED"
    outcome = procedures(driver).suspend(PIDS)
    assert outcome.fault is not None
    assert (outcome.fault.call, outcome.fault.pid, outcome.fault.error) == (
        call, pid, "CUDA_ERROR_NOT_SUPPORTED",
    )  # fmt: skip
    assert not outcome.is_out
    assert set(driver.states.values()) == {RUNNING}


@pytest.mark.parametrize("pid", PIDS)
def test_a_failed_restore_puts_all_memory_out_again(driver: Driver, pid: int) -> None:
    procedures(driver).suspend(PIDS)
    driver.refused["restore", pid] = "CUDA_ERROR_OUT_OF_MEMORY"
    outcome = procedures(driver).resume(PIDS)
    assert outcome.fault is not None
    assert outcome.is_out
    assert set(driver.states.values()) == {OUT}


def test_memory_that_came_back_and_cannot_go_out_again_is_reported_as_in(driver: Driver) -> None:
    procedures(driver).suspend(PIDS)
    driver.refused["restore", 13] = "CUDA_ERROR_OUT_OF_MEMORY"
    driver.refused["checkpoint", 11] = "CUDA_ERROR_OPERATING_SYSTEM"
    assert not procedures(driver).resume(PIDS).is_out


def test_a_process_that_has_ended_is_left_out(driver: Driver) -> None:
    driver.dead.add(12)
    assert procedures(driver).suspend(PIDS) == Outcome(None, True)
    assert driver.states == {11: OUT, 12: RUNNING, 13: OUT}
    driver.dead.add(11)
    assert procedures(driver).resume(PIDS) == Outcome(None, False)
    assert driver.states[13] is RUNNING


def test_a_process_without_cuda_is_named(driver: Driver) -> None:
    procedures = Procedures(driver, lambda pid: True, 7)
    driver.dead.add(12)
    outcome = procedures.suspend(PIDS)
    assert outcome.fault is not None
    assert outcome.fault.pid == 12


def test_a_caller_killed_between_any_two_calls_is_followed_by_one_that_continues() -> None:
    steps = Counter[str]()
    for left in itertools.count():
        driver = Driver()
        for name, end in (("suspend", OUT), ("resume", RUNNING)):
            driver.left = left
            try:
                getattr(procedures(driver), name)(PIDS)
            except Killed:
                steps[name] += 1
            driver.left = None
            assert getattr(procedures(driver), name)(PIDS).fault is None
            assert set(driver.states.values()) == {end}
        if steps["suspend"] == left and steps["resume"] <= left:
            break
    assert steps["suspend"] > 10
    assert steps["resume"] > 10


def test_an_undo_that_is_cut_off_is_finished_by_the_next_caller() -> None:
    for left in range(40):
        driver = Driver()
        driver.refused["checkpoint", 13] = "CUDA_ERROR_NOT_SUPPORTED"
        driver.left = left
        try:
            procedures(driver).suspend(PIDS)
        except Killed:
            driver.left = None
            assert procedures(driver).suspend(PIDS).fault is not None
        assert set(driver.states.values()) == {RUNNING}


def test_a_process_that_the_driver_has_failed_is_named_and_the_others_go_on(
    driver: Driver,
) -> None:
    for name, before in (("suspend", RUNNING), ("resume", OUT)):
        driver.states.update(dict.fromkeys(PIDS, before))
        driver.states[12] = ProcessState.FAILED
        outcome = getattr(procedures(driver), name)(PIDS)
        assert outcome.fault is not None
        assert (outcome.fault.pid, outcome.fault.error) == (12, FAILED)
        assert not outcome.is_out
        assert driver.states == {11: RUNNING, 12: ProcessState.FAILED, 13: RUNNING}


def test_a_process_that_fails_in_a_call_is_named_for_that(driver: Driver) -> None:
    """The error of the call alone would say that the process goes on."""

    def checkpoint(pid: int) -> None:
        driver.states[pid] = ProcessState.FAILED
        raise CallFailed("checkpoint", pid, "CUDA_ERROR_NOT_SUPPORTED")

    driver.checkpoint = checkpoint  # type: ignore[method-assign]
    outcome = procedures(driver).suspend(PIDS)
    assert outcome.fault is not None
    assert (outcome.fault.pid, outcome.fault.error) == (11, FAILED)
    assert driver.states == {11: ProcessState.FAILED, 12: RUNNING, 13: RUNNING}


def test_giving_up_brings_all_back(driver: Driver) -> None:
    driver.states.update({11: OUT, 12: LOCKED})
    assert not procedures(driver).give_up_suspension(PIDS)
    assert set(driver.states.values()) == {RUNNING}
