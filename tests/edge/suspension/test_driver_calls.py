"""The driver's calls: their names for errors, and drivers that lack them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemgr import simulator
from nodemgr.edge.suspension.driver_calls import DriverCalls, NoCalls
from tests.sim.built import built_libraries

__all__ = ["built_libraries"]


def test_a_driver_that_is_absent_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCalls, match=r"libcuda\.so\.1"):
        DriverCalls(str(tmp_path / "libcuda.so.1"))


def test_a_driver_without_the_calls_is_old() -> None:
    with pytest.raises(NoCalls, match="old"):
        DriverCalls("libc.so.6")


def test_a_driver_that_finds_no_node_names_its_error(tmp_path: Path) -> None:
    with simulator.create(tmp_path, 1, 1 << 30):
        (tmp_path / simulator.STATE_FILE).unlink()
        with pytest.raises(NoCalls, match="cuInit: CUDA_ERROR_"):
            DriverCalls(str(tmp_path / "libcuda.so.1"))
