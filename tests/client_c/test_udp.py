"""The client over UDP repeats each packet until it is answered.

It believes nothing that is unsigned, foreign or old.
"""

from __future__ import annotations

import json
import select
from collections.abc import Callable
from typing import Any

from nodemgr.edge.rpc import wire
from tests.client_c.conftest import Child, Spawn
from tests.client_c.manager import AFTER_LOSS, GPUS, Env, UdpManager, grant_fields
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet


def fields_of(request: Packet, **changes: wire.Value) -> dict[str, wire.Value]:
    return {
        key: value
        for key, value in grant_fields(request, slot=None, **changes).items()
        if key != "rid"
    }


def asked(child: Child, udp: UdpManager) -> Packet:
    assert child.ask("begin") == "WAITING"
    child.start("until", "HELD")
    request = udp.greet()
    assert request.verb == "ACQUIRE"
    return request


def served(child: Child, udp: UdpManager, answer: Callable[[Packet], object]) -> Any:
    """The child's answer to its order; until then each packet is answered.

    A client whose manager is late says its packets again, over another socket in the end.
    """
    while True:
        ready, _, _ = select.select([child.process.stdout, udp.socket], [], [], WAIT_LIMIT_S)
        assert ready, "it asks no more"
        if child.process.stdout in ready:
            return child.answer()
        if (message := udp.read()).verb == "HELLO":
            udp.answer(message, "EPOCH", epoch=udp.epoch)
        else:
            answer(message)


def held(child: Child, udp: UdpManager, **changes: wire.Value) -> Packet:
    request = asked(child, udp)

    def grant(message: Packet) -> None:
        if message.verb == "ACQUIRE":
            udp.answer(message, "GRANT", **fields_of(message, **changes))

    grant(request)
    assert served(child, udp, grant) == ["HELD", ""]
    return request


def test_granted_beating_and_released(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    request = held(child, udp, gpus=2)
    assert request.text("env") == "alice"
    assert request.number("epoch") == 7
    lease = child.ask("lease")
    assert (lease["gpus"], lease["limits"], lease["enforced"]) == (
        ",".join(GPUS[:2]),
        f"{10 << 30},{10 << 30}",
        "0",
    )
    for _ in range(3):
        beat = udp.expect("BEAT")
        udp.answer(beat, "ACK")
    child.start("release")
    udp.answer(udp.expect("RELEASE"), "ACK")
    assert child.answer() == "NONE"


def test_goodbye_at_exit(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    held(child, udp)
    assert child.finish() == 0
    said = [udp.expect("RELEASE") for _ in range(3)]  # two may be lost
    assert len({message.number("rid") for message in said}) == 1
    assert len({message.number("counter") for message in said}) == 3


def test_what_is_not_answered_is_said_again(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    child.ask("begin")
    child.start("until", "HELD")
    first, second = udp.expect("HELLO"), udp.expect("HELLO")
    assert first.number("rid") == second.number("rid")
    assert (first.number("counter") or 0) < (second.number("counter") or 0)
    udp.answer(second, "EPOCH", epoch=7)
    first, second, third = (udp.expect("ACQUIRE") for _ in range(3))
    assert first.number("rid") == second.number("rid") == third.number("rid")
    assert len({message.number("counter") for message in (first, second, third)}) == 3
    udp.answer(third, "GRANT", **fields_of(third))
    assert child.answer() == ["HELD", ""]


def test_a_waiter_asks_for_its_place_at_each_beat(udp: UdpManager, spawn: Spawn) -> None:
    """So a lost grant is told again."""
    spawn.env.write(beat_ms="100")
    child = spawn()
    request = asked(child, udp)
    for position in (3, 2, 1):
        udp.answer(request, "WAIT", position=position, reason=f"place {position}")
        again = udp.expect("ACQUIRE")
        assert again.number("rid") == request.number("rid")
        request = again
    udp.answer(request, "GRANT", **fields_of(request))
    assert child.answer() == ["HELD", ""]


def corruptions(packet: bytes, key: bytes) -> list[bytes]:
    body = wire.verify(packet, key)
    return [
        body,
        packet[:-1],
        packet[:40] + bytes([packet[40] ^ 1]) + packet[41:],
        packet[:-3] + (b"00\n" if packet[-3:-1] != b"00" else b"11\n"),
        wire.sign(body, bytes(32)),
        packet + b"x",
        b"mac=" + b"0" * 64 + b"\n",
    ]


def test_unsigned_and_altered_packets_are_nothing(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    request = asked(child, udp)
    good = udp.packet(request, "GRANT", **fields_of(request))
    for bad in corruptions(good, udp.key):
        udp.send_raw(bad)
    assert udp.expect("ACQUIRE").number("rid") == request.number("rid"), "it still asks"
    udp.send_raw(good)
    assert child.answer() == ["HELD", ""]


def test_answers_to_another_client_or_to_no_packet_of_ours_are_nothing(
    udp: UdpManager, spawn: Spawn
) -> None:
    child = spawn()
    request = asked(child, udp)
    counter = request.number("counter") or 0
    for changes in ({"client": "0123456789abcdef"}, {"counter": counter + 1000}, {"counter": 0}):
        udp.answer(request, "DENY", code="over_quota", reason="not for you", **changes)
    request = udp.expect("ACQUIRE")
    udp.answer(request, "GRANT", **fields_of(request))
    assert child.answer() == ["HELD", ""]


def test_an_old_answer_played_again_is_nothing(udp: UdpManager, spawn: Spawn) -> None:
    """A fence of the last lease, recorded and sent once more, does not take this one."""
    child = spawn()
    held(child, udp)
    beat = udp.expect("BEAT")
    recorded = udp.answer(beat, "FENCE", lease="t1", reason="gone")
    assert child.ask("become", "LOST")[0] == "LOST"
    child.ask("begin")
    child.start("until", "HELD")
    request = udp.expect("ACQUIRE")
    udp.answer(request, "GRANT", **fields_of(request))
    assert child.answer() == ["HELD", ""]
    udp.send_raw(recorded)
    beat = udp.expect("BEAT")
    udp.answer(beat, "NOTE", text="all is well")
    assert [child.line(), child.line()] == [f"nodemgr: gone{AFTER_LOSS}", "nodemgr: all is well"]
    assert child.ask("state") == ["HELD", ""]


def test_doubled_and_reordered_answers_change_nothing(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    request = asked(child, udp)
    wait = udp.packet(request, "WAIT", position=1, reason="wait")
    request = udp.expect("ACQUIRE")
    grant = udp.packet(request, "GRANT", **fields_of(request))
    for packet in (grant, grant, wait, grant, wait):
        udp.send_raw(packet)
    assert child.answer() == ["HELD", ""]
    udp.answer(udp.expect("BEAT"), "ACK")
    assert child.ask("state") == ["HELD", ""]
    assert child.rest() == []


def test_a_restarted_manager_is_told_by_its_epoch(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    held(child, udp)
    udp.answer(udp.expect("BEAT"), "EPOCH", epoch=8)
    rejoin = udp.expect("REJOIN")
    assert (rejoin.number("epoch"), rejoin.text("lease")) == (8, "t1")
    assert rejoin.number("slot") is None
    udp.answer(rejoin, "GRANT", **fields_of(rejoin, limits=(5 << 30,)))
    assert udp.expect("BEAT").number("epoch") == 8
    assert child.ask("lease")["limits"] == str(5 << 30)


def test_a_manager_that_knows_of_no_lease_is_told_which(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    held(child, udp)
    udp.answer(udp.expect("BEAT"), "FENCE", lease="none", reason="of what?")
    rejoin = udp.expect("REJOIN")
    assert rejoin.text("lease") == "t1"
    udp.answer(rejoin, "FENCE", lease="t1", reason="gone")
    assert child.ask("become", "LOST") == ["LOST", "gone"]


def test_a_renewed_key_and_a_moved_manager_are_found_in_the_silence(
    udp: UdpManager, spawn: Spawn
) -> None:
    spawn.env.write(timeout_ms="800")
    child = spawn()
    held(child, udp)
    udp.expect("BEAT")
    moved = UdpManager(spawn.env)  # with a key of its own
    spawn.env.write(timeout_ms="3600000")  # a second look would come too late
    rejoin = moved.expect("REJOIN")
    moved.answer(rejoin, "GRANT", **fields_of(rejoin))
    moved.expect("BEAT")
    assert child.ask("state") == ["HELD", ""]
    moved.close()


def test_a_restart_while_it_waits(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    request = asked(child, udp)
    udp.answer(request, "EPOCH", epoch=8)
    again = udp.expect("ACQUIRE")
    while again.number("epoch") != 8:
        again = udp.expect("ACQUIRE")
    assert again.number("rid") == request.number("rid")
    udp.answer(again, "GRANT", **fields_of(again))
    assert child.answer() == ["HELD", ""]


def test_silence_by_policy(udp: UdpManager, spawn: Spawn) -> None:
    spawn.env.write(no_manager="error", timeout_ms="300")
    child = spawn()
    child.ask("begin")
    state, line = child.ask("until", "NO_MANAGER")
    assert state == "NO_MANAGER"
    assert "(silence)" in line


def test_a_question_with_lost_and_doubled_pages(udp: UdpManager, spawn: Spawn) -> None:
    """After a lost page the question is asked again; pages of two questions are not mixed."""
    child, answer = spawn(), json.dumps({"tasks": list(range(400))})
    pages = [answer[at : at + 400] for at in range(0, len(answer), 400)]
    child.start("ask", "status")
    question = udp.greet()
    assert question.verb == "ASK"
    stale = [
        udp.packet(question, "PART", index=index, count=len(pages), data="x" * 10)
        for index in range(len(pages))
    ]
    udp.send_raw(stale[0])

    def reply(again: Packet) -> None:
        assert again.number("rid") != question.number("rid")
        parts = [
            udp.packet(again, "PART", index=index, count=len(pages), data=page)
            for index, page in enumerate(pages)
        ]
        for packet in (stale[1], parts[0], parts[0], stale[2], *parts[1:]):
            udp.send_raw(packet)

    assert served(child, udp, reply)[1] == answer


def test_a_forked_child_is_another_client(udp: UdpManager, spawn: Spawn) -> None:
    child = spawn()
    request = held(child, udp)
    child.start("fork", ["state"], ["begin"], ["until", "HELD"])
    theirs = udp.expect("HELLO")
    assert theirs.text("client") != request.text("client")
    udp.answer(theirs, "EPOCH", epoch=7)
    second = udp.expect("ACQUIRE")
    assert second.text("client") == theirs.text("client")
    assert second.text("task") == request.text("task")
    udp.answer(second, "GRANT", **fields_of(second))
    assert child.answer() == [["NONE", ""], "WAITING", ["HELD", ""]]


def test_a_bad_key_file_is_told(udp: UdpManager, spawn: Spawn) -> None:
    children = []
    for number, key in enumerate(["", "0" * 63, "0" * 62 + "zz", "0" * 10]):
        own = Env(spawn.env.directory / str(number))
        own.directory.mkdir()
        (own.directory / "key").write_text(key)
        own.write(**{**spawn.env.settings, "no_manager": "error"})
        children.append(spawn(NODEMGR_ENV_DIR=str(own.directory)))
        children[-1].ask("begin")
    for child in children:
        assert "the key file" in child.ask("until", "NO_MANAGER")[1]
