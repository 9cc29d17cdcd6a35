"""The gate by rules of the devices controller (cgroup v1), on real cgroups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.edge.gate import cgroup_v1
from nodemgr.edge.kernel.cgroups import Hierarchy
from nodemgr.edge.kernel.device_nodes import DeviceNode, Nodes
from tests.gate.conftest import Probe

NODES = Nodes(237, {0: frozenset({3, 4})})
GPU0, GPU1, CONTROL, CAP = (
    DeviceNode(195, 0),
    DeviceNode(195, 1),
    DeviceNode(195, 255),
    DeviceNode(237, 3),
)
RUNTIME_RULES = ["c *:* m", "b *:* m", "c 1:3 rwm", "c 195:255 rwm"]
"""The rules that a runtime gives every container, and its NVIDIA part beside them."""

CASES = {
    "privileged": None,
    "a rule for each node": [*RUNTIME_RULES, "c 195:0 rwm", "c 195:1 rw", "c 237:3 rw"],
    "one rule for all GPUs": [*RUNTIME_RULES, "c 195:* rwm", "c 237:* rwm"],
    "no GPU was given": RUNTIME_RULES,
}


def restrict(cgroup: Path, rules: list[str] | None) -> None:
    """As a runtime does; None: everything is allowed."""
    if rules is not None:
        (cgroup / "devices.deny").write_text("a")
        for rule in rules:
            (cgroup / "devices.allow").write_text(rule)


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES)
def test_exactly_what_is_allowed_opens(
    rules: list[str] | None, cgroup: Callable[[Hierarchy], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe = cgroup(Hierarchy.DEVICES), make_probe()
    restrict(place, rules)
    (place / "inner").mkdir()
    probe.enter(place / "inner")
    allowed: list[set[DeviceNode]] = [set(), {GPU1}, {GPU0, CAP}, set()]
    for devices in allowed:
        for _ in range(2):  # to say it again changes nothing
            cgroup_v1.settle(place, NODES, devices)
            assert {device for device in (GPU0, GPU1, CAP) if probe.opens(device)} == devices
        assert probe.opens(CONTROL)
        assert probe.order("open /dev/null") == "OK"


def test_a_node_can_still_be_made(
    cgroup: Callable[[Hierarchy], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe = cgroup(Hierarchy.DEVICES), make_probe()
    restrict(place, CASES["one rule for all GPUs"])
    cgroup_v1.settle(place, NODES, set())
    probe.enter(place)
    made = Path(f"/dev/shm/{place.name}")
    try:
        assert probe.order(f"mknod {made} 195 0") == "OK"
        assert probe.order(f"open {made}") == "EPERM"
    finally:
        made.unlink()


@pytest.mark.parametrize("rule", ["c *:* rwm", "c *:0 r"])
def test_a_rule_from_which_no_gpu_can_be_taken_is_refused(
    rule: str, cgroup: Callable[[Hierarchy], Path]
) -> None:
    place = cgroup(Hierarchy.DEVICES)
    restrict(place, [rule])
    with pytest.raises(cgroup_v1.RulesTooWide, match=r"start the container without it"):
        cgroup_v1.settle(place, NODES, set())


def test_a_container_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cgroup_v1.settle(tmp_path / "gone", NODES, set())
