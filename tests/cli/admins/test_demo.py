"""`nodemgr demo`: a step fails if the event that it reports did not happen.

The events are scripted here; test_demo_node.py runs the real demo.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from client_plugin.messages.form import relayed
from client_plugin.ways.faults import Fault
from nodemgr import paths
from nodemgr.cli.admins import demo
from nodemgr.cli.admins.demo import GIB, STAND_IN, STEPS
from nodemgr.cli.admins.stage import NotSeen, Program, Stage
from tests.cli.conftest import ROOT, Run, clean_environment, one_line, quota

GPU_BYTES = 16 * GIB
GRANT_BYTES = 12 * GIB


class ScriptedProgram:
    """A program that does what the story wants, unless told otherwise."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.lines = [
            "imported cupy",
            "allocated 1",
            "refused OutOfMemoryError: CUDA_ERROR_OUT_OF_MEMORY allocating 1 bytes",
        ]
        self.libraries = {"libnodemgr.so"}
        if "hold" in name:
            self.lines = ['{"error": null}']
            self.libraries.add("libcuda.so")
        self.code = 0
        self.over = False

    def line(self, beginning: str, timeout_s: float | None = None) -> str:
        for line in self.lines:
            if line.startswith(beginning):
                return line
        raise NotSeen(f"{self.name} ended without printing {beginning!r}{self.printed()}")

    def go_on(self) -> None:
        pass

    def ended(self) -> int:
        self.over = True
        return self.code

    def kill(self) -> int:
        self.code = -9
        return time.monotonic_ns()

    def maps(self, library: str) -> bool:
        return library in self.libraries

    def printed(self) -> str:
        return ""


@dataclass
class ScriptedStage:
    """The manager's events and status as the story wants them, unless a test changes them."""

    events: list[dict[str, Any]] = field(default_factory=list)
    programs: list[ScriptedProgram] = field(default_factory=list)
    change_program: Callable[[ScriptedProgram], None] = lambda _: None
    change_status: Callable[[dict[str, Any]], None] = lambda _: None
    quotas: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        granted = {
            "name": "task.granted",
            "memory_bytes": [GRANT_BYTES],
            "waited_ns": 2_000_000,
            "monotonic_ns": 5,
        }
        ended = {
            "name": "task.ended",
            "why": "its last process is gone",
            "monotonic_ns": time.monotonic_ns(),
        }
        self.events = [
            {**granted, "env": "alice", "task": "t1", "gpu_indices": [0], "pids": [101]},
            {**granted, "env": "alice", "task": "t2", "gpu_indices": [1], "pids": [102]},
            {"name": "task.waiting", "env": "bob"},
            {**ended, "task": "t1", "gpu_indices": [0]},
            {**granted, "env": "bob", "task": "t3", "gpu_indices": [0], "pids": [103]},
            {**ended, "task": "t3", "gpu_indices": [0]},
        ]

    def call(self, verb: str, **arguments: Any) -> Any:
        if verb == "quota_set":
            env = arguments["env"]
            self.quotas[env] = quota(**arguments)
        return {"pid": 100}

    def status(self) -> dict[str, Any]:
        last = len(self.programs) == 3 and self.programs[2].code == -9
        waits = len(self.programs) == 3 and not self.programs[0].over
        granted_bytes = 0 if last else GRANT_BYTES
        gpu = {
            "memory_total_bytes": GPU_BYTES,
            "memory_used_bytes": GIB,
            "memory_granted_bytes": granted_bytes,
            "tasks": int(not last),
        }
        told = {
            "gpus": [{**gpu, "index": index, "uuid": f"GPU-{index}"} for index in range(2)],
            "envs": [{"name": env, "quota": one} for env, one in self.quotas.items()],
            "tasks": [{"id": "t1", "gpu_indices": [0]}],
            "queue": (
                [{"id": "r3", "env": "bob", "position": 1, "priority": "normal",
                  "reason": "needs 1 GPU, 0 free"}]
                if waits
                else []
            ),
        }
        self.change_status(told)
        return told

    def program(
        self, env: str, name: str, command: object, options: object = (), **variables: str
    ) -> ScriptedProgram:
        program = ScriptedProgram(f"{env}/{name}", 101 + len(self.programs))
        self.change_program(program)
        self.programs.append(program)
        return program

    def event(
        self, name: str, *, of: ScriptedProgram | None = None, **fields: object
    ) -> dict[str, Any]:
        for index, event in enumerate(self.events):
            if event["name"] == name and all(
                event.get(key) == value for key, value in fields.items()
            ):
                return self.events.pop(index)
        raise NotSeen(f"no event {name} within {0} s")


def play(stage: ScriptedStage) -> None:
    demo._play(cast(Stage, stage), "2x16GiB", relayed("a scripted node"))


def test_the_story_as_it_should_be(capsys: Any) -> None:
    play(ScriptedStage())
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0].isdigit()] == [
        f"{number} {headline()}" for number, (headline, _) in enumerate(STEPS, 1)
    ]
    assert lines[-1] == "All of it happened."
    assert len(lines) <= 30


def without_event(*indices: int) -> Callable[[ScriptedStage], None]:
    def change(stage: ScriptedStage) -> None:
        for index in indices:
            stage.events[index]["name"] = "something.else"

    return change


def with_event(index: int, **fields: Any) -> Callable[[ScriptedStage], None]:
    return lambda stage: stage.events[index].update(fields)


def with_program(name: str, **attributes: Any) -> Callable[[ScriptedStage], None]:
    def change(program: ScriptedProgram) -> None:
        if program.name == name:
            program.__dict__.update(attributes)

    return lambda stage: setattr(stage, "change_program", change)


def with_status(change: Callable[[dict[str, Any]], object]) -> Callable[[ScriptedStage], None]:
    return lambda stage: setattr(stage, "change_status", change)


SCRIPT, HOLD, WAITER = "alice/train", "alice/hold", "bob/hold"
SAID = ["imported cupy", "allocated 1"]

BREAKS: list[tuple[int, Callable[[ScriptedStage], None], str]] = [
    (2, without_event(0, 1), "no event task.granted"),
    (2, with_program(SCRIPT, lines=[]), "without printing 'imported'"),
    (2, with_program(SCRIPT, lines=["imported cupy"]), "without printing 'allocated'"),
    (2, with_program(SCRIPT, libraries=set()), "the shim is not in"),
    (
        2,
        with_program(SCRIPT, libraries={"libnodemgr.so", "libcuda.so"}),
        "driver was loaded before",
    ),
    (2, with_event(0, pids=[999]), "pid 101 is not in the grant of t1"),
    (3, without_event(1), "no event task.granted"),
    (3, with_program(HOLD, libraries={"libcuda.so"}), "shim or driver is not in"),
    (3, with_program(HOLD, libraries={"libnodemgr.so"}), "shim or driver is not in"),
    (3, with_event(1, pids=[999]), "pid 102 is not in the grant of t2"),
    (
        3,
        with_program(HOLD, lines=['{"error": "CUDA_ERROR_NO_DEVICE"}']),
        "alice/hold got CUDA_ERROR_NO_DEVICE",
    ),
    (4, without_event(2), "no event task.waiting"),
    (4, with_status(lambda told: told["queue"].clear()), "the request in the queue is not bob's"),
    (
        4,
        with_status(lambda told: [row.update(position=2) for row in told["queue"]]),
        "bob has place 2",
    ),
    (5, with_program(SCRIPT, lines=SAID), "without printing 'refused'"),
    (
        5,
        with_program(SCRIPT, lines=[*SAID, "refused RuntimeError: unknown error"]),
        "refused for another reason",
    ),
    (5, with_status(lambda told: told["tasks"].clear()), "t1 is not among the tasks"),
    (
        5,
        with_status(lambda told: told["gpus"][0].update(memory_used_bytes=0)),
        "shows 0 B in use on GPU 0",
    ),
    (6, without_event(3), "no event task.ended"),
    (6, without_event(4), "no event task.granted"),
    (6, with_program(SCRIPT, code=1), "ended with 1"),
    (6, with_program(WAITER, lines=[]), "without printing '{'"),
    (6, with_event(4, pids=[999]), "pid 103 is not in the grant of t3"),
    (7, without_event(5), "no event task.ended"),
    (7, with_program(WAITER, kill=lambda: 0), "is still granted"),
]


@pytest.mark.parametrize(("number", "break_it", "why"), BREAKS)
def test_a_step_that_did_not_happen_is_named(
    number: int,
    break_it: Callable[[ScriptedStage], None],
    why: str,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "CHECK_S", 0.1)
    stage = ScriptedStage()
    break_it(stage)
    with pytest.raises(Fault) as broken:
        play(stage)
    assert broken.value.code == 1
    assert broken.value.message.startswith(
        f"demo: step {number} ({STEPS[number - 1][0]()}) did not happen: "
    )
    assert why in broken.value.message
    assert "All of it happened" not in capsys.readouterr().out


def test_every_step_is_broken_above() -> None:
    """But the first, which only sets quotas: its failure is the manager's refusal."""
    assert {number for number, _, _ in BREAKS} == set(range(2, len(STEPS) + 1))


def test_a_refused_quota() -> None:
    def refuse(verb: str, **arguments: Any) -> Any:
        if verb == "quota_set":
            raise Fault("there is no room in the store")
        return {"pid": 100}

    stage = ScriptedStage()
    stage.call = refuse  # type: ignore[method-assign]
    with pytest.raises(Fault, match=r"demo: step 1 .*there is no room in the store"):
        play(stage)


# -- the stage's own patience


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Program]:
    def start(text: str) -> Program:
        return Program("alice/x", [sys.executable, "-c", text], clean_environment(), tmp_path)

    return start


def test_a_program_s_lines_are_awaited(program: Callable[[str], Program]) -> None:
    talking = program("print('a b'); print('c', flush=True); input(); print('d')")
    assert talking.line("c") == "c"
    talking.go_on()
    assert talking.line("d") == "d"
    assert talking.ended() == 0
    talking.close()


def test_a_program_that_says_something_else(program: Callable[[str], Program]) -> None:
    talking = program("import sys; print('x'); sys.exit('no GPU for me')")
    with pytest.raises(NotSeen, match=r"ended without printing 'y'; it printed: no GPU for me"):
        talking.line("y")
    talking.close()


def test_a_program_that_says_nothing(program: Callable[[str], Program]) -> None:
    silent = program("input()")
    with pytest.raises(NotSeen, match=r"did not print 'y' within 0\.05 s"):
        silent.line("y", timeout_s=0.05)
    silent.close()
    assert silent.ended() == -9


def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    stubborn = Program(
        "alice/x", [sys.executable, "-c", "input()"], clean_environment(), tmp_path, timeout_s=0.05
    )
    with pytest.raises(NotSeen, match=r"did not end within 0\.05 s"):
        stubborn.ended()
    stubborn.close()


def test_a_program_that_is_gone(program: Callable[[str], Program]) -> None:
    gone = program("pass")
    assert gone.ended() == 0
    with pytest.raises(NotSeen, match="before it was told to go on"):
        gone.go_on()
    gone.close()


def test_a_manager_that_does_not_start() -> None:
    with (
        Stage("2x16Gib") as stage,
        pytest.raises(NotSeen, match=r"the manager ended with 2: .*Gib"),
    ):
        stage.start_manager()
    assert not stage.run_dir.parent.exists(), "nothing is left behind"


def test_an_event_that_a_program_did_not_bring_about(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str], Program]
) -> None:
    class Stream:
        def follow(self, timeout_s: float) -> list[dict[str, Any]]:
            return [{"name": "quota.set", "sequence": 1}]

    with Stage(None) as stage:
        monkeypatch.setattr(stage, "_stream", Stream(), raising=False)
        gone = program("import sys; sys.exit('no such thing')")
        with pytest.raises(
            NotSeen,
            match=(
                r"alice/x ended with 1 and brought no event task\.granted env=alice; it printed: no"
                r" such thing"
            ),
        ):
            stage.event("task.granted", of=gone, env="alice")
        assert stage.event("quota.set")["sequence"] == 1, "what came meanwhile is not lost"
        gone.close()


# -- the node and the framework


def test_a_node_that_is_none(nodemgr: Run) -> None:
    result = nodemgr("demo", "--simulate", "2x16")
    assert result.returncode == 2
    assert "bare number" in one_line(result)


def test_without_a_gpu_a_node_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "real_gpus", lambda: 0)
    assert demo.choose_node(None) == ("2x16GiB", "no NVIDIA GPU here, so a simulated node: 2x16GiB")
    assert demo.choose_node("4x8GiB")[0] == "4x8GiB"


def test_with_gpus_they_are_used_unless_somebody_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "real_gpus", lambda: 8)
    monkeypatch.setattr("nodemgr.cli.admins.checks.manager_holds", lambda _: False)
    assert demo.choose_node(None) == (None, "this machine's own GPUs, 8")
    monkeypatch.setattr("nodemgr.cli.admins.checks.manager_holds", lambda _: True)
    assert demo.choose_node(None)[0] == "2x16GiB"


def test_a_simulated_node_has_the_stand_in() -> None:
    assert demo.choose_framework(simulated=True) is STAND_IN


@pytest.mark.parametrize(
    ("works", "chosen"), [("torch", "torch"), ("cupy", "cupy"), ("neither", "cupy")]
)
def test_a_real_node_has_what_is_installed_and_works(
    monkeypatch: pytest.MonkeyPatch, works: str, chosen: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def probe(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0 if f"import {works}" in command[-1] else 1)

    monkeypatch.setattr(subprocess, "run", probe)
    framework = demo.choose_framework(simulated=False)
    assert (framework.name, framework is STAND_IN) == (chosen, works == "neither")


def test_an_installation_has_its_examples_within(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert demo.examples_dir() == ROOT / "examples"
    (tmp_path / "nodemgr" / "_examples").mkdir(parents=True)
    monkeypatch.setattr(paths, "package_dir", lambda: tmp_path / "nodemgr")
    assert demo.examples_dir() == tmp_path / "nodemgr" / "_examples"
