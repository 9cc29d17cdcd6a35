"""A program of PyPy that calls the driver by ctypes or cffi: the import hook waits for it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.node.programs import said
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

pytestmark = pytest.mark.skipif(shutil.which("pypy3") is None, reason="needs pypy3")
CALLERS = {
    "ctypes": "import ctypes; cuda = ctypes.CDLL('libcuda.so.1')",
    "cffi": """
import cffi
ffi = cffi.FFI()
ffi.cdef("int cuInit(unsigned);")
cuda = ffi.dlopen("libcuda.so.1")
""",
}
USE = """
import os
try:
    print(cuda.cuInit(0), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    manager = make_manager(simulate="1x4GiB")
    manager.quota("alice", 1)
    manager.quota("bob", 1)
    return manager


def start(node: Manager, caller: str) -> subprocess.Popen[str]:
    return node.spawn("alice", ["pypy3", "-c", CALLERS[caller] + USE])


@pytest.mark.parametrize("caller", CALLERS)
def test_os_environ_has_what_the_grant_has_set(node: Manager, caller: str) -> None:
    stdout, stderr = start(node, caller).communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, stderr) == (f"0 {node.status()['gpus'][0]['uuid']}\n", "")


@pytest.mark.parametrize("caller", CALLERS)
def test_ctrl_c_ends_the_wait(node: Manager, caller: str) -> None:
    bob = node.hold("bob")
    assert said(bob)["error"] is None
    events = node.events()
    program = start(node, caller)
    events.expect("task.waiting", env="alice")
    program.send_signal(signal.SIGINT)
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, program.returncode) == ("KeyboardInterrupt\n", 0)
    assert "Traceback" not in stderr
    events.expect("request.withdrawn", env="alice")
