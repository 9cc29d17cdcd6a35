"""The grant holds against races, deaths, forks and changes; each end of a lease is answered."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from nodemgr.edge.ledger.native_ledger import SlotState
from tests.shim.hooks.test_every_hook import keep_all, new_pool
from tests.shim.world import (
    GIB,
    LIBRARY,
    MIB,
    NO_DEVICE,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    World,
    compiled,
)
from tests.support.limits import WAIT_LIMIT_S

MakeWorld = Callable[..., World]

# -- races --


def racers(env: World, count: int, *, threads: int, steps: int) -> list[subprocess.Popen[str]]:
    program = compiled("race_threads.c")
    return [
        subprocess.Popen(
            [program, str(threads), str(steps), str(seed)], env=env.environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for seed in range(count)
    ]  # fmt: skip


def test_many_processes_and_threads_never_exceed_one_grant(make_world: MakeWorld) -> None:
    """By the simulator's own books at every instant, and all is given back at the end.

    No process is refused for ever.
    """
    env = make_world(limit=256 * MIB)
    running = racers(env, 6, threads=4, steps=1500)
    for process in running:
        assert process.stdout is not None
        successes, refusals, _ = map(int, process.stdout.readline().split())
        assert successes > 0
        assert refusals > 0
    env.agree(0)  # they have freed all, and live
    assert 0 < env.peak() <= 256 * MIB
    for process in running:
        _, stderr = process.communicate(timeout=WAIT_LIMIT_S)
        assert process.returncode == 0, stderr
        assert stderr.count("\n") == 1  # told once


def test_processes_that_are_killed_take_nothing_with_them(make_world: MakeWorld) -> None:
    env = make_world(limit=256 * MIB)
    for _ in range(4):
        running = racers(env, 4, threads=2, steps=0)
        env.manager.await_verb("BEAT", env.manager.verbs().count("BEAT") + 4)
        for process in running:
            process.kill()
            process.communicate()
        env.manager.await_no_seats()
        env.agree(0)
    assert 0 < env.peak() <= 256 * MIB


def test_a_limit_that_changes_meanwhile(make_world: MakeWorld) -> None:
    env = make_world(limit=128 * MIB)
    running = racers(env, 3, threads=2, steps=0)
    for limit in (64, 256, 16, 128):
        env.manager.set_limit(limit * MIB)
        env.manager.await_verb("BEAT", env.manager.verbs().count("BEAT") + 3)
    for process in running:
        process.kill()
        assert "racers:" not in process.communicate()[1]
    assert env.peak() <= 256 * MIB
    env.manager.await_no_seats()
    env.agree(0)


def test_a_pool_that_is_destroyed_while_others_allocate_from_it_leaves_nothing_charged(
    make_world: MakeWorld,
) -> None:
    env = make_world(limit=256 * MIB)
    program = subprocess.Popen(
        [compiled("destroyers.c"), "400"], env=env.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    assert int(program.stdout.readline()) >= 400
    env.agree(0)
    assert program.communicate(timeout=WAIT_LIMIT_S) == ("", "")
    assert 0 < env.peak() <= 256 * MIB


# -- one process --


def test_a_lower_limit_holds_from_the_next_allocation_on(env: World) -> None:
    with env.probe() as probe:
        free, total = probe.alloc(8), probe.alloc(8)
        address = probe.memory(500 * MIB)
        env.manager.set_limit(100 * MIB)
        assert probe.cuMemAlloc_v2(probe.alloc(8), 1) == OUT_OF_MEMORY
        assert probe.cuMemGetInfo_v2(free, total) == 0
        assert (probe.u64(free), probe.u64(total)) == (0, 500 * MIB)  # never less than is used
        assert probe.cuMemFree_v2(address) == 0
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB)


def test_a_whole_gpu_is_a_limit_like_any_other(make_world: MakeWorld) -> None:
    """Without a memory quota the driver is the first to refuse; its answer is the answer."""
    env = make_world(limit=8 * GIB)
    with env.probe() as probe:
        free, total = probe.alloc(8), probe.alloc(8)
        assert probe.cuMemGetInfo_v2(free, total) == 0
        assert probe.u64(free) < probe.u64(total) <= 8 * GIB  # the context
        assert probe.cuMemAlloc_v2(probe.alloc(8), probe.u64(free) + 4096) == OUT_OF_MEMORY
        env.agree(0)
        assert probe.end().stderr == ""


def test_a_failing_driver_is_charged_nothing(env: World) -> None:
    with env.probe() as probe:
        env.node.fail_next(0, 1)
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) != 0
        env.agree(0)
        assert probe.cuMemAlloc_v2(0, MIB) == 1  # no place for the answer
        assert probe.cuMemAlloc_v2(probe.alloc(8), 0) == 1
        assert probe.cuMemCreate(0, 2 * MIB, 0, 0) == 1
        env.agree(0)


def test_absurd_sizes_are_refused_like_large_ones(env: World) -> None:
    with env.probe() as probe:
        for size in (2**63, 2**64 - 1, 2**48, 2**48 - 1):
            assert probe.cuMemAlloc_v2(probe.alloc(8), size) == OUT_OF_MEMORY
            assert probe.cuMemAllocAsync(probe.alloc(8), size, 0) == OUT_OF_MEMORY
        assert (
            probe.cuMemAllocPitch_v2(probe.alloc(8), probe.alloc(8), 2**63, 2**63, 4)
            == OUT_OF_MEMORY
        )
        shape = struct.pack("<QQQiII4x", 2**40, 2**40, 2**40, 0x20, 4, 0)
        assert probe.cuArray3DCreate_v2(probe.alloc(8), probe.alloc(content=shape)) == OUT_OF_MEMORY
        env.agree(0)


def test_frees_that_the_driver_refuses_change_nothing(env: World) -> None:
    with env.probe() as probe, env.probe(shim=False, managed=False) as bare:
        address = probe.memory(MIB)
        for unknown in (0, 12345, address + 512, 2**64 - 4096):
            assert probe.cuMemFree_v2(unknown) == bare.cuMemFree_v2(unknown), unknown
            assert probe.cuMemFreeAsync(unknown, 0) == bare.cuMemFreeAsync(unknown, 0)
        env.agree(MIB)
        assert probe.cuMemFree_v2(address) == 0
        assert probe.cuMemFree_v2(address) == bare.cuMemFree_v2(12345)
        assert probe.cuMemRelease(4711) == bare.cuMemRelease(4711)
        assert probe.cuArrayDestroy(4712) == bare.cuArrayDestroy(4712)
        assert probe.cuMemUnmap(2 << 20, 2 << 20) == bare.cuMemUnmap(2 << 20, 2 << 20)
        env.agree(0)


def test_linear_memory_may_be_freed_in_stream_order(env: World) -> None:
    """Any number of times, without a wait for the stream."""
    with env.probe() as probe:
        for _ in range(100):
            assert probe.cuMemFreeAsync(probe.memory(100 * MIB), 0) == 0
        assert probe.call("cuCtxSynchronize") == 0
        env.agree(0)


def test_a_full_pool_serves_from_what_it_holds(env: World) -> None:
    """1 GiB is reserved and half of it free in the pool, which serves without the ledger."""
    with env.probe() as probe:
        pool = probe.alloc(8)
        assert probe.call("cuDeviceGetDefaultMemPool", pool, 0) == 0
        keep_all(probe, probe.u64(pool))
        halves = [probe.alloc(8), probe.alloc(8)]
        for half in halves:
            assert probe.cuMemAllocAsync(half, GIB // 2, 0) == 0
        assert probe.cuMemFreeAsync(probe.u64(halves[0]), 0) == 0
        assert probe.cuStreamSynchronize(0) == 0
        env.agree(GIB)
        assert probe.cuMemAllocAsync(halves[0], GIB // 2, 0) == 0
        env.agree(GIB)
        assert probe.cuMemAllocAsync(probe.alloc(8), 2 * MIB, 0) == OUT_OF_MEMORY
        env.agree(GIB)


def test_unused_pool_memory_is_given_up_where_other_memory_is_short(env: World) -> None:
    with env.probe() as probe:
        pool = new_pool(probe)
        keep_all(probe, pool)
        out = probe.alloc(8)
        assert probe.cuMemAllocFromPoolAsync(out, 900 * MIB, pool, 0) == 0
        assert probe.cuMemFreeAsync(probe.u64(out), 0) == 0
        env.agree(900 * MIB)
        assert probe.cuMemAlloc_v2(probe.alloc(8), 900 * MIB) == 0
        env.agree(900 * MIB)
        assert probe.cuMemAllocAsync(probe.alloc(8), 200 * MIB, 0) == OUT_OF_MEMORY
        env.agree(900 * MIB)


# -- several GPUs --


def test_memory_is_charged_where_it_lies(make_world: MakeWorld) -> None:
    env = make_world(devices=3)
    with env.probe() as probe:
        second = probe.alloc(content=struct.pack("<iiiiQ8x", 1, 0, 1, 1, 0))
        assert probe.cuMemCreate(probe.alloc(8), 2 * MIB, second, 0) == 0
        env.agree(2 * MIB, 1)
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB, 0)
        context = probe.alloc(8)
        assert probe.cuDevicePrimaryCtxRetain(context, 2) == 0
        assert probe.call("cuCtxPushCurrent_v2", probe.u64(context)) == 0
        assert probe.cuMemAlloc_v2(probe.alloc(8), 3 * MIB) == 0
        env.agree(3 * MIB, 2)
        total = probe.alloc(8)
        assert probe.cuDeviceTotalMem_v2(total, 2) == 0
        assert probe.u64(total) == GIB


def test_stream_ordered_memory_is_that_of_the_streams_device(make_world: MakeWorld) -> None:
    env = make_world(devices=2)
    with env.probe() as probe:
        context, stream, popped = probe.alloc(8), probe.alloc(8), probe.alloc(8)
        assert probe.cuDevicePrimaryCtxRetain(context, 1) == 0
        assert probe.call("cuCtxPushCurrent_v2", probe.u64(context)) == 0
        assert probe.call("cuStreamCreate", stream, 0) == 0
        assert probe.call("cuCtxPopCurrent_v2", popped) == 0
        assert probe.cuMemAllocAsync(probe.alloc(8), 2 * MIB, probe.u64(stream)) == 0
        env.agree(0, 0)
        env.agree(2 * MIB, 1)


def test_only_the_leases_gpus_are_seen(make_world: MakeWorld) -> None:
    env = make_world(devices=2)
    env.manager.granted = [env.uuids[1]]
    env.manager.set_limit(0, row=0)
    with env.probe() as probe:
        count = probe.alloc(4)
        assert probe.call("cuDeviceGetCount", count) == 0
        assert probe.u32(count) == 1
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB, 1)


def begun(probe: object) -> None:
    """A lease before the driver is touched, as the import hook gets it."""
    begin = int(probe.tell("resolve", "default", "nodemgr_begin", "-", 0, 0))
    poll = int(probe.tell("resolve", "default", "nodemgr_poll", "-", 0, 0))
    minus_one, limit_ms = 2**64 - 1, int(WAIT_LIMIT_S * 1_000)
    probe.tell("call", begin, minus_one, minus_one, minus_one, 0)  # type: ignore[attr-defined]
    assert probe.tell("call", poll, limit_ms, 0, 0) == "2"  # type: ignore[attr-defined]


def test_a_late_choice_is_one_out_of_the_lease(make_world: MakeWorld) -> None:
    env = make_world(devices=3)
    env.manager.granted = env.uuids[1:]
    env.manager.set_limit(0, row=0)
    with env.probe(started=False) as probe:
        begun(probe)
        probe.tell("setenv", "CUDA_VISIBLE_DEVICES", "1")
        probe.start()
        assert probe.tell("env", "CUDA_VISIBLE_DEVICES") == env.uuids[2]
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB, 2)


def test_a_gpu_outside_the_lease_gives_no_memory(make_world: MakeWorld) -> None:
    """A process that forges both variables sees the GPU, and gets nothing of it."""
    env = make_world(devices=2)
    env.manager.granted = [env.uuids[1]]
    env.manager.set_limit(0, row=0)
    with env.probe(started=False) as probe:
        begun(probe)
        for name in ("CUDA_VISIBLE_DEVICES", "NODEMGR_VISIBLE"):
            probe.tell("setenv", name, "0")
        probe.start()
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == OUT_OF_MEMORY
        ended = probe.end()
    assert ended.stderr.startswith("nodemgr: GPU 0 is not among the GPUs of this task: ")


def refusal_on(env: World, ordinal: int) -> str:
    """The line of an allocation beyond the grant on the program's own GPU `ordinal`."""
    with env.probe() as probe:
        context = probe.alloc(8)
        assert probe.cuDevicePrimaryCtxRetain(context, ordinal) == 0
        assert probe.call("cuCtxSetCurrent", probe.u64(context)) == 0
        assert probe.cuMemAlloc_v2(probe.alloc(8), 2 * GIB) == OUT_OF_MEMORY
        line, rest = probe.end().stderr.split("; ", 1)
    assert not any(uuid in line + rest for uuid in env.uuids)
    return line


OVER = "nodemgr: out of GPU memory by quota, not by the GPU: 2.00 GiB asked on "


@pytest.mark.parametrize("more_bytes", [0, GIB])
def test_a_refusal_at_the_gpus_own_memory_names_no_quota(
    make_world: MakeWorld, more_bytes: int
) -> None:
    """Without a memory quota the limit is the whole GPU (8 GiB here), of which NVML shows more."""
    env = make_world(devices=1, limit=8 * GIB + more_bytes)
    with env.probe() as probe:
        assert probe.cuMemAlloc_v2(probe.alloc(8), 10 * GIB) == OUT_OF_MEMORY
        line = probe.end().stderr
    assert line.startswith("nodemgr: out of GPU memory: 10.00 GiB asked on GPU 0 (your 1st); ")
    assert "may use the whole GPU, 8.00 GiB; this process holds" in line
    assert "quota" not in line


@pytest.mark.parametrize(("ordinal", "name"), [(0, "GPU 1 (your 1st)"), (1, "GPU 2 (your 2nd)")])
def test_a_refusal_names_the_nodes_index_and_the_programs_own(
    make_world: MakeWorld, ordinal: int, name: str
) -> None:
    env = make_world(devices=3, limit=GIB)
    env.manager.granted = env.uuids[1:]
    env.manager.set_limit(0, row=0)
    assert refusal_on(env, ordinal) == OVER + name


def test_a_refusal_counts_the_programs_gpus_in_its_own_order(make_world: MakeWorld) -> None:
    """`cuda:0` is the 1st of the program's list, whatever its index on the node."""
    env = make_world(devices=13, limit=GIB)
    env.environ["NODEMGR_VISIBLE"] = ",".join(env.uuids)
    env.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, reversed(range(13))))
    assert refusal_on(env, 0) == OVER + "GPU 12 (your 1st)"
    assert refusal_on(env, 2) == OVER + "GPU 10 (your 3rd)"
    assert refusal_on(env, 11) == OVER + "GPU 1 (your 12th)"


# -- the lease's answers --


def test_denied(make_world: MakeWorld) -> None:
    """The driver has not been asked: a later try may succeed."""
    env = make_world(answer="over your quota: 2 GPUs asked, 1 allowed")
    with env.probe(started=False) as probe:
        assert probe.cuInit(0) == NO_DEVICE
        env.manager.answer = "grant"
        probe.start()
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        ended = probe.end()
    assert ended.stderr == "nodemgr: over your quota: 2 GPUs asked, 1 allowed\n"


def test_waiting(make_world: MakeWorld) -> None:
    env = make_world(answer="wait")
    with env.probe(started=False) as probe:
        assert probe.process.stdin is not None
        init = probe.resolve("cuInit")
        probe.process.stdin.write(f"call {init} 0\n")
        env.manager.await_verb("BEAT")
        env.manager.grant_waiting()
        assert probe.process.stdout is not None
        assert probe.process.stdout.readline() == "0\n"
        told = probe.end().stderr.splitlines()
    assert "place 1: bob holds GPU 0" in told[0]
    assert re.fullmatch(r"nodemgr: 1 GPU granted after \d+:\d\d:\d\d", told[1])


def test_no_device_wished(env: World) -> None:
    env.environ["CUDA_VISIBLE_DEVICES"] = ""
    with env.probe(started=False) as probe:
        assert probe.cuInit(0) == NO_DEVICE
    assert env.manager.verbs() == []


def test_a_lost_lease_refuses_memory_and_says_why_once(env: World) -> None:
    env.manager.beat_answer = "fence"
    with env.probe() as probe:
        address = probe.memory(MIB)
        env.manager.await_verb("BEAT")
        while probe.cuMemAlloc_v2(probe.alloc(8), 4096) == 0:
            pass
        assert probe.cuMemAllocAsync(probe.alloc(8), 4096, 0) == OUT_OF_MEMORY
        assert probe.cuMemFree_v2(address) == 0
        ended = probe.end()
    assert ended.returncode == 0
    assert len(re.findall("the lease was taken back", ended.stderr)) <= 2
    assert 1 <= ended.stderr.count("\n") <= 2


def test_stalled_then_resumed(env: World) -> None:
    with env.probe() as probe:
        env.manager.beat_answer = "grant"
        env.manager.set_state(SlotState.STALLED)
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB)
        assert probe.end().stderr == ""


def test_stalled_without_a_word_from_the_manager(env: World) -> None:
    with env.probe() as probe:
        env.manager.set_state(SlotState.STALLED)
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == OUT_OF_MEMORY
        env.manager.set_state(SlotState.LIVE)
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
        env.agree(MIB)


# -- forks --


def test_a_forked_child_begins_anew(env: World) -> None:
    with env.probe() as probe:
        address = probe.memory(MIB)
        assert probe.tell("fork") == "forked"
        assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == NOT_INITIALIZED
        assert probe.cuMemFree_v2(address) == NOT_INITIALIZED
        env.agree(MIB)
        probe.start()  # by a connection of its own
        assert env.manager.verbs().count("ACQUIRE") == 2
        assert probe.cuMemAlloc_v2(probe.alloc(8), 3 * MIB) == 0
        env.agree(4 * MIB)
        assert probe.cuMemFree_v2(address) != 0  # the parent's
        env.agree(4 * MIB)
        assert probe.tell("quit", 5) == "joined 5"
        assert probe.cuMemFree_v2(address) == 0
        assert probe.cuMemAlloc_v2(probe.alloc(8), 2 * MIB) == 0
        assert env.held() == 2 * MIB


# -- Python --

WAITS_IN_PYTHON = """
import ctypes, sys, threading
# PyDLL: called with the GIL held, as torch does
client, cuda = ctypes.CDLL(None), ctypes.PyDLL("libcuda.so.1")
calls = []

@ctypes.CFUNCTYPE(ctypes.c_int)
def waiter():
    calls.append(threading.current_thread() is threading.main_thread())
    client.nodemgr_begin(ctypes.c_int64(-1), ctypes.c_int64(-1), ctypes.c_int64(-1), None)
    while (state := client.nodemgr_poll(100, None, 0)) in (1, 5):
        pass
    return state

client.nodemgr_set_waiter(waiter)
print(cuda.cuInit(0), calls)
"""


def test_in_python_the_wait_is_pythons(env: World) -> None:
    ran = env.python(WAITS_IN_PYTHON)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0 [True]\n", "")


FOREIGN = r"""
#include <dlfcn.h>
#include <pthread.h>
static void *init(void *result)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(int *)result = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    return 0;
}
int init_elsewhere(void)
{
    int result = -1;
    pthread_t thread;
    pthread_create(&thread, 0, init, &result);
    pthread_join(thread, 0);
    return result;
}
"""


def test_a_thread_that_python_does_not_know_waits_in_c(env: World) -> None:
    """It would wait for the GIL for ever: the thread that joins it holds that."""
    library = env.directory / "libforeign.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl", "-lpthread"]
    subprocess.run(command, input=FOREIGN, text=True, check=True)
    source = WAITS_IN_PYTHON.replace(
        "print(cuda",
        f"foreign = ctypes.PyDLL({str(library)!r})\nprint(foreign.init_elsewhere(), calls) #",
    )
    ran = env.python(source)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0 []\n", "")


def test_without_a_preload_nothing_is_hooked(env: World) -> None:
    source = f"""
import ctypes
client = ctypes.CDLL({str(LIBRARY)!r})
cuda = ctypes.CDLL("libcuda.so.1")
print(client.nodemgr_preloaded(), client.nodemgr_managed(), cuda.cuInit(0))
"""
    assert env.python(source, shim=False).stdout == "0 1 0\n"
    assert env.manager.verbs() == []
    assert (
        env.run(
            sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).nodemgr_preloaded())"
        ).stdout
        == "1\n"
    )
