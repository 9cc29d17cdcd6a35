"""Tokens of the web page: judged by the manager, hashed in the store, bounded in number."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Config, Env, Quota
from nodemgr.core.state.node_state import State
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.store.database import FILE_NAME, Store
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.web import tokens as module
from nodemgr.edge.web.tokens import WebTokens
from tests.edge.simulated_clock import SimulatedClock
from tests.support.local import FailingStore

HOUR_MS = 3_600_000
MS = 1_000_000


class World:
    """Tokens on a store, with two environments."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = SimulatedClock()
        self.hook = FailingStore()
        self.open()

    def open(self) -> None:
        self.store = Store(self.directory, self.hook)
        self.told: list[str] = []
        self.journal = Journal(self.store, self.clock)
        self.journal.publish_to(lambda name, text: self.told.append(text))
        self.state = State(Config())
        for name in ("alice", "bob"):
            self.state.envs[name] = Env(name, Quota(1))
        self.tokens = WebTokens(self.journal, self.clock, self.state)

    def restart(self) -> None:
        self.journal.close()
        self.store.close()
        self.open()

    def refusal(self, token: object) -> str:
        with pytest.raises(OperationError) as refused:
            self.tokens.judge(token)
        assert refused.value.code == "token"
        assert "\n" not in str(refused.value)
        assert str(token) not in str(refused.value) or not token
        return str(refused.value)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_token_speaks_for_its_env_until_it_expires(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    viewer = world.tokens.judge(made["token"])
    assert (viewer.token_id, viewer.env) == ("w1", "alice")
    assert viewer.name == "web token w1 of alice"
    world.clock.advance(HOUR_MS * MS - 1)
    world.tokens.judge(made["token"])
    world.clock.advance(1)
    assert "has expired" in world.refusal(made["token"])
    assert world.tokens.list(None)["tokens"] == []


def test_an_administrators_token_has_no_env(world: World) -> None:
    viewer = world.tokens.judge(world.tokens.make(None, HOUR_MS, "root")["token"])
    assert viewer.env is None
    assert viewer.name == "web token w1 of an administrator"


def test_forged_tokens_are_refused(world: World) -> None:
    good = world.tokens.make("alice", HOUR_MS, "root")["token"]
    other = world.tokens.make("bob", HOUR_MS, "root")["token"]
    swapped = other.replace("nmw-w2", "nmw-w1")
    for forged in (
        "", None, 5, [], {}, "nmw-w1-", good[:-1], good + "A", " " + good, good + "\n",
        good.replace("w1", "w9"), good[:-1] + ("A" if good[-1] != "A" else "B"),
        swapped, "nmw-w" + "9" * 5_000, "x" * 100_000, "nmw-w\u0661-" + good[-43:],
    ):  # fmt: skip
        world.refusal(forged)
    assert world.tokens.judge(good).env == "alice"


def test_the_store_has_no_secret_and_keeps_tokens_over_a_restart(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    secret = made["token"].rpartition("-w1-")[2]
    world.restart()
    assert world.tokens.judge(made["token"]).env == "alice"
    world.journal.close()
    world.store.close()
    files = [path.read_bytes() for path in world.directory.iterdir()]
    assert any(b"w1" in content for content in files)
    assert not any(secret.encode() in content for content in files)
    assert not any(secret in text for text in world.told)


def test_a_revoked_token_stays_revoked(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    world.tokens.revoke("w1", None, "root")
    assert "revoked" in world.refusal(made["token"])
    world.restart()
    assert "revoked" in world.refusal(made["token"])
    assert world.tokens.make("alice", HOUR_MS, "root")["id"] == "w2", "no id is used twice"


def test_an_env_revokes_its_own_tokens_alone(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    world.tokens.make(None, HOUR_MS, "root")
    for token_id in ("w1", "w2", "w3", "", "w1 "):
        with pytest.raises(OperationError, match="bob has no token"):
            world.tokens.revoke(token_id, "bob", "eve")
    assert world.tokens.list("bob")["tokens"] == []
    assert [row["id"] for row in world.tokens.list("alice")["tokens"]] == ["w1"]
    world.tokens.revoke("w1", "alice", "alice")
    world.refusal(made["token"])


def test_tokens_of_a_removed_env_are_void(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    del world.state.envs["alice"]
    assert "was removed" in world.refusal(made["token"])
    world.tokens.forget_env("alice", "root")
    world.state.envs["alice"] = Env("alice", Quota(1))
    assert "revoked" in world.refusal(made["token"]), "a later env of the name has other users"


def test_a_token_of_an_unknown_env_is_not_made(world: World) -> None:
    with pytest.raises(OperationError, match="no environment 'carol'"):
        world.tokens.make("carol", HOUR_MS, "root")


def test_tokens_are_bounded_and_expired_ones_make_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENV_TOKENS", 2)
    monkeypatch.setattr(module, "MAX_TOKENS", 3)
    for _ in range(2):
        world.tokens.make("alice", HOUR_MS, "root")
    with pytest.raises(OperationError, match="alice has 2 tokens"):
        world.tokens.make("alice", HOUR_MS, "root")
    world.tokens.make("bob", HOUR_MS, "root")
    with pytest.raises(OperationError, match="the node has 3 tokens"):
        world.tokens.make("bob", HOUR_MS, "root")
    world.clock.advance(HOUR_MS * MS)
    world.tokens.make("alice", HOUR_MS, "root")
    with sqlite3.connect(world.directory / FILE_NAME) as db:
        assert db.execute("SELECT token_id FROM web_tokens").fetchall() == [("w4",)]


def test_a_failing_store_makes_no_token_and_still_revokes(world: World) -> None:
    made = world.tokens.make("alice", HOUR_MS, "root")
    world.hook.fault = "disk I/O error"
    with pytest.raises(OperationError, match="cannot be stored"):
        world.tokens.make("alice", HOUR_MS, "root")
    world.tokens.revoke("w1", None, "root")
    world.refusal(made["token"])
    world.hook.fault = None
    assert world.journal.retry()
    world.restart()
    world.refusal(made["token"])
