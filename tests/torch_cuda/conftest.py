"""The CUDA build of PyTorch on a simulated node.

The simulated libcudart is preloaded beside the shim, so that PyTorch's libraries, which name it by
its soname, find it loaded. Every test here is skipped, with the reason, where PyTorch is no such
build.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.cells import CELLS, Cells
from tests.cudart import build
from tests.sim.built import built_libraries
from tests.support.manager import Manager
from tests.support.notebook import Notebook
from tests.support.programs import Program

__all__ = ["built_libraries"]
PROGRAMS = Path(__file__).with_name("programs")
GIB = 1 << 30
NODE = "2x16GiB"


@functools.cache
def missing() -> str | None:
    """Why these tests cannot run here."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "PyTorch is not installed"
    cuda = runpy.run_path(str(Path(found.origin).with_name("version.py")))["cuda"]
    if cuda is None:
        return "PyTorch is a CPU build: tests/torch_cuda/run installs another"
    return (
        None
        if cuda.startswith("13.")
        else f"PyTorch is built for CUDA {cuda}, the simulated runtime for 13"
    )


@pytest.fixture(scope="session", autouse=True)
def cuda_build() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def runtime(cuda_build: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated libcudart, from the headers that PyTorch's own runtime came with."""
    files = importlib.metadata.files("nvidia-cuda-runtime") or []
    (header,) = [Path(str(file.locate())) for file in files if file.name == "cuda_runtime_api.h"]
    return build.build(header.parent, tmp_path_factory.mktemp("cudart"))


class Starter:
    """Programs of this interpreter in the envs of a manager, beside the simulated runtime."""

    def __init__(self, node: Manager, runtime: Path) -> None:
        self.node = node
        self.runtime = runtime

    def program(self, env: str, *command: str, **variables: str) -> Program:
        variables["LD_PRELOAD"] = f"{self.node.environment_of(env)['LD_PRELOAD']}:{self.runtime}"
        return Program(self.node.spawn(env, [sys.executable, *command], **variables))

    def notebook(self, env: str, directory: Path) -> Notebook:
        environ = self.node.environment_of(env)
        return Notebook(
            {**environ, "LD_PRELOAD": f"{environ['LD_PRELOAD']}:{self.runtime}"}, directory
        )

    def cells(self, env: str, **variables: str) -> Cells:
        return Cells(self.program(env, str(CELLS), **variables))


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    """Two simulated GPUs of 16 GiB."""
    return make_manager(simulate=NODE)


@pytest.fixture
def start(node: Manager, runtime: Path) -> Callable[..., Program]:
    """start(env, *command, **variables): a program of this interpreter's, in the env."""
    return Starter(node, runtime).program


@pytest.fixture
def cells(node: Manager, runtime: Path) -> Callable[..., Cells]:
    """cells(env, **variables): an interpreter in the env."""
    return Starter(node, runtime).cells


@pytest.fixture
def notebook(node: Manager, runtime: Path, tmp_path: Path) -> Iterator[Callable[[str], Notebook]]:
    """notebook(env): a kernel in the env."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    with contextlib.ExitStack() as stack:

        def begin(env: str) -> Notebook:
            opened = Starter(node, runtime).notebook(env, tmp_path)
            stack.callback(opened.close)
            return opened

        yield begin


@pytest.fixture(scope="module")
def shared_node(cuda_build: None) -> Iterator[Manager]:
    """The same for tests that leave nothing behind."""
    manager = Manager(NODE).start()
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def shared_cells(shared_node: Manager, runtime: Path) -> Callable[..., Cells]:
    return Starter(shared_node, runtime).cells
