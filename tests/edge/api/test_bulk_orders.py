"""Orders over many jobs: each step does a bounded part, and says where the order goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.model import events
from nodemgr.core.views import job_rows
from nodemgr.edge.api import client_verbs
from nodemgr.edge.api.client_verbs import Questions
from nodemgr.edge.api.job_waits import Waits
from nodemgr.edge.engine.submission_batches import submission_units
from nodemgr.edge.rpc.cost import STEP_UNITS, Units
from nodemgr.edge.store.database import CommitBatch
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import DyingStore, LocalManager

MOST = Units.CHANGE.within()


class Talk:
    """A conversation of alice, and the steps that it causes."""

    def __init__(self, manager: LocalManager, talk: Conversation) -> None:
        self.manager, self._talk = manager, talk
        self.steps: list[events.Event] = []

    def order(self, verb: str, **arguments: Any) -> Any:
        return self._talk.order(verb, arguments)[0]

    def submit(self, **more: Any) -> str:
        key = os.urandom(16).hex()
        given = {"argv": ["true"], "cwd": "/", "environ": [], "key": key, "hold": True, **more}
        return str(self.order("job_submit", **given)["job"])

    def submit_many(self, count: int, **more: Any) -> list[str]:
        jobs = [
            {"argv": ["true"], "key": os.urandom(16).hex(), "hold": True, **more}
            for _ in range(count)
        ]
        rows = self.order("job_submit_many", cwd="/", environ=[], jobs=jobs)["jobs"]
        return [row["job"] for row in rows]

    def parts(self, order: str, **given: Any) -> list[Any]:
        answers = [self.order("job_orders", order=order, **given)]
        while answers[-1]["after"] is not None:
            given["after"] = answers[-1]["after"]
            answers.append(self.order("job_orders", order=order, **given))
        return answers

    def rows(self, order: str, **given: Any) -> dict[str, Any]:
        answers = self.parts(order, **given)
        return {row["job"]: row["error"] for answer in answers for row in answer["jobs"]}

    def states(self) -> dict[str, str]:
        jobs = self.manager.daemon.state.jobs
        return self.manager.do(lambda: {job_id: job.state.value for job_id, job in jobs.items()})


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    with LocalManager() as manager:
        manager.call("quota_set", env="alice", gpus=2)
        for index in range(4):
            manager.call("gpu_drain", index=index)  # nothing starts
        with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as conversation:
            talk = Talk(manager, conversation)
            engine = manager.daemon.engine
            submit = engine.submit

            def seen(event: events.Event) -> bool:
                talk.steps.append(event)
                return submit(event)

            monkeypatch.setattr(engine, "submit", seen)
            monkeypatch.setattr(manager.daemon, "submit", seen)
            yield talk


def largest(steps: list[events.Event]) -> int:
    """The units of the largest step."""
    found = [0]
    for step in steps:
        if isinstance(step, events.OrderAll):
            found.append(Units.CHANGE * len(step.orders))
        elif isinstance(step, events.SubmitJobs):
            found.append(sum(submission_units(each) for each in step.submissions))
    return max(found)


def test_an_order_to_many_ids_is_done_in_parts_that_each_fit_a_step(talk: Talk) -> None:
    ids = talk.submit_many(3 * MOST)
    answers = talk.parts("free", jobs=ids)
    assert len(answers) > 3
    assert [row["job"] for answer in answers for row in answer["jobs"]] == ids
    assert all(row["error"] is None for answer in answers for row in answer["jobs"])
    assert largest(talk.steps) <= STEP_UNITS
    assert set(talk.states().values()) == {"queued"}


def test_the_last_part_of_an_order_brings_all_parts_to_the_disk(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync for each part kept others waiting for the disk."""
    journal, commits = talk.manager.daemon.journal, list[object]()
    commit, sync = journal._store.commit, journal._store.sync

    def committed(batch: CommitBatch, *, durable: bool) -> None:
        commits.append(durable)
        commit(batch, durable=durable)

    ids = talk.submit_many(3 * MOST)
    monkeypatch.setattr(journal._store, "commit", committed)
    monkeypatch.setattr(journal._store, "sync", lambda: commits.append("sync") or sync())
    parts = len(talk.parts("free", jobs=ids))
    assert commits == [False] * (parts - 1) + [True]
    assert journal._store.on_disk == journal._store.commits
    commits.clear()
    unknown = [f"j{10**6 + number}" for number in range(300)]
    parts = len(talk.parts("hold", jobs=[*ids, *unknown], skip=True))
    assert commits[-1] == "sync", "the last part has nothing to store"
    assert True not in commits
    assert len(commits) < parts
    assert journal._store.on_disk == journal._store.commits


def test_ids_that_are_unknown_are_bounded_too_and_are_one_query(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = []
    journal = talk.manager.daemon.journal
    each = journal.ended_each
    monkeypatch.setattr(journal, "ended_each", lambda names: queries.append(1) or each(names))
    monkeypatch.setattr(journal, "ended", lambda *_: pytest.fail("a query for each id"))
    answers = talk.parts("hold", jobs=[f"j{10**6 + number}" for number in range(1_000)])
    assert len(queries) == len(answers) >= 1_000 * Units.FIND // STEP_UNITS
    rows = [row for answer in answers for row in answer["jobs"]]
    assert {row["code"] for row in rows} == {"not_found"}
    assert len(rows) == 1_000


def test_a_filter_names_its_jobs_page_by_page(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Units, "within", lambda self, units=70: units)
    mine = talk.submit_many(100, name="mine") + talk.submit_many(100, name="others")
    pages = talk.parts("withdraw", name="m*")
    assert len(pages) == 3, "70 comparisons each"
    assert [job for page in pages for job in page["matched"]] == mine[:100]
    assert set(talk.states()) == set(mine), "a filter alone changes nothing"


def test_more_jobs_than_one_order_may_name_are_withdrawn_by_a_filter(talk: Talk) -> None:
    for _ in range(5):
        talk.submit_many(250)
    matched = [job for page in talk.parts("withdraw", name="*") for job in page["matched"]]
    assert len(matched) == 1_250
    for first in range(0, len(matched), 1_000):
        assert not any(
            talk.rows("withdraw", jobs=matched[first : first + 1_000], skip=True).values()
        )
    assert talk.states() == {}
    assert largest(talk.steps) <= STEP_UNITS


@pytest.mark.parametrize("order", ["withdraw", "hold", "free", "requeue"])
def test_a_part_whose_answer_was_lost_is_done_again_without_an_error(
    talk: Talk, order: str
) -> None:
    """The client counts what is done, whoever was killed between the step and its answer."""
    ids = talk.submit_many(3, hold=order == "free")
    if order == "requeue":
        assert not any(talk.rows("withdraw", jobs=ids).values())
    assert talk.rows(order, jobs=ids) == dict.fromkeys(ids)
    assert talk.rows(order, jobs=ids, again=True) == dict.fromkeys(ids)
    assert all(talk.rows(order, jobs=ids).values()), "another order makes no sense"


def test_a_long_array_of_elements_with_rows_of_their_own_is_changed_in_parts(talk: Talk) -> None:
    array = talk.submit(array=list(range(3 * MOST)))
    ids = [f"{array}.{index}" for index in range(3 * MOST)]
    talk.rows("free", jobs=ids)
    talk.rows("hold", jobs=ids)
    talk.steps.clear()
    assert talk.rows("free", jobs=[array]) == dict.fromkeys(ids)
    assert talk.order("job_hold", job=array) == {"job": array}
    assert set(talk.states().values()) == {"held"}
    assert talk.order("job_withdraw", job=array) == {"job": array}
    assert talk.states() == {}
    assert largest(talk.steps) <= STEP_UNITS


def test_many_submissions_are_taken_in_steps_that_are_bounded(talk: Talk) -> None:
    assert len(talk.submit_many(256)) == 256
    assert largest(talk.steps) <= STEP_UNITS
    large = [os.urandom(50_000).hex()]
    talk.steps.clear()
    jobs = [{"argv": ["true", *large], "key": os.urandom(16).hex()} for _ in range(9)]
    rows = talk.order("job_submit_many", cwd="/", environ=[], jobs=jobs)["jobs"]
    assert all("job" in row for row in rows)
    sizes = [len(step.submissions) for step in talk.steps if isinstance(step, events.SubmitJobs)]
    assert max(sizes) <= STEP_UNITS // (Units.SUBMIT + 97 * Units.KIB), "each KiB counts"


def test_a_long_array_is_one_row_for_every_order(talk: Talk) -> None:
    """Its indices are numbers, as earlier clients send them, or runs."""
    array = talk.submit(array=[[0, 9_998], 9_999], key="a" * 32)
    assert talk.states() == {array: "held"}
    assert talk.submit(array=list(range(10_000)), key="a" * 32) == array
    waiting = f"{array}.*"
    assert [page["matched"] for page in talk.parts("free", state="held")] == [[waiting]]
    (answer,) = talk.parts("free", jobs=[waiting], skip=True)
    assert answer["jobs"] == [{"job": waiting, "error": None, "jobs": 10_000}]
    (row,) = talk.order("queue")["queue"]
    assert [row[key] for key in ("id", "job", "jobs", "indices", "position", "state")] == [
        waiting, array, 10_000, "0-9999", 1, "queued",
    ]  # fmt: skip
    (row,) = talk.order("job_show", job=f"{array}.9999")["jobs"]
    assert (row["job"], row["position"], row["state"]) == (f"{array}.9999", 10_000, "queued")
    assert talk.order("job_hold", job=waiting) == {"job": waiting}
    assert talk.rows("withdraw", jobs=[waiting]) == {waiting: None}
    assert talk.rows("withdraw", jobs=[waiting], again=True) == {waiting: None}
    assert talk.states() == {}
    assert largest(talk.steps) <= STEP_UNITS


def test_what_ended_within_the_row_is_found_by_its_own_name(talk: Talk) -> None:
    array = talk.submit(array=[[0, 5]])
    talk.order("job_withdraw", job=array)
    (row,) = talk.order("job_show", job=f"{array}.3")["jobs"]
    assert (row["job"], row["state"], row["jobs"]) == (f"{array}.3", "withdrawn", 1)
    (row,) = talk.order("history")["history"]
    assert (row["job"], row["jobs"], row["indices"]) == (array, 6, "0-5")
    (row,) = talk.order("job_wait", jobs=[f"{array}.3"])["jobs"]
    assert (row["state"], row["exit"]) == ("withdrawn", job_rows.WITHDRAWN_EXIT)
    with pytest.raises(Fault, match=f"{array}.3, which it waits for, was withdrawn"):
        talk.submit(after=[f"{array}.3"])
    with pytest.raises(Fault, match=f"no job '{array}.6'"):
        talk.order("job_requeue", job=f"{array}.6")
    assert talk.order("report")["envs"][0]["jobs_withdrawn"] == 6
    talk.order("job_requeue", job=f"{array}.3")
    assert set(talk.states()) == {f"{array}.3"}
    (row,) = talk.order("history")["history"]
    assert (row["jobs"], row["indices"]) == (5, "0-2,4-5")


def test_a_wait_goes_on_where_an_element_leaves_the_row(talk: Talk) -> None:
    array = talk.submit(array=[[0, 2]])
    daemon, ended = talk.manager.daemon, []
    waits = Waits(daemon.state)
    daemon.jobs.on_final.append(waits.final)
    for name in (array, f"{array}.1", f"{array}.2"):
        talk.manager.do(lambda name=name: waits.begin((name,), lambda: ended.append(name)))
    talk.order("job_withdraw", job=f"{array}.1")
    talk.order("job_show", job=array)
    assert ended == [f"{array}.1"]
    talk.order("job_withdraw", job=array)
    talk.order("job_show", job=array)
    assert sorted(ended) == [array, f"{array}.1", f"{array}.2"]


@pytest.mark.parametrize(
    "given", [[[3, 1]], [[1]], [[0, 10_000]], ["0-4"], "0-4", [-1], [[0, 1.5]]]
)
def test_indices_that_are_no_set_are_refused(talk: Talk, given: object) -> None:
    with pytest.raises(Fault):
        talk.submit(array=given)
    assert talk.states() == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_dies_while_an_array_enters_leaves_a_whole_one_or_none(
    tmp_path: Path, when: str
) -> None:
    store = DyingStore()
    given = {
        "argv": ["true"], "cwd": "/", "environ": [], "key": "a" * 32, "hold": True,
        "array": list(range(700)),
    }  # fmt: skip
    with LocalManager(store=store, directory=tmp_path) as manager:
        manager.call("quota_set", env="alice", gpus=2)
        with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
            manager.do(lambda: store.die(when, 1))
            with pytest.raises(Fault):
                talk.order("job_submit", given)
    with LocalManager(directory=tmp_path) as manager:
        with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
            array = talk.order("job_submit", given)[0]["job"]
        jobs = manager.do(lambda: list(manager.daemon.state.living))
        assert jobs == [array]
        assert manager.daemon.state.living.size == 700


def test_an_environment_is_charged_what_its_order_does(talk: Talk) -> None:
    (listener,) = [
        each
        for each in talk.manager.daemon.clients._listeners.values()
        if each.env == "alice" and not each.for_all
    ]
    ids, clock = talk.submit_many(14), talk.manager.daemon.clock

    def spent(order: str, **given: Any) -> int:
        limiter = listener.rate_limiter
        limiter.began_ns, limiter.spent = clock.monotonic_ns() + 10**15, 0  # one endless second
        talk.order("job_orders", order=order, **given)
        return talk.manager.do(lambda: limiter.spent)

    few, many = spent("free", jobs=ids[:2]), spent("free", jobs=ids[2:10])
    assert many - few >= 6 * (Units.CHANGE + Units.FIND) * 1_000


def test_a_long_answer_is_sent_in_turns(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stories of 200 elements are some hundred packets."""
    monkeypatch.setattr(client_verbs, "PARTS_IN_TURN", 5)
    turns: list[int] = []
    sending = Questions._sending

    def seen(*arguments: Any) -> Iterator[None]:
        turns.append(1)
        for _ in sending(*arguments):
            turns.append(1)
            yield

    monkeypatch.setattr(Questions, "_sending", seen)
    array = talk.submit(array=list(range(60)))
    ids = [f"{array}.{index}" for index in range(60)]
    talk.rows("free", jobs=ids)
    turns.clear()
    shown = talk.order("job_show", job=array)["jobs"]
    assert [row["job"] for row in shown] == ids
    assert len(turns) > 5


def test_the_ended_elements_of_an_array_stand_beside_the_living_ones(talk: Talk) -> None:
    array = talk.submit(array=list(range(6)))
    talk.rows("withdraw", jobs=[f"{array}.1", f"{array}.4"])
    shown = talk.order("job_show", job=array)["jobs"]
    states = [(row["job"], row["state"]) for row in shown]
    ended = [(f"{array}.{index}", "withdrawn") for index in (1, 4)]
    assert states == [(array, "held"), *ended]
    assert shown[0]["indices"] == "0,2-3,5"
    talk.order("job_withdraw", job=array)
    shown = talk.order("job_show", job=array)["jobs"]
    assert [row["state"] for row in shown] == ["withdrawn"] * 3


def test_a_wait_for_many_ended_jobs_looks_for_them_in_turns(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk.submit_many(2 * Units.FIND.within() + 1)
    talk.rows("withdraw", jobs=ids)
    asked: list[int] = []
    each = talk.manager.daemon.journal.ended_each
    monkeypatch.setattr(
        talk.manager.daemon.journal,
        "ended_each",
        lambda names: asked.append(len(names)) or each(names),
    )
    assert len(talk.order("job_wait", jobs=ids)["jobs"]) == len(ids)
    assert max(asked) <= Units.FIND.within()
