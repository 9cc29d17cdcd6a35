"""A gated process that rewrites the shared words in a loop: others are delayed, never stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nodemgr import simulator
from tests.launches.gated import BEST_EFFORT, URGENT, GatedWorld, Share, tenant_program
from tests.shim.world import GIB, ROOT, compiled
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

SOURCE = ROOT / "bench" / "programs" / "hostile.c"
MODES = ("garbage", "zero", "ones", "urgent", "virtual", "token", "pass", "progress", "flags")
LAUNCHES, LONG_LAUNCHES = 3, 400


def hostile_program() -> str:
    linked = f"-Wl,--no-as-needed,{simulator.library_directory() / 'libcuda.so.1'}"
    return str(compiled(SOURCE.read_text(), linked))


@contextmanager
def hostile(gated: GatedWorld, mode: str, share: Share) -> Iterator[None]:
    """From its own lease, with its own mapping of the words."""
    gated.manager.share = share
    with subprocess.Popen(
        [hostile_program(), mode], env=gated.world.environment(), stdout=subprocess.PIPE, text=True
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


@pytest.mark.parametrize(
    ("mode", "enforce", "offence"),
    [
        ("virtual", "fence", "garbled_gate"),
        ("flags", "kill", "garbled_gate"),
        ("progress", "kill", "garbled_gate"),
        ("bypass", "kill", "over_share"),
    ],
)
def test_the_manager_names_the_offender_and_applies_its_policy(
    make_manager: Callable[..., Manager], mode: str, enforce: str, offence: str
) -> None:
    node = make_manager(simulate="1x4GiB")
    for env, percent in (("alice", 10), ("bob", 90)):
        node.call(
            "quota_set", env=env, gpus=1, memory_bytes=GIB, compute_percent=percent,
            enforce=enforce,
        )  # fmt: skip
    honest = node.spawn("bob", [str(tenant_program()), "stream", "sleep_us_50", "600000", "20"])
    assert honest.stdout is not None
    assert honest.stdin is not None
    assert honest.stdout.readline() == "ready\n"
    honest.stdin.write("go\n")
    honest.stdin.flush()
    offender = node.spawn("alice", [hostile_program(), mode])
    assert offender.stdout is not None
    assert offender.stdout.readline() == "ready\n"
    violation = node.events(since=0).expect("audit.violation")
    assert (violation["env"], violation["offence"]) == ("alice", offence)
    assert violation["pid"] == offender.pid
    if enforce == "kill":
        assert offender.wait(WAIT_LIMIT_S) < 0
    else:
        assert violation["action"] == "fenced"
    found = node.call("events", since=0)["events"]
    assert {one["env"] for one in found if one["name"] == "audit.violation"} == {"alice"}
    assert honest.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_for_a_long_time_too(gated: GatedWorld, mode: str) -> None:
    go_on(gated, mode, Share(10, BEST_EFFORT), LONG_LAUNCHES)
