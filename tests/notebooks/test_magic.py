"""`%gpu` in a real kernel and in plain ipython: status, release, acquire, and their refusals."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.notebook import Cell, Notebook

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
STANDINS = ROOT / "tests" / "hook" / "standins"
_names = itertools.count()
Open = Callable[..., Notebook]


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
def open_notebook(node: Manager, tmp_path: Path) -> Iterator[Open]:
    notebooks: list[Notebook] = []

    def begin(env: str | None, **variables: str) -> Notebook:
        environ = node.environment_of(env) if env else dict(os.environ)
        environ = {**environ, "PYTHONPATH": str(STANDINS), **variables}
        notebooks.append(Notebook(environ, tmp_path))
        return notebooks[-1]

    yield begin
    for notebook in notebooks:
        notebook.close()


def said(cell: Cell) -> list[str]:
    """The printed lines of a cell."""
    assert cell.error is None, cell.error
    return "\n".join(cell.outputs).splitlines()


def refusal(cell: Cell) -> str:
    """The one line of a cell that %gpu failed."""
    assert cell.stderr == "" or cell.error is None or cell.stderr.count("\n") == 1
    text = cell.error or cell.stderr.strip()
    assert text.startswith("UsageError: nodemgr: ")
    assert "\n" not in text
    return text.removeprefix("UsageError: nodemgr: ")


def test_status_release_and_acquire(node: Manager, alice: str, open_notebook: Open) -> None:
    notebook = open_notebook(alice)
    first = said(notebook.run("%gpu"))
    assert first[0].startswith("GPU \N{EN DASH}: this kernel holds none")
    assert first[1] == f"environment {alice}: 0 of 2 GPUs in use"

    assert re.match(r"GPU [01] · ", said(notebook.run("%gpu acquire 1"))[0])
    task = node.status()["tasks"][0]
    assert (task["env"], len(task["gpus"])) == (alice, 1)
    shown = said(notebook.run("%gpu status"))
    assert shown[0].startswith(f"GPU {task['gpu_indices'][0]} · ")
    assert shown[1] == f"environment {alice}: 1 of 2 GPUs in use"
    assert shown[2].endswith("(this kernel)")
    assert notebook.run("import torch; torch.first_use()").outputs == ["1"]

    assert said(notebook.run("%gpu keep 2h")) == [
        f"{task['id']} keeps its GPU memory for 2 h, also while it is idle"
    ]
    assert "this kernel holds 1 GPU: %gpu release" in refusal(notebook.run("%gpu acquire 2"))
    gpu = shown[0].partition(" · ")[0]  # figures may come and go on a busy machine
    assert said(notebook.run("%gpu acquire"))[0].startswith(f"{gpu} · ")
    released = notebook.run("%gpu release")
    assert said(released)[0].startswith(f"{task['id']} is released.")
    assert "GPUs back (nodemgr release)" not in released.stderr  # the user knows it
    assert node.status()["tasks"] == []
    assert said(notebook.run("%gpu release"))[0].endswith("this kernel holds none")
    assert said(notebook.run("%gpu acquire 2"))[0].startswith("GPU 0,1 · ")
    assert len(node.status()["tasks"][0]["gpus"]) == 2


def test_acquire_waits_in_one_line_and_interrupt_ends_it(
    node: Manager, alice: str, open_notebook: Open
) -> None:
    bob = f"bob{next(_names)}"
    node.quota(bob, 2)
    holding = node.hold(bob)
    assert holding.stdout is not None
    holding.stdout.readline()
    notebook = open_notebook(alice)
    cell = notebook.until(notebook.start("%gpu acquire 2"), lambda cell: len(cell.lines) >= 2)
    assert len(cell.line_outputs) == 1
    assert bob in cell.lines[0]
    notebook.manager.interrupt_kernel()
    notebook.until(cell, lambda cell: cell.done)
    assert (cell.error or "").startswith("KeyboardInterrupt")
    node.await_no_queue()
    holding.communicate(timeout=WAIT_LIMIT_S)
    assert said(notebook.run("%gpu acquire 2"))[0].startswith("GPU 0,1 · ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%gpu sattus", "no such command 'sattus': %gpu has status, release, acquire"),
        ("%gpu status 3", "status takes no argument"),
        ("%gpu release 3", "release takes no argument"),
        ("%gpu acquire two", "'two' is no number of GPUs: write %gpu acquire 2"),
        ("%gpu acquire 0", "'0' is no number of GPUs"),
        ("%gpu acquire 1 2", "'1 2' is no number of GPUs"),
        ("%gpu acquire -1", "'-1' is no number of GPUs"),
        ("%gpu acquire \N{ARABIC-INDIC DIGIT TWO}", "is no number of GPUs"),
        ("%gpu acquire 3", "3 GPUs"),
        ("%gpu keep", "'' is no time to keep: write %gpu keep 2h"),
        ("%gpu keep long", "'long' is no time to keep: write %gpu keep 2h"),
        ("%gpu keep 2 h 3", "'2 h 3' is no time to keep: write %gpu keep 2h"),
    ],
)
def test_a_mistake_is_one_line_and_the_cell_fails(
    alice: str, kernel: Notebook, line: str, reason: str
) -> None:
    assert reason in refusal(kernel.run(line))
    assert kernel.run("40 + 2").outputs == ["42"]


@pytest.fixture(scope="module")
def kernel(node: Manager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One kernel for the mistakes, which change nothing."""
    node.quota("mistakes", 2)
    notebook = Notebook(node.environment_of("mistakes"), tmp_path_factory.mktemp("kernel"))
    yield notebook
    notebook.close()


def test_a_manager_that_is_away_is_one_line(
    make_manager: Callable[..., Manager], open_notebook: Open, tmp_path: Path
) -> None:
    other = make_manager(simulate="1x80GiB")
    other.quota("alice", 1)
    notebook = Notebook(other.environment_of("alice"), tmp_path)
    try:
        other.stop()
        assert refusal(notebook.run("%gpu")).startswith("no answer from the manager: ")
        other.start()
        assert said(notebook.run("%gpu"))[1] == "environment alice: 0 of 1 GPUs in use"
    finally:
        notebook.close()


def test_outside_of_an_environment_there_is_no_such_magic(open_notebook: Open) -> None:
    """The hook of sitecustomize is there, and no environment."""
    path = f"{ROOT / 'sitecustomize'}:{STANDINS}"
    notebook = open_notebook(None, PYTHONPATH=path, NODEMGR_ENV_DIR="/nowhere")
    cell = notebook.run("%gpu")
    assert "`%gpu` not found" in (cell.error or "") + cell.stderr
    assert notebook.run("import sys; 'nodemgr' in str(list(sys.modules))").outputs == ["False"]


def test_the_load_of_ipython_gives_no_task_token(alice: str, open_notebook: Open) -> None:
    """A program that a kernel without GPUs starts is a task of its own."""
    notebook = open_notebook(alice)
    assert notebook.run("import os; 'NODEMGR_TASK' in os.environ").outputs == ["False"]


def test_plain_ipython_has_it(node: Manager, alice: str, tmp_path: Path) -> None:
    program = node.spawn(
        alice,
        [sys.executable, "-m", "IPython", "--colors=NoColor", "-c",
         "get_ipython().run_line_magic('gpu', 'acquire 1');"
         " get_ipython().run_line_magic('gpu', '')"],
        IPYTHONDIR=str(tmp_path),
    )  # fmt: skip
    out, err = program.communicate(timeout=WAIT_LIMIT_S)
    assert program.returncode == 0, err
    assert "(this kernel)" in out


def test_ipython_without_a_driver_still_starts(alice: str, node: Manager, tmp_path: Path) -> None:
    """The client library is loaded by %gpu, not by IPython's start."""
    code = "import sys; print([name for name in sys.modules if name.endswith('.magic')])"
    program = node.spawn(
        alice, [sys.executable, "-m", "IPython", "-c", code], shim=False,
        PYTHONPATH=str(ROOT / "sitecustomize"), IPYTHONDIR=str(tmp_path),
    )  # fmt: skip
    out, err = program.communicate(timeout=WAIT_LIMIT_S)
    assert (program.returncode, "_nodemgr_client_plugin.magic" in out) == (0, False), err
