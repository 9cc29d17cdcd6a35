"""The core's allowed imports; a step leaves the state as it was."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import nodemgr.core
from nodemgr.core.manager import RULES, step
from nodemgr.core.model import events
from nodemgr.core.model.entities import FailureKind, Offence, QueueRow, Quota, RunSpec, Word
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import DECLARED, Groups, Table
from tests.core.undone import picture
from tests.core.world import WALL, Node, gpu, key, seen, submission
from tests.each import each

SOURCES = sorted(Path(nodemgr.core.__file__).parent.rglob("*.py"))
UNCLEAN = {
    "asyncio", "io", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "selectors",
    "shutil", "signal",
    "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "datetime", "uuid",
    "logging", "ctypes",
}  # fmt: skip
"""Modules of the standard library that a decision does not need.

Clocks, files, sockets, threads, random numbers.
"""
UNCLEAN_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
COMPILED = {"encoding", "values"}
"""Modules that make functions from the model's annotations by eval at import, as `dataclasses`."""


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    return names


@each(SOURCES, lambda source: source.stem)
def test_a_module_of_the_core_imports_only_the_core_and_clean_parts_of_the_standard_library(
    source: Path,
) -> None:
    for name in imported(ast.parse(source.read_text())):
        root = name.split(".")[0]
        assert (
            name.startswith("nodemgr.core")
            or name == "client_plugin.messages.form"
            or (root in sys.stdlib_module_names and root not in UNCLEAN)
        )


@each(SOURCES, lambda source: source.stem)
def test_a_module_of_the_core_opens_and_prints_nothing(source: Path) -> None:
    calls = [
        node.func for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)
    ]
    called = {function.id for function in calls if isinstance(function, ast.Name)} & UNCLEAN_CALLS
    assert called == ({"eval"} if source.stem in COMPILED else set())


def test_every_event_has_its_rule() -> None:
    assert set(RULES) == set(events.Event.__args__)


def test_every_table_is_made_from_its_declaration() -> None:
    made = vars(Draft(Node().config))
    tables = {name for name, value in made.items() if isinstance(value, (Table, Groups))}
    assert tables == set(DECLARED)


def crowded() -> Node:
    node = Node(2)
    for env in ("alice", "bob"):
        node.quota(env, 1, 40)
    node.asks("alice", 10)
    node.asks("alice", 11, udp=True, gib=10, used_gib={0: 0})
    node.asks("bob", 20, token="job")
    node.asks("bob", 21, token="job")
    node.quota("carol", 2, priority="high")
    node.asks("carol", 30, 2, wait_ms=9_000)
    node.asks("bob", 22, gib=35, used_gib={0: 0, 1: 20})
    node.releases("bob", 21)
    node.passes(5_000, silent=[20])
    return node


def test_a_discarded_step_leaves_the_state_as_it_was() -> None:
    node = crowded()
    before = picture(node.state)
    caller = node.caller("alice", 40)
    tried: tuple[events.Event, ...] = (
        events.Acquire(caller, "a", "token", RunSpec("python", 1, None, None), 1, None, WALL),
        events.ElasticWord(node.caller("alice", 10), "w", Word.LEFT, "GPU-0", WALL),
        events.Cancel(node.caller("carol", 30), "a30", WALL),
        events.Rejoin(node.caller("bob", 20), "j", "job", "t3", 0, 2, WALL),
        events.Beat(node.caller("bob", 20), None, WALL),
        events.Release(node.caller("alice", 10), "l", WALL),
        events.Disconnected(30),
        events.ProcessGone(key(10), WALL, {"GPU-0": 5}),
        events.UnreclaimedChanged(key(21), "GPU-1", 0, WALL),
        events.Heard(key(10), WALL),
        events.Progressed(key(10), 1, 10, WALL),
        events.Tick(WALL, frozenset(), None, {("alice", "GPU-0"): 1}),
        events.Match(WALL),
        events.SetQuota("alice", Quota(2, 8), "root", WALL),
        events.RemoveQuota("alice", "root", WALL),
        events.GpusChanged((gpu(0),), WALL),
        events.ReleaseTask("t1", "root", WALL),
        events.SuspendTask("t1", "root", WALL),
        events.ResumeTask("t1", "root", WALL),
        events.KeepTask("t1", "root", 60_000, WALL),
        events.IdleSeen({"t1": 60_000}, WALL),
        events.SuspensionMeasured("t1", 5, WALL),
        events.Suspended("t1", WALL),
        events.SuspendFailed("t1", "busy", WALL),
        events.Resumed("t1", WALL),
        events.ResumeFailed("t1", "no room", WALL),
        events.Audited(frozenset(["GPU-0"]), (seen(90, 0, 5), seen(10, 0, 50, "alice")), WALL),
        events.ComputeAudited(
            (events.ComputeFinding(Offence.GARBLED_GATE, key(10), "GPU-0"),), WALL
        ),
        events.GateMissed(key(10), "full", WALL),
        events.SubmitJobs(
            (submission("alice", gpus=1), submission("alice", gpus=0, array=(0, 1))), WALL
        ),
        events.AcknowledgeEnds("hq", ("hq/1/c1/1",), 2, WALL),
        events.JobStarted("j1", 1, 900, WALL),
        events.JobEnded("j1", 1, 1, None, "", False, "", WALL, WALL),
        events.JobRequeuedBeforeStart((("j1", 1),), "", WALL),
        events.LaunchHostChanged("", False, "gone", WALL),
        events.NamesTaken(90, WALL),
        events.WithdrawJob("j1", "ann", WALL),
        events.HoldJob("j2", "ann", WALL),
        events.UnholdJob("j3", "ann", WALL),
        events.RequeueJob("j1", "ann", WALL),
        events.MoveJob("j2", "low", False, "ann", WALL),
        events.SetQueue(QueueRow("night", 50, None, 0), "root", WALL),
        events.RemoveQueue("low", "root", WALL),
        events.GpuFault("GPU-0", FailureKind.XID, "XID 79", WALL),
        events.ReportFailure("GPU-0", "root", "fan", WALL),
        events.RepairGpu("GPU-1", "root", "fan", WALL),
        events.DrainGpu("GPU-0", "root", "fan", WALL),
        events.ResumeGpu("GPU-1", "root", WALL),
        events.ServiceTime(WALL),
        events.LimitLowered("alice", "GPU-0", 1, 1, WALL),
        events.OrderAll(
            (events.HoldJob("j2", "root", WALL), events.WithdrawJob("j1", "root", WALL)), WALL
        ),
    )
    assert {type(event) for event in tried} == set(RULES)
    for event in tried:
        step(node.state, event, node.now_ns + 10_000_000_000).discard()
        assert picture(node.state) == before
