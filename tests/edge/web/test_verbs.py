"""The page process's socket, against a page process that was taken over.

Its part of the loop's time: tests/edge/clients/test_client_server.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from client_plugin.ways.conversation import INLINE_BYTES, order_text, question, unpacked
from nodemgr.edge.clients.client_server import MAX_MALFORMED, OF_PAGES
from nodemgr.edge.host.rundir import VIEWS_SOCKET
from nodemgr.edge.rpc.wire import PACKET_BYTES
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager


class Peer:
    """A page process of the test's own."""

    def __init__(self, manager: LocalManager) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(WAIT_LIMIT_S)
        self.sock.connect(str(manager.run_dir / VIEWS_SOCKET))
        self.sheet = -1

    def send(self, packet: bytes) -> None:
        self.sock.send(packet)

    def ask(self, verb: str, token: object = None, args: object = None) -> Any:
        """The result, or a refusal with its code."""
        text = order_text(verb, {}, by=token)
        order = json.loads(text) | {"args": {} if args is None else args}
        text = json.dumps(order).replace("%", "\\u0025")
        if len(text) > INLINE_BYTES:
            self.send(question(1, "sheet"))
            self.receive()
            os.pwrite(self.sheet, text.encode(), 0)
            text = f"[0,{len(text)}]"
        self.send(question(1, "order", text))
        return self.receive()

    def receive(self) -> Any:
        """None: the connection has ended."""
        parts: list[str] = []
        while True:
            packet, fds, _, _ = socket.recv_fds(self.sock, 2**16, 1)
            if not packet:
                return None
            if fds:
                self.forget_sheet()
                self.sheet = fds[0]
            verb, said = unpacked(packet)
            if verb == "DENY":
                return {"error": said["reason"], "code": said["code"]}
            parts.append(said["data"])
            if len(parts) == int(said["count"]):
                return json.loads("".join(parts))

    def forget_sheet(self) -> None:
        if self.sheet >= 0:
            os.close(self.sheet)

    def close(self) -> None:
        self.forget_sheet()
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
    told = peer.ask("hello")
    assert (told["host"], told["port"], told["base"]) == ("127.0.0.1", 0, "/")


def test_without_a_token_it_gets_totals_and_can_do_nothing(peer: Peer) -> None:
    assert peer.ask("view")["scope"] == "public"
    for verb in (
        "queue", "history", "report", "leases", "samples", "job_show", "quota_show", "release",
        "job_withdraw", "quota_set",
    ):  # fmt: skip
        for token in (None, "", 5, {}, [], "nmw-w1-" + "A" * 43):
            answer = peer.ask(verb, token, {"task": "t1", "job": "j1", "env": "alice", "gpus": 9})
            assert answer["code"] == "token"


def test_it_knows_no_other_verb_of_the_manager(peer: Peer, manager: LocalManager) -> None:
    token = manager.call("web_token", admin=True, for_ms=3_600_000)["token"]
    for verb in ("web_token", "quota_rm", "env_rekey", "job_submit", "doctor", "events", "", "_x"):
        assert peer.ask(verb, token)["code"] == "usage"


def test_an_envs_token_is_not_anothers(peer: Peer, manager: LocalManager) -> None:
    token = manager.call("web_token", env="alice", for_ms=3_600_000)["token"]
    for args in ({"env": "bob"}, {"env": ""}, {"env": 5}, {"env": ["alice"]}):
        assert peer.ask("queue", token, args)["code"] == "forbidden"
    assert "code" not in peer.ask("queue", token, {"env": "alice"})
    assert peer.ask("quota_set", token, {"env": "alice", "gpus": 4})["code"] == "forbidden"
    assert peer.ask("release", token, {"task": "t1", "by": "root"})["code"] == "usage"


@pytest.mark.parametrize(
    "order",
    ["", "{}", "[]", "5", "null", "\xff", "{" * 400, '{"by": "x"}', '{"verb": 5}', "[0,9]",
     "GET / HTTP/1.1\r"],
    ids=lambda order: repr(order[:24]),
)  # fmt: skip
def test_a_malformed_order_is_refused(peer: Peer, order: str) -> None:
    peer.send(question(1, "order", order))
    assert peer.receive()["code"] == "usage"
    assert peer.ask("hello")


@pytest.mark.parametrize(
    "packet", [b"x", b"\xff\xfe", b"GET / HTTP/1.1", b"y" * (PACKET_BYTES + 9)]
)
def test_malformed_packets_end_the_connection(
    peer: Peer, manager: LocalManager, packet: bytes
) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(MAX_MALFORMED + 20):
            peer.send(packet)
    with contextlib.suppress(ConnectionResetError):
        assert peer.receive() is None
    assert manager.call("ping")


@pytest.mark.parametrize("verb", ["ACQUIRE", "RELEASE", "BEAT", "REJOIN", "CLAIM", "HELLO"])
def test_it_can_ask_for_nothing_but_by_orders(peer: Peer, verb: str) -> None:
    """None of what a process of an environment, a runner or a supervisor may say."""
    fields = {"ACQUIRE": "rid=1\ntask=ab12\n", "RELEASE": "rid=1\nlease=t1\n",
              "REJOIN": "rid=1\ntask=ab12\nlease=t1\n", "BEAT": "task=ab12\n"}  # fmt: skip
    peer.send(f"NODEMGR/1 {verb}\n{fields.get(verb, '')}".encode())
    if verb in ("ACQUIRE", "REJOIN"):
        assert "takes orders alone" in peer.receive()["error"]
    assert peer.ask("hello")


def test_short_questions_are_those_of_no_viewer(peer: Peer) -> None:
    for what in ("release", "holdings", "status", "resume", "keep", "env"):
        peer.send(question(1, what, "t1"))
        assert peer.receive()["code"] in ("token", "usage")


@pytest.mark.parametrize(
    "moment", [-1, 2**63, 1.5, math.nan, math.inf, "1", None, True, [], {}, 10**400]
)
def test_a_malformed_span_is_refused(peer: Peer, manager: LocalManager, moment: object) -> None:
    token = manager.call("web_token", env="alice", for_ms=3_600_000)["token"]
    for name in ("since_wall_ns", "until_wall_ns"):
        answer = peer.ask("samples", token, {name: moment})
        assert answer["code"] == "usage"
        assert "\n" not in answer["error"]


@pytest.mark.parametrize("args", [[], 5, "x", {"x": 1}, {"tokens": 5}, {"tokens": ["x"] * 2_000}])
def test_malformed_arguments_are_refused(peer: Peer, args: object) -> None:
    for verb in ("view", "judge"):
        answer = peer.ask(verb, None, args)
        assert answer["code"] == "usage"


def test_it_has_few_connections(manager: LocalManager) -> None:
    """The page process of this manager has one of them; those beyond wait until one ends."""
    peers = [Peer(manager) for _ in range(OF_PAGES.connections + 1)]
    answered = []
    for peer in peers:
        peer.sock.settimeout(WAIT_LIMIT_S if len(answered) < OF_PAGES.connections - 1 else 0.5)
        try:
            answered.append(peer.ask("hello") is not None)
        except TimeoutError:
            answered.append(False)
    assert answered == [True] * (OF_PAGES.connections - 1) + [False, False]
    assert manager.call("status")["crowds"] == []
    peers[0].close()
    peers[-2].sock.settimeout(WAIT_LIMIT_S)
    assert peers[-2].receive() is not None
    for peer in peers:
        peer.close()


def test_requests_without_end_and_answers_that_are_not_read_stop_nobody(
    peer: Peer, manager: LocalManager
) -> None:
    """Only so many are carried out in a second; what is not read stops the rest."""
    peer.sock.setblocking(False)
    packets = [question(1, "order", order_text("view", {}, by=None)),
               question(2, "order", order_text("judge", {"tokens": ["x"]}, by=None))]  # fmt: skip
    sent = 0
    for number in range(5_000):
        try:
            sent += peer.sock.send(packets[number % 2])
        except BlockingIOError:
            break
    assert sent > 0
    for _ in range(20):
        assert manager.call("ping")
