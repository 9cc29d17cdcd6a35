"""The head's verbs: rights, what a submission is refused for, queue, wait, cancel, logs, nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.commands import history, queue
from nodemgr.core.cluster import events
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.head.verbs import Who
from tests.head.world import ADMIN, ANN, BOB, cluster


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
            assert queue.standing(row)
            step()
        (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
        assert queue.standing(row) == "done"
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
        ({"array": [[0, 3]]}, "takes no arrays yet", "refused"),
        ({"after": ["j1"]}, "takes no jobs that wait for others yet", "refused"),
        ({"hold": True}, "takes no held jobs yet", "refused"),
        ({"compute_percent": 50}, "takes no shares of GPUs yet", "refused"),
        ({"gpus": 1, "gpus_max": 2}, "takes no ranges of GPUs yet", "refused"),
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
        for verb in ("cluster_show", "cluster_cancel", "cluster_logs"):
            with pytest.raises(OperationError, match=f"no job {other}"):
                world.ask(ANN, verb, job=other)
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
        assert world.ask(ANN, "cluster_cancel", job=queued)["state"] == "withdrawn"
        assert world.ask(ANN, "cluster_cancel", job=at_node)["state"] == "stopping"
        world.turn()
        assert world.ended(at_node) == "withdrawn"
        assert world.ask(ANN, "cluster_cancel", job=at_node)["state"] == "withdrawn"


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


def test_a_status_is_merged_from_the_nodes(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4, gn2=1) as world:
        told = world.answers(ANN, "cluster_status")
        world.turn()
        assert sorted(told[0]["snapshots"]) == ["gn1", "gn2"]
        world.links.forget("gn2")
        told = world.answers(ANN, "cluster_status")
        world.turn()
        assert sorted(told[0]["snapshots"]) == ["gn1"]


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
