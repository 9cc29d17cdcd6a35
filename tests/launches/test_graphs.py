"""The expected time of a graph's launch: the sum of its kernels at first, then as measured."""

from __future__ import annotations

from tests.launches.gated import GatedWorld
from tests.launches.launcher import Launcher
from tests.shim.world import Probe

FOREVER = "sleep_ms_100000000"
FIRST_NS = 500_000
"""The expected time of a kernel that was never measured."""
KERNELS = 40


def in_flight_ns(gated: GatedWorld, probe: Probe) -> int:
    slot = gated.manager.slots[probe.process.pid][0]
    estimate_ns: int = gated.gate.use(slot).in_flight_ns
    return estimate_ns


def estimate_ns(gated: GatedWorld, launcher: Launcher, executable: int) -> int:
    """The expected time of a graph, which a kernel without an end keeps in the queue."""
    before_ns = in_flight_ns(gated, launcher.probe)
    assert launcher.call("cuGraphLaunch", executable, launcher.stream) == 0
    return in_flight_ns(gated, launcher.probe) - before_ns


def measure(launcher: Launcher) -> None:
    """Launches the kernel until its time is known."""
    for _ in range(8):
        assert launcher.launch() == 0
        assert launcher.call("cuStreamSynchronize", launcher.stream) == 0


def occupy(launcher: Launcher) -> None:
    """Keeps the stream busy to the end of the process."""
    kernel, launcher.kernel = launcher.kernel, launcher.function(FOREVER)
    assert launcher.launch() == 0
    launcher.kernel = kernel


def test_a_graph_of_unknown_kernels_counts_each_of_them(gated: GatedWorld) -> None:
    gated.gate.tune(100_000)
    with gated.world.probe() as probe:
        launcher = Launcher(probe, "dlsym")
        executable = launcher.graph(KERNELS)
        occupy(launcher)
        assert estimate_ns(gated, launcher, executable) == KERNELS * FIRST_NS
        probe.process.kill()


def test_a_graph_of_measured_kernels_counts_what_they_took(gated: GatedWorld) -> None:
    gated.gate.tune(100_000)
    with gated.world.probe() as probe:
        launcher = Launcher(probe, "dlsym", "sleep_us_100")
        measure(launcher)
        occupy(launcher)
        before_ns = in_flight_ns(gated, probe)
        assert launcher.launch() == 0
        kernel_ns = in_flight_ns(gated, probe) - before_ns
        assert kernel_ns != FIRST_NS
        executable = launcher.graph(KERNELS)
        assert estimate_ns(gated, launcher, executable) == KERNELS * kernel_ns
        probe.process.kill()


def test_a_graph_does_not_inherit_from_one_that_had_its_handle(gated: GatedWorld) -> None:
    gated.gate.tune(100_000)
    with gated.world.probe() as probe:
        launcher = Launcher(probe, "dlsym")
        short, long = launcher.captured(), launcher.captured(KERNELS)
        earlier = launcher.instantiated(short)
        for _ in range(8):
            assert launcher.call("cuGraphLaunch", earlier, launcher.stream) == 0
            assert launcher.call("cuStreamSynchronize", launcher.stream) == 0
        assert launcher.call("cuGraphExecDestroy", earlier) == 0
        executable = launcher.instantiated(long)
        assert executable == earlier, "the simulator gives the handle again"
        occupy(launcher)
        assert estimate_ns(gated, launcher, executable) == KERNELS * FIRST_NS
        probe.process.kill()


def run(launcher: Launcher, executable: int, times: int) -> None:
    for _ in range(times):
        assert launcher.call("cuGraphLaunch", executable, launcher.stream) == 0
        assert launcher.call("cuStreamSynchronize", launcher.stream) == 0


def test_a_changed_graph_counts_as_it_is_measured_next(gated: GatedWorld) -> None:
    """The first measurement counts whole, and not as four times what was learned before."""
    gated.gate.tune(100_000)
    with gated.world.probe() as probe:
        launcher = Launcher(probe, "dlsym", "sleep_us_10")
        executable = launcher.graph()
        run(launcher, executable, 8)
        launcher.kernel = launcher.function("sleep_ms_5")
        longer = launcher.captured()
        assert launcher.call("cuGraphExecUpdate", executable, longer, 0, probe.alloc(4)) == 0
        run(launcher, executable, 1)
        occupy(launcher)
        assert estimate_ns(gated, launcher, executable) > 4_000_000
        probe.process.kill()
