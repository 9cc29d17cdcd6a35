"""A head's own state: the rows of its doctor, its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodemgr.core.cluster import events
from nodemgr.core.cluster.pilots import PoolConfig
from tests.head.world import ADMIN, cluster


def test_the_head_is_examined(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1, gn2=2) as world:
        world.ask(ADMIN, "node_drain", node="gn2", note="a new disk")
        world.links.forget("gn1")
        found = {row["name"]: row for row in world.ask(ADMIN, "head_checks")["checks"]}
        assert [name for name, row in found.items() if not row["ok"]] == ["node gn1", "node gn2"]
        assert "has not spoken for 0 s" in found["node gn1"]["detail"]
        assert found["node gn2"]["detail"] == "2 GPUs, drained (a new disk)"
        assert found["node gn2"]["cure"] == "nodemgr node resume gn2"
        assert "generation 1" in found["generation"]["detail"]


def test_the_head_names_clocks_and_pilots_that_are_not_well(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:

        def row(name: str) -> dict[str, Any]:
            told = world.ask(ADMIN, "head_checks")
            assert told["address"] == "127.0.0.1:7470"
            return next(row for row in told["checks"] if row["name"] == name)

        assert row("clock")["ok"]
        assert row("port")["ok"]
        world.head.engine.hears_time("gn1", world.clock.wall_ns() - 86_400 * 10**9)
        assert row("clock")["detail"] == ("nodes' clocks differ from the head's: gn1 by -86400 s")
        engine = world.head.engine
        engine.happens(events.PoolTick(PoolConfig(min_nodes=1), ()))
        assert row("pool")["detail"] == "0 nodes are held, of 1 pilots"
        engine.happens(events.PilotAnswered(1, "sbatch: Invalid account"))
        assert (row("pool")["ok"], row("pool")["detail"]) == (False, "sbatch: Invalid account")


def test_a_head_that_starts_before_its_last_change_says_so(tmp_path: Path) -> None:
    """As with a clock of yesterday: jobs go on, and the order of the queue stays."""
    with cluster(tmp_path, gn1=1) as world:
        world.die()
        world.clock._wall_ns -= 86_400 * 10**9
        world.start()
        found = world.ask(ADMIN, "head_checks")["checks"]
        (clock,) = [row for row in found if row["name"] == "clock"]
        assert "the head began 86400 s before the last change" in clock["detail"]


def test_a_head_without_nodes_says_how_one_joins(tmp_path: Path) -> None:
    with cluster(tmp_path) as world:
        found = world.ask(ADMIN, "head_checks")["checks"]
        assert found[-1]["cure"] == "nodemgr head word NODE"


def test_the_metrics(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1, gn2=2) as world:
        world.submit(array=[[0, 9]], gpus=1)
        world.turn()
        world.links.forget("gn2")
        lines = world.ask(ADMIN, "head_metrics")["text"].splitlines()
        for line in (
            'nodemgr_node_up{node="gn1"} 1', 'nodemgr_node_up{node="gn2"} 0',
            'nodemgr_cluster_env_gpus_used{env="ann"} 5', 'nodemgr_cluster_jobs{state="queued"} 5',
            'nodemgr_cluster_jobs{state="assigned"} 5', 'nodemgr_cluster_first_wait_seconds 0',
            'nodemgr_pool_pilots{state="held"} 0', 'nodemgr_pool_failures 0',
        ):  # fmt: skip
            assert line in lines, lines
        named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        said = sum(line.startswith('nodemgr_head_frames_total{what="said"} ') for line in lines)
        assert said == 1, lines
        assert {line.split("{")[0] for line in lines if "{" in line} <= named
