"""A head's directory: its id, its keys, two heads of one name, a restore, join words."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.links import keys
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.head.service import HeadFault, make, read_settings, restore
from tests.head.world import ADMIN, ANN, World, cluster


def test_a_head_is_made_once_and_gets_another_address(tmp_path: Path) -> None:
    made = make(tmp_path / "head", "hq", "")
    again = make(tmp_path / "head", "other", "127.0.0.1:7000")
    assert (again.name, again.address) == (made.name, "127.0.0.1:7000")
    assert again == read_settings(tmp_path / "head")
    for name in ("key", "settings.json", "state.db"):
        assert (tmp_path / "head" / name).stat().st_mode & 0o777 == 0o600
    assert make(tmp_path / "head2", "hq", "").name != made.name, "keys of two heads of one name"


def test_the_store_of_a_node_is_not_taken(tmp_path: Path) -> None:
    make(tmp_path / "head", "hq", "")
    with sqlite3.connect(tmp_path / "head" / "state.db") as db:
        db.execute("PRAGMA application_id = 7")
    with pytest.raises(HeadFault, match="another program's database"):
        make(tmp_path / "head", "hq", "")


def word(world: World, node: str) -> tuple[str, str]:
    """The text of a word, and its public key."""
    told: list[Any] = []
    world.head.sessions.of_admin("root", "node_word", {"node": node}, told.append)
    text = told[0]["word"]
    return text, keys.read_word(text).pair.public


def test_a_word_lets_one_node_join_once_within_an_hour(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        joined = world.head.sessions.joined
        _, public = word(world, "gn2")
        assert world.head.sessions.is_word(public)
        assert "for gn2" in joined(public, "gn3", "key3", {})["error"]
        assert (
            "the cluster has ann too" in joined(public, "gn2", "key2", {"envs": ["ann"]})["error"]
        )
        answer = joined(public, "gn2", "key2", {"envs": ["ann"], "take_over": True})
        assert answer == joined(public, "gn2", "key2", {}), "the answer may have been lost"
        assert answer["head"].startswith("hq-")
        assert "was used" in joined(public, "gn2", "key9", {})["error"]
        world.restart()
        assert world.head.engine.state.nodes["gn2"].key == "key2"
        _, late = word(world, "gn4")
        world.clock.advance(3_601 * 10**9)
        assert not world.head.sessions.is_word(late)
        assert "expired" in world.head.sessions.joined(late, "gn4", "k", {})["error"]


def test_a_word_for_a_known_node_gives_it_another_key(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        _, public = word(world, "gn1")
        world.head.sessions.joined(public, "gn1", "new key", {})
        assert world.head.engine.state.nodes["gn1"].key == "new key"
        assert "gn1" not in world.links.open
        told: list[Any] = []
        world.head.sessions.of_admin("root", "node_word", {"node": "../x"}, told.append)
        assert isinstance(told[0], OperationError)
        world.head.sessions.of_admin("root", "env_list", {}, told.append)
        assert len(told[1]["envs"]) == 2


def test_a_restore_from_a_copy(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1, gn2=1) as world:
        queued = [world.submit(number=number, gpus=1) for number in (1, 2)]
        world.die()
        shutil.copyfile(world.directory / "state.db", tmp_path / "copy")
        world.start()
        world.sync()
        world.turn()
        lost = world.submit(number=3, gpus=1)
        assert world.ask(ANN, "cluster_show", job=queued[0])["jobs"][0]["node"] == "gn1"
        world.die()
        lines = restore(world.directory, tmp_path / "copy")
        assert "generation 2, assignment 10001 and job c20003" in lines[1]
        assert "gn1, gn2" in lines[2]
        world.start()
        world.sync("gn2")
        (row,) = [r for r in world.ask(ADMIN, "cluster_queue")["queue"] if r["id"] == "c1"]
        assert "waits to hear gn1" in row["reason"]
        world.sync("gn1")
        world.turn()
        world.finish()
        world.turn()
        assert [world.ended(job) for job in queued] == ["done", "done"]
        assert [list(node.begun.values()) for node in world.nodes.values()] == [[1], [1]]
        with pytest.raises(OperationError, match=f"no job {lost}"):
            world.ask(ANN, "cluster_show", job=lost)
        assert world.submit(number=4) == "c20003"


def test_an_older_store_is_noticed_by_the_first_node(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        world.die()
        shutil.copyfile(world.directory / "state.db", tmp_path / "copy")
        world.start()
        world.sync()
        world.submit()
        world.turn()
        world.die()
        for end in ("-wal", "-shm"):
            (world.directory / f"state.db{end}").unlink(missing_ok=True)
        shutil.copyfile(tmp_path / "copy", world.directory / "state.db")
        world.start()
        world.sync()
        assert world.ask(ADMIN, "node_list")["copy"] is True
        world.die()
        restore(world.directory, None)
        world.start()
        world.sync()
        assert world.ask(ADMIN, "node_list")["nodes"][0]["unknown"] != []


def test_restore_of_what_is_no_copy(tmp_path: Path) -> None:
    with pytest.raises(HeadFault, match="no head's directory"):
        restore(tmp_path, None)
    make(tmp_path / "head", "hq", "")
    with pytest.raises(HeadFault, match="is no file"):
        restore(tmp_path / "head", tmp_path / "nothing")
