"""The wire: golden packets read by both ends, each refusal, and the results of a fuzzer."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import random
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin.messages.form import MessageLine
from nodemgr.edge.rpc import wire
from nodemgr.edge.rpc.wire import Direction, WireError, decode, encode
from tests.client_c.compiled import ENVIRONMENT
from tests.support.examples import examples
from tests.wire import fuzz, reference, sift_fuzz
from tests.wire.make_golden import DIRECTORY, GOLDEN


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C end, with the address and undefined-behaviour sanitizers."""
    return fuzz.compile_codec(tmp_path_factory.mktemp("codec"))


def run(codec: Path, packet: bytes, *arguments: object) -> bytes:
    result = subprocess.run(
        [codec, *map(str, arguments)],
        input=packet,
        capture_output=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# -- golden packets --


def test_the_golden_files_are_the_table() -> None:
    assert {path.stem: path.read_bytes() for path in DIRECTORY.iterdir()} == {
        name: row[1] for name, row in GOLDEN.items()
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_packet_in_python(name: str) -> None:
    direction, _, verb, fields = GOLDEN[name]
    packet = (DIRECTORY / f"{name}.packet").read_bytes()
    assert decode(packet, Direction[direction]) == (verb, fields)
    if name != "later_version":
        assert encode(verb, **fields) == packet


def test_a_message_of_a_table_is_escaped_as_any_text() -> None:
    """Such a line is of a class of its own, derived from str."""
    line = MessageLine("its share is 40 %")
    assert type(line) is not str
    assert encode("NOTE", text=line) == b"NODEMGR/1 NOTE\ntext=its share is 40 %25\n"


def in_c(value: wire.Value) -> bytes:
    return (",".join(map(str, value)) if isinstance(value, tuple) else str(value)).encode()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_packet_in_c(codec: Path, name: str) -> None:
    direction, _, verb, fields = GOLDEN[name]
    packet = (DIRECTORY / f"{name}.packet").read_bytes()
    found = run(codec, packet, direction)
    expected = {key: in_c(value) for key, value in fields.items() if f"\n{key}=".encode() in packet}
    for key, text in expected.items():
        assert b"\n%b %d %b\n" % (key.encode(), len(text), text) in found
    assert found.startswith(f"verb {verb}\n".encode())
    assert found.count(b"\n") - sum(text.count(b"\n") for text in expected.values()) == 1 + len(
        expected
    )


def test_every_verb_has_a_golden_packet() -> None:
    assert {verb for _, _, verb, _ in GOLDEN.values()} == set(wire.VERBS)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_verb_goes_one_way(name: str) -> None:
    direction, packet, _, _ = GOLDEN[name]
    with pytest.raises(WireError, match="the other direction"):
        decode(packet, Direction.DOWN if direction == "UP" else Direction.UP)


# -- refusals --

BEAT = b"NODEMGR/1 BEAT\ntask=ab\n"
REFUSED = {
    "does not begin": [b"", b"\n", b"NODEMGR/1", b"NODEMGR/2 BEAT\ntask=ab\n",
        b"nodemgr/1 BEAT\ntask=ab\n", b"\0" + BEAT],
    "unknown verb": [b"NODEMGR/1 \n", b"NODEMGR/1 beat\ntask=ab\n", b"NODEMGR/1 BEAT \ntask=ab\n",
        b"NODEMGR/1 BEATS\ntask=ab\n",
                     b"NODEMGR/1 BEAT\r\ntask=ab\r\n"],
    "a line that is not": [b"NODEMGR/1 BEAT", BEAT[:-1], BEAT + b"x", BEAT + b"\n", BEAT + b"x\n",
        BEAT + b"=1\n", BEAT + b"Key=1\n",
                           BEAT + b"k2=1\n", BEAT + b" rid=1\n", BEAT + b"rid =1\n",
                           BEAT + b"seventeen_letters_=1\n"],
    "a key appears twice": [BEAT + b"task=ab\n", BEAT + b"later=1\nother=2\nlater=1\n"],
    "a value is not": [
        *(BEAT + b"rid=%b\n" % value for value in (
            b"", b"+1", b"-1", b" 1", b"1 ", b"0x1", b"1.0", b"1e3", b"18446744073709551616",
            b"99999999999999999999999", b"\xd9\xa1")),
        *(b"NODEMGR/1 BEAT\ntask=%b\n" % value for value in (b"", b"AB", b"xyz", b"ab,cd",
            b"a" * 65)),
        *(BEAT + b"env=%b\n" % value for value in (b"", b"a b", b"a/b", b"a,b", b"a%20b",
            b"\xc3\xa4", b"e" * 65)),
        *(BEAT + b"command=%b\n" % value for value in (b"%", b"%4", b"%zz", b"%4A", b"a\tb",
            b"\x7f", b"\0")),
        *(BEAT + b"rows=%b\n" % value for value in (b"", b",", b"1,", b",1", b"1,,2", b"1;2",
            b",".join([b"1"] * 17))),
        *(BEAT + b"visible=%b\n" % value for value in (b"", b"a,", b"a b", b",".join([b"a"] * 17))),
        BEAT + b"later=\x01\n",
    ],
    "a required key": [b"NODEMGR/1 BEAT\n", b"NODEMGR/1 ACQUIRE\ntask=ab\n",
        b"NODEMGR/1 REJOIN\nrid=1\ntask=ab\n"],
    "too many unknown": [BEAT + b"".join(b"%c%c=\n" % (97 + i % 26,
        97 + i // 26) for i in range(33))],
    "longer than": [BEAT + b"command=" + b"x" * 1200 + b"\n"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "packet"),
    [(reason, packet) for reason, packets in REFUSED.items() for packet in packets],
)
def test_what_is_refused_and_why(codec: Path, reason: str, packet: bytes) -> None:
    with pytest.raises(WireError, match=reason):
        decode(packet)


def test_c_refuses_the_same(codec: Path) -> None:
    for reason, packets in REFUSED.items():
        assert run(codec, packets[-1], "UP").startswith(b"error ")
        assert reason.encode() in run(codec, packets[-1], "UP")


def test_the_longest_packet(codec: Path) -> None:
    packet = BEAT + b"command=" + b"x" * (1200 - len(BEAT) - len("command=\n")) + b"\n"
    assert len(packet) == 1200
    _, fields = decode(packet)
    assert len(fields["command"]) > 1100
    assert b"verb BEAT" in run(codec, packet, "UP")


@pytest.mark.parametrize(("verb", "fields", "reason"), [
    ("BEATS", {"task": "ab"}, "unknown verb"),
    ("BEAT", {}, "without task"),
    ("BEAT", {"task": "ab", "nope": 1}, "unknown key"),
    ("BEAT", {"task": "AB"}, "not of the key's type"),
    ("BEAT", {"task": "ab", "rid": -1}, "not of the key's type"),
    ("BEAT", {"task": "ab", "rid": 1 << 64}, "not of the key's type"),
    ("ACQUIRE", {"rid": 1, "task": "ab", "gpus": "two"}, "not of the key's type"),
    ("BEAT", {"task": "ab", "visible": ()}, "not of the key's type"),
    ("BEAT", {"task": "ab", "command": "x" * 1200}, "more than a packet"),
])  # fmt: skip
def test_our_own_mistakes_are_told(verb: str, fields: dict[str, wire.Value], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        encode(verb, **fields)


# -- any text, any bytes --


@settings(deadline=None, max_examples=examples(100))
@given(text=st.text(max_size=150))
def test_any_text_comes_back(text: str) -> None:
    sent = text.encode("utf-8", "replace").decode()
    assert decode(encode("NOTE", text=text), Direction.DOWN) == ("NOTE", {"text": sent})


@settings(deadline=None, max_examples=examples(100))
@given(text=st.text(max_size=400), most=st.integers(0, 300))
def test_cut_text_fits(text: str, most: int) -> None:
    cut = wire.cut_text(text, most)
    assert text.startswith(cut)
    assert len(encode("NOTE", text=cut)) - len(encode("NOTE", text="")) <= most


@given(packet=st.binary(max_size=1400))
@settings(deadline=None, max_examples=examples(300))
def test_any_bytes_are_a_message_or_an_error(packet: bytes) -> None:
    for head in (b"", b"NODEMGR/1 ", b"NODEMGR/1 BEAT\ntask=ab\n"):
        with contextlib.suppress(WireError):
            verb, _ = decode(head + packet)
            assert verb in wire.VERBS


@pytest.mark.parametrize("name", GOLDEN)
def test_mutated_packets_in_python(name: str) -> None:
    """Decodes or refuses; what it decodes, it encodes to what decodes the same."""
    direction, packet, _, _ = GOLDEN[name]
    chance = random.Random(name)
    for _ in range(300):
        mutated = bytearray(packet)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.choice(
                [chance.randrange(256), *b"=\n%,0a"]
            )
        try:
            verb, fields = decode(bytes(mutated), Direction[direction])
        except WireError:
            continue
        assert decode(encode(verb, **fields), Direction[direction]) == (verb, fields)


@pytest.mark.parametrize("name", GOLDEN)
def test_mutated_packets_in_c(codec: Path, name: str) -> None:
    direction, packet, _, _ = GOLDEN[name]
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") | 1
    run(codec, packet, direction, seed, 4000)


@pytest.mark.parametrize("seed", range(examples(3)))
def test_a_second_decoder_says_the_same_of_any_packet(codec: Path, seed: int) -> None:
    """Longer: `python -m tests.wire.fuzz`."""
    fuzz.compare(codec, list(itertools.islice(fuzz.packets(random.Random(seed)), 8 * fuzz.BATCH)))


@pytest.mark.parametrize("seed", range(examples(2)))
def test_the_sift_says_of_any_datagram_what_the_second_decoder_says(
    seed: int, tmp_path: Path
) -> None:
    """Longer: `python -m tests.wire.sift_fuzz`."""
    source = sift_fuzz.datagrams(random.Random(seed))
    counts = sift_fuzz.compare(
        sift_fuzz.compile_sift(tmp_path), list(itertools.islice(source, 3 * fuzz.BATCH))
    )
    assert counts.keys() == {b"malformed", b"forged", b"throttled", b"signed"}


def test_python_hands_out_what_the_second_decoder_found() -> None:
    for direction, packet in itertools.islice(fuzz.packets(random.Random(9)), 3 * fuzz.BATCH):
        try:
            verb, fields = reference.decode(packet, direction)
        except reference.Refused as refused:
            with pytest.raises(WireError, match=re.escape(str(refused))):
                decode(packet, Direction[direction])
            continue
        found_verb, found_fields = decode(packet, Direction[direction])
        assert found_verb == verb
        for key, value in fields.items():
            found = found_fields[key]
            assert int(value) == found if isinstance(found, int) else True
            assert value.decode("utf-8", "replace") == found if isinstance(found, str) else True
            assert (
                tuple(value.decode().split(",")) == tuple(map(str, found))
                if isinstance(found, tuple) and key == "visible"
                else True
            )


# -- MAC --

KEY = bytes(range(32))


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1131])
def test_the_mac_is_hmac_sha256(size: int) -> None:
    packet = bytes(index % 251 for index in range(size))
    signed = wire.sign(packet, KEY)
    assert (
        signed
        == packet + b"mac=" + hmac.new(KEY, packet, hashlib.sha256).hexdigest().encode() + b"\n"
    )
    assert wire.verify(signed, KEY) == packet


def test_a_wrong_mac_is_refused_wherever_it_differs() -> None:
    signed = wire.sign(BEAT, KEY)
    for at in range(len(signed)):
        for bit in (1, 0x20, 0x80):
            with pytest.raises(WireError, match="MAC"):
                wire.verify(signed[:at] + bytes([signed[at] ^ bit]) + signed[at + 1 :], KEY)
    for wrong in (b"", BEAT, signed[:-1], signed[1:], signed + b"\n", signed + signed[-69:]):
        with pytest.raises(WireError, match="MAC"):
            wire.verify(wrong, KEY)
    with pytest.raises(WireError, match="MAC"):
        wire.verify(signed, bytes(32))


def test_no_room_for_the_mac() -> None:
    with pytest.raises(WireError, match="longer"):
        wire.sign(b"x" * 1132, KEY)
    with pytest.raises(WireError, match="longer"):
        wire.verify(b"x" * 1201, KEY)
    with pytest.raises(WireError, match="32 bytes"):
        wire.sign(BEAT, b"short")
