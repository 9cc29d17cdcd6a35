"""The head's verbs: rights, what a submission is refused for, queue, wait, cancel, logs, nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from client_plugin.verbs.commands import history, status
from client_plugin.verbs.presentation import cells
from nodemgr.core.cluster import events, listing
from nodemgr.core.model.entities import Cause, JobState
from nodemgr.core.model.values import replace
from nodemgr.edge.api.assignment_operations import ASSIGN
from nodemgr.edge.rpc.operation import OperationError, check
from nodemgr.head import submissions, verbs
from nodemgr.head.submissions import Who
from tests.head.world import ADMIN, ANN, BOB, World, cluster


def test_a_job_runs_on_a_node_and_ends(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=2, gn2=4) as world:
        job = world.submit(gpus=2, name="train")
        assert job == "c1"
        (waits,) = [world.answers(ANN, "cluster_wait", jobs=[job])]
        world.turn()
        (row,) = world.ask(ANN, "cluster_queue")["queue"]
        assert (row["id"], row["node"], row["name"]) == ("c1", "gn1", "train")
        assert waits == []
        world.finish()
        world.turn()
        assert waits == [
            {
                "schema_version": 1,
                "jobs": [{"job": "c1", "of": "c1", "state": "done", "exit": 0, "why": ""}],
            }
        ]
        (past,) = world.ask(ANN, "cluster_history")["history"]
        assert (past["job"], past["node"], past["state"]) == ("c1", "gn1", "done")
        assert world.ask(ANN, "cluster_queue")["queue"] == []
        assert world.nodes["gn1"].answers() == [], "the end is acknowledged"


def test_the_faces_print_a_job_of_the_head_in_each_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logs --follow` prints where a job stands, `history JOB` its story."""
    with cluster(tmp_path, gn1=1) as world:
        job = world.submit(name="train")
        for step in (world.turn, world.finish, world.turn):
            (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
            assert cells.standing(row)
            step()
        (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
        assert cells.standing(row) == "done"
        history._stories([row], expand=False)
        assert "train" in capsys.readouterr().out


def test_the_same_submission_again_is_the_same_job_also_when_it_has_ended(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=2) as world:
        assert world.submit() == world.submit() == "c1"
        world.turn()
        world.finish()
        world.turn()
        world.restart()
        assert world.submit() == "c1"
        assert world.submit(number=2) == "c2"
        assert world.submit(BOB) == "c3", "another user's key is another key"


@pytest.mark.parametrize(
    ("said", "line", "code"),
    [
        ({"gpus": 5}, "more than any node has (4)", "quota"),
        ({"gpus": 9}, "more than ann may use (8 on one node)", "quota"),
        ({"array": [[3, 0]]}, "array", "usage"),
        ({"array": [2 * n for n in range(1_001)]}, "1000 separate runs", "usage"),
        ({"after": ["j1"]}, "must be a job of the cluster", "usage"),
        ({"after": ["c9"]}, "has no job c9 in the cluster", "not_found"),
        ({"gpus": 5, "compute_percent": 50}, "more than any node has (4)", "quota"),
        ({"gpus": 0, "compute_percent": 50}, "a job without a GPU has none", "usage"),
        ({"gpus": 0, "memory_bytes": 2**30}, "a job without a GPU has none", "usage"),
        ({"compute_percent": 101}, "compute_percent", "usage"),
        ({"memory_bytes": 9 << 30}, "9 GiB of a GPU asked, but ann can have at most 8", "quota"),
        ({"gpus": 1, "gpus_max": 2}, "takes no ranges of GPUs yet", "refused"),
        ({"task_class": "latency-sensitive"}, "the highest class of ann is normal", "quota"),
        ({"priority": "high"}, "takes no queues yet", "refused"),
        ({"argv": []}, "argv", "usage"),
        ({"gpus": -1}, "gpus", "usage"),
        ({"colour": "red"}, "unknown argument", "usage"),
        ({"environ": ["A=" + "x" * 100_000] * 10}, "longer than 900000 bytes", "usage"),
    ],
)
def test_a_submission_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, said: dict[str, Any], line: str, code: str
) -> None:
    with cluster(tmp_path, gn1=4) as world:
        with pytest.raises(OperationError) as refused:
            world.submit(**said)
        assert line in str(refused.value)
        assert refused.value.code == code
        assert world.head.engine.state.jobs == {}


def test_a_share_above_the_quotas_is_refused_and_its_defaults_are_taken(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.ask(ADMIN, "env_set", env="ann", compute_percent=40, task_class="latency-sensitive")
        with pytest.raises(OperationError, match="50% of each GPU asked, but ann may have at most"):
            world.submit(compute_percent=50)
        world.submit(number=2)
        world.submit(BOB, task_class="best-effort")
        jobs = world.head.engine.state.jobs
        shown = [(jobs[job].task_class.value, jobs[job].compute_percent) for job in ("c1", "c2")]
        assert shown == [("latency-sensitive", 40), ("best-effort", 100)]


def test_halves_of_a_gpu_stand_together_and_a_node_of_an_earlier_version_has_whole_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    half = {"gpus": 1, "compute_percent": 50, "memory_bytes": 4 << 30}
    with cluster(tmp_path, gn1=1) as world:
        world.ask(ADMIN, "env_set", env="ann", gpus=1)
        jobs = [world.submit(number=n, **half) for n in range(3)]
        world.turn()
        shown = {row["id"]: row for row in world.ask(ANN, "cluster_queue")["queue"]}
        assert [shown[job]["node"] for job in jobs[:2]] == ["gn1", "gn1"]
        assert shown[jobs[0]]["compute_percent"] == 50
        (env,) = [e for e in world.ask(ADMIN, "env_list")["envs"] if e["env"] == "ann"]
        assert env["gpus_used"] == 1
        assert "does not report" not in capfd.readouterr().err
    with cluster(tmp_path / "earlier", gn1=1) as world:
        world.shares = False
        world.links.forget("gn1")
        world.sync()
        assert "gn1 does not report the shares of its GPUs" in capfd.readouterr().err
        jobs = [world.submit(number=n, **half) for n in range(3)]
        world.turn()
        shown = {row["id"]: row for row in world.ask(ANN, "cluster_queue")["queue"]}
        (waits,) = [row for row in shown.values() if row["node"] is None]
        assert "(gn1 of whole GPUs alone: upgrade)" in waits["reason"]


LATER: dict[str, tuple[object, str]] = {
    "gpus_max": (2, "ranges of GPUs"), "leader": ("j1", "elastic jobs"),
    "priority": ("high", "queues"),
    "memory_max_bytes": (2**31, "ranges of memory"),
}  # fmt: skip
FORWARDED: dict[str, object] = {
    "umask": 0o22, "memory_bytes": 2**30, "cpus": 2, "host_memory_bytes": 2**30,
    "time_limit_ms": 60_000, "signal": ["USR1", 10_000], "task_class": "best-effort",
    "compute_percent": 50,
    "deadline_ms": 600_000, "name": "train",
}  # fmt: skip


def test_each_field_of_a_submission_is_the_heads_or_goes_to_the_node_or_is_refused(
    tmp_path: Path,
) -> None:
    """None is taken and left out."""
    always = {"argv", "cwd", "environ"}
    assert {*submissions.SUBMISSION} == {*LATER, *FORWARDED, *submissions.OF_THE_HEAD, *always}
    with cluster(tmp_path, gn1=4) as world:
        for name, (value, words) in LATER.items():
            with pytest.raises(OperationError, match=f"takes no {words} yet: .*--here"):
                world.submit(gpus=1, memory_bytes=2**30, **{name: value})
        given = [name for name in FORWARDED if _is_taken(world, name)]
        assert given == [*FORWARDED]


def _is_taken(world: World, name: str) -> bool:
    job = world.submit(number=100 + len(name), gpus=1, **{name: FORWARDED[name]})
    payload = world.head.engine._store.payload(job)
    sent = check(ASSIGN, {**(payload or {}), "key": "lab/1/c1/1", "number": 1})
    return sent.get(name) is not None


def test_an_unknown_environment_and_a_user_with_two_uids(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        with pytest.raises(OperationError, match="no environment anna"):
            world.submit(Who("ann", 1000, 1000, "anna"))
        world.submit()
        with pytest.raises(OperationError, match="uid 1007 on this node, and uid 1000"):
            world.submit(ANN._replace(uid=1007))
        with pytest.raises(OperationError, match="no environment is named"):
            world.submit(ADMIN)


def test_a_user_sees_and_ends_jobs_of_the_own_environment_alone(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        mine, other = world.submit(), world.submit(BOB)
        for verb, given in (
            ("cluster_show", {}), ("cluster_logs", {}), ("cluster_move", {"first": True}),
            ("cluster_order", {"order": "withdraw"}), ("cluster_order", {"order": "hold"}),
        ):  # fmt: skip
            with pytest.raises(OperationError, match=f"no job {other}"):
                world.ask(ANN, verb, job=other, **given)
        with pytest.raises(OperationError, match=f"no job {other}"):
            world.ask(ANN, "cluster_wait", jobs=[mine, other])
        assert [row["id"] for row in world.ask(ANN, "cluster_queue", env="bob")["queue"]] == [mine]
        assert len(world.ask(ADMIN, "cluster_queue")["queue"]) == 2
        for verb, given in (
            ("node_drain", {"node": "gn1"}), ("node_lost", {"node": "gn1"}),
            ("env_set", {"env": "ann", "gpus": 99}),
        ):  # fmt: skip
            with pytest.raises(OperationError, match="an order of administrators"):
                world.ask(ANN, verb, **given)
        assert [env["env"] for env in world.ask(ANN, "env_list")["envs"]] == ["ann"]


def test_an_array_of_the_cluster(tmp_path: Path) -> None:
    """One row, elements on nodes, one answer for all; dependents go when all have ended."""
    with cluster(tmp_path, gn1=1) as world:
        array = world.submit(array=[[0, 2]], name="sweep")
        behind = world.submit(number=2, after=[array])
        assert world.submit(array=[[0, 2]]) == array
        waits = world.answers(ANN, "cluster_wait", jobs=[array])
        world.turn()
        shown = {row["id"]: row for row in world.ask(ANN, "cluster_queue")["queue"]}
        assert sorted(shown) == ["c1.*", "c1.0", "c1.1", "c2"]
        assert (shown["c1.*"]["jobs"], shown["c1.*"]["indices"]) == (1, "2")
        assert shown["c2"]["state"] == "after"
        assert shown["c2"]["reason"] == "waits for c1 to end well"
        first = world.ask(ANN, "cluster_queue", limit=2)
        rest = world.ask(ANN, "cluster_queue", limit=2, after=first["after"])
        assert [row["id"] for row in first["queue"] + rest["queue"]] == list(shown)
        with pytest.raises(OperationError, match="c1 is an array: name one"):
            world.ask(ANN, "cluster_logs", job=array)
        world.restart()
        world.sync()
        for _ in range(4):
            assert world.submit(array=[[0, 2]]) == array
            world.turn()
            world.finish()
        world.turn()
        waits = waits or world.answers(ANN, "cluster_wait", jobs=[array, "c1.1"])
        assert [(row["job"], row["exit"]) for row in waits[0]["jobs"]] == [("c1", 0), ("c1.1", 0)]
        past = world.ask(ANN, "cluster_show", job=array)["jobs"]
        assert sorted(row["job"] for row in past) == ["c1.0", "c1.1", "c1.2"]
        assert world.submit(array=[[0, 2]]) == array
        assert world.ask(ANN, "cluster_show", job="c1.2")["jobs"][0]["state"] == "done"
        assert world.ended(behind) == "done"
        assert world.submit(number=3, after=[array]) == "c3"


def test_a_filter_matches_the_jobs_that_the_order_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nodemgr queue hold --mine`: ids page by page, and then the order to them."""
    monkeypatch.setattr(verbs, "MATCHED_AT_ONCE", 2)
    eve = ANN._replace(name="eve", uid=1005)
    with cluster(tmp_path, gn1=1) as world:
        running = world.submit(name="train-1")  # its node has it
        world.turn()
        array = world.submit(number=2, array=[[0, 4]], name="train-2", hold=True)
        other = world.submit(eve, number=3, name="train-3", hold=True)
        alien = world.submit(BOB, number=4, name="train-4", hold=True)

        def matched(who: Who, **asked: Any) -> list[str]:
            found, after = [], None
            while True:
                page = world.ask(who, "cluster_match", after=after, **asked)
                found += page["matched"]
                if (after := page["after"]) is None:
                    return found

        assert matched(ANN, order="free", mine=True) == [f"{array}.*"]
        assert matched(ANN, order="free", name="train-*") == [f"{array}.*", other]
        assert matched(ADMIN, order="free", user="bob") == [alien]
        assert matched(ANN, order="free", env="bob", name="train-4") == [], "only the own one"
        assert matched(ANN, order="withdraw", state="queued") == [running]
        assert matched(ANN, order="requeue") == []
        told = world.ask(ANN, "cluster_orders", jobs=[f"{array}.*"], order="free")["jobs"]
        assert [row["error"] for row in told] == [None]


def test_an_environment_has_a_limit_of_jobs(tmp_path: Path) -> None:
    """Also within one order; what has ended counts no more."""
    with cluster(tmp_path, gn1=4) as world:
        state = world.head.engine.state
        state.config = replace(state.config, max_env_jobs=3, max_jobs=4)
        array = world.submit(array=[[0, 1]])
        jobs = [{"argv": ["true"], "key": key * 16} for key in ("ab", "cd")]
        many = {"cwd": "/", "environ": ["A=1"], "jobs": jobs}
        told = world.ask(ANN, "cluster_submit_many", **many)["jobs"]
        assert told[0] == {"job": "c2"}
        assert "ann has 2 jobs that wait or run in the cluster, of 3" in told[1]["error"]
        world.submit(BOB, number=3)
        with pytest.raises(OperationError, match="the cluster has 4 jobs that wait or run"):
            world.submit(BOB, number=4)
        assert world.submit(array=[[0, 1]]) == array, "the same submission is no new one"
        world.ask(ANN, "cluster_order", job=array, order="withdraw")
        world.restart()
        world.sync()
        world.turn()
        state = world.head.engine.state
        state.config = replace(state.config, max_env_jobs=3, max_jobs=4)
        assert world.submit(number=5) == "c4"


def test_a_page_of_the_queue_reads_its_own_rows_alone(tmp_path: Path) -> None:
    """Of 2 000 jobs a page of 2 costs as many steps as of 20."""
    with cluster(tmp_path, gn1=1) as world:
        counts = []
        for there in (20, 2_000):
            jobs = [{"argv": ["true"], "key": f"{n:032x}"} for n in range(there)]
            for at in range(0, there, 250):
                world.ask(ANN, "cluster_submit_many", cwd="/", environ=["A=1"],
                          jobs=jobs[at : at + 250])  # fmt: skip
            after = world.ask(ANN, "cluster_queue", limit=3)["after"]
            lines = 0

            def count(_frame: FrameType, event: str, _arg: Any) -> Any:
                nonlocal lines
                lines += event == "line"
                return count

            sys.settrace(count)
            page = world.ask(ANN, "cluster_queue", limit=2, after=after)["queue"]
            sys.settrace(None)
            assert [row["id"] for row in page] == ["c4", "c5"]
            counts.append(lines)
        assert counts[1] < 2 * counts[0], counts


def test_orders_to_jobs_of_the_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        held = world.submit(hold=True)
        world.turn()
        (row,) = world.ask(ANN, "cluster_show", job=held)["jobs"]
        assert (row["state"], row["node"]) == ("held", None)
        assert row["reason"] == "held by ann (nodemgr queue unhold c1)"
        behind = world.submit(number=2, after=[held])
        told = world.ask(ANN, "cluster_orders", jobs=[held, "c9", behind], order="free")["jobs"]
        assert [(row["job"], row.get("code")) for row in told] == [
            ("c1", None), ("c9", "not_found"), ("c2", "refused"),
        ]  # fmt: skip
        world.turn()
        with pytest.raises(OperationError, match="c1 does not run"):
            world.ask(ANN, "cluster_order", job=held, order="requeue")
        world.finish()
        world.turn()
        assert world.ended(held) == "done"
        with pytest.raises(OperationError, match="c1 has ended"):
            world.ask(ANN, "cluster_order", job=held, order="hold")
        with pytest.raises(OperationError, match="one queue yet"):
            world.ask(ANN, "cluster_move", job=behind, queue="high")


def test_many_submissions_are_one_commit(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        around = {"cwd": "/", "environ": ["A=1"]}
        jobs = [
            {"argv": ["true"], "key": "ab" * 16, "variables": ["B=2"]},
            {"argv": ["true"], "key": "cd" * 16, "gpus": 99},
            {"argv": ["true"], "key": "ab" * 16, "colour": "red"},
            {"argv": ["true"], "key": "ef" * 16, "array": [[0, 1]]},
        ]
        told = world.ask(ANN, "cluster_submit_many", **around, jobs=jobs)["jobs"]
        assert [row.get("job") or row["code"] for row in told] == ["c1", "quota", "usage", "c2"]
        payload = world.head.engine._store.payload("c1")
        assert payload is not None
        assert payload["environ"] == ["A=1", "B=2"]
        again = world.ask(ANN, "cluster_submit_many", **around, jobs=jobs[:1])["jobs"]
        assert again == [{"job": "c1"}]
        world.turn()
        world.finish()
        world.turn()
        world.ask(ANN, "cluster_order", job=world.submit(number=5), order="withdraw")
        with pytest.raises(OperationError, match="ended as withdrawn"):
            world.submit(number=6, after=["c3"])


@pytest.mark.parametrize("verb", ["cluster_show", "nonsense", "node_show", "cluster_queue"])
@pytest.mark.parametrize("given", [{"job": 7}, {"job": "j1"}, {"node": "gn9"}, {"after": "x"}])
def test_bad_input_gets_an_answer(tmp_path: Path, verb: str, given: dict[str, Any]) -> None:
    with cluster(tmp_path, gn1=1) as world:
        (answer,) = world.answers(ADMIN, verb, **given)
        assert isinstance(answer, OperationError)
        assert "internal" not in str(answer)


def test_a_queued_job_is_cancelled_at_once_and_one_at_a_node_when_it_says_so(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, gn1=1) as world:
        at_node = world.submit()
        world.turn()
        world.ask(ADMIN, "env_set", env="ann", gpus=1)
        queued = world.submit(number=2)
        world.turn()
        assert world.ask(ANN, "cluster_order", job=queued, order="withdraw")["state"] == "withdrawn"
        assert world.ask(ANN, "cluster_order", job=at_node, order="withdraw")["state"] == "stopping"
        world.turn()
        assert world.ended(at_node) == "withdrawn"
        again = world.ask(ANN, "cluster_order", job=at_node, order="withdraw")
        assert again["state"] == "withdrawn"


def test_output_is_read_on_the_node_of_the_job(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        job = world.submit()
        with pytest.raises(OperationError, match="no node has begun it"):
            world.ask(ANN, "cluster_logs", job=job)
        world.turn()
        told = world.answers(ANN, "cluster_logs", job=job, offset=5)
        world.turn()
        assert told[0]["node"] == "gn1"
        assert (told[0]["offset"], told[0]["job"], told[0]["key"][:3]) == (5, job, "hq-")
        world.links.forget("gn1")
        (silent,) = world.answers(ANN, "cluster_logs", job=job)
        assert silent.code == "busy"
        (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
        assert "nodemgr node lost gn1" in row["reason"]


def test_nodes_are_drained_lost_and_removed(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1, gn2=1) as world:
        job = world.submit()
        world.turn()
        world.ask(ADMIN, "node_drain", node="gn2", note="a new disk")
        assert [row["state"] for row in world.ask(ANN, "node_list")["nodes"]] == ["up", "drained"]
        with pytest.raises(OperationError, match="gn1 speaks"):
            world.ask(ADMIN, "node_lost", node="gn1")
        with pytest.raises(OperationError, match="1 jobs of the cluster"):
            world.ask(ADMIN, "node_remove", node="gn1")
        world.links.forget("gn1")
        assert world.ask(ADMIN, "node_lost", node="gn1")["state"] == "lost"
        world.ask(ADMIN, "node_remove", node="gn1")
        assert [row["node"] for row in world.ask(ANN, "node_list")["nodes"]] == ["gn2"]
        world.ask(ADMIN, "node_resume", node="gn2")
        world.turn()
        assert world.ask(ANN, "cluster_show", job=job)["jobs"][0]["node"] == "gn2"


def test_a_quota_below_what_is_assigned_takes_nothing_and_holds_the_next_job(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, gn1=4) as world:
        first = [world.submit(number=number, gpus=1) for number in (1, 2)]
        world.turn()
        lowered = world.ask(ADMIN, "env_set", env="ann", gpus=1)
        assert "2 GPUs are in use" in lowered["warnings"][0]
        third = world.submit(number=3, gpus=1)
        world.turn()
        assert world.ask(ANN, "cluster_show", job=third)["jobs"][0]["node"] is None
        reason = world.ask(ANN, "cluster_show", job=third)["jobs"][0]["reason"]
        assert reason == "environment ann uses 2 of its 1 GPUs in the cluster"
        world.finish()
        world.turn()
        assert [world.ended(job) for job in first] == ["done", "done"]
        world.finish()
        world.turn()
        assert world.ended(third) == "done"


def test_a_job_that_waits_for_a_part_of_a_node_reads_how_large_the_part_is(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.ask(ADMIN, "env_set", env="ann", gpus=4, per_node=2)
        for number in (1, 2):
            job = world.submit(number=number, gpus=2)
            world.turn()
        reason = world.ask(ANN, "cluster_show", job=job)["jobs"][0]["reason"]
        assert reason == "no node has the GPUs free, or ann has its 2 there"


def test_quotas_reach_each_node_and_users_come_and_go(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.links.said.clear()
        world.ask(ADMIN, "env_set", env="new", gpus=6, per_node=2, users=["ann", "bob"])
        env = world.ask(ADMIN, "env_set", env="new", drop_users=["bob"], add_users=["eve"])["env"]
        assert (env["gpus"], env["per_node"], env["users"]) == (6, 2, ["ann", "eve"])
        put = [said["arguments"] for _, kind, said in world.links.said if kind == "order"]
        assert [(one["env"], one["quota"]["gpus"]) for one in put] == [("new", 2)] * 2
        with pytest.raises(OperationError, match="say its GPUs"):
            world.ask(ADMIN, "env_set", env="other")


def test_an_environment_without_jobs_is_removed_from_each_node(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        job = world.submit()
        with pytest.raises(OperationError, match="ann has 1 jobs in the cluster"):
            world.ask(ADMIN, "env_rm", env="ann")
        with pytest.raises(OperationError, match="no environment bobb; did you mean 'bob'"):
            world.ask(ADMIN, "env_rm", env="bobb")
        world.turn()
        world.finish()
        world.turn()
        assert world.ended(job) == "done"
        world.links.said.clear()
        world.ask(ADMIN, "env_rm", env="ann")
        orders = [said for _, kind, said in world.links.said if kind == "order"]
        assert [(one["verb"], one["arguments"]) for one in orders] == [
            ("env_only", {"envs": ["bob"]})
        ]
        world.restart()
        world.sync()
        assert "ann" not in world.head.engine.state.envs
        with pytest.raises(OperationError, match="no environment ann"):
            world.submit(number=2)


def test_the_status_of_a_cluster_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.submit()
        world.turn()
        told = world.answers(ADMIN, "cluster_status")
        world.turn()
        gpu = {
            "uuid": "G", "index": 0, "name": "A100", "state": "healthy", "tasks": 0, "usable": True,
            "memory_total_bytes": 2**30, "memory_granted_bytes": 0, "memory_used_bytes": 0,
        }  # fmt: skip
        status.show_cluster({**told[0], "snapshots": {"gn1": {"gpus": [gpu]}, "gn2": None}})
        printed = capsys.readouterr().out
        assert "gn1:0  A100" in printed
        assert "ann" in printed
        assert " 4/8" in printed
        assert told[0]["jobs"] == {"gn1": {"j1": "c1"}}
        users = world.answers(ANN, "cluster_status")
        asked = [said for _, kind, said in world.links.said if kind == "order"]
        assert [(one["verb"], one["arguments"]) for one in asked] == [
            ("snapshot_env", {"env": "ann"})
        ], "no tasks of others"
        world.turn()
        assert [env["env"] for env in users[0]["envs"]] == ["ann"]


def test_a_status_is_merged_from_the_nodes(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4, gn2=1) as world:
        told = world.answers(ADMIN, "cluster_status")
        world.turn()
        assert sorted(told[0]["snapshots"]) == ["gn1", "gn2"]
        world.links.forget("gn2")
        told = world.answers(ADMIN, "cluster_status")
        world.turn()
        assert sorted(told[0]["snapshots"]) == ["gn1"]


def test_a_user_of_an_own_manager_asks_without_naming_the_environment(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.ask(ADMIN, "env_set", env="ann", gpus=8, users=["ann"])
        world.head.engine.happens(events.AddNode("gn1", "key of gn1", user="ann"))
        world.submit()
        world.submit(BOB)
        asked = {
            "t": "ask", "id": 1, "verb": "cluster_queue", "arguments": {}, "env": None,
            "by": {"uid": 1000, "gid": 1000, "user": "ann"},
        }  # fmt: skip
        world.head.sessions.message("gn1", 1, asked)
        world.head.sessions.message("gn1", 1, asked | {"verb": "node_drain"})
        world.ask(ADMIN, "env_set", env="both", gpus=8, users=["ann"])
        world.head.sessions.message("gn1", 1, asked)
        own, drain, two = [said for _, kind, said in world.links.said if kind == "answer"]
        assert [row["id"] for row in own["ok"]["queue"]] == ["c1"]
        assert drain["refusal"]["code"] == two["refusal"]["code"] == "forbidden"


def test_a_node_that_asks_for_its_users(tmp_path: Path) -> None:
    """A frame of any form gets an answer, or a line."""
    with cluster(tmp_path, gn1=4) as world:
        asked = {
            "t": "ask", "id": 1, "verb": "cluster_queue", "arguments": {}, "env": "ann",
            "by": {"uid": 1000, "gid": 1000, "user": "ann"},
        }  # fmt: skip
        wrong: tuple[dict[str, object], ...] = (
            {"by": None}, {"id": "x"}, {"by": {"uid": -1, "gid": 0, "user": "x"}}, {"env": "../x"},
            {"by": {"uid": True, "gid": 0, "user": "x"}},
        )  # fmt: skip
        for one in wrong:
            world.head.sessions.message("gn1", 1, asked | one)
        assert [kind for _, kind, _ in world.links.said if kind == "answer"] == []
        world.head.sessions.message("gn1", 1, asked | {"verb": "node_drain"})
        world.head.sessions.message("gn1", 1, asked)
        refused, answered = [said for _, kind, said in world.links.said if kind == "answer"]
        assert refused["refusal"]["code"] == "forbidden"
        assert answered["ok"]["queue"] == []
        for said in ({"t": "report"}, {"t": "report", "number": 1, "gpus": -1}, {"t": "later"}):
            world.head.sessions.message("gn1", 1, said)
        assert world.head.engine.state.nodes["gn1"].gpus == 4
        world.head.engine.happens(events.Silent("gn1", 1))


def test_starts_of_a_job_that_was_begun_again(tmp_path: Path) -> None:
    """In the queue, in the history, and for the output of each; also after restarts of the head."""
    with cluster(tmp_path, gn1=1, gn2=1) as world:
        job = world.submit(max_restarts=1)
        world.turn()
        node = world.nodes["gn1"]
        (key,) = node.rows
        node.under_way[key] = True
        node.rows[key] = replace(node.rows[key], began=True)
        world.report("gn1")
        (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
        assert (row["starts"], row["attempts"][0]["ended"], row["position"]) == (1, None, None)
        assert row["started"] == row["attempts"][0]["started"] == world.clock.wall_ns() // 10**9
        node.end(key, JobState.FAILED, Cause.OWN)
        world.ask(ADMIN, "node_drain", node="gn1")
        world.report("gn1")
        world.restart()
        (row,) = world.ask(ANN, "cluster_queue")["queue"]
        assert (row["starts"], row["attempts"][0]["cause"], row["position"]) == (1, "own", 1)
        world.sync()
        world.turn()
        world.finish()
        world.turn()
        world.restart()
        world.sync()
        (row,) = world.ask(ANN, "cluster_history")["history"]
        assert row["starts"] == 2
        shown = [(one["number"], one["node"], one["exit_code"]) for one in row["attempts"]]
        assert shown == [(1, "gn1", 0), (2, "gn2", 0)]
        for number, where, named in (1, "gn1", {"attempt": 1}), (2, "gn2", {}):
            told = world.answers(ANN, "cluster_logs", job=job, **named)
            world.turn()
            assert (told[0]["node"], told[0]["attempt"]) == (where, number)
        with pytest.raises(OperationError, match="of start 3 none is known"):
            world.ask(ANN, "cluster_logs", job=job, attempt=3)


def test_the_queue_is_listed_in_the_order_of_the_pass(tmp_path: Path) -> None:
    """Also after a move and a restart; each job is on one page."""
    with cluster(tmp_path, gn1=1) as world:
        world.ask(ADMIN, "env_set", env="ann", task_class="latency-sensitive")
        jobs = [world.submit(number=n, task_class="normal") for n in range(1, 6)]
        world.turn()
        at_node = [
            job for job in jobs if world.ask(ANN, "cluster_show", job=job)["jobs"][0]["node"]
        ]
        held = world.submit(number=6, hold=True)
        world.ask(ANN, "cluster_move", job=jobs[-1], first=True)
        for _ in range(2):
            rest = [job for job in jobs[:-1] if job not in at_node]
            pages, after = [], None
            while not pages or after is not None:
                page = world.ask(ANN, "cluster_queue", limit=1, after=after)
                pages.append([row["id"] for row in page["queue"]])
                after = page["after"]
            assert pages == [[one] for one in (*at_node, jobs[-1], *rest, held)]
            rows = world.ask(ADMIN, "cluster_queue")["queue"]
            assert [row["id"] for row in rows] == [one for (one,) in pages]
            places = [row["position"] for row in rows if row["position"] is not None]
            assert places == list(range(1, len(rest) + 2))
            world.restart()
        for after in (-1, 2**80, "x"):
            with pytest.raises(OperationError):
                world.ask(ANN, "cluster_queue", after=after)
        assert world.ask(ANN, "cluster_queue", after=listing.MOST)["queue"] == []
