"""Every route of a launch passes the gate; an ungated process gets the driver's functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.launches.gated import CLOSED, GatedWorld, Share
from tests.launches.launcher import ROWS, Launcher, address
from tests.shim.world import Probe, World, every_row

ROUTES = ("linked", "dlsym", "getproc")
NEWEST, PER_THREAD = 13050, 2


@pytest.mark.parametrize("route", ROUTES)
def test_a_process_without_a_gate_reaches_the_driver_by_every_route(
    make_gated: Callable[..., GatedWorld], route: str
) -> None:
    """It is not counted in a gate, also where its grant has one."""
    gated = make_gated(settings={"gate": "0"})
    with gated.world.probe(route) as probe:
        launcher = Launcher(probe, route)
        results = {name: launcher.launch(name) for name in LAUNCHES}
        assert {name for name, result in results.items() if result} == ABSENT
        executable = launcher.graph()
        assert launcher.call("cuGraphLaunch", executable, launcher.stream) == 0
        assert launches(gated, probe) == 0


@pytest.mark.parametrize("route", ["dlsym", "getproc"])
def test_a_gated_process_gets_hooks(gated: GatedWorld, route: str) -> None:
    with gated.world.probe(started=False) as probe:
        assert {probe.tell("name", address(probe, name, route)) for name in ROWS} == {"?"}


def test_each_abi_is_answered_with_its_own_hook(gated: GatedWorld) -> None:
    """cuGetProcAddress by name, version and flags, at the versions of each ABI and the newest."""
    every = {row.name: row for row in every_row()}
    asked = {
        (row.base, version, flags)
        for row in every.values()
        if row.library == "CUDA"
        for version in (row.since, NEWEST)
        for flags in (0, PER_THREAD)
    }
    get = "cuGetProcAddress_v2"
    with (
        gated.world.probe(started=False, shim=False) as bare,
        gated.world.probe(started=False) as probe,
    ):
        hooked = {name: probe.resolve(name, "dlsym") for name in every}
        for base, version, flags in sorted(asked):
            expected = bare.tell("name", bare.look_up(get, base, version, flags))
            answer = probe.look_up(get, base, version, flags)
            if expected in hooked:
                assert answer == hooked[expected], (base, version, flags)
            else:
                assert probe.tell("name", answer) == expected, (base, version, flags)


def test_the_choice_stays_when_the_setting_changes(gated: GatedWorld) -> None:
    with gated.world.probe(started=False) as probe:
        hook = address(probe, "cuLaunchKernel", "dlsym")
        gated.manager.settings["gate"] = "0"
        gated.manager.write_conf()
        assert address(probe, "cuLaunchKernel_ptsz", "getproc") != 0
        assert address(probe, "cuLaunchKernel", "getproc") == hook


def launches(gated: GatedWorld, probe: Probe) -> int:
    count: int = gated.gate.use(gated.manager.slots[probe.process.pid][0]).launches
    return count


LAUNCHES = [name for name in ROWS if name.startswith("cuLaunch")]
ABSENT = {"cuLaunchCooperativeKernelMultiDevice", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"}
"""The simulated driver has stubs alone: the launch passes the gate, and fails there."""


@pytest.mark.parametrize("route", ROUTES)
def test_every_launch_passes_the_gate(gated: GatedWorld, route: str) -> None:
    with gated.world.probe(route) as probe:
        launcher = Launcher(probe, route)
        before = launches(gated, probe)
        for name in LAUNCHES:
            result = launcher.launch(name)
            assert (result == 0) == (name not in ABSENT), (name, result)
            assert launches(gated, probe) == before + 1, name
            before += 1
        executable = launcher.graph()
        assert launches(gated, probe) == before, "a launch under capture passes"
        for name in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
            assert launcher.call(name, executable, launcher.stream) == 0
            before += 1
            assert launches(gated, probe) == before, name
        assert launcher.call("cuStreamDestroy_v2", launcher.stream) == 0


def test_a_launch_under_capture_does_not_wait(gated: GatedWorld) -> None:
    with gated.world.probe() as probe:
        launcher = Launcher(probe, "dlsym")
        slot = gated.manager.slots[probe.process.pid][0]
        gated.gate.set(slot, Share(100), CLOSED)
        executable = launcher.graph()
        gated.gate.set(slot, Share(100))
        assert launcher.call("cuGraphLaunch", executable, launcher.stream) == 0


def test_a_grant_without_gates_launches_freely(make_gated: Callable[..., GatedWorld]) -> None:
    gated = make_gated(without_gates=True)
    with gated.world.probe() as probe:
        assert Launcher(probe, "dlsym").launch("cuLaunchKernel") == 0


def test_the_memory_hooks_stay_in_a_gated_process(gated: GatedWorld) -> None:
    world: World = gated.world
    with world.probe() as probe:
        probe.memory(1 << 20)
        world.agree(1 << 20)
