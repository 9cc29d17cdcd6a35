"""The simulated runtime runs on the simulator as its sources are."""

from __future__ import annotations

from tests.sim.built import built_libraries

__all__ = ["built_libraries"]
