"""docs/jupyter.md, line by line, in kernels of `kernel install` from an installed wheel.

The kernels are started as JupyterLab starts them; the frameworks are stand-ins on the simulated
driver.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.notebook import Cell, Notebook
from tests.support.wheel import Installation, installation, wheel

__all__ = ["installation", "wheel"]
pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
STANDINS = ROOT / "tests" / "hook" / "standins"
PAGE = (ROOT / "docs" / "jupyter.md").read_text()
LINES = re.findall(r"^\| `(%gpu[^`]*)` \|", PAGE, re.MULTILINE)
"""The lines of the table of `%gpu`."""
USE = "import torch; torch.first_use()"
_names = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager("2x80GiB").start()
    yield manager
    manager.close()


@pytest.fixture
def alice(node: Manager) -> str:
    name = f"alice{next(_names)}"
    node.quota(name, 2)
    return name


@pytest.fixture
def held(node: Manager) -> Iterator[Any]:
    """Another environment holds all GPUs until its program's input ends."""
    bob = f"bob{next(_names)}"
    node.quota(bob, 2)
    holding = node.hold(bob)
    assert holding.stdout is not None
    holding.stdout.readline()
    yield holding
    holding.communicate(timeout=WAIT_LIMIT_S)


class Users:
    """A user's installation, kernelspecs and notebooks."""

    def __init__(self, node: Manager, installation: Installation, directory: Path) -> None:
        self._node, self._installation, self._directory = node, installation, directory
        self._notebooks: list[Notebook] = []
        programs = installation.directory / "bin"
        outside = {key: text for key, text in os.environ.items() if key.startswith(("LANG", "LC_"))}
        self.variables = {
            **outside,
            "HOME": str(directory),
            "PATH": f"{programs}:/usr/bin:/bin",
            "JUPYTER_DATA_DIR": str(directory),
            "NODEMGR_RUN_DIR": str(node.run_dir),
            "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
            "PYTHONPATH": str(STANDINS),
        }

    def nodemgr(self, *words: str) -> str:
        done = self._installation.run("nodemgr", *words, **self.variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, env: str, *options: str) -> None:
        python = str(self._installation.directory / "bin" / "python")
        self.nodemgr("kernel", "install", env, "--user", "--python", python, *options)

    def spec(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self._directory / "kernels" / name / "kernel.json").read_text()
        )
        return found

    def open(self, name: str) -> Notebook:
        notebook = Notebook(self.variables, self._directory, self.spec(name)["argv"])
        self._notebooks.append(notebook)
        return notebook

    def close(self) -> None:
        for notebook in self._notebooks:
            notebook.close()


@pytest.fixture
def user(node: Manager, installation: Installation, tmp_path: Path) -> Iterator[Users]:
    users = Users(node, installation, tmp_path)
    yield users
    users.close()


@pytest.fixture
def kernel(user: Users, alice: str) -> Notebook:
    user.install(alice)
    return user.open(f"nodemgr-{alice}")


def tasks(node: Manager, env: str) -> list[Any]:
    return [task for task in node.status()["tasks"] if task["env"] == env]


def printed(cell: Cell) -> str:
    assert cell.error is None, cell.error
    return "\n".join(cell.outputs)


def test_it_starts_at_once_waits_in_one_line_and_interrupt_ends_the_wait(
    node: Manager, kernel: Notebook, alice: str, held: Any
) -> None:
    cell = kernel.until(kernel.start(USE), lambda cell: len(cell.lines) >= 2)
    assert len(cell.line_outputs) == 1
    assert "place 1 in queue" in cell.lines[-1]
    assert "bob" in cell.lines[-1]
    kernel.manager.interrupt_kernel()
    kernel.until(cell, lambda cell: cell.done)
    assert (cell.error or "").startswith("KeyboardInterrupt")
    assert kernel.run("40 + 2").outputs == ["42"]
    held.communicate(timeout=WAIT_LIMIT_S)
    assert kernel.run(USE).outputs == ["2"]
    (task,) = tasks(node, alice)
    assert task["pids"] == [kernel.manager.provisioner.pid], "run becomes the kernel"


@pytest.mark.parametrize(
    ("code", "says", "denies"),
    [
        ("import torch; torch.first_use()", "the next use of CUDA asks anew", "start the program"),
        ("import cupy; cupy.compiled_first_use()", "start the program anew", "asks anew"),
    ],
)
def test_an_interrupted_wait_says_one_thing_of_what_comes(
    kernel: Notebook, held: Any, code: str, says: str, denies: str
) -> None:
    """Inside the driver CUDA remembers the refusal, before it nothing does."""
    cell = kernel.until(kernel.start(code), lambda cell: cell.lines)
    kernel.manager.interrupt_kernel()
    kernel.until(cell, lambda cell: cell.done)
    text = cell.lines[-1] + cell.stderr
    assert "cancelled after" in text
    assert says in text
    assert denies not in text


@pytest.mark.parametrize("end", ["restart", "shutdown", "nodemgr release", "%gpu release"])
def test_the_gpus_go_back(
    node: Manager, user: Users, kernel: Notebook, alice: str, end: str
) -> None:
    assert kernel.run(USE).outputs == ["2"]
    (task,) = tasks(node, alice)
    events = node.events()
    if end == "restart":
        kernel.manager.restart_kernel()
    elif end == "shutdown":
        kernel.manager.shutdown_kernel()
    elif end == "nodemgr release":
        user.nodemgr("release", task["id"])
    else:
        assert printed(kernel.run(end)).startswith(f"{task['id']} is released.")
    events.expect("task.ended", task=task["id"])


def test_what_the_notebook_starts_joins_its_task_if_it_holds_gpus(
    node: Manager, kernel: Notebook, alice: str
) -> None:
    child = "!python -c 'import torch; print(torch.first_use())'"
    events = node.events()
    assert printed(kernel.run(child)) == "2"
    assert events.expect("task.granted", env=alice)["pids"] != [kernel.manager.provisioner.pid]
    events.expect("task.ended", env=alice)
    kernel.run(USE)
    (task,) = tasks(node, alice)
    events = node.events()
    assert printed(kernel.run(child)) == "2"
    assert events.expect("task.joined", env=alice)["task"] == task["id"]


def shows(node: Manager, kernel: Notebook, alice: str) -> None:
    assert printed(kernel.run("%gpu")).startswith("GPU \N{EN DASH}: this kernel holds none")
    kernel.run(USE)
    text = printed(kernel.run("%gpu"))
    (task,) = tasks(node, alice)
    assert text.startswith("GPU 0,1 · ")
    assert f"environment {alice}: 2 of 2 GPUs in use" in text
    assert f"  {task['id']}  GPU 0,1" in text
    assert "suspended" not in text
    events = node.events()
    node.call("task_suspend", task=task["id"])
    events.expect("task.suspended", task=task["id"])
    assert printed(kernel.run("%gpu")).startswith("GPU 0,1 · suspended · ")
    assert tasks(node, alice)[0]["suspended"], "a look does not bring it back"


def acquires(node: Manager, kernel: Notebook, alice: str) -> None:
    assert printed(kernel.run("%gpu acquire 2")).startswith("GPU 0,1 · ")
    assert len(tasks(node, alice)[0]["gpus"]) == 2
    kernel.run("%gpu release")
    assert printed(kernel.run("%gpu acquire")).startswith("GPU 0,1 · ")
    refused = kernel.run("%gpu acquire 1\nprint('not reached')")
    text = refused.error or refused.stderr
    assert (text.strip().count("\n"), refused.outputs) == (0, [])
    assert "this kernel holds 2 GPUs: %gpu release" in text


def releases(node: Manager, kernel: Notebook, alice: str) -> None:
    kernel.run(USE)
    printed(kernel.run("%gpu release"))
    assert tasks(node, alice) == []


def keeps(node: Manager, kernel: Notebook, alice: str) -> None:
    kernel.run(USE)
    assert printed(kernel.run("%gpu keep 2h")).endswith(
        "keeps its GPU memory for 2 h, also while it is idle"
    )


ROWS: dict[str, Callable[[Manager, Notebook, str], None]] = {
    "%gpu": shows,
    "%gpu acquire 2": acquires,
    "%gpu release": releases,
    "%gpu keep 2h": keeps,
}


@pytest.mark.parametrize("line", LINES)
def test_each_line_of_the_magic_does_what_its_row_says(
    node: Manager, kernel: Notebook, alice: str, line: str
) -> None:
    ROWS[line](node, kernel, alice)


def test_the_lines_of_kernel_install_list_and_rm(node: Manager, user: Users, alice: str) -> None:
    user.install(alice)
    user.install(alice, "--gpus", "1", "--name", "one-gpu")
    assert user.spec(f"nodemgr-{alice}")["display_name"] == f"Python 3 with GPUs ({alice})"
    assert user.spec("one-gpu")["display_name"] == f"Python 3 with GPUs ({alice}, one-gpu)"
    listed = user.nodemgr("kernel", "list")
    assert "one-gpu" in listed
    assert f"nodemgr-{alice}" in listed
    assert user.open("one-gpu").run(USE).outputs == ["1"], "--gpus holds for each kernel"
    user.nodemgr("kernel", "rm", "one-gpu")
    assert "one-gpu" not in user.nodemgr("kernel", "list")
