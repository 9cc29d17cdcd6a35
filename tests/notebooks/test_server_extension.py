"""The server extension's parts without a server: the environment of a kernel, and its view."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nodemgr_jupyter import kernels, view

from client_plugin.ways.faults import Away, Exit, Fault
from tests.cli.conftest import ROOT, status
from tests.support.limits import WAIT_LIMIT_S

QUEUES = [{"name": "normal", "length": 3}]
PLACE = kernels.Place("/run/nodemgr/envs/alice", 2)


def kernel(pid: int | None = None, argv: list[str] | None = None) -> Any:
    return SimpleNamespace(
        provisioner=SimpleNamespace(pid=pid), kernel_spec=SimpleNamespace(argv=argv or [])
    )


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODEMGR_ENV_DIR", raising=False)
    monkeypatch.delenv("NODEMGR_RUN_DIR", raising=False)


@pytest.fixture
def process() -> Iterator[Callable[..., int]]:
    """Starts a process with these variables alone."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(**variables: str) -> int:
        program = subprocess.Popen(
            ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, bufsize=0
        )
        started.append(program)
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"\n")
        assert program.stdout.read(1) == b"\n"  # its exec is over
        return program.pid

    yield begin
    for program in started:
        program.communicate()


def test_a_kernels_environment_is_that_of_its_process(process: Callable[..., int]) -> None:
    pid = process(NODEMGR_ENV_DIR="/x/envs/alice")
    argv = ["nodemgr", "run", "--env", "bob", "--", "python"]
    assert kernels.place_of(kernel(pid, argv)) == kernels.Place("/x/envs/alice", pid)


def test_before_the_kernel_has_started_the_kernelspec_says_it(process: Callable[..., int]) -> None:
    pid = process()
    argv = ["nodemgr", "run", "--env", "alice", "--run-dir", "/x", "--", "python", "--env", "bob"]
    assert kernels.place_of(kernel(pid, argv)) == kernels.Place("/x/envs/alice", pid)


def test_else_it_is_the_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "client.conf").write_text("env=alice\n")
    monkeypatch.setenv("NODEMGR_ENV_DIR", str(tmp_path))
    assert kernels.place_of(None) == kernels.Place(str(tmp_path), None)


@pytest.mark.parametrize(
    "found",
    [
        None,
        kernel(),
        kernel(None, ["python", "-m", "ipykernel_launcher"]),
        kernel(None, ["nodemgr", "run", "--env", "../x", "--", "python"]),
        kernel(None, ["nodemgr", "run", "--env", "--", "python"]),
        kernel(None, ["nodemgr", "run", "--env"]),
        SimpleNamespace(),
        kernel(2**22 + 1),
    ],
)
def test_a_kernel_outside_of_any_environment(found: Any) -> None:
    assert kernels.place_of(found) is None


def test_a_container_counts_its_own_processes() -> None:
    assert kernels.Place("/run/nodemgr-env", 7).inside
    assert not PLACE.inside


def test_the_view_of_a_kernel_that_holds_gpus() -> None:
    found = view.shown(status(), PLACE, QUEUES)
    assert (found["state"], found["text"], found["env"]) == ("held", "GPU 0 · 16 GiB", "alice")
    assert [(row["id"], row["mine"]) for row in found["tasks"]] == [("t1", True)]
    assert found["gpus"][0]["mine"]


def test_a_drained_gpu_has_its_warning_and_its_state_beside_its_holders() -> None:
    told = status()
    told["gpus"][0] |= {"drained": True, "envs": ["bob"], "warning": "GPU 0 is drained: fan"}
    drained, *others = view.shown(told, PLACE, QUEUES)["gpus"]
    assert drained["warning"] == "GPU 0 is drained: fan"
    assert drained["holders"] == "bob (drained)"
    assert all(row["warning"] == "" for row in others)


def test_the_view_of_a_kernel_that_waits_and_of_an_idle_one() -> None:
    waiting = view.shown(status(), kernels.Place(PLACE.directory, 9), QUEUES)
    assert (waiting["state"], waiting["text"]) == ("waiting", "GPU waiting: place 1 of 3")
    assert waiting["title"] == "needs 2 GPUs, 1 free"
    idle = view.shown(status(), kernels.Place(PLACE.directory, 4711), QUEUES)
    assert (idle["state"], idle["text"]) == ("idle", "GPU \N{EN DASH}")
    nowhere = view.shown(status(), kernels.Place(PLACE.directory, None), QUEUES)
    assert nowhere["state"] == "idle"


def test_a_manager_that_is_away_and_a_refusal() -> None:
    away = view.failed(Away("no manager answers at /x"))
    assert (away["state"], away["text"]) == ("no_manager", "GPU: no manager")
    refused = view.failed(Fault("you may not enter", code=Exit.QUOTA_REFUSES))
    assert (refused["state"], refused["title"]) == ("error", "you may not enter")


def test_without_nodemgr_the_reason_is_shown() -> None:
    shown = view.without_client(ImportError("No module named 'nodemgr'"))
    assert (shown["state"], shown["text"]) == ("error", "GPU: no nodemgr")


MOUNTED = """
import sys
from nodemgr_jupyter import client
client.MOUNTED = sys.argv[1]
before = list(sys.path)
print(client.locations().__file__, client.summary().NONE == "GPU \\N{EN DASH}", sys.path == before)
"""


def test_in_a_container_the_mounted_client_answers() -> None:
    """A Python without nodemgr; `sitecustomize` beside the client stays out of sys.path."""
    environ = {"PYTHONPATH": str(ROOT / "jupyter")}
    asked = subprocess.run(
        [sys.executable, "-S", "-c", MOUNTED, str(ROOT)], env=environ, cwd="/",
        capture_output=True, text=True, check=True, timeout=WAIT_LIMIT_S,
    )  # fmt: skip
    assert asked.stdout.split() == [f"{ROOT}/client_plugin/ways/locations.py", "True", "True"]
    missing = subprocess.run(
        [sys.executable, "-S", "-c", MOUNTED, "/nowhere"], env=environ, cwd="/",
        capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_S,
    )  # fmt: skip
    assert "No module named 'nodemgr'" in missing.stderr
