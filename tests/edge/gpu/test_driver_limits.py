"""A driver without limits, or one that refuses them, is reported and costs nothing else.

In the doctor, and once in the log.
"""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import Config
from nodemgr.core.state.node_state import State
from nodemgr.edge.gpu.driver_limits import META, DriverLimits, Setter
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.cgroups import Hierarchies


def limits(setter: Setter | None, *remembered: str) -> tuple[DriverLimits, dict[str, str | None]]:
    store: dict[str, str | None] = dict.fromkeys(remembered, "1")
    return DriverLimits(State(Config()), list, setter, store.__setitem__, remembered), store


def test_an_older_driver_has_none() -> None:
    found, store = limits(None, META + '["GPU-0", "/c"]')
    found.settle()
    assert "the ledger alone holds" in found.line
    assert store == {META + '["GPU-0", "/c"]': "1"}


def test_no_cgroup_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: Hierarchies(None, {}))
    found, _ = limits(lambda uuid, cgroup, limit, then: pytest.fail("nothing can be limited"))
    found.settle()
    assert "no cgroup v2" in found.line


def test_what_is_left_of_an_earlier_manager_is_lifted_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: Hierarchies("/sys/fs/cgroup", {}))
    ordered = []

    def setter(uuid: str, cgroup: str, limit_bytes: int | None, then: object) -> None:
        ordered.append((uuid, cgroup, limit_bytes, then))

    found, store = limits(setter, META + '["GPU-0", "/c"]', "boot_id")
    found.settle()
    found.settle()
    ((uuid, cgroup, limit_bytes, then),) = ordered
    assert (uuid, cgroup, limit_bytes) == ("GPU-0", "/c", None)
    then("its cgroup is gone")  # type: ignore[operator]
    assert store == {META + '["GPU-0", "/c"]': None, "boot_id": "1"}
    assert found.fault is None
