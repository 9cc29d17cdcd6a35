"""Strangers' input: mutated packets over UDP, with the right MAC and without, mutated orders.

The manager continues to answer.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import time
from collections.abc import Callable

from client_plugin.ways.control import CONTROL_SOCKET
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.edge.rpc import wire
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.wire import fuzz

COUNT = 3_000
GIB = 2**30


def test_any_datagram_is_answered_or_dropped(make_manager: Callable[..., Manager]) -> None:
    manager = make_manager(simulate="2x8GiB", options=["--udp", "127.0.0.1:0"])
    manager.quota("alice", 1)
    host, port = manager.status()["manager"]["udp"].rsplit(":", 1)
    key = bytes.fromhex((manager.state_dir / "keys" / "alice" / "key").read_text().strip())
    chance = random.Random(5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _, packet in itertools.islice(fuzz.packets(chance), COUNT):
            dressed = packet + b"env=alice\nclient=ab\ncounter=%d\nepoch=%d\n" % (
                chance.getrandbits(64),
                chance.randrange(3),
            )
            signed = wire.sign(dressed, key) if len(dressed) <= wire.PACKET_BYTES - 69 else dressed
            sender.sendto(chance.choice([packet[:1200], dressed, signed]), (host, int(port)))
    deadline = time.monotonic() + WAIT_LIMIT_S
    while True:  # orders come by another socket
        status = manager.status()
        assert status["manager"]["pid"] == manager.pid
        counters = status["counters"]
        if min(counters["packets_forged"], counters["packets_malformed"]) > 0:
            break
        assert time.monotonic() < deadline, counters
    assert "Traceback" not in manager.log


def mutated_order(chance: random.Random, orders: list[dict[str, object]]) -> bytes:
    order = json.loads(json.dumps(chance.choice(orders)))
    values = (
        None,
        -1,
        0,
        1 << 70,
        1e308,
        "",
        "alice",
        "\0",
        "x" * 3_000,
        [],
        {},
        [[]],
        True,
        chance.random(),
        ["alice"] * 50,
    )
    place = order["args"] if chance.random() < 0.7 else order
    name = chance.choice([*place, "unknown"])
    place[name] = chance.choice(values)
    text = bytearray(json.dumps(order).encode())
    if chance.random() < 0.2:
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def test_any_order_is_answered(make_manager: Callable[..., Manager]) -> None:
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 1, memory_bytes=GIB)
    orders: list[dict[str, object]] = [
        {
            "verb": "quota_set",
            "args": {
                "env": "bob",
                "gpus": 1,
                "memory_bytes": GIB,
                "users": ["root"],
                "priority": "high",
            },
        },
        {"verb": "quota_rm", "args": {"env": "bob"}},
        {"verb": "release", "args": {"task": "t1"}},
        {"verb": "status", "args": {}},
        {"verb": "events", "args": {"since": 0, "limit": 10}},
        {"verb": "allocations", "args": {"env": "alice", "since_wall_ns": 0}},
    ]
    chance, accepted, refusals = random.Random(6), 0, set()
    with Conversation(manager.run_dir / CONTROL_SOCKET, WAIT_LIMIT_S) as talk:
        for _ in range(300):
            order = mutated_order(chance, orders)
            try:
                talk.ask("order", f"[0,{talk._write(order)}]")
                accepted += 1
            except Fault as fault:
                refusals.add(fault.refusal)
    assert 0 < accepted < 300
    assert not refusals & {"", "internal"}
    assert manager.status()["manager"]["pid"] == manager.pid
    assert "Traceback" not in manager.log
