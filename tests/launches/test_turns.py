"""Processes that take turns: closed and suspended gates, priority, and ends at any moment."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from nodemgr import simulator
from tests.launches.gated import (
    BEST_EFFORT,
    CLOSED,
    FENCED,
    OPEN,
    PAUSED,
    SUSPENDED,
    URGENT,
    GatedWorld,
    Share,
    Tenant,
    launching_program,
)
from tests.shim.world import compiled
from tests.support.limits import WAIT_LIMIT_S, until

NOT_PERMITTED = 800
PROGRAMS = Path(__file__).with_name("programs")
STEP = ("step", "sleep_us_50")
HALF = Share(50)
TOGETHER_NS = 600_000_000


def waits(gated: GatedWorld, tenant: Tenant) -> None:
    until(lambda: gated.gate.use(gated.slot(tenant)).waiting_since_ns)


def step(gated: GatedWorld, share: Share = HALF) -> Tenant:
    tenant = gated.start(share, *STEP)
    tenant.go()
    return tenant


def test_a_closed_gate_holds_a_launch_until_it_opens(gated: GatedWorld) -> None:
    tenant = step(gated)
    slot = gated.slot(tenant)
    gated.gate.set(slot, Share(50), CLOSED)
    tenant.say("launch 1")
    waits(gated, tenant)
    assert gated.gate.use(slot).launches == 0
    gated.gate.set(slot, Share(50))
    assert int(tenant.hear()) == 0
    assert gated.gate.use(slot).launches == 1
    assert gated.gate.use(slot).waiting_since_ns == 0


@pytest.mark.parametrize(
    ("state", "percent", "reason"),
    [
        (
            CLOSED,
            0,
            "it is best effort, and other tasks have all compute of a GPU that it holds; they go on"
            " when compute is free again",
        ),
        (
            PAUSED,
            50,
            "it used more than its share, 50 % of the GPU, while another task waited; they go on"
            " when the excess is paid back",
        ),
        (
            CLOSED,
            50,
            "the manager counts it as stalled, because its processes sent no beat within the"
            " timeout; they go on at the next beat",
        ),
    ],
    ids=["no compute", "overuse", "stalled"],
)
def test_a_long_wait_prints_one_line_with_its_reason(
    gated: GatedWorld, state: int, percent: int, reason: str
) -> None:
    tenant = step(gated)
    slot = gated.slot(tenant)
    gated.gate.set(slot, Share(percent), state)
    tenant.say("launch 1")
    assert tenant.process.stderr is not None
    line = tenant.process.stderr.readline()
    gated.gate.set(slot, Share(50))
    assert int(tenant.hear()) == 0
    tenant.say("stop")
    rest = tenant.process.communicate(timeout=WAIT_LIMIT_S)[1]
    assert line == f"nodemgr: this task's GPU launches wait: {reason}\n"
    assert rest == ""


@pytest.mark.parametrize("state", [CLOSED, PAUSED])
def test_gates_that_a_dead_manager_closed_open(
    make_gated: Callable[..., GatedWorld], state: int
) -> None:
    gated = make_gated(beats=False)
    tenant = step(gated)
    gated.gate.set(gated.slot(tenant), Share(50), state)
    assert tenant.do("launch 1") == 0


def test_a_suspended_process_asks_for_its_resumption(gated: GatedWorld) -> None:
    tenant = step(gated)
    slot = gated.slot(tenant)
    gated.gate.set(slot, Share(50), SUSPENDED)
    tenant.say("launch 1")
    gated.manager.await_verb("ASK")
    asked = [each for each in gated.manager.received if each.verb == "ASK"]
    assert {(each.text("what"), each.text("argument")) for each in asked} == {("resume", "t1")}
    gated.gate.set(slot, Share(50))
    assert int(tenant.hear()) == 0


def test_a_fenced_process_is_refused_and_the_others_get_the_fresh_pages(
    gated: GatedWorld,
) -> None:
    offender, other = step(gated), step(gated)
    assert (offender.do("launch 1"), other.do("launch 1")) == (0, 0)
    gated.gate.set(gated.slot(offender), Share(0), FENCED)
    gated.gate.replace()
    assert offender.do("launch 1") == NOT_PERMITTED
    assert other.do("launch 1") == 0, "before it has the fresh pages"
    gated.manager.slots.clear()
    gated.manager.grant_again()
    until(lambda: other.do("launch 1") == 0 and gated.gate.use(gated.slot(other)).launches > 0)


def test_a_share_that_changes_reaches_a_running_process(gated: GatedWorld) -> None:
    tenant = step(gated, Share(100))
    assert tenant.do("launch 4") == 0
    assert tenant.do("wait") == 0
    gated.gate.set(gated.slot(tenant), Share(1))
    assert tenant.do("launch 4") == 0


def test_gpu_time_is_measured(gated: GatedWorld) -> None:
    tenant = gated.start(Share(100), "step", "sleep_ms_3")
    tenant.go()
    for _ in range(5):
        assert (tenant.do("launch 1"), tenant.do("wait")) == (0, 0)
    slot = gated.slot(tenant)
    until(lambda: gated.gate.use(slot).in_flight_ns == 0)
    assert gated.gate.use(slot).used_ns >= 5 * 3_000_000 * 0.99
    assert gated.gate.use(slot).last_activity_ns > 0


def test_a_long_kernel_takes_no_time_on_fresh_pages_that_they_did_not_have(
    gated: GatedWorld,
) -> None:
    """The manager would see an impossible figure, on the pages of one environment."""
    tenant = gated.start(Share(100), "step", "sleep_ms_1500")
    tenant.go()
    assert tenant.do("launch 1") == 0
    until(lambda: gated.busy_ns(tenant) > 500_000_000)
    replaced_ns = time.monotonic_ns()
    gated.gate.replace()
    gated.manager.slots.clear()
    gated.manager.grant_again()
    until(lambda: tenant.do("launch 1") == 0 and gated.gate.use(gated.slot(tenant)).launches > 0)
    tenant.signal(signal.SIGSTOP)  # it sees the first kernel's end while the second one runs
    until(lambda: gated.busy_ns(tenant) > 1_700_000_000)
    tenant.signal(signal.SIGCONT)
    assert tenant.do("wait") == 0
    use = gated.gate.use(gated.slot(tenant))
    assert 0 < use.used_ns <= time.monotonic_ns() - replaced_ns


def stream(gated: GatedWorld, share: Share, kernel: str) -> Tenant:
    """Launches until the test ends: the simulator forgets the GPU time of a process that ended."""
    return gated.start(share, "stream", kernel, 1_000_000, 1_000_000)


def run_together(gated: GatedWorld, *tenants: Tenant, shared: Callable[[list[int]], bool]) -> None:
    """Until they have had the GPU for some time, and divided it so.

    In a time in which the machine lets one of them not run, the others have its share.
    """
    for tenant in tenants:
        tenant.go()
    end = time.monotonic() + WAIT_LIMIT_S
    while not shared(busy_in_a_time(gated, tenants)):
        assert time.monotonic() < end


def busy_in_a_time(gated: GatedWorld, tenants: tuple[Tenant, ...]) -> list[int]:
    """The GPU time of each, until they have had TOGETHER_NS."""
    before = list(map(gated.busy_ns, tenants))
    until(lambda: sum(map(gated.busy_ns, tenants)) - sum(before) > TOGETHER_NS)
    return [gated.busy_ns(tenant) - had for tenant, had in zip(tenants, before, strict=True)]


def test_two_processes_share_and_the_larger_share_gets_more(gated: GatedWorld) -> None:
    small = stream(gated, Share(10), "sleep_us_500")
    large = stream(gated, Share(90), "sleep_us_100")
    run_together(gated, small, large, shared=lambda busy: busy[1] > 2 * busy[0])


def test_latency_sensitive_work_beyond_its_share_takes_turns(gated: GatedWorld) -> None:
    service = stream(gated, Share(20, URGENT), "sleep_us_100")
    sweep = stream(gated, Share(80, BEST_EFFORT), "sleep_us_100")
    run_together(gated, service, sweep, shared=lambda busy: busy[1] > busy[0])


def test_a_task_above_its_share_is_held_at_it_once_another_wants_the_gpu(
    gated: GatedWorld,
) -> None:
    """The source's pause, [42, 100]: by turns, and never of a task that is alone."""
    small, large = (
        stream(gated, Share(10), "sleep_us_100"),
        stream(gated, Share(90), "sleep_us_100"),
    )
    small.go()
    until(lambda: gated.busy_ns(small) > 100_000_000)
    run_together(gated, large, small, shared=lambda busy: busy[1] < busy[0] / 2)


def test_processes_of_one_task_divide_its_share(gated: GatedWorld) -> None:
    tenants = [
        stream(gated, Share(percent, group=group), "sleep_us_100")
        for percent, group in ((50, 8), (50, 8), (50, 9))
    ]
    assert len({gated.slot(tenant) for tenant in tenants}) == 3
    run_together(gated, *tenants, shared=lambda busy: busy[2] > max(busy[:2]))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_holder_that_stops_or_dies_holds_up_no_other(
    gated: GatedWorld, number: signal.Signals
) -> None:
    holder, other = step(gated), step(gated)
    gated.manager.at_death = lambda: None
    assert holder.do("launch 20") == 0
    holder.signal(number)
    assert other.do("launch 5") == 0
    assert other.do("wait") == 0
    if number is signal.SIGSTOP:
        holder.signal(signal.SIGCONT)
        assert holder.do("launch 20") == 0
        assert holder.do("wait") == 0


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_stops_or_dies_in_the_gate_holds_up_no_other(
    gated: GatedWorld, number: signal.Signals
) -> None:
    waiting, other = step(gated), step(gated)
    gated.gate.set(gated.slot(waiting), Share(50), CLOSED)
    waiting.say("launch 1")
    waits(gated, waiting)
    gated.gate.set(gated.slot(waiting), Share(50))
    waiting.signal(number)
    for _ in range(5):
        assert (other.do("launch 20"), other.do("wait")) == (0, 0)
    if number is signal.SIGSTOP:
        waiting.signal(signal.SIGCONT)
        assert int(waiting.hear()) == 0


def test_latency_sensitive_work_closes_the_gate_of_the_others(gated: GatedWorld) -> None:
    urgent = gated.start(Share(50, URGENT), "step", "sleep_ms_20")
    urgent.go()
    effort = step(gated, Share(50, BEST_EFFORT))
    slot, answer = gated.slot(effort), effort.process.stdout
    is_waiting = False
    while not is_waiting:  # the urgent work may have ended before a slow machine asks for the other
        assert urgent.do("launch 3") == 0
        effort.say("launch 1")
        until(lambda: gated.gate.use(slot).waiting_since_ns or select([answer], [], [], 0)[0])
        is_waiting = not select([answer], [], [], 0)[0]
        assert urgent.do("wait") == 0
        assert int(effort.hear()) == 0


def test_a_dead_process_leaves_no_priority_behind(gated: GatedWorld) -> None:
    urgent = gated.start(Share(50, URGENT), "step", "sleep_ms_20")
    urgent.go()
    effort = step(gated, Share(50, BEST_EFFORT))
    gated.manager._bury = lambda seat: None  # type: ignore[method-assign]
    assert urgent.do("launch 1") == 0
    urgent.signal(signal.SIGKILL)
    assert effort.do("launch 1") == 0


@contextmanager
def hostile(gated: GatedWorld) -> Iterator[None]:
    """A process that rewrites the shared words in a loop."""
    program = (
        "import mmap, os, random, sys\n"
        "turns = mmap.mmap(int(sys.argv[1]), 0)\n"
        "chance = random.Random(5)\n"
        "print('writes', flush=True)\n"
        "while True:\n"
        "    turns[:] = chance.randbytes(len(turns))\n"
    )
    fd = gated.gate.native.turns_fd
    command = [sys.executable, "-S", "-c", program, str(fd)]
    with subprocess.Popen(command, pass_fds=(fd,), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        try:
            yield
        finally:
            process.kill()


def test_garbage_in_the_shared_words_stops_no_process(gated: GatedWorld) -> None:
    one, other = step(gated, Share(30)), step(gated, Share(70))
    with hostile(gated):
        for tenant in (one, other, one, other):
            assert tenant.do("launch 10") == 0
            assert tenant.do("wait") == 0
    assert (one.do("launch 10"), other.do("launch 10")) == (0, 0)


def test_a_word_at_its_most_stops_no_process(gated: GatedWorld) -> None:
    tenant = step(gated)
    with mmap.mmap(gated.gate.native.turns_fd, 0) as turns:
        turns[:] = b"\xff" * len(turns)
        assert (tenant.do("launch 40"), tenant.do("wait")) == (0, 0)


def linked() -> str:
    return f"-Wl,--no-as-needed,{simulator.library_directory() / 'libcuda.so.1'}"


def test_a_fork_while_a_thread_waits_in_the_gate(gated: GatedWorld) -> None:
    program = compiled((PROGRAMS / "forks.c").read_text(), linked())
    gated.manager.share = Share(50)
    process = subprocess.Popen(
        [str(program)], env=gated.world.environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tenant = Tenant(process)
    gated.tenants.append(tenant)
    assert tenant.hear() == "ready"
    slot = gated.slot(tenant)
    gated.gate.set(slot, Share(50), CLOSED)
    tenant.go()
    assert tenant.hear() == "started"
    waits(gated, tenant)
    tenant.go()
    assert tenant.hear() == "child 0"
    gated.gate.set(slot, Share(50), OPEN)
    assert tenant.hear() == "launched 0"


def crossed_rounds(gated: GatedWorld, rounds: int) -> None:
    program = launching_program(PROGRAMS / "crossed.c")
    tenants = []
    for percent in (40, 60):
        gated.manager.share = Share(percent)
        process = subprocess.Popen(
            [str(program), str(rounds)], env=gated.world.environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        tenants.append(Tenant(process))
        gated.tenants.append(tenants[-1])
        assert tenants[-1].hear() == "ready"
    for tenant in tenants:
        tenant.go()
    assert [tenant.hear() for tenant in tenants] == ["done", "done"]


def test_streams_that_wait_for_each_other_in_two_processes(gated: GatedWorld) -> None:
    crossed_rounds(gated, 200)


@pytest.mark.slow
def test_streams_that_wait_for_each_other_ten_thousand_times(gated: GatedWorld) -> None:
    crossed_rounds(gated, 10_000)


PYTHON = """
import ctypes, signal
cuda = ctypes.{loader}("libcuda.so.1")
context, module, kernel = (ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"sleep_us_5") == 0
def launch():
    return cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
print("ready", flush=True)
input()
try:
    print("result", launch(), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print("result", launch(), flush=True)
"""


@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])  # without and with the GIL
def test_ctrl_c_ends_a_wait_in_the_gate(gated: GatedWorld, loader: str) -> None:
    gated.manager.share = Share(50)
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PYTHON.format(loader=loader)],
        env=gated.world.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tenant = Tenant(process)
    gated.tenants.append(tenant)
    assert tenant.hear() == "ready"
    slot = gated.slot(tenant)
    gated.gate.set(slot, Share(50), CLOSED)
    tenant.go()
    waits(gated, tenant)
    tenant.signal(signal.SIGINT)
    assert tenant.hear() == "interrupted"
    gated.gate.set(slot, Share(50))
    tenant.go()
    assert tenant.hear() == "result 0"


def test_the_thread_of_the_gate_ends_with_the_program(gated: GatedWorld) -> None:
    """A main thread that ends before the process: no thread of the library keeps it alive."""
    tenant = step(gated)
    assert tenant.do("launch 3") == 0
    tenant.say("stop")
    tenant.process.communicate(timeout=WAIT_LIMIT_S)
    assert tenant.process.returncode == 0
