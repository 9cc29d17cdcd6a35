"""Clients over UDP: nothing counts that is not signed, fresh and new."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from nodemgr._native import lib
from nodemgr.edge.clients import udp as module
from nodemgr.edge.clients.client_sessions import BEAT_NS
from nodemgr.edge.clients.rate_limits import CpuTimeShare
from nodemgr.edge.clients.sift import PacketBatch
from nodemgr.edge.clients.udp import UdpAddressError, UdpServer
from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.rpc.wire import Direction, encode, sign, verify
from tests.edge.hub import StubHub, settle, turn
from tests.edge.simulated_clock import SimulatedClock
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet, decode

KEYS = {"alice": b"a" * 32, "bob": b"b" * 32}
SHARE_NS = 10**15
"""Strangers' time: so much that only what a test spends of it counts."""


class World:
    def __init__(self) -> None:
        self.loop, selector = new_loop()
        self.hub = StubHub()
        self.clock = SimulatedClock()
        self.server = UdpServer(
            self.loop, selector, self.hub, self.clock, UdpServer.bind("127.0.0.1", 0)
        )
        for env, key in KEYS.items():
            self.server.open(env, key)
        self.server._share = CpuTimeShare(SHARE_NS)
        self.sock = self.socket()

    def socket(self, host: str = "127.0.0.1") -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((host, 0))
        sock.settimeout(WAIT_LIMIT_S)
        return sock

    def send(self, packet: bytes, sock: socket.socket | None = None) -> None:
        """Sends and lets the server read it: a busy kernel delivers a datagram a little later."""
        (sock or self.sock).sendto(packet, self.server.address)
        assert select.select([self.server._sock], [], [], WAIT_LIMIT_S)[0]
        settle(self.loop, 3)

    def deliver(self, packet: bytes, host: str = "127.0.0.1", port: int = 9) -> None:
        self.server._datagram(packet, (host, port))

    def packet(
        self,
        verb: str,
        env: str = "alice",
        client: str = "c1",
        key: bytes | None = None,
        **fields: object,
    ) -> bytes:
        return sign(encode(verb, env=env, client=client, **fields), key or KEYS[env])

    def answer(self, env: str = "alice") -> Packet:
        """The server has sent it by now."""
        return decode(verify(self.sock.recv(2_000), KEYS[env]), Direction.DOWN)

    def is_silent(self, sock: socket.socket | None = None) -> bool:
        """Whether no answer comes."""
        settle(self.loop)
        return not select.select([sock or self.sock], [], [], 0.1)[0]

    def epoch(self, env: str = "alice") -> int:
        self.send(self.packet("HELLO", env=env, rid=1, counter=0))
        message = self.answer(env)
        assert message.verb == "EPOCH"
        return int(str(message.fields["epoch"]))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.sock.close()
    world.server.close_all()
    world.loop.close()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (
            "192.0.2.1",
            (
                "(Cannot assign requested address); name an address of this node, which this is not"
                " (ip address lists them)"
            ),
        ),
        (
            "no-such-host.invalid",
            (
                "(Name or service not known); name an address of this node, since no such host is"
                " known here"
            ),
        ),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_with_the_reason(
    host: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = socket.getaddrinfo

    def found(name: str, *more: object, **options: object) -> object:
        """No name server is asked: one that does not answer has another error."""
        if name == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look(name, *more, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(UdpAddressError) as refused:
        UdpServer.bind(host, 9_999)
    assert str(refused.value) == f"udp: {host}:9999 cannot be listened on {why}"


def test_a_port_that_another_program_has(world: World) -> None:
    _, port = world.server.address
    with pytest.raises(
        UdpAddressError,
        match=rf"udp: 127\.0\.0\.1:{port} .*; name another port",
    ):
        UdpServer.bind("127.0.0.1", port)


def test_a_signed_packet_of_this_epoch_is_heard(world: World) -> None:
    world.send(world.packet("ACQUIRE", rid=5, task="ab", epoch=world.epoch(), counter=1))
    session, _message, _ = world.hub.messages[0]
    assert (session.env, session.key, session.pid) == ("alice", "udp:alice:c1", None)
    session.answer("WAIT", rid=5, position=1, reason="full")
    answer = world.answer()
    assert answer.fields == {
        "rid": 5,
        "position": 1,
        "reason": "full",
        "client": "c1",
        "counter": 1,
    }


def test_hello_tells_the_epoch_and_makes_no_client(world: World) -> None:
    assert world.epoch() != world.epoch("bob")
    assert world.hub.sessions == []


def test_a_packet_of_another_epoch_is_answered_with_this_one(world: World) -> None:
    world.send(world.packet("ACQUIRE", rid=5, task="ab", epoch=12345, counter=1))
    answer = world.answer()
    assert (answer.verb, answer.fields["rid"], answer.fields["counter"]) == ("EPOCH", 5, 1)
    assert world.hub.messages == []


def test_a_forged_packet_gets_no_answer(world: World) -> None:
    epoch = world.epoch()
    good = world.packet("ACQUIRE", rid=5, task="ab", epoch=epoch, counter=1)
    for packet in (
        world.packet("ACQUIRE", rid=5, task="ab", epoch=epoch, counter=1, key=b"x" * 32),
        world.packet("ACQUIRE", rid=5, task="ab", epoch=epoch, counter=1, key=KEYS["bob"]),
        good.replace(b"rid=5", b"rid=6"),
        good.replace(b"env=alice", b"env=bob"),
        good.replace(b"env=alice", b"env=nobody"),
        encode("ACQUIRE", env="alice", client="c1", rid=5, task="ab", epoch=epoch, counter=1),
        good[:-2] + b"0\n" if good[-2:-1] != b"0" else good[:-2] + b"1\n",
    ):
        world.send(packet)
    assert world.is_silent()
    assert world.hub.messages == []
    assert world.hub.counters["packets_forged"] == 7


@pytest.mark.parametrize(
    "packet", [b"", b"garbage", b"NODEMGR/1 BEAT\n", b"\xff" * 1_200, b"x" * 5_000]
)
def test_garbage_is_counted(world: World, packet: bytes) -> None:
    world.send(packet)
    assert world.hub.counters["packets_malformed"] == 1
    assert world.is_silent()


def test_a_signed_packet_without_client_or_counter_is_malformed(world: World) -> None:
    world.send(sign(encode("HELLO", env="alice", rid=1), KEYS["alice"]))
    assert world.hub.counters["packets_malformed"] == 1


def test_a_replayed_packet_does_nothing(world: World) -> None:
    packet = world.packet("RELEASE", rid=5, task="ab", epoch=world.epoch(), counter=7)
    world.send(packet)
    world.send(packet)
    older = world.packet(
        "RELEASE", rid=6, task="ab", epoch=world.server._epochs["alice"], counter=6
    )
    world.send(older)
    assert world.hub.verbs() == ["RELEASE"]
    assert world.hub.counters["packets_replayed"] == 2


def test_a_replay_from_another_address_does_not_lead_answers_astray(world: World) -> None:
    packet = world.packet("BEAT", rid=5, task="ab", epoch=world.epoch(), counter=7)
    world.send(packet)
    thief = world.socket()
    world.send(packet, thief)
    world.hub.sessions[0].answer("NOTE", text="for the client alone")
    world.answer()
    assert world.is_silent(thief)
    thief.close()


def test_a_client_that_moves_is_answered_where_it_is_now(world: World) -> None:
    epoch = world.epoch()
    old = world.socket()
    world.send(world.packet("BEAT", rid=5, task="ab", epoch=epoch, counter=1), old)
    world.send(world.packet("BEAT", rid=6, task="ab", epoch=epoch, counter=2))
    assert len(world.hub.sessions) == 1
    world.hub.sessions[0].answer("ACK", rid=6)
    world.answer()
    old.close()


def test_a_client_that_asks_again_gets_the_same_answer_and_does_nothing_twice(world: World) -> None:
    epoch = world.epoch()
    world.send(world.packet("RELEASE", rid=5, task="ab", epoch=epoch, counter=1))
    world.hub.sessions[0].answer("ACK", rid=5)
    world.answer()
    world.send(world.packet("RELEASE", rid=5, task="ab", epoch=epoch, counter=2))
    again = world.answer()
    assert (again.verb, again.fields["rid"], again.fields["counter"]) == ("ACK", 5, 2)
    assert world.hub.verbs() == ["RELEASE"]


def test_remembered_answers_are_few_and_end_with_the_lease(world: World) -> None:
    epoch = world.epoch()
    world.send(world.packet("BEAT", rid=1, task="ab", epoch=epoch, counter=1))
    client = world.server._clients["alice"]["c1"]
    for rid in range(50):
        client.answer("ACK", rid=rid)
    assert len(client.answers) == module.REMEMBERED_ANSWERS
    client.answer("FENCE", lease="t1", reason="over")
    assert len(client.answers) == 0


# -- floods: `deliver` hands a packet over as if it came from any address, made up or not --


def forged(world: World, **fields: object) -> bytes:
    return world.packet(
        "BEAT", key=b"x" * 32, **{"rid": 1, "task": "ab", "epoch": 1, "counter": 1, **fields}
    )


def spend(world: World, quarters: int) -> None:
    """Spends this part of the second, as if for strangers' packets."""
    world.server._share.quarters(world.clock.monotonic_ns())
    world.server._share.spend(quarters * SHARE_NS // 4)


def beat(world: World, epoch: int, counter: int) -> bytes:
    return world.packet("BEAT", rid=counter, task="ab", epoch=epoch, counter=counter)


def test_of_forged_packets_none_keeps_a_new_client_out_until_their_share_is_spent(
    world: World,
) -> None:
    """Each is checked, from however many addresses: no number of them is too many."""
    epoch = world.epoch()
    for number in range(20_000):
        world.deliver(forged(world), host=f"10.0.0.{number % 8}", port=number % 100)
    assert world.hub.counters["packets_forged"] == 20_000
    assert world.hub.counters["packets_throttled"] == 0
    world.deliver(beat(world, epoch, 1), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT"], "from a flooding host, too"


def test_where_their_share_nears_its_end_hosts_that_flood_are_dropped_first(world: World) -> None:
    epoch = world.epoch()
    for number in range(100):
        world.deliver(b"rubbish", host="10.0.0.1", port=number)
    spend(world, 3)
    world.deliver(beat(world, epoch, 1), host="10.0.0.1", port=7)
    assert world.hub.verbs() == []
    assert world.hub.counters["packets_throttled"] == 1
    world.deliver(beat(world, epoch, 1), host="10.0.0.2", port=7)
    assert world.hub.verbs() == ["BEAT"]
    world.clock.advance(1_000_000_000)
    world.deliver(beat(world, epoch, 2), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT", "BEAT"]


def test_where_their_share_is_spent_clients_are_heard_and_no_others(world: World) -> None:
    epoch = world.epoch()
    world.deliver(beat(world, epoch, 1), host="10.0.0.1", port=7)
    spend(world, 4)
    world.deliver(
        world.packet("BEAT", client="ce", rid=1, task="ab", epoch=epoch, counter=1),
        host="10.0.0.2",
        port=7,
    )
    assert world.hub.verbs() == ["BEAT"]
    world.deliver(beat(world, epoch, 2), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT", "BEAT"]


def test_made_up_addresses_cost_a_bounded_share_of_the_processor(world: World) -> None:
    world.server._share = CpuTimeShare(5_000_000)
    take, costs_ns = world.server._sift.take, []

    def taken(*given: object) -> PacketBatch:
        """At a known cost: what a busy machine adds to the real one is not judged."""
        batch = take(*given)  # type: ignore[arg-type]
        costs_ns.append(batch.strangers_ns)
        return batch._replace(strangers_ns=10_000 * batch.forged)

    world.server._sift.take = taken  # type: ignore[method-assign]
    number = 0
    while world.hub.counters["packets_throttled"] < 1_000:
        number += 1
        assert number < 1_000_000, world.hub.counters
        world.deliver(
            forged(world), host=f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"
        )
    checked = world.hub.counters["packets_forged"]
    assert checked == 500
    assert sum(costs_ns) > 0
    assert world.server._share.quarters(world.clock.monotonic_ns()) == 4
    for number in range(1_000):
        world.deliver(forged(world), host=f"11.0.{number // 250}.{number % 250}")
    assert world.hub.counters["packets_forged"] == checked


@pytest.mark.parametrize("flood", ["of replayed packets", "of greetings"])
def test_signed_packets_that_say_nothing_new_keep_out_neither_clients_nor_quiet_hosts(
    world: World, flood: str
) -> None:
    epoch = world.epoch()
    mine = beat(world, epoch, 1)
    world.deliver(mine, host="10.0.0.1", port=7)
    packet = mine if flood == "of replayed packets" else world.packet("HELLO", rid=1, counter=0)
    for number in range(2 * module.MAX_STALE):
        world.deliver(packet, host=("10.0.0.1", f"10.{number % 20}.0.2")[number % 2], port=8)
    assert world.hub.counters["packets_throttled"] > module.MAX_STALE / 2
    world.deliver(beat(world, epoch, 2), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT", "BEAT"]
    world.deliver(
        world.packet("BEAT", client="ce", rid=1, task="ab", epoch=epoch, counter=1),
        host="10.99.0.1",
        port=7,
    )
    assert world.hub.verbs() == ["BEAT", "BEAT", "BEAT"]


def test_a_host_that_repeats_signed_packets_is_not_heard_for_a_while(world: World) -> None:
    world.epoch()
    for _ in range(module.MAX_STALE_OF_HOST + 10):
        world.deliver(world.packet("HELLO", rid=1, counter=0), host="10.0.0.1")
    assert world.hub.counters["packets_throttled"] == 10


def test_packets_under_a_clients_own_address_do_not_silence_it(world: World) -> None:
    """Packets with its epoch and the next counter, as a listener on the wire may send, neither.

    Only very many do, for a second.
    """
    epoch = world.epoch()
    world.deliver(beat(world, epoch, 1), host="10.0.0.1", port=7)
    spend(world, 4)
    for counter in range(2, 1_000):
        world.deliver(forged(world, epoch=epoch, counter=counter), host="10.0.0.1", port=7)
    assert world.hub.counters["packets_forged"] == 998
    world.deliver(beat(world, epoch, 2), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT", "BEAT"]
    for _ in range(lib.NM_SIFT_KNOWN_MOST):
        world.deliver(forged(world), host="10.0.0.1", port=7)
    assert world.hub.counters["packets_throttled"] == 999
    world.deliver(beat(world, epoch, 3), host="10.0.0.1", port=7)
    world.deliver(
        world.packet(
            "BEAT", env="bob", rid=1, task="ab", epoch=world.server._epochs["bob"], counter=1
        ),
        host="10.0.0.1",
        port=8,
    )
    assert world.hub.verbs() == ["BEAT", "BEAT"]
    world.clock.advance(1_000_000_000)
    world.deliver(beat(world, epoch, 4), host="10.0.0.1", port=7)
    assert world.hub.verbs() == ["BEAT", "BEAT", "BEAT"]


def test_an_address_that_its_client_left_is_no_longer_known(world: World) -> None:
    epoch = world.epoch()
    world.deliver(beat(world, epoch, 1), host="10.0.0.1", port=7)
    world.deliver(beat(world, epoch, 2), host="10.0.0.2", port=7)
    world.server.close("alice")
    spend(world, 4)
    for host in ("10.0.0.1", "10.0.0.2"):
        world.deliver(beat(world, epoch, 3), host=host, port=7)
    assert world.hub.counters["packets_throttled"] == 2


def test_many_packets_are_read_at_once_and_each_of_them_counts(world: World) -> None:
    """More packets than one system call reads, mixed: from several hosts, signed and not."""
    epoch = world.epoch()
    socks = [world.socket(f"127.0.0.{number}") for number in range(2, 6)]
    for number in range(200):
        client = f"{number:x}"
        good = world.packet("BEAT", client=client, rid=1, task="ab", epoch=epoch, counter=1)
        socks[number % 4].sendto(
            (good, forged(world), b"rubbish", good + b"x")[number // 4 % 4], world.server.address
        )
    names = ("packets_forged", "packets_malformed")
    turn(
        world.loop,
        lambda: len(world.hub.messages) + sum(world.hub.counters[name] for name in names) == 200,
    )
    assert len(world.hub.messages) == 52
    assert (world.hub.counters["packets_forged"], world.hub.counters["packets_malformed"]) == (
        52,
        96,
    )
    for session in world.hub.sessions[:4]:
        session.answer("NOTE", text="for you")
    assert len([sock.recv(2_000) for sock in socks]) == 4
    for sock in socks:
        sock.close()


def test_an_env_that_floods_with_its_own_key_is_slowed_and_the_others_are_not(world: World) -> None:
    epochs = {env: world.epoch(env) for env in KEYS}
    most = module.RATE_LIMIT_NS // BEAT_NS
    for number in range(1, 2 * most):
        client = f"{number % 50:x}"
        packet = world.packet(
            "BEAT", client=client, rid=1, task="ab", epoch=epochs["alice"], counter=number
        )
        world.deliver(packet, host="10.0.0.1", port=number % 50)
    assert len(world.hub.messages) == most + 1
    world.deliver(
        world.packet("BEAT", env="bob", rid=1, task="ab", epoch=epochs["bob"], counter=1),
        host="10.0.0.1",
        port=99,
    )
    assert len(world.hub.messages) == most + 2
    world.clock.advance(1_000_000_000)
    world.deliver(
        world.packet("BEAT", client="1", rid=1, task="ab", epoch=epochs["alice"], counter=10**6),
        host="10.0.0.1",
        port=1,
    )
    assert len(world.hub.messages) == most + 3


def test_a_full_table_makes_room_for_the_living_and_a_new_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS_PER_ENV", 3)
    epoch = world.epoch()
    for number in range(3):
        world.send(
            world.packet("BEAT", client=f"c{number}", rid=1, task="ab", epoch=epoch, counter=1)
        )
    world.hub.last_beat_ns["udp:alice:c0"] = 1  # it holds a lease
    newcomer = world.packet("BEAT", client="ca", rid=1, task="ab", epoch=epoch, counter=1)
    world.send(newcomer)
    assert world.hub.counters["connections_over_limit"] == 1
    world.clock.advance(module.IDLE_NS + 1)
    world.send(world.packet("BEAT", client="ca", rid=1, task="ab", epoch=epoch, counter=2))
    assert [session.key for session in world.hub.ended] == ["udp:alice:c1", "udp:alice:c2"]
    replay = world.packet("RELEASE", client="c1", rid=9, task="ab", epoch=epoch, counter=9)
    world.send(replay)
    assert "RELEASE" not in world.hub.verbs(), "of an epoch that is over"
    assert world.epoch() != epoch


def test_an_old_key_is_heard_and_answered_during_its_grace_and_no_longer(world: World) -> None:
    epoch = world.epoch()
    world.server.renew("alice", b"n" * 32, 1_000)
    world.send(world.packet("BEAT", rid=1, task="ab", epoch=epoch, counter=1))
    world.hub.sessions[0].answer("ACK", rid=1)
    assert world.answer().verb == "ACK", "under the old key"
    world.send(world.packet("BEAT", key=b"n" * 32, rid=2, task="ab", epoch=epoch, counter=2))
    world.hub.sessions[0].answer("ACK", rid=2)
    packet = world.sock.recv(2_000)
    assert verify(packet, b"n" * 32)
    world.clock.advance(1_000)
    world.send(world.packet("BEAT", rid=3, task="ab", epoch=epoch, counter=3))
    assert world.hub.verbs() == ["BEAT", "BEAT"]
    assert world.hub.counters["packets_forged"] == 1


def test_an_old_key_without_grace_is_worth_nothing(world: World) -> None:
    epoch = world.epoch()
    world.server.renew("alice", b"n" * 32, 0)
    world.send(world.packet("BEAT", rid=1, task="ab", epoch=epoch, counter=1))
    assert world.hub.verbs() == []


def test_an_env_that_is_gone_is_not_heard(world: World) -> None:
    epoch = world.epoch()
    world.send(world.packet("BEAT", rid=1, task="ab", epoch=epoch, counter=1))
    world.server.close("alice")
    assert len(world.hub.ended) == 1
    world.send(world.packet("BEAT", rid=2, task="ab", epoch=epoch, counter=2))
    assert world.hub.verbs() == ["BEAT"]
    world.hub.sessions[0].answer("NOTE", text="nobody can read it")
    assert world.is_silent()


def test_an_answer_to_a_port_that_closed_harms_nobody(world: World) -> None:
    epoch = world.epoch()
    gone = world.socket()
    world.send(world.packet("BEAT", client="c9", rid=1, task="ab", epoch=epoch, counter=1), gone)
    gone.close()
    for _ in range(3):
        world.hub.sessions[0].answer("NOTE", text="hello")
        settle(world.loop)
    world.send(world.packet("BEAT", rid=1, task="ab", epoch=epoch, counter=1))
    turn(world.loop, lambda: len(world.hub.messages) == 2)
