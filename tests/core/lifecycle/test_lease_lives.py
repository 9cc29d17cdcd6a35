"""A lease from its request to its end, without any wait."""

from __future__ import annotations

import gc

import pytest

from nodemgr.core.manager import step
from nodemgr.core.model.effects import (
    BeginSlot,
    ClearSlot,
    CloseLedger,
    GpusHeld,
    OpenLedger,
    Save,
    SendDeny,
    SendGrant,
    SetLimit,
    SetSlot,
    Unwatch,
    Watch,
)
from nodemgr.core.model.entities import (
    LEDGER_SLOTS,
    Asker,
    DenyCode,
    Record,
    Request,
    RunSpec,
    Transport,
)
from nodemgr.core.model.events import Acquire, Beat
from nodemgr.core.scheduler import placement
from nodemgr.core.state import accounting
from tests.core.world import GIB, WALL, Node, key


def test_a_request_gets_gpus_a_grant_and_a_slot() -> None:
    node = Node()
    node.quota("alice", 2, 80)
    node.asks("alice", 10, 1, rid="first")
    [granted] = node.of(SendGrant)
    task, process = granted.task, granted.process
    assert (granted.connection, granted.rid) == (10, "first")
    assert (task, process) == (node.state.tasks["t1"], node.state.processes[key(10)])
    assert (task.env, task.token, task.task_id, task.gpus) == (
        "alice",
        "token10",
        "t1",
        ("GPU-0",),
    )
    assert (granted.rows, granted.limits) == ((0,), (40 * GIB,))
    assert (process.slot, process.generation) == (0, 1)
    assert node.remaining_gib(0) == 40
    assert accounting.env_remaining(node.state, "alice") == 40 * GIB


def test_the_ledger_is_ready_before_the_process_hears_of_it() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    order = [type(effect) for effect in node.asks("alice", 10) if not isinstance(effect, Save)]
    ledger = [OpenLedger, GpusHeld, SetLimit, BeginSlot, SendGrant, Watch]
    assert [kind for kind in order if kind in ledger] == ledger
    assert node.of(BeginSlot) == [BeginSlot("alice", 0, 1)]


def test_it_is_told_when_an_env_holds_other_gpus_and_only_then() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert node.of(GpusHeld) == [GpusHeld("alice")]
    node.asks("alice", 11)
    assert node.of(GpusHeld) == []
    node.dies(10)
    assert node.of(GpusHeld) == []
    node.dies(11)
    assert node.of(GpusHeld) == [GpusHeld("alice")]


def test_what_a_step_made_goes_with_its_last_reference() -> None:
    """A collector of cycles would run while a client waits."""
    node = Node()
    node.quota("alice", 1)
    gc.collect()
    gc.disable()
    try:
        node.asks("alice", 10)
        node.releases("alice", 10)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("gib", [None, 10, 40, 80])
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_the_short_look_answers_as_the_closer_one(gpus: int, gib: int | None) -> None:
    node = Node(gpus=3)
    node.quota("alice", 2, 80)
    node.quota("bob", 3, 120)
    node.quota("carol", 1)
    for pid, (env, count) in enumerate(
        [("bob", 3), ("alice", 2), ("bob", 1), ("alice", 1), ("bob", 2)], 10
    ):
        node.asks(env, pid, count)
    asker = Asker(key(99), "1", Transport.UNIX, 99, "ann")
    answered = []
    for env in ("alice", "bob", "carol"):
        run = RunSpec("", gpus, gib and gib * GIB, None)
        request = Request("r99", env, "99", run, "normal", 99, 0, WALL, None, (asker,))
        draft = node.state
        answer = placement.reuse(draft, request)
        if answer is not None:
            assert answer == placement.judge(draft, request, {}, {}).answer
            answered.append(env)
    assert answered == [
        env for env, held in (("alice", 2), ("bob", 3)) if gpus <= held and gib is None
    ]


def test_without_a_memory_quota_a_grant_is_a_whole_gpu() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert node.grant_gib("alice", 0) == (80, 80)
    assert accounting.env_remaining(node.state, "alice") is None


def test_a_grant_is_never_more_than_the_gpu() -> None:
    node = Node()
    node.quota("alice", 1, 100)
    node.asks("alice", 10)
    assert node.grant_gib("alice", 0) == (80, 80)


def test_memory_overcommit_lets_grants_exceed_a_gpu_together() -> None:
    node = Node(1, memory_overcommit=1.5)
    for env, pid in (("alice", 10), ("bob", 20), ("carol", 30)):
        node.quota(env, 1, 40)
        node.asks(env, pid)
    assert node.gpus_of(30) == [0]
    assert node.remaining_gib(0) == 0


@pytest.mark.parametrize(
    ("default", "asked", "got"),
    [(None, None, 3), (2, None, 2), (2, 1, 1), (None, 1, 1)],
)
def test_how_many_gpus_by_default(default: int | None, asked: int | None, got: int) -> None:
    node = Node()
    node.quota("alice", 3, default_gpus=default)
    node.asks("alice", 10, asked)
    assert len(node.gpus_of(10) or ()) == got


def test_the_default_is_at_most_what_the_node_has() -> None:
    node = Node(2)
    node.quota("alice", 8)
    node.asks("alice", 10)
    assert node.gpus_of(10) == [0, 1]


def test_the_default_does_not_wait_for_a_lost_gpu() -> None:
    node = Node(2)
    node.loses(1)
    node.quota("alice", 2)
    node.asks("alice", 10)
    assert node.gpus_of(10) == [0]


def test_a_task_of_several_processes_gets_at_least_as_many_gpus() -> None:
    node = Node()
    node.quota("alice", 4, default_gpus=1)
    node.asks("alice", 10, world=3)
    assert node.gpus_of(10) == [0, 1, 2]


def test_a_named_number_of_gpus_holds_for_any_number_of_processes() -> None:
    node = Node()
    node.quota("alice", 4)
    node.asks("alice", 10, 1, world=3)
    assert node.gpus_of(10) == [0]


@pytest.mark.parametrize(
    ("quota", "asks", "code", "words"),
    [
        (
            (0, None),
            {},
            DenyCode.NO_GPU,
            "the quota of alice is 0 GPUs: an admin raises it (nodemgr quota set alice --gpus N)",
        ),
        ((2, None), {"gpus": 0}, DenyCode.NO_GPU, "no GPU was asked for"),
        ((2, None), {"gpus": 3}, DenyCode.OVER_QUOTA, "the quota of alice is 2"),
        ((2, None), {"world": 3}, DenyCode.OVER_QUOTA, "3 GPUs asked"),
        ((8, None), {"gpus": 5}, DenyCode.MORE_THAN_NODE, "this node has 4"),
        (
            (2, 80),
            {"gib": 41},
            DenyCode.MEMORY_ABOVE_LIMIT,
            "41.0 GiB per GPU asked, but alice may have at most 40.0 GiB",
        ),
        ((2, None), {"gib": 81}, DenyCode.MEMORY_ABOVE_LIMIT, "at most 80.0 GiB"),
    ],
)
def test_what_is_refused_says_whose_limit_it_is(
    quota: tuple[int, int | None], asks: dict[str, int], code: DenyCode, words: str
) -> None:
    node = Node()
    node.quota("alice", *quota)
    node.asks("alice", 10, **asks)  # type: ignore[arg-type]
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is code
    assert words in denied.reason
    assert node.published("request.denied")[0]["code"] == code.value
    assert node.state.requests == {}
    assert node.state.tasks == {}


def test_an_unknown_env_is_refused() -> None:
    node = Node()
    node.asks("nobody", 10)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.UNKNOWN_ENV


def test_a_node_without_gpus_says_so() -> None:
    node = Node(0)
    node.quota("alice", 1)
    node.asks("alice", 10)
    denied = node.denied(10)
    assert denied is not None
    assert "no GPU" in denied.reason


def test_within_the_quota_another_task_gets_another_gpu_then_shares() -> None:
    node = Node()
    node.quota("alice", 2, 80)
    for pid in (10, 11, 12):
        node.asks("alice", pid, 1)
    assert [node.gpus_of(pid) for pid in (10, 11, 12)] == [[0], [1], [0]]
    assert node.remaining_gib(0) == 40  # the reused GPU took nothing
    assert node.granted(12) is not None


def test_the_second_process_of_a_task_joins_it_by_token() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    node.asks("alice", 10, token="one")
    node.asks("alice", 11, token="one")
    granted = node.granted(11)
    assert granted is not None
    assert (granted.task.task_id, granted.process.slot) == ("t1", 1)
    assert node.published("task.joined")[0]["processes"] == 2
    assert len(node.state.tasks) == 1


def test_a_process_with_a_token_of_its_own_joins_the_task_of_an_ancestor() -> None:
    node = Node()
    node.quota("alice", 2)
    node.asks("alice", 10, 1)
    node.asks("alice", 12, 1, token="lost its environment", ancestors=(11, 10, 1))
    assert node.task(12) == node.task(10)
    granted = node.granted(12)
    assert granted is not None
    assert granted.task.token == "token10"


def test_nobody_joins_the_task_of_another_env() -> None:
    node = Node()
    node.quota("alice", 1)
    node.quota("bob", 1)
    node.asks("alice", 10, token="same")
    node.asks("bob", 20, token="same", ancestors=(10,))
    assert node.gpus_of(20) == [1]
    assert node.task(20) != node.task(10)


def test_a_holder_that_asks_again_is_given_the_same_answer() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10, rid="first")
    before = node.rows()
    node.asks("alice", 10, rid="first")
    assert node.granted(10) is not None
    assert node.of(Save) == []
    assert node.rows() == before


def test_the_lease_ends_with_the_last_process() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    node.asks("alice", 10, token="one")
    node.asks("alice", 11, token="one")
    node.dies(10)  # a child that outlives its root keeps the lease
    assert node.gpus_of(11) == [0]
    assert node.published("task.left")[0]["processes"] == 1
    node.dies(11)
    assert node.state.tasks == {}
    assert node.remaining_gib(0) == 80
    assert node.published("task.ended")[0]["why"] == "its process ended"
    assert node.of(CloseLedger) == [CloseLedger("alice")]


def test_a_dead_process_leaves_its_slot_to_the_next() -> None:
    node = Node()
    node.quota("alice", 1)
    for pid in (10, 11, 12):
        node.asks("alice", pid, token="one")
    node.dies(11)
    assert node.of(ClearSlot) == [ClearSlot("alice", 1, 2)]
    node.asks("alice", 13, token="one")
    granted = node.granted(13)
    assert granted is not None
    assert (granted.process.slot, granted.process.generation) == (1, 4)


def test_generations_wrap_without_becoming_wrong() -> None:
    node = Node()
    node.quota("alice", 1)
    node.state.counters["generation"] = 65_534
    node.store["counter", "generation"] = 65_534
    for pid in (10, 11, 12):
        node.asks("alice", pid)
    assert [node.state.processes[key(pid)].generation for pid in (10, 11, 12)] == [65_535, 0, 1]


def test_a_process_for_which_the_ledger_has_no_slot_is_refused() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 1, token="one")
    node.state.slots["alice"] = (1 << LEDGER_SLOTS) - 1
    caller, run = node.caller("alice", 2), RunSpec("python", 0, None, None)
    asked = Acquire(caller, "a2", "one", run, 1, None, WALL, is_default=True)
    denied = [
        effect
        for effect in step(node.state, asked, node.now_ns).effects
        if isinstance(effect, SendDeny)
    ]
    assert [effect.code for effect in denied] == [DenyCode.TOO_MANY_PROCESSES]


def test_a_released_process_that_lives_keeps_its_slot_and_its_memory_charged() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    node.asks("alice", 10)
    node.releases("alice", 10)
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "fenced")]
    assert node.state.tasks == {}
    assert node.remaining_gib(0) == 40  # until the driver was asked, all of the grant
    node.driver_shows(10, 0, 1)
    assert node.remaining_gib(0) == 79
    assert node.published("memory.residue")[0]["memory_bytes"] == GIB
    node.driver_shows(10, 0, 0)
    assert node.published("memory.residue")[0]["memory_bytes"] == 0
    node.dies(10)
    assert node.remaining_gib(0) == 80
    assert node.of(ClearSlot) == [ClearSlot("alice", 0, 1)]
    assert node.of(Unwatch) == [Unwatch(key(10))]


def test_memory_that_the_first_look_shows_gone_is_no_event() -> None:
    node = Node()
    node.quota("alice", 2, 40)
    node.asks("alice", 10, 2)
    node.releases("alice", 10)
    node.driver_shows(10, 0, 0)
    node.driver_shows(10, 1, 0)
    assert node.published("memory.residue") == []
    assert node.state.unreclaimed == {}
    node.asks("alice", 11, 2)
    node.dies(11, {0: 3})
    assert node.published("memory.residue") == [], "a moment after a death is no time to be alarmed"
    node.driver_shows(11, 0, 3)
    assert node.published("memory.residue")[0]["memory_bytes"] == 3 * GIB
    node.driver_shows(11, 0, 3)
    assert node.published("memory.residue") == []


def test_a_released_process_that_asks_anew_gets_its_slot_back() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    node.asks("alice", 10)
    node.releases("alice", 10)
    node.asks("alice", 10, rid="again", token="another")
    granted = node.granted(10)
    assert granted is not None
    assert (granted.task.task_id, granted.process.slot, granted.process.generation) == ("t2", 0, 1)
    assert node.of(ClearSlot) == []  # what it still has in the ledger stays there
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "live")]
    assert node.state.unreclaimed == {}


def test_releasing_nothing_is_answered() -> None:
    node = Node()
    node.quota("alice", 1)
    node.releases("alice", 10)
    assert [effect.rid for effect in node.effects if hasattr(effect, "rid")] == ["l10"]


def test_a_grant_that_crossed_its_cancel_is_given_back() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10, rid="one")
    node.cancels("alice", 10, rid="another")  # of a request that is long over: nothing happens
    assert node.gpus_of(10) == [0]
    node.cancels("alice", 10, rid="one")
    assert node.gpus_of(10) is None
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.CANCELLED


def test_memory_that_the_driver_still_shows_of_a_dead_process_stays_charged() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.dies(10, unreclaimed_gib={0: 3})
    assert node.gpus_of(20) is None
    assert node.remaining_gib(0) == 77
    assert "a former task" in (node.told(20).why if node.told(20) else "")
    node.driver_shows(10, 0, 2)
    assert node.remaining_gib(0) == 78
    node.driver_shows(10, 0, 0)
    assert node.gpus_of(20) == [0]


def test_an_admin_takes_a_lease_away() -> None:
    node = Node()
    node.quota("alice", 1, 40)
    node.asks("alice", 10, token="one")
    node.asks("alice", 11, token="one")
    node.admin_releases("t1", env="bob")  # a user of another env: nothing happens
    assert len(node.state.tasks) == 1
    node.admin_releases("t1")
    for pid in (10, 11):
        fenced = node.fenced(pid)
        assert fenced is not None
        assert (
            fenced.reason
            == "root took this task's GPUs back (nodemgr release): run it again to ask anew"
        )
    assert node.state.tasks == {}
    assert node.published("task.fenced")[0]["by"] == "root"
    assert (
        node.published("task.ended")[0]["why"]
        == "root took this task's GPUs back (nodemgr release): run it again to ask anew"
    )


def test_a_fenced_process_is_told_so_when_it_beats_or_comes_back() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.admin_releases("t1")
    node.beats_again("alice", 10)
    assert node.fenced(10) is not None
    node.rejoins("alice", 10, "t1", 0, 1)
    assert node.fenced(10) is not None
    node.happens(Beat(node.caller("alice", 99), "b1", WALL))
    fenced = node.fenced(99)
    assert fenced is not None
    assert fenced.rid == "b1"


def test_a_record_says_what_was_given_and_how_it_ended() -> None:
    node = Node()
    node.quota("alice", 3, 120)
    node.asks("alice", 10, 1)
    node.asks("alice", 11, 3)  # two fresh, one reused
    saved = [effect.value for effect in node.of(Save) if effect.kind == "record"]
    assert saved == [
        Record(
            record_id=2,
            env="alice",
            task_id="t2",
            command="python train.py",
            gpus_new=("GPU-1", "GPU-2"),
            gpus_reused=("GPU-0",),
            grant_bytes=(40 * GIB, 40 * GIB, 40 * GIB),
            remaining_gpus=0,
            remaining_memory_bytes=0,
            asked_wall_ns=WALL,
            granted_wall_ns=WALL,
            user="ann",
            job_id=None,
            asked_ns=node.now_ns,
            granted_ns=node.now_ns,
        )
    ]
    node.dies(11)
    (ended,) = [effect.value for effect in node.of(Save) if effect.kind == "record"]
    assert isinstance(ended, Record)
    assert (ended.ended_wall_ns, ended.why) == (WALL, "its process ended")


def test_the_record_of_a_jobs_lease_names_the_job_and_its_user() -> None:
    node = Node()
    node.quota("alice", 1)
    job_id = node.submits("alice")
    assert job_id is not None
    (record,) = [effect.value for effect in node.of(Save) if effect.kind == "record"]
    assert isinstance(record, Record)
    assert (record.user, record.job_id) == (node.job(job_id).user, job_id)
    assert record.user


def test_an_idle_manager_never_wakes() -> None:
    node = Node()
    node.quota("alice", 1)
    assert node.state.wake_ns() is None
    node.asks("alice", 10)
    assert node.state.wake_ns() == node.now_ns + 5_000_000_000
    node.dies(10)
    assert node.state.wake_ns() is None


def test_a_working_node_wakes_once_a_timeout() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.passes(60_000)
    assert node.wakes == 12
