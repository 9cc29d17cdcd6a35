"""Asking and waiting as a user's process does it, against a scripted client."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from client_plugin import lease

from .conftest import Child, World, interpreters

Make = Callable[..., Path]
GRANT = {"CUDA_VISIBLE_DEVICES": "1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NODEMGR_VISIBLE": "1,3"}
LEASE = "import cupy, sys, json, os; lease = sys.modules['_nodemgr_client_plugin.lease']\n"
HELD = [["HELD", ""]]
WAIT = [
    ["WAITING", "place 2: bob holds all GPUs"],
    ["WAITING", "place 1: bob holds all GPUs"],
    ["HELD", ""],
]
FOR_EVER = [["WAITING", "place 2: bob holds all GPUs"], ["hold", ""]]


def told(child: Child) -> list[str]:
    """The lines on stderr, without how long something took."""
    return [re.sub(r" after [\d:]+$", "", line) for line in child.stderr.splitlines()]


@pytest.fixture(autouse=True)
def cupy(world: World, package: Make) -> None:
    package("cupy")
    world.script["lease"] = {"gpus": "GPU-b,GPU-d"}


@pytest.mark.parametrize("python", interpreters())
def test_what_a_grant_sets_is_seen_by_the_program_and_its_children(
    world: World, python: str
) -> None:
    world.script["grant"] = GRANT
    child = world.run(
        LEASE + f"lease.require(); print(json.dumps([[os.environ[name] for name in {list(GRANT)}],"
        " lease.expected_gpus()]))",
        python=python,
    )
    assert child.seen == [list(GRANT.values()), None]
    assert child.stderr == ""


def test_os_environ_follows_without_setenv(world: World) -> None:
    """setenv would race with other threads' getenv, so the library publishes the C environment."""
    world.script["grant"] = {"CUDA_VISIBLE_DEVICES": "1,3"}
    child = world.run(
        LEASE
        + "import ctypes; lease.require(); getenv = ctypes.CDLL(None).getenv; getenv.restype ="
        " ctypes.c_char_p;print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'],"
        " os.environb[b'CUDA_VISIBLE_DEVICES'].decode(), getenv(b'CUDA_VISIBLE_DEVICES') is"
        " None]))"
    )
    assert child.seen == ["1,3", "1,3", True]


def test_a_spare_of_an_elastic_task_waits_for_its_gpu_before_it_asks(
    world: World, tmp_path: Path
) -> None:
    """It answers as a worker with one GPU, and the leader's packet is its GPU."""
    path = tmp_path / "leader"
    world.environ |= {"NODEMGR_ELASTIC": str(path), "NODEMGR_WORKER": "3"}
    world.environ |= {"NODEMGR_WORKER_GPU": "", "CUDA_VISIBLE_DEVICES": ""}
    asked: list[bytes] = []

    def give() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(1_024))
            connection.send(b'{"is": "gpu", "gpu": "GPU-d"}')
            connection.recv(1)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        leader = threading.Thread(target=give, daemon=True)
        leader.start()
        child = world.run(
            LEASE + "before = lease.expected_gpus(); lease.require()\n"
            "names = ['CUDA_VISIBLE_DEVICES', 'NODEMGR_WORKER_GPU']\n"
            "print(json.dumps([before, [os.environ[name] for name in names]]))",
        )
        leader.join()
    assert child.seen == [1, ["GPU-d", "GPU-d"]]
    assert asked == [b'{"is": "spare", "worker": 3}']


def test_a_log_has_the_first_line_of_a_wait_and_its_end(world: World) -> None:
    """The second place is reached within a minute of the first line."""
    world.script["requests"] = [WAIT]
    child = world.run(LEASE + "lease.require()")
    assert told(child) == [
        "nodemgr: place 2: bob holds all GPUs",
        "nodemgr: 2 GPUs granted",
    ]
    assert child.log[1:] == ["begin"]


def test_only_the_first_of_a_tasks_ranks_tells(world: World) -> None:
    world.script["requests"] = [WAIT]
    world.environ["LOCAL_RANK"] = "1"
    assert world.run(LEASE + "lease.require()").stderr == ""


@pytest.mark.parametrize("code", ["DENIED", "NO_MANAGER"])
def test_a_refusal_is_one_line_and_the_next_use_asks_anew(world: World, code: str) -> None:
    world.script["settings"]["no_manager"] = "error"
    world.script["requests"] = [[[code, "over quota: alice may hold 2 GPUs"]], HELD]
    child = world.run(
        LEASE
        + """
try:
    lease.require()
except RuntimeError as error:
    first = str(error)
lease.require()
print(json.dumps(first))
"""
    )
    assert child.seen == "nodemgr: over quota: alice may hold 2 GPUs"
    assert child.stderr == ""
    assert child.log[1:] == ["begin", "begin"]


def test_an_absent_manager_is_waited_for(world: World) -> None:
    world.script["settings"]["no_manager"] = "wait"
    world.script["requests"] = [
        [
            ["NO_MANAGER", "the manager does not answer"],
            ["NO_MANAGER", "the manager does not answer"],
            ["HELD", ""],
        ]
    ]
    child = world.run(LEASE + "lease.require()")
    assert told(child) == ["nodemgr: the manager does not answer", "nodemgr: 2 GPUs granted"]


def test_cpu_by_policy_is_quiet_but_for_one_line(world: World) -> None:
    world.script["requests"] = [[["CPU", "no GPU in the quota of alice: running on the CPU"]]] * 2
    world.script["grant"] = {"CUDA_VISIBLE_DEVICES": ""}
    child = world.run(LEASE + "lease.require(); lease.require(); print(lease.expected_gpus())")
    assert child.seen == 0
    assert told(child) == ["nodemgr: no GPU in the quota of alice: running on the CPU"]


@pytest.mark.parametrize("python", interpreters())
def test_ctrl_c_cancels_and_a_later_use_asks_anew(world: World, python: str) -> None:
    world.script["requests"] = [FOR_EVER, HELD]
    child = world.run_and_interrupt(
        LEASE
        + """
try:
    lease.require()
except KeyboardInterrupt:
    lease.require()
    print(json.dumps("held now"))
""",
        when="place 2",
        python=python,
    )
    assert child.seen == "held now"
    assert child.log[1:] == ["begin", "cancel", "begin"]
    assert child.stderr.splitlines()[-1].endswith("; the next use of CUDA asks anew")


def test_ctrl_c_that_nobody_catches_ends_the_program_as_ever(world: World) -> None:
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(LEASE + "lease.require()", when="place 2")
    assert child.returncode == -2
    assert child.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert child.log[-1] == "cancel"


def test_what_a_users_signal_handler_raises_ends_the_wait(world: World) -> None:
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + """
import signal
class Enough(Exception): pass
def handler(number, frame): raise Enough("now")
signal.signal(signal.SIGINT, handler)
try:
    lease.require()
except Enough as error:
    print(json.dumps(str(error)))
""",
        when="place 2",
    )
    assert child.seen == "now"
    assert child.log[-1] == "cancel"


def test_a_signal_whose_handler_returns_ends_no_wait(world: World) -> None:
    world.script["requests"] = [
        [["WAITING", "place 2"], ["WAITING", "place 2"], ["WAITING", "place 1"], ["HELD", ""]]
    ]
    child = world.run(
        LEASE + "import signal; signal.signal(signal.SIGALRM, lambda *_: None);"
        " signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001);lease.require();"
        " print(json.dumps('held'))"
    )
    assert child.seen == "held"


def test_threads_wait_for_one_lease_and_one_of_them_tells(world: World) -> None:
    world.script["requests"] = [[["WAITING", "place 1"], ["hold", ""], *HELD]]
    child = world.run(
        LEASE
        + """
import threading, time
threads = [threading.Thread(target=lease.require) for _ in range(8)]
for thread in threads: thread.start()
while len(lease._client.pollers) < 8: time.sleep(0.001)
with lease._client.lock: lease._client.steps.pop(0)
for thread in threads: thread.join()
"""
    )
    assert told(child) == ["nodemgr: place 1", "nodemgr: 2 GPUs granted"]
    assert child.log[1:] == ["begin"]


def test_a_thread_keeps_waiting_where_the_main_thread_gave_up(world: World) -> None:
    world.script["requests"] = [FOR_EVER, HELD]
    child = world.run_and_interrupt(
        LEASE
        + """
import threading, time
def tell():
    while len(lease._client.pollers) < 2:
        time.sleep(0.001)
    print("both wait", file=sys.stderr)
thread = threading.Thread(target=lease.require)
threading.Thread(target=tell).start()
thread.start()
try:
    lease.require()
except KeyboardInterrupt:
    thread.join()
    print(json.dumps("the thread holds it"))
""",
        when="both wait",
    )
    assert child.seen == "the thread holds it"
    assert child.log[1:] == ["begin", "cancel", "begin"]


IN_THE_DRIVER = """
import ctypes
lease.interrupts.TRACED_S = 60  # the thread comes back to its frame later on a busy machine
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int)
waiter = CALLBACK(lease._client.waiter)
from_c = CALLBACK(ctypes.cast(waiter, ctypes.c_void_p).value)
states = []
def cuInit():
    '''A C function that waits through the callback.'''
    states.append(from_c())
"""


def test_the_driver_waits_through_python(world: World) -> None:
    world.script["requests"] = [WAIT]
    child = world.run(LEASE + IN_THE_DRIVER + "cuInit(); print(states)")
    assert child.seen == [2]
    assert told(child)[-1] == "nodemgr: 2 GPUs granted"


def test_a_refusal_inside_the_driver_is_said_once(world: World) -> None:
    world.script["requests"] = [[["DENIED", "over quota"]]] * 2
    child = world.run(LEASE + IN_THE_DRIVER + "cuInit(); cuInit(); print(states)")
    assert child.seen == [3, 3]
    remembered = (
        "CUDA was already being initialised and may remember that it found no GPU: start the"
        " program anew to try again"
    )
    assert child.stderr == f"nodemgr: over quota; {remembered}\n"


@pytest.mark.parametrize("python", interpreters())
def test_ctrl_c_inside_the_driver_is_raised_behind_it(world: World, python: str) -> None:
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + IN_THE_DRIVER
        + """
import threading, time
interval = sys.getswitchinterval()
try:
    cuInit()
    time.sleep(60)
except KeyboardInterrupt:
    for thread in threading.enumerate():
        if thread.name == "nodemgr-interrupt":
            thread.join()
    print(json.dumps([states, sys.getswitchinterval() == interval]))
""",
        when="place 2",
        python=python,
    )
    assert child.seen == [[], True], "the call raises, so it has no result"
    assert child.log[-1] == "cancel"
    assert "Exception ignored" not in child.stderr
    cancelled, remembered = child.stderr.splitlines()[-2:]
    assert re.fullmatch(r"nodemgr: cancelled after \d:\d\d:\d\d", cancelled)
    assert remembered.endswith("may remember that it found no GPU: start the program anew")


@pytest.mark.parametrize("python", interpreters())
def test_ctrl_c_inside_the_driver_takes_the_place_of_the_error_with_which_it_fails(
    world: World, python: str
) -> None:
    """A program that handles that error would otherwise be interrupted while it does so."""
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + IN_THE_DRIVER
        + """
def no_device(*_):
    raise RuntimeError("CUDA error: no device")
from_c.errcheck = no_device
handled = []
try:
    try:
        cuInit()
    except RuntimeError as error:
        handled.append(str(error))
except KeyboardInterrupt:
    print(json.dumps([handled, sys.gettrace() is None]))
""",
        when="place 2",
        python=python,
    )
    assert child.seen == [[], True]


def test_beside_a_debugger_ctrl_c_is_raised_from_outside(world: World) -> None:
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + IN_THE_DRIVER
        + """
import time
def debugger(frame, event, argument): return None
sys.settrace(debugger)
try:
    cuInit()
    time.sleep(60)
except KeyboardInterrupt:
    print(json.dumps([states, sys.gettrace() is debugger]))
""",
        when="place 2",
    )
    states, debugger_left_alone = child.seen
    # Another thread raises it behind the call: before or after the program has kept the result.
    assert states in ([], [0])
    assert debugger_left_alone
    assert child.log[-1] == "cancel"
    assert "Exception ignored" not in child.stderr, "raised inside the call, where it is lost"


def test_another_exception_inside_the_driver_is_raised_behind_it_too(world: World) -> None:
    world.script["requests"] = [FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + IN_THE_DRIVER
        + """
import signal
class Enough(BaseException): pass
handled = []
def handler(number, frame):
    handled.append(number)
    raise Enough
signal.signal(signal.SIGINT, handler)
try:
    cuInit()
    while True:
        pass
except Enough:
    print(json.dumps([states, len(handled)]))
""",
        when="place 2",
    )
    assert child.seen == [[], 1]


def test_ctrl_c_inside_the_driver_is_raised_by_the_gate_that_led_there(world: World) -> None:
    """The gate's own wait is over at once (it answers no request); the driver's is interrupted."""
    world.script["requests"] = [HELD, FOR_EVER]
    child = world.run_and_interrupt(
        LEASE
        + IN_THE_DRIVER
        + """
import types
def first_call():
    lease._client.now = (lease.native.ClientState.LOST, "")
    cuInit()
    raise RuntimeError("CUDA error: no device")
framework = types.SimpleNamespace(first_call=first_call)
hook = __import__("_nodemgr_client_plugin.hook").hook
hook.gate(framework, "first_call", lambda: True)
try:
    framework.first_call()
except KeyboardInterrupt:
    print(json.dumps("interrupted"))
""",
        when="place 2",
    )
    assert child.seen == "interrupted"


def test_a_forked_child_waits_by_itself(world: World) -> None:
    world.script["requests"] = [[["WAITING", "place 1"]] * 5 + HELD]
    child = world.run(
        LEASE
        + """
import threading
waiting_module = sys.modules["_nodemgr_client_plugin.waiting"]
waiting_module.Wait().show("place 1")  # another thread of the parent is drawing
lease._starting.acquire()
if os.fork() == 0:
    lease.start()
    lease.require()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]) if hasattr(os, "waitstatus_to_exitcode") else 0)
"""
    )
    assert child.seen == 0
    assert "granted" in child.stderr


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({"NODEMGR_GPUS": "3"}, 3),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
    ],
)
def test_before_a_lease_the_count_is_what_a_request_would_give(
    world: World, environ: dict[str, str], gpus: int
) -> None:
    world.environ.update(environ)
    child = world.run(LEASE + "print(lease.expected_gpus())")
    assert child.seen == gpus
    assert "begin" not in child.log


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 4),
        ({"NODEMGR_GPUS": "2"}, 2),
        ({"NODEMGR_GPUS": "0"}, 0),
        ({"NODEMGR_GPUS": "two"}, 4),
        ({"NODEMGR_GPUS": "-2"}, 4),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "2"}, 4),
        ({"NODEMGR_GPUS": "1", "LOCAL_WORLD_SIZE": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"CUDA_VISIBLE_DEVICES": " 5 , 7 "}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "1", "NODEMGR_VISIBLE": "1,3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,3", "NODEMGR_VISIBLE": "1,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "2", "NODEMGR_VISIBLE": "1,3"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b", "NODEMGR_VISIBLE": "GPU-aa,GPU-bb"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,5", "NODEMGR_VISIBLE": "GPU-aa,GPU-bb"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0", "LOCAL_WORLD_SIZE": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0", "NODEMGR_GPUS": "0"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "NODEMGR_GPUS": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "NODEMGR_GPUS": "3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "none"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,x,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "²"}, 0),
    ],
)
def test_a_wish_is_a_number(environ: dict[str, str], gpus: int) -> None:
    assert lease.wished_gpus(environ, 4) == gpus


def test_no_gpus_by_default_is_no_gpu_whatever_the_world_size() -> None:
    assert lease.wished_gpus({"LOCAL_WORLD_SIZE": "2"}, 0) == 0


def test_tokens_are_32_hex_digits_and_differ() -> None:
    tokens = {lease.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 and set(token) <= set("0123456789abcdef") for token in tokens)


def test_put_changes_os_environ_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "putenv", None)
        lease.put("NODEMGR_TEST_PUT", "ä\udcff")
    try:
        assert os.environ["NODEMGR_TEST_PUT"] == "ä\udcff"
        assert os.environb[b"NODEMGR_TEST_PUT"] == os.fsencode("ä\udcff")
    finally:
        del os.environ["NODEMGR_TEST_PUT"]
