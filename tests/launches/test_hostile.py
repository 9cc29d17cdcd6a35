"""A gated process that rewrites the shared words in a loop: others are delayed, never stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nodemgr import simulator
from tests.launches.gated import BEST_EFFORT, URGENT, GatedWorld, Share
from tests.shim.world import ROOT, compiled

SOURCE = ROOT / "bench" / "programs" / "hostile.c"
MODES = ("garbage", "zero", "ones", "urgent", "virtual", "token", "pass", "progress", "flags")
LAUNCHES, LONG_LAUNCHES = 3, 400


@contextmanager
def hostile(gated: GatedWorld, mode: str, share: Share) -> Iterator[None]:
    """From its own lease, with its own mapping of the words."""
    linked = f"-Wl,--no-as-needed,{simulator.library_directory() / 'libcuda.so.1'}"
    program = compiled(SOURCE.read_text(), linked)
    gated.manager.share = share
    with subprocess.Popen(
        [str(program), mode], env=gated.world.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def go_on(gated: GatedWorld, mode: str, share: Share, launches: int) -> None:
    tenants = [gated.start(each, "step", "sleep_us_50") for each in (Share(45), Share(45))]
    for tenant in tenants:
        tenant.go()
        assert (tenant.do("launch 2"), tenant.do("wait")) == (0, 0)
    with hostile(gated, mode, share):
        for _ in range(launches):
            for tenant in tenants:
                tenant.say("launch 1")
            assert [int(tenant.hear()) for tenant in tenants] == [0, 0]
        assert [tenant.do("wait") for tenant in tenants] == [0, 0]
    for tenant in tenants:
        assert (tenant.do("launch 20"), tenant.do("wait")) == (0, 0), "once it is gone"


@pytest.mark.parametrize("mode", MODES)
def test_whatever_a_client_writes_the_launches_of_others_go_on(
    gated: GatedWorld, mode: str
) -> None:
    go_on(gated, mode, Share(10, BEST_EFFORT), LAUNCHES)


def test_a_latency_sensitive_client_that_only_pretends_to_work_stops_no_other(
    gated: GatedWorld,
) -> None:
    go_on(gated, "urgent", Share(10, URGENT), LAUNCHES)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_for_a_long_time_too(gated: GatedWorld, mode: str) -> None:
    go_on(gated, mode, Share(10, BEST_EFFORT), LONG_LAUNCHES)
