"""The hook with the real client, a real manager and the simulated driver.

The frameworks are stand-ins that call the simulated cuInit (tests/hook/standins), and PyTorch and
TensorFlow themselves.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

from .conftest import ROOT, STANDINS, up_to

RICH = ["torch", "tensorflow", "jax"]
GATED = [*RICH, "numba.cuda", "pycuda.driver"]
FRAMEWORKS = [*GATED, "mxnet", "caffe", "paddle", "cupy"]
SHIM = pytest.mark.parametrize("shim", [True, False], ids=["shim", "no shim"])
GIB = 1 << 30

Start = Callable[..., "subprocess.Popen[str]"]
_names = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    """One manager for all tests that leave it alone; each has envs of its own."""
    manager = Manager().start()
    yield manager
    manager.close()


@pytest.fixture
def alice() -> str:
    return f"alice{next(_names)}"


@pytest.fixture
def bob() -> str:
    return f"bob{next(_names)}"


def launch(
    manager: Manager,
    env: str,
    code: str,
    *,
    shim: bool = True,
    real: bool = False,
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts a Python program in an env.

    It finds the stand-ins, or (real) the installed frameworks.
    """
    entries = [str(ROOT / "sitecustomize")] if not shim else []  # the shim itself puts it there
    path = ":".join([*entries, *([] if real else [str(STANDINS)])])
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return manager.spawn(
        env, command, shim=shim, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **variables
    )


@pytest.fixture
def start(node: Manager) -> Iterator[Start]:
    """start(alice, "import cupy", shim=False, NODEMGR_GPUS="1"); ended with the test."""
    programs = []

    def begin(env: str, code: str, **options: Any) -> subprocess.Popen[str]:
        programs.append(launch(node, env, code, **options))
        return programs[-1]

    yield begin
    for program in programs:
        if program.poll() is None:
            program.kill()
            program.communicate()


def tasks(manager: Manager, env: str) -> list[dict[str, Any]]:
    return [task for task in manager.status()["tasks"] if task["env"] == env]


def asked(manager: Manager, env: str) -> list[str]:
    """The events of requests and tasks of this env."""
    return [
        event["name"]
        for event in manager.call("events")["events"]
        if event.get("env") == env and event["name"].startswith(("task", "request"))
    ]


def ended(program: subprocess.Popen[str]) -> tuple[Any, str]:
    """Its last output, as JSON, and its stderr."""
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert program.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1]), stderr


def all_but_half(stderr: str, shim: bool) -> str:
    """Without the line by which each process reports that the shim is missing beside the hook."""
    lines = stderr.splitlines(keepends=True)
    half = [line for line in lines if "only the Python hook is active in this process" in line]
    assert bool(half) is not shim
    return "".join(line for line in lines if line not in half)


def holder(start: Start, env: str, gpus: int) -> subprocess.Popen[str]:
    """A program that holds GPUs until its input ends."""
    program = start(
        env,
        "import sys, cupy; print(cupy.first_use(), flush=True); sys.stdin.read()",
        NODEMGR_GPUS=str(gpus),
    )
    assert program.stdout is not None
    assert program.stdout.readline() == f"{gpus}\n"
    return program


@SHIM
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_frameworks_first_use_gets_the_quotas_gpus_and_loading_it_none(
    node: Manager, start: Start, alice: str, framework: str, shim: bool
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        f"""
        import json, os, sys, {framework}
        print("loaded", flush=True)
        sys.stdin.readline()
        gpus = {framework}.first_use()
        print(json.dumps([gpus, os.environ["CUDA_VISIBLE_DEVICES"].count(",") + 1,
            os.environ["NODEMGR_TASK"]]), flush=True)
        sys.stdin.readline()
        """,
        shim=shim,
    )
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == "loaded\n"
    seen_by_us = shim or framework in GATED  # else only the import can be seen
    assert len(tasks(node, alice)) == (0 if seen_by_us else 1)
    program.stdin.write("\n")
    program.stdin.flush()
    gpus, visible, token = json.loads(program.stdout.readline())
    (task,) = tasks(node, alice)
    assert (gpus, visible, len(task["gpus"]), task["env"], task["pids"], len(token)) == (
        2,
        2,
        2,
        alice,
        [program.pid],
        32,
    )
    assert all_but_half(program.communicate("\n", timeout=WAIT_LIMIT_S)[1], shim) == ""


@SHIM
def test_questions_are_answered_from_the_wish_without_a_lease(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    node.quota(alice, 2)
    ask = (
        "import json, torch; print(json.dumps([torch.cuda.is_available(),"
        " torch.cuda.device_count()]))"
    )
    assert ended(start(alice, ask, shim=shim))[0] == [True, 2]
    assert ended(start(alice, ask, shim=shim, NODEMGR_GPUS="1"))[0] == [True, 1]
    assert ended(start(alice, ask, shim=shim, CUDA_VISIBLE_DEVICES=""))[0] == [False, 0]
    assert tasks(node, alice) == []
    assert asked(node, alice) == []


@SHIM
@pytest.mark.parametrize("framework", RICH)
def test_ctrl_c_ends_a_wait_and_a_later_use_gets_the_gpus(
    node: Manager, start: Start, alice: str, bob: str, framework: str, shim: bool
) -> None:
    node.quota(alice, 2)
    node.quota(bob, 4)
    holding = holder(start, bob, 4)
    program = start(
        alice,
        f"""
        import json, sys, {framework}
        try:
            {framework}.first_use()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.stdin.readline()
            print(json.dumps({framework}.first_use()))
        """,
        shim=shim,
    )
    assert program.stderr is not None
    assert program.stdout is not None
    waits = list(up_to(program.stderr, "nodemgr: "))
    assert "bob" in waits[-1]
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "interrupted\n"
    node.events().expect("request.withdrawn", env=alice)
    holding.communicate(timeout=WAIT_LIMIT_S)
    gpus, errors = program.communicate("\n", timeout=WAIT_LIMIT_S)
    assert json.loads(gpus) == 2
    assert "cancelled" in errors


def test_ctrl_c_in_the_drivers_own_wait_is_raised_behind_it(
    node: Manager, start: Start, alice: str, bob: str
) -> None:
    """CuPy's compiled code has no gate: cuInit waits, through Python.

    The runtime remembers the failed cuInit, the driver was not asked.
    """
    node.quota(alice, 2)
    node.quota(bob, 4)
    holding = holder(start, bob, 4)
    program = start(
        alice,
        """
        import cuda_driver, cupy, json, time
        try:
            try:
                cupy.compiled_first_use()
            except cuda_driver.DriverError:
                time.sleep(60)
        except KeyboardInterrupt:
            print(json.dumps("interrupted"), flush=True)
        """,
    )
    assert program.stderr is not None
    list(up_to(program.stderr, "nodemgr: "))
    program.send_signal(signal.SIGINT)
    assert ended(program)[0] == "interrupted"
    holding.communicate(timeout=WAIT_LIMIT_S)


@SHIM
def test_a_waiter_gets_what_another_gives_back(
    node: Manager, start: Start, alice: str, bob: str, shim: bool
) -> None:
    node.quota(alice, 4)
    node.quota(bob, 4)
    holding = holder(start, bob, 4)
    program = start(alice, "import torch; print(torch.first_use())", shim=shim)
    assert program.stderr is not None
    list(up_to(program.stderr, "nodemgr: "))
    holding.communicate(timeout=WAIT_LIMIT_S)
    gpus, stderr = ended(program)
    assert gpus == 4
    assert "granted after" in stderr


@SHIM
@pytest.mark.parametrize("framework", RICH)
def test_a_refusal_names_the_limit_and_what_to_do(
    node: Manager, start: Start, alice: str, framework: str, shim: bool
) -> None:
    node.quota(alice, 1)
    program = start(
        alice,
        f"""
        import json, {framework}
        try:
            {framework}.first_use()
        except RuntimeError as error:
            print(json.dumps(str(error)))
        """,
        shim=shim,
        NODEMGR_GPUS="2",
    )
    line, stderr = ended(program)
    assert line.startswith("nodemgr: ")
    assert "1" in line
    assert "\n" not in line
    assert stderr == ""


LATE = " s for the manager at "
"""In the line of a short wait that was over before the manager of a busy machine could answer."""


@SHIM
@pytest.mark.parametrize("wait", ["0", "1"])
def test_a_wait_in_vain_says_by_policy_that_the_program_goes_on_on_the_cpu(
    node: Manager, start: Start, alice: str, bob: str, wait: str, shim: bool
) -> None:
    node.quota(alice, 1, no_gpu="cpu")
    node.quota(bob, 4)
    holder(start, bob, 4)
    stderr = LATE
    while LATE in stderr:
        program = start(
            alice,
            """
            import cupy, json, os
            try:
                cupy.first_use()
            except cupy.cuda_driver.DriverError as error:
                print(json.dumps([str(error), os.environ["CUDA_VISIBLE_DEVICES"]]))
            """,
            shim=shim, NODEMGR_GPUS="1", NODEMGR_WAIT=wait,
        )  # fmt: skip
        answer, stderr = ended(program)
        assert answer == ["CUDA error 100", ""]
    ends = [
        line
        for line in stderr.splitlines()
        if "timed out after 1 s: " in line or "not available at once: " in line
    ]
    assert ends
    assert all(line.endswith("; the program continues on the CPU (no_gpu=cpu)") for line in ends)
    assert ("timed out after 1 s: " in stderr) is (wait == "1")


@pytest.mark.parametrize(
    ("wait", "start"),
    [("0", "nodemgr: not available at once: "), ("1", "nodemgr: timed out after 1 s: ")],
)
def test_the_same_in_c(node: Manager, alice: str, bob: str, wait: str, start: str) -> None:
    node.quota(alice, 1, no_gpu="cpu")
    node.quota(bob, 4)
    holding = node.hold(bob, NODEMGR_GPUS="4")
    assert holding.stdout is not None
    assert holding.stdout.readline()
    stderr = LATE
    while LATE in stderr:
        _, stderr = node.hold(alice, NODEMGR_GPUS="1", NODEMGR_WAIT=wait).communicate(
            timeout=WAIT_LIMIT_S
        )
    holding.communicate(timeout=WAIT_LIMIT_S)
    lines = [line for line in stderr.splitlines() if line.startswith(start)]
    assert len(lines) == 1, stderr
    assert lines[0].endswith("; the program continues on the CPU (no_gpu=cpu)")


@SHIM
def test_an_env_without_gpus_is_on_the_cpu_by_policy_and_one_line_says_so(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    node.quota(alice, 0, no_gpu="cpu")
    program = start(
        alice,
        """
        import json, torch
        answers = [torch.cuda.is_available(), torch.cuda.device_count()]
        for attempt in range(2):
            try:
                torch.cuda.init()
            except RuntimeError as error:
                answers.append(type(error).__name__)
        print(json.dumps(answers))
        """,
        shim=shim,
    )
    answers, stderr = ended(program)
    assert answers[:2] == [False, 0]
    assert len(answers) == 4
    assert [
        line for line in stderr.splitlines() if line.startswith("nodemgr: ")
    ] == stderr.splitlines()
    assert len(stderr.splitlines()) == 1


@SHIM
def test_hidden_gpus_are_a_wish_for_the_cpu(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        """
        import json, torch
        try:
            torch.cuda.init()
        except RuntimeError as error:
            print(json.dumps("no GPU"))
        """,
        shim=shim,
        CUDA_VISIBLE_DEVICES="",
    )
    assert ended(program) == ("no GPU", "")
    assert asked(node, alice) == []


@SHIM
def test_import_mode_acquires_when_a_framework_is_loaded(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    node.quota(alice, 2, acquire="import")
    program = start(
        alice,
        "import sys, torch; print(torch.cuda._initialized, flush=True); sys.stdin.read()",
        shim=shim,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "False\n"
    (task,) = tasks(node, alice)
    assert task["pids"] == [program.pid]
    program.communicate(timeout=WAIT_LIMIT_S)


@SHIM
def test_a_wish_is_a_count_and_a_childs_choice_an_index(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        """
        import json, os, subprocess, sys, torch
        gpus = torch.first_use()
        granted = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        child = (
            "import os, torch, json; first = torch.first_use(); "
            "print(json.dumps([first, os.environ['CUDA_VISIBLE_DEVICES'], os.getpid()]))"
        )
        seen = json.loads(subprocess.check_output([sys.executable, "-c", child],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"}))
        print(json.dumps([gpus, seen[0], seen[1] == granted[1]]))
        """,
        shim=shim,
        CUDA_VISIBLE_DEVICES="5,7",
    )
    assert ended(program)[0] == [2, 1, True]


CHILDREN = """
import json, multiprocessing, os, sys, torch
def use(queue, done):
    torch.first_use()
    queue.put(os.environ["NODEMGR_TASK"])
    done.wait()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue, done = context.Queue(), context.Event()
    children = [context.Process(target=use, args=(queue, done)) for _ in range(2)]
    for child in children: child.start()
    tokens = {queue.get() for _ in children} | {os.environ["NODEMGR_TASK"]}
    print(json.dumps(len(tokens)), flush=True)
    sys.stdin.readline()
    done.set()
    for child in children: child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@SHIM
def test_processes_of_multiprocessing_are_one_task(
    node: Manager, start: Start, alice: str, tmp_path: Path, method: str, shim: bool
) -> None:
    """The launcher loads the framework, its children use CUDA: the first to ask asks for all."""
    node.quota(alice, 2)
    (tmp_path / "program.py").write_text(CHILDREN)
    run = (
        f"import runpy, sys; sys.argv[1:] = [{method!r}];"
        f" runpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')"
    )
    program = start(alice, run, shim=shim)
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n", program.communicate(timeout=WAIT_LIMIT_S)
    (task,) = tasks(node, alice)
    assert len(task["gpus"]) == 2
    assert len(set(task["pids"]) - {program.pid}) == 2
    assert all_but_half(program.communicate("\n", timeout=WAIT_LIMIT_S)[1], shim) == ""


@pytest.mark.parametrize("policy", ["error", "cpu"])
@SHIM
def test_without_a_manager_the_policy_holds(manager: Manager, policy: str, shim: bool) -> None:
    manager.quota("alice", 2, no_manager=policy)
    manager.kill()
    program = launch(
        manager,
        "alice",
        """
        import json, torch
        try:
            torch.cuda.init()
        except RuntimeError as error:
            print(json.dumps(str(error)))
        """,
        shim=shim,
    )
    line, stderr = ended(program)
    assert (line.startswith("nodemgr: ")) is (policy == "error")
    assert len(stderr.splitlines()) == (policy == "cpu")


@SHIM
def test_without_a_manager_a_use_waits_until_it_is_back(manager: Manager, shim: bool) -> None:
    manager.quota("alice", 2, no_manager="wait")
    manager.kill()
    program = launch(manager, "alice", "import torch; print(torch.first_use())", shim=shim)
    assert program.stderr is not None
    list(up_to(program.stderr, "nodemgr: "))
    manager.start()
    assert ended(program)[0] == 2


def test_without_the_shim_a_framework_gets_the_grant_as_its_own_limit(
    node: Manager, start: Start, alice: str
) -> None:
    node.quota(alice, 2, memory_bytes=40 * GIB)
    fractions = "import json, torch; torch.first_use(); print(json.dumps(torch._C.fractions))"
    assert ended(start(alice, fractions, shim=False))[0] == {"0": 0.25, "1": 0.25}
    assert ended(start(alice, fractions, shim=True))[0] == {}
    share = (
        "import jax; jax.first_use(); from jax_plugins import xla_cuda12;"
        " print(xla_cuda12.fraction)"
    )
    assert ended(start(alice, share, shim=False))[0] == 0.25


@pytest.mark.frameworks
def test_pytorch_and_tensorflow_take_a_gpu_when_devices_are_listed_and_not_before(
    node: Manager, start: Start, alice: str
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        """
        import json, os, sys, torch, tensorflow as tf
        cuda = tf.sysconfig.get_build_info()["is_cuda_build"]
        is_right = torch.cuda.is_available() == (torch.version.cuda is not None)
        print(json.dumps([is_right, torch.ones(2).sum().item(), cuda]), flush=True)
        sys.stdin.readline()
        os.environ["NODEMGR_GPUS"] = "3"
        try:
            tf.config.list_physical_devices()
            refusal = ""
        except RuntimeError as error:
            refusal = str(error)
        os.environ["NODEMGR_GPUS"] = "2"
        cpus = len(tf.config.list_physical_devices("CPU"))
        total = int(tf.reduce_sum(tf.constant([1, 2])))
        print(json.dumps([refusal, cpus, total, os.environ.get("CUDA_VISIBLE_DEVICES",
            "").count("GPU-")]), flush=True)
        """,
        real=True,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert program.stdout is not None
    is_right, total, cuda = json.loads(program.stdout.readline())
    assert (is_right, total) == (True, 2.0)
    assert asked(node, alice) == []
    stdout, stderr = program.communicate("\n", timeout=WAIT_LIMIT_S)
    refusal, *rest = json.loads(stdout)
    assert refusal.startswith("nodemgr: 3 GPUs" if cuda else "")
    assert rest == [1, 3, 2 if cuda else 0]
    assert "nodemgr" not in stderr


@pytest.mark.frameworks
def test_the_ranks_of_torchrun_are_one_task_with_one_lease(
    node: Manager, start: Start, alice: str
) -> None:
    node.quota(alice, 3, default_gpus=1)
    rank = """
import json, os, sys, torch
sys.path.append(os.environ["STANDINS"])
import torch_cuda_build
torch_cuda_build.install(torch)
torch.cuda.init()
seen = [os.environ["NODEMGR_TASK"], torch.cuda.device_count(), os.environ["CUDA_VISIBLE_DEVICES"]]
os.write(1, (json.dumps(seen) + "\\n").encode())  # at one go: both ranks write here
sys.stdin.read()
"""
    program = start(
        alice,
        f"""
        import json, os, tempfile
        import torch.distributed.run as launcher
        with tempfile.TemporaryDirectory() as folder:
            open(folder + "/rank.py", "w").write({rank!r})
            launcher.main(["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2",
                folder + "/rank.py"])
        """,
        real=True,
        STANDINS=str(STANDINS),
        OMP_NUM_THREADS="1",
    )
    assert program.stdout is not None
    ranks = [json.loads(program.stdout.readline()) for _ in range(2)]
    (task,) = tasks(node, alice)
    assert ranks[0] == ranks[1]
    assert ranks[0][1] == 2
    assert len(task["gpus"]) == 2
    assert len(task["pids"]) == 2
    program.communicate(timeout=WAIT_LIMIT_S)


@pytest.mark.frameworks
def test_numba_itself_waits_outside_the_driver_and_its_first_use_is_seen_in_os_environ(
    node: Manager, start: Start, alice: str, bob: str
) -> None:
    """Numba would remember the failed cuInit of a wait that was cancelled."""
    node.quota(alice, 2)
    node.quota(bob, 4)
    holding = holder(start, bob, 4)
    program = start(
        alice,
        """
        import json, os, sys
        from numba import cuda
        asked = cuda.cudadrv.driver.driver.is_initialized
        try:
            cuda.current_context()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.stdin.readline()
            gpus = len(cuda.gpus)
            print(json.dumps([asked, gpus, os.environ["CUDA_VISIBLE_DEVICES"].count("GPU-"),
                len(os.environ["NODEMGR_TASK"])]))
        """,
        real=True,
    )
    assert program.stderr is not None
    assert program.stdout is not None
    list(up_to(program.stderr, "nodemgr: "))
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "interrupted\n"
    holding.communicate(timeout=WAIT_LIMIT_S)
    stdout, errors = program.communicate("\n", timeout=WAIT_LIMIT_S)
    assert json.loads(stdout) == [False, 2, 2, 32], errors


@pytest.mark.frameworks
def test_cuda_bindings_too_shows_its_grant_in_os_environ(
    node: Manager, start: Start, alice: str
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        """
        import json, os
        from cuda.bindings import driver
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        result = int(driver.cuInit(0)[0])
        print(json.dumps([before, result, os.environ["CUDA_VISIBLE_DEVICES"].count("GPU-")]))
        """,
        real=True,
    )
    assert ended(program)[0] == [None, 0, 2]


INTERRUPTED = {
    "cuda.bindings.driver": "from cuda.bindings import driver; driver.cuInit(0)",
    "cuda.bindings.runtime": "from cuda.bindings import runtime; runtime.cudaFree(0)",
    "numba.cuda": "from numba import cuda; cuda.current_context()",
    "torch": "import torch; torch.cuda.init()",
    "pycuda.driver": "import pycuda.driver; pycuda.driver.init()",
    "ctypes": "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",
}
STAND_INS = ("torch", "pycuda.driver", "ctypes")


@pytest.mark.parametrize(
    "way",
    [
        way if way in STAND_INS else pytest.param(way, marks=pytest.mark.frameworks)
        for way in INTERRUPTED
    ],
)
def test_ctrl_c_is_raised_from_the_programs_own_call(
    node: Manager, start: Start, alice: str, bob: str, way: str
) -> None:
    """No statement behind it runs, even on its own line; the traceback has no line of ours."""
    node.quota(alice, 2)
    node.quota(bob, 4)
    holding = holder(start, bob, 4)
    program = start(
        alice, f"{INTERRUPTED[way]}; print(1); print(2)\nprint(3)", real=way not in STAND_INS
    )
    assert program.stderr is not None
    list(up_to(program.stderr, "nodemgr: "))
    program.send_signal(signal.SIGINT)
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    holding.communicate(timeout=WAIT_LIMIT_S)
    assert stdout == ""
    assert 'File "<string>", line 1, in <module>' in stderr
    assert stderr.endswith("KeyboardInterrupt\n")
    assert str(ROOT / "client_plugin") not in stderr


@pytest.mark.frameworks
def test_cuda_bindings_is_refused_as_a_program_in_c_is(
    node: Manager, start: Start, alice: str
) -> None:
    node.quota(alice, 2)
    program = start(
        alice,
        "import json; from cuda.bindings import driver;"
        " print(json.dumps(driver.cuInit(0)[0].name))",
        real=True,
        NODEMGR_GPUS="3",
    )
    result, stderr = ended(program)
    assert result == "CUDA_ERROR_NO_DEVICE"
    assert len(stderr.splitlines()) == 1
    assert "quota" in stderr


@SHIM
def test_a_program_behind_its_time_gets_more_of_its_gpu(
    node: Manager, start: Start, alice: str, shim: bool
) -> None:
    """It reports 10 parts of 1 000 a second, and is to end within 20 s."""
    share = {"task_class": "latency-sensitive", "compute_percent": 30}
    node.quota(alice, 1, memory_bytes=4 * GIB, **share)
    assert "progress=1" in (node.env_dir(alice) / "client.conf").read_text().split()
    program = start(
        alice,
        """
        import itertools, select, sys, torch
        from nodemgr_progress import nodemgr_progress
        torch.first_use()
        for done in itertools.count():
            nodemgr_progress(done, 1_000)
            if select.select([sys.stdin], [], [], 0.1)[0]:
                break
        """,
        shim=shim,
        NODEMGR_DEADLINE="20",
    )
    shared = node.events().expect("task.share", env=alice)
    assert shared["granted_percent"] == 40
    (task,) = tasks(node, alice)
    assert task["progress"]["total"] == 1_000
    assert task["compute_granted_percent"] >= 40
    assert all_but_half(program.communicate("\n", timeout=WAIT_LIMIT_S)[1], shim) == ""
