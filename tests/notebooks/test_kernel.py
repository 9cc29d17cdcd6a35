"""A notebook's kernel in an environment: it starts at once, and the cell waits.

Interrupt ends the wait, and the kernel lives on.

A real ipykernel, driven by jupyter_client as JupyterLab drives it; stand-in frameworks on the
simulated driver.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.manager import Manager
from tests.support.notebook import WAIT_LIMIT_S, Notebook

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
STANDINS = ROOT / "tests" / "hook" / "standins"
GIB = 1 << 30
_names = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager("2x80GiB").start()
    yield manager
    manager.close()


@pytest.fixture
def envs(node: Manager) -> tuple[str, str]:
    """Two envs that may each use all of the node."""
    number = next(_names)
    names = f"alice{number}", f"bob{number}"
    for name in names:
        node.quota(name, 2)
    return names


@pytest.fixture
def open_notebook(node: Manager, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    notebooks = []

    def begin(env: str, *, shim: bool = True) -> Notebook:
        path = (
            [str(STANDINS)]
            if shim
            else [str(Path(__file__).resolve().parents[2] / "sitecustomize"), str(STANDINS)]
        )
        environ = {
            **node.environment_of(env, shim=shim),
            "PYTHONPATH": ":".join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environ.pop("PYTEST_CURRENT_TEST", None)  # a kernel that sees it shows no descriptor 2
        notebooks.append(Notebook(environ, tmp_path))
        return notebooks[-1]

    yield begin
    for notebook in notebooks:
        notebook.close()


@pytest.fixture
def hold_all(node: Manager) -> Iterator[Callable[[str], Any]]:
    """Starts a program of another env that holds both GPUs until its input ends."""
    programs = []

    def begin(env: str) -> Any:
        code = "import sys, cupy; print(cupy.first_use(), flush=True); sys.stdin.read()"
        program = node.spawn(env, [sys.executable, "-c", code], PYTHONPATH=str(STANDINS))
        programs.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "2\n"
        return program

    yield begin
    for program in programs:
        if program.poll() is None:
            program.communicate(timeout=WAIT_LIMIT_S)


def tasks(node: Manager, env: str) -> list[dict[str, Any]]:
    return [task for task in node.status()["tasks"] if task["env"] == env]


@pytest.mark.parametrize(
    ("framework", "shim"), [("torch", True), ("jax", False)], ids=["torch", "jax, no shim"]
)
def test_the_wait_is_in_the_cell_and_interrupt_ends_it(
    node: Manager, envs, hold_all, open_notebook, framework: str, shim: bool
) -> None:
    alice, bob = envs
    holding = hold_all(bob)
    notebook = open_notebook(alice, shim=shim)  # at once: it is ready while nothing is free
    loaded = notebook.run(f"import {framework}; 'loaded'")
    assert (loaded.outputs, loaded.error, loaded.lines) == (["'loaded'"], None, [])

    waiting = notebook.until(
        notebook.start(f"{framework}.first_use()"),
        lambda cell: len(set(cell.lines)) >= 3,  # the clock goes on
    )
    assert len(waiting.line_outputs) == 1
    assert all("bob" in line for line in waiting.lines)
    notebook.manager.interrupt_kernel()
    notebook.until(waiting, lambda cell: cell.done)
    assert waiting.error is not None
    assert waiting.error.startswith("KeyboardInterrupt")
    assert "cancelled" in waiting.lines[-1]
    assert waiting.stderr == ""
    node.await_no_queue()

    assert notebook.run("40 + 2").outputs == ["42"]
    holding.communicate(timeout=WAIT_LIMIT_S)
    later = notebook.run(f"{framework}.first_use()")
    assert (later.outputs, later.error) == (["2"], None)
    assert len(tasks(node, alice)) == 1


def test_a_wait_that_ends_well_shows_so_in_its_line(
    node: Manager, envs, hold_all, open_notebook
) -> None:
    alice, bob = envs
    holding = hold_all(bob)
    notebook = open_notebook(alice)
    cell = notebook.until(
        notebook.start("import torch; torch.first_use()"), lambda cell: cell.lines
    )
    holding.communicate(timeout=WAIT_LIMIT_S)
    notebook.until(cell, lambda cell: cell.done)
    assert (cell.outputs, cell.error) == (["2"], None)
    assert "granted" in cell.lines[-1]


def test_interrupt_reaches_a_wait_inside_the_driver(
    node: Manager, envs, hold_all, open_notebook
) -> None:
    """CuPy's compiled code has no gate of ours: its cuInit waits, through Python."""
    alice, bob = envs
    holding = hold_all(bob)
    notebook = open_notebook(alice)
    cell = notebook.until(
        notebook.start("import cupy; cupy.compiled_first_use()"), lambda cell: len(cell.lines) >= 2
    )
    notebook.manager.interrupt_kernel()
    notebook.until(cell, lambda cell: cell.done)
    assert (cell.error or "").startswith("KeyboardInterrupt")  # in the place of the driver's error
    assert re.fullmatch(r"nodemgr: cancelled after \d:\d\d:\d\d", cell.lines[-1])
    # the kernel reads its own stderr by a pipe, and may do so after the cell
    notebook.until(cell, lambda cell: "found no GPU: start the program anew" in cell.stderr)
    node.await_no_queue()
    assert notebook.run("40 + 2").outputs == ["42"]
    holding.communicate(timeout=WAIT_LIMIT_S)


def test_a_restart_gives_the_gpus_back(node: Manager, envs, open_notebook) -> None:
    alice, _ = envs
    notebook = open_notebook(alice)
    assert notebook.run("import torch; torch.first_use()").outputs == ["2"]
    assert len(tasks(node, alice)) == 1
    events = node.events(since=None)
    notebook.manager.restart_kernel(now=True)
    events.expect("task.ended", env=alice)
    notebook.frontend.wait_for_ready(timeout=WAIT_LIMIT_S)
    assert tasks(node, alice) == []
    assert notebook.run("import torch; torch.first_use()").outputs == ["2"]


def test_a_refusal_is_the_cells_error_and_the_kernel_lives_on(
    node: Manager, envs, open_notebook
) -> None:
    alice, _ = envs
    notebook = open_notebook(alice)
    refused = notebook.run(
        "import os; os.environ['NODEMGR_GPUS'] = '3'; import torch; torch.first_use()"
    )
    assert refused.error is not None
    assert refused.error.startswith("RuntimeError: nodemgr: ")
    assert notebook.run("os.environ['NODEMGR_GPUS'] = '1'; torch.first_use()").outputs == ["1"]


def test_the_line_of_the_quota_reaches_the_cell(node: Manager, envs, open_notebook) -> None:
    """The kernel puts a pipe of its own in the place of stderr, and shows what comes out of it."""
    alice, _ = envs
    notebook = open_notebook(alice)
    beyond = "import torch, cuda_driver; cuda_driver.allocate(81 << 30)"
    cell = notebook.run(beyond)
    assert "CUDA error 2" in (cell.error or "")
    notebook.until(cell, lambda cell: "out of GPU memory" in cell.stderr)


def test_what_the_notebook_starts_belongs_to_its_task(node: Manager, envs, open_notebook) -> None:
    alice, _ = envs
    notebook = open_notebook(alice)
    notebook.run("import torch, os, sys; torch.first_use()")
    child = notebook.run('!{sys.executable} -c "import torch; print(torch.first_use())"')
    assert "".join(child.outputs) == "2"  # the line and its end may come apart
    shown = notebook.run("os.environ['CUDA_VISIBLE_DEVICES'].count('GPU-')")
    assert shown.outputs == ["2"]
    assert len(tasks(node, alice)) == 1


def test_import_mode_waits_in_the_cell_that_imports(
    node: Manager, envs, hold_all, open_notebook
) -> None:
    alice, bob = envs
    node.quota(alice, 2, acquire="import")
    holding = hold_all(bob)
    notebook = open_notebook(alice)
    cell = notebook.until(notebook.start("import torch"), lambda cell: cell.lines)
    notebook.manager.interrupt_kernel()
    notebook.until(cell, lambda cell: cell.done)
    assert cell.error is not None
    assert cell.error.startswith("KeyboardInterrupt")
    assert notebook.run("import sys; 'torch' in sys.modules").outputs == ["False"]
    holding.communicate(timeout=WAIT_LIMIT_S)
    assert notebook.run("import torch").error is None
    (task,) = tasks(node, alice)
    assert len(task["gpus"]) == 2


def test_a_kernel_of_kernel_install_waits_in_its_cell_and_restarts(
    node: Manager, envs, hold_all, tmp_path: Path
) -> None:
    """`nodemgr run` becomes the kernel, so that Interrupt and Restart reach it."""
    alice, bob = envs
    outside = {key: value for key, value in os.environ.items() if not key.startswith("NODEMGR_")}
    surroundings = {
        **outside,
        "JUPYTER_DATA_DIR": str(tmp_path),
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
        "PYTHONPATH": f"{ROOT}:{STANDINS}",
    }
    install = [
        sys.executable, "-m", "nodemgr", "kernel", "install", alice, "--user",
        "--run-dir", str(node.run_dir), "--python", sys.executable,
    ]  # fmt: skip
    subprocess.run(install, env=surroundings, check=True, timeout=WAIT_LIMIT_S, cwd=ROOT)
    spec = json.loads((tmp_path / f"kernels/nodemgr-{alice}/kernel.json").read_text())
    holding = hold_all(bob)
    notebook = Notebook(surroundings, tmp_path, spec["argv"])
    try:
        waiting = notebook.until(
            notebook.start("import torch; torch.first_use()"), lambda cell: cell.lines
        )
        (row,) = node.status()["queue"]
        assert row["pids"] == [notebook.manager.provisioner.pid]
        notebook.manager.interrupt_kernel()
        notebook.until(waiting, lambda cell: cell.done)
        assert (waiting.error or "").startswith("KeyboardInterrupt")
        node.await_no_queue()
        holding.communicate(timeout=WAIT_LIMIT_S)
        assert notebook.run("torch.first_use()").outputs == ["2"]
        events = node.events(since=None)
        notebook.manager.restart_kernel()
        events.expect("task.ended", env=alice)
        notebook.frontend.wait_for_ready(timeout=WAIT_LIMIT_S)
        assert notebook.run("import torch; torch.first_use()").outputs == ["2"]
    finally:
        notebook.close()
