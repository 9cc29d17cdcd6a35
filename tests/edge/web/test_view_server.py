"""The manager's end of the page process's socket, against a page process that was taken over."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.host.clock import SimulatedClock
from nodemgr.edge.host.rundir import VIEWS_SOCKET
from nodemgr.edge.rpc.operation import Reply
from nodemgr.edge.web import view_server
from nodemgr.edge.web.view_server import MAX_CONNECTIONS, MAX_LINE_BYTES, SLICE_NS, TIME_NS
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager


class Peer:
    """A page process of the test's own."""

    def __init__(self, manager: LocalManager) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_LIMIT_S)
        self.sock.connect(str(manager.run_dir / VIEWS_SOCKET))
        self.file = self.sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, verb: str, token: object = None, args: object = None, number: int = 1) -> Any:
        request = {"id": number, "verb": verb, "token": token, "args": {} if args is None else args}
        self.send(json.dumps(request).encode() + b"\n")
        return self.receive()

    def receive(self) -> Any:
        line = self.file.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@pytest.fixture(scope="module")
def manager() -> Iterator[LocalManager]:
    with LocalManager(web="127.0.0.1:0") as manager:
        for env in ("alice", "bob"):
            manager.call("quota_set", env=env, gpus=1)
        yield manager


@pytest.fixture
def peer(manager: LocalManager) -> Iterator[Peer]:
    peer = Peer(manager)
    yield peer
    peer.close()


def test_it_is_told_its_address(peer: Peer) -> None:
    told = peer.ask("hello")["result"]
    assert (told["host"], told["port"], told["base"]) == ("127.0.0.1", 0, "/")


def test_without_a_token_it_gets_totals_and_can_do_nothing(peer: Peer) -> None:
    assert peer.ask("view")["result"]["scope"] == "public"
    for verb in (
        "queue", "history", "report", "leases", "samples", "job_show", "quota_show", "release",
        "job_withdraw", "quota_set",
    ):  # fmt: skip
        for token in (None, "", 5, {}, [], "nmw-w1-" + "A" * 43):
            answer = peer.ask(verb, token, {"task": "t1", "job": "j1", "env": "alice", "gpus": 9})
            assert (answer["ok"], answer["code"]) == (False, "token")


def test_it_knows_no_other_verb_of_the_manager(peer: Peer, manager: LocalManager) -> None:
    token = manager.call("web_token", admin=True, for_ms=3_600_000)["token"]
    for verb in ("web_token", "quota_rm", "env_rekey", "job_submit", "doctor", "events", "", "_x"):
        assert peer.ask(verb, token)["code"] == "usage"


def test_an_envs_token_is_not_anothers(peer: Peer, manager: LocalManager) -> None:
    token = manager.call("web_token", env="alice", for_ms=3_600_000)["token"]
    for args in ({"env": "bob"}, {"env": ""}, {"env": 5}, {"env": ["alice"]}):
        assert peer.ask("queue", token, args)["code"] == "forbidden"
    assert peer.ask("queue", token, {"env": "alice"})["ok"]
    assert peer.ask("quota_set", token, {"env": "alice", "gpus": 4})["code"] == "forbidden"
    assert peer.ask("release", token, {"task": "t1", "by": "root"})["code"] == "usage"


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"5", b"null", b"\xff\xfe", b"{" * 50_000, b'{"id": "1", "verb": "view"}',
     b'{"id": true, "verb": "view"}', b'{"id": 1, "verb": 5}', b"GET / HTTP/1.1\r"],
    ids=lambda line: repr(line[:24]),
)  # fmt: skip
def test_a_malformed_line_ends_the_connection(
    peer: Peer, manager: LocalManager, line: bytes
) -> None:
    peer.send(line + b"\n")
    assert peer.receive() is None
    assert manager.call("ping")


@pytest.mark.parametrize(
    "moment", [-1, 2**63, 1.5, math.nan, math.inf, "1", None, True, [], {}, 10**400]
)
def test_a_malformed_span_is_refused(peer: Peer, manager: LocalManager, moment: object) -> None:
    token = manager.call("web_token", env="alice", for_ms=3_600_000)["token"]
    for name in ("since_wall_ns", "until_wall_ns"):
        answer = peer.ask("samples", token, {name: moment})
        assert (answer["ok"], answer["code"]) == (False, "usage")
        assert "\n" not in answer["error"]


@pytest.mark.parametrize("args", [[], 5, "x", {"x": 1}, {"tokens": 5}, {"tokens": ["x"] * 2_000}])
def test_malformed_arguments_are_refused(peer: Peer, args: object) -> None:
    for verb in ("view", "judge"):
        answer = peer.ask(verb, None, args)
        assert (answer["ok"], answer["code"]) == (False, "usage")


def test_a_line_without_an_end_is_not_kept(peer: Peer, manager: LocalManager) -> None:
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        peer.send(b"x" * (1_000 * MAX_LINE_BYTES))
    assert manager.call("ping")


def test_it_has_few_connections(manager: LocalManager) -> None:
    """The page process of this manager has one of them."""
    peers = [Peer(manager) for _ in range(MAX_CONNECTIONS + 1)]
    answered = []
    for peer in peers:
        try:
            answered.append(peer.ask("hello") is not None)
        except OSError:
            answered.append(False)
    assert answered.count(True) <= MAX_CONNECTIONS
    assert not answered[-1]
    for peer in peers:
        peer.close()


def test_requests_without_end_and_answers_that_are_not_read_stop_nobody(
    peer: Peer, manager: LocalManager
) -> None:
    """Only so many are carried out in a second; what is not read stops the rest."""
    peer.sock.setblocking(False)
    request = b'{"id": 1, "verb": "view"}\n{"id": 2, "verb": "judge", "args": {"tokens": ["x"]}}\n'
    sent = 0
    for _ in range(5_000):
        try:
            sent += peer.sock.send(request * 100)
        except BlockingIOError:
            break
    assert sent > 0
    for _ in range(20):
        assert manager.call("ping")


# -- its share of the loop --

REQUEST_NS = 1_000_000
HELLO = b'{"id":1,"verb":"hello"}\n'


class Share:
    """A view server whose requests each take a millisecond; its loop is run by the test."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = SimulatedClock()
        self.turned = 0
        self.loop.time = self._time_s  # type: ignore[method-assign]
        self.done = 0
        self.path = directory / "views"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self.server = view_server.ViewServer(self.loop, self.clock, self.listener, self._perform)
        self.peers: list[socket.socket] = []

    def _perform(self, _verb: str, _token: object, _given: object, reply: Reply) -> None:
        self.done += 1
        self.clock.advance(REQUEST_NS)
        reply("")

    def _time_s(self) -> float:
        """The loop's timers know the time of the requests, and a moment in each turn."""
        return self.clock.monotonic_ns() / 1e9 + self.turned / 1e6

    def peer(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(self.path))
        peer.setblocking(False)
        self.peers.append(peer)
        return peer

    def turns(self, number: int) -> list[int]:
        """Requests that each turn of the loop carried out."""
        found = []
        for _ in range(number):
            before = self.done
            self.turned += 1
            self.loop.run_until_complete(asyncio.sleep(0))
            found.append(self.done - before)
        return found

    def close(self) -> None:
        self.server.close()
        self.turns(2)
        self.loop.close()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    monkeypatch.setattr(view_server, "PAUSE_S", 1e-9)
    monkeypatch.setattr(view_server, "ACCEPT_PAUSE_S", 1e-9)
    with tempfile.TemporaryDirectory() as directory:
        share = Share(Path(directory))
        yield share
        share.close()


def test_a_flood_of_requests_has_a_slice_of_each_turn(share: Share) -> None:
    share.peer().send(HELLO * 1_000)
    turns = share.turns(100)
    assert max(turns) <= 4 * SLICE_NS // REQUEST_NS  # a turn here is some turns of the loop
    assert sum(turns) > 50


def test_a_new_connection_has_no_new_share_of_the_second(share: Share) -> None:
    most = TIME_NS // REQUEST_NS
    for _ in range(5):
        peer = share.peer()
        peer.send(HELLO * 1_000)
        share.turns(100)
        peer.close()
    assert share.done <= most + 10


def test_a_flood_of_connections_is_accepted_slowly(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each there is a pause, which is longer than this test."""
    monkeypatch.setattr(view_server, "ACCEPT_PAUSE_S", 3_600.0)
    peers = [share.peer() for _ in range(3)]
    for peer in peers:
        peer.send(HELLO)
    share.turns(50)
    assert share.done == 1


def test_requests_of_a_peer_that_has_gone_are_not_answered(
    share: Share, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio writes a line into the log for each answer that it cannot send."""
    peer = share.peer()
    share.turns(5)
    peer.send(HELLO * 100)
    peer.close()
    share.turns(200)
    assert share.done < 100
    assert not caplog.records
