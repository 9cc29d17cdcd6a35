"""Random and mutated datagrams through the manager's sift under the sanitizers.

The reference must give the same result for each.

`python -m tests.wire.sift_fuzz --seconds 600 --seed 1` runs it for long. A difference names the
packet; its seed finds it again.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.client_c.compiled import ENVIRONMENT, compile_c
from tests.wire import fuzz, reference

KEYS = {b"a": (bytes([1]) * 32, bytes([2]) * 32), b"b": (bytes([3]) * 32,)}
WRONG_KEY = bytes([9]) * 32
MAC_LINE_BYTES = 69
KNOWN_PORT = 7
HOSTS = ("127.0.0.1", "fe80::1")
ALL, OF_KNOWN = 0, 2


class Datagram(NamedTuple):
    packet: bytes
    level: int
    is_ipv6: bool
    port: int


def compile_sift(directory: Path) -> Path:
    sources = [
        "manager/sift.c",
        "wire/wire.c",
        "wire/mac.c",
        "base/prim.c",
        Path(__file__).with_name("sift.c"),
    ]
    return compile_c(directory / "sift", sources, sanitizer="address")


def mac_line(packet: bytes, key: bytes) -> bytes:
    return b"mac=%b\n" % hmac.new(key, packet, hashlib.sha256).hexdigest().encode()


def signed(packet: bytes, chance: random.Random) -> bytes:
    """With what a client over UDP adds, most often under a right key."""
    env = chance.choice([b"a", b"b", b"c"])
    body = packet + b"env=%b\nclient=%x\ncounter=%d\n" % (
        env,
        chance.randrange(1 << 30),
        chance.randrange(1 << 30),
    )
    return body + mac_line(body, chance.choice([*KEYS.get(env, ()), WRONG_KEY]))


def datagrams(chance: random.Random) -> Iterator[Datagram]:
    """Without end."""
    for direction, packet in fuzz.packets(chance):
        if direction == "UP" and chance.random() < 0.6:
            packet = signed(packet, chance)
        if chance.random() < 0.2 and packet:
            at = chance.randrange(len(packet))
            packet = packet[:at] + bytes([chance.randrange(256)]) + packet[at + 1 :]
        yield Datagram(
            packet,
            chance.choice([ALL, ALL, ALL, OF_KNOWN]),
            chance.random() < 0.3,
            chance.choice([KNOWN_PORT, 8, 65535]),
        )


def expected(datagram: Datagram) -> bytes:
    """The result of sift.c for it."""
    packet = datagram.packet
    if datagram.level == OF_KNOWN and datagram.port != KNOWN_PORT:
        return b"throttled"
    try:
        _, fields = reference.decode(packet, "UP")
    except reference.Refused:
        return b"malformed"
    if not {"env", "client", "counter"} <= fields.keys():
        return b"malformed"
    body, line = packet[:-MAC_LINE_BYTES], packet[-MAC_LINE_BYTES:]
    for number, key in enumerate(KEYS.get(fields["env"], ())):
        if len(packet) >= MAC_LINE_BYTES and line == mac_line(body, key):
            return (
                f"signed {number} {len(packet)} {HOSTS[datagram.is_ipv6]} {datagram.port}".encode()
            )
    return b"forged"


def compare(sift: Path, batch: list[Datagram]) -> dict[bytes, int]:
    """How many there were of each kind.

    AssertionError where the two differ, or the sift does not survive.
    """
    heads = (
        struct.pack("=BBHH", each.level, each.is_ipv6, each.port, len(each.packet))
        for each in batch
    )
    stream = b"".join(head + each.packet for head, each in zip(heads, batch, strict=True))
    result = subprocess.run([sift], input=stream, capture_output=True, env=ENVIRONMENT, check=False)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    counts: dict[bytes, int] = {}
    for each, said in zip(batch, result.stdout.splitlines(), strict=True):
        assert said == expected(each), (each, said)
        kind = said.partition(b" ")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.sift_fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source, count = datagrams(random.Random(options.seed)), 0
    with tempfile.TemporaryDirectory() as directory:
        sift = compile_sift(Path(directory))
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            compare(sift, [next(source) for _ in range(fuzz.BATCH)])
            count += fuzz.BATCH
    print(f"{count} datagrams, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
