"""The load of a framework: the token, the defaults, `import` mode.

Also the rest of the import after a refusal or a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import World, interpreters

Make = Callable[..., Path]
WAIT_FOR_EVER = [["WAITING", "place 2: bob holds all GPUs"], ["hold", ""]]


def test_the_token_enters_both_environments_before_the_frameworks_code_and_asks_for_nothing(
    world: World, package: Make
) -> None:
    package("cupy", "import os\nTOKEN = os.environ['NODEMGR_TASK']")
    child = world.run(
        "import cupy, json, os; print(json.dumps([cupy.TOKEN, os.environ['NODEMGR_TASK']]))"
    )
    token = child.seen[0]
    assert child.seen == [token, token]
    assert child.log == [f"publish NODEMGR_TASK={token}"]
    assert child.stderr == ""


def test_a_token_that_is_there_stays(world: World, package: Make) -> None:
    package("cupy")
    package("paddle")
    world.environ["NODEMGR_TASK"] = "ab" * 16
    child = world.run(
        "import cupy, paddle, json, os; print(json.dumps(os.environ['NODEMGR_TASK']))"
    )
    assert child.seen == "ab" * 16


DEFAULTS = {
    "torch": {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
    "tensorflow": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "cupy": {},
}


@pytest.mark.parametrize("framework", DEFAULTS)
def test_a_framework_gets_its_defaults_before_its_own_code_runs(
    world: World, package: Make, framework: str
) -> None:
    names = [name for defaults in DEFAULTS.values() for name in defaults]
    package(
        framework,
        f"import os\nSAW = {{name: os.environ[name] for name in {names} if name in os.environ}}",
    )
    child = world.run(f"import {framework}, json; print(json.dumps({framework}.SAW))")
    assert child.seen == DEFAULTS[framework]
    assert [f"publish {name}={value}" for name, value in DEFAULTS[framework].items()] == child.log[
        1:
    ]


def test_a_default_that_the_user_has_set_is_his(world: World, package: Make) -> None:
    package("jax")
    world.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    child = world.run(
        "import jax, json, os; print(json.dumps(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE']))"
    )
    assert child.seen == "true"


@pytest.mark.parametrize(
    "framework", ["torch", "tensorflow", "jax", "mxnet", "caffe", "paddle", "cupy"]
)
def test_import_mode_acquires_before_the_frameworks_own_code(
    world: World, package: Make, framework: str
) -> None:
    world.script["settings"]["acquire"] = "import"
    world.script["grant"] = {"CUDA_VISIBLE_DEVICES": "3"}
    package(framework, "import os\nSAW = os.environ.get('CUDA_VISIBLE_DEVICES')")
    child = world.run(f"import {framework}, json; print(json.dumps({framework}.SAW))")
    assert child.seen == "3"
    assert child.log.count("begin") == 1


@pytest.mark.parametrize("python", interpreters())
def test_a_wait_at_import_that_is_cancelled_leaves_nothing_half_imported(
    world: World, package: Make, python: str
) -> None:
    world.script["settings"]["acquire"] = "import"
    world.script["requests"] = [WAIT_FOR_EVER, [["HELD", ""]]]
    package("torch", "import builtins\nbuiltins.LOADS = getattr(builtins, 'LOADS', 0) + 1")
    child = world.run_and_interrupt(
        """
        import builtins, json, sys
        try:
            import torch
        except KeyboardInterrupt:
            missing = "torch" not in sys.modules and not hasattr(builtins, "LOADS")
        import torch
        print(json.dumps([missing, builtins.LOADS, type(torch.__loader__).__name__]))
        """,
        when="place 2",
        python=python,
    )
    assert child.seen == [True, 1, "SourceFileLoader"]


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_a_refusal_at_import_lets_the_import_succeed(
    world: World, package: Make, framework: str
) -> None:
    world.script["settings"]["acquire"] = "import"
    world.script["requests"] = [[["DENIED", "over quota"]]]
    package(framework, "VALUE = 1")
    child = world.run(f"import {framework}, json; print(json.dumps({framework}.VALUE))")
    assert child.seen == 1
    assert child.stderr == ""


def test_without_the_shim_a_generic_framework_acquires_at_import(
    world: World, package: Make
) -> None:
    world.script["preloaded"] = False
    package("cupy", "VALUE = 1")
    package("torch", "VALUE = 1")
    child = world.run("import torch, cupy")
    assert child.log.count("begin") == 1
    assert "begin" not in world.run("import torch").log[len(child.log) :]


def test_without_the_shim_a_refused_generic_framework_sees_no_gpu_and_one_line_says_why(
    world: World, package: Make
) -> None:
    world.script["preloaded"] = False
    world.script["requests"] = [[["DENIED", "over quota: alice may hold 2 GPUs"]]]
    package("cupy", "import os\nSAW = os.environ.get('CUDA_VISIBLE_DEVICES')")
    child = world.run("import cupy, json; print(json.dumps(cupy.SAW))")
    assert child.seen == ""
    assert child.stderr == "nodemgr: over quota: alice may hold 2 GPUs\n"
    assert "publish CUDA_VISIBLE_DEVICES=" in child.log


def test_a_library_that_cannot_be_loaded_is_one_line_and_every_import_succeeds(
    world: World, package: Make
) -> None:
    world.script["fault"] = "libnodemgr.so: cannot open shared object file"
    for name in ("torch", "jax", "cupy"):
        package(name)
    child = world.run("import torch, jax, cupy")
    assert child.returncode == 0
    assert (
        child.stderr
        == "nodemgr: loading libnodemgr.so failed (OSError: libnodemgr.so: cannot open shared"
        " object file); the program goes on without it; `nodemgr doctor` checks the client\n"
    )


def test_an_adapter_that_fails_is_one_line_and_the_import_succeeds(
    world: World, package: Make
) -> None:
    package(
        "torch",
        "class Odd:\n    def __getattr__(self, name): raise ValueError('odd')\ncuda = Odd()",
    )
    child = world.run("import torch, importlib; importlib.reload(torch)")
    assert child.returncode == 0
    assert (
        child.stderr
        == "nodemgr: the adapter for torch failed (ValueError: odd); the program goes on without"
        " it; `nodemgr doctor` checks the client\n"
    )


def test_a_process_that_the_library_does_not_serve_is_left_alone(
    world: World, package: Make
) -> None:
    world.script["managed"] = False
    world.script["settings"]["acquire"] = "import"
    package("torch")
    child = world.run("import torch, json, os; print(json.dumps('NODEMGR_TASK' in os.environ))")
    assert child.seen is False
    assert child.log == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_belong_to_the_task(
    world: World, package: Make, method: str
) -> None:
    package("cupy")
    program = world.directory / "program.py"
    program.write_text(
        "import cupy, json, multiprocessing, os, sys\n"
        "def token(queue): queue.put(os.environ['NODEMGR_TASK'])\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    queue = context.Queue()\n"
        "    child = context.Process(target=token, args=(queue,))\n"
        "    child.start()\n"
        "    print(json.dumps(queue.get() == os.environ['NODEMGR_TASK']))\n"
        "    child.join()\n"
    )
    child = world.run(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    assert child.seen is True, child.stderr
