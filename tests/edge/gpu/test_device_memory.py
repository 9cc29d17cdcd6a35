"""One GPU's memory in use: of each process, and of no process."""

from __future__ import annotations

import pytest

from nodemgr.edge.gpu import device_memory
from nodemgr.edge.gpu.device_memory import DeviceMemory
from tests.edge.gpu.test_gpu_inventory import (
    GIB,
    Driver,
    FunctionNotFound,
    NotSupported,
    NvmlError,
    VersionMismatch,
    used,
)


def read(driver: Driver) -> DeviceMemory:
    return device_memory.read(driver, "GPU-a")


def test_what_no_process_explains_and_the_driver_does_not_reserve_has_no_owner() -> None:
    driver = Driver()
    driver.memory = [(7 * GIB, GIB)]
    driver.compute["GPU-a"] = [used(10, 2 * GIB), used(11, 3 * GIB)]
    memory = read(driver)
    assert (memory.used_bytes, memory.ownerless_bytes) == (8 * GIB, 2 * GIB)
    driver.compute["GPU-a"].append(used(12, 4 * GIB))
    assert read(driver).ownerless_bytes == 0, "the lists are younger than the sum"


def test_a_process_that_ends_between_the_questions_leaves_nothing_without_an_owner() -> None:
    driver = Driver()
    driver.memory = [(5 * GIB, GIB), (0, GIB)]
    assert read(driver).ownerless_bytes == 0


def test_memory_that_is_allocated_between_the_questions_is_not_counted() -> None:
    driver = Driver()
    driver.memory = [(3 * GIB, 0), (60 * GIB, 0)]
    assert read(driver).ownerless_bytes == 3 * GIB


@pytest.mark.parametrize("refusal", [FunctionNotFound, NotSupported, VersionMismatch])
def test_a_driver_that_does_not_tell_its_reserve_has_no_answer(refusal: type[NvmlError]) -> None:
    driver = Driver()
    driver.memory, driver.second_form = [(7 * GIB, GIB)], refusal
    memory = read(driver)
    assert (memory.used_bytes, memory.ownerless_bytes) == (8 * GIB, None)


def test_a_process_without_a_figure_leaves_no_answer() -> None:
    driver = Driver()
    driver.memory = [(7 * GIB, GIB)]
    driver.compute["GPU-a"] = [used(10, None)]
    assert (read(driver).ownerless_bytes, read(driver).unmeasured) == (None, {10})


def test_a_gpu_that_does_not_answer_is_an_error() -> None:
    driver = Driver()
    driver.lost = {"GPU-a"}
    with pytest.raises(NvmlError):
        read(driver)
