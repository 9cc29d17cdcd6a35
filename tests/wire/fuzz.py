"""Random and mutated packets through the C codec under the sanitizers.

The reference must give the same result for each.

`python -m tests.wire.fuzz --seconds 600 --seed 1` runs it for long. A difference names the packet;
its seed finds it again.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.client_c.compiled import ENVIRONMENT, compile_c
from tests.wire import reference
from tests.wire.make_golden import DIRECTORY

BATCH = 2000
SPICE = (
    b"=",
    b"\n",
    b"%",
    b",",
    b"0",
    b"a",
    b"\0",
    b"\xff",
    b"%00",
    b"%0a",
    b"=\n",
    b"18446744073709551615",
    b"18446744073709551616",
)


def compile_codec(directory: Path) -> Path:
    sources = ["wire/wire.c", "wire/mac.c", "base/prim.c", Path(__file__).with_name("codec.c")]
    return compile_c(directory / "codec", sources, sanitizer="address")


def _line(chance: random.Random) -> bytes:
    """A line that may well be right: then what comes after it is looked at."""
    keys = [*reference.table()[1], "later", "x" * 16]
    value = chance.choice(
        [
            b"",
            b"7",
            b"ab",
            b"a,b",
            b"1,2",
            b"x%25y",
            chance.randbytes(3),
            b",".join([b"1"] * chance.randint(1, 18)),
        ]
    )
    return b"%b=%b\n" % (chance.choice(keys).encode(), value)


def _mutate(packet: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    at, end = sorted(chance.randrange(len(packet) + 1) for _ in range(2))
    lines = packet.splitlines(keepends=True)
    mutations = (
        lambda: packet[:at] + bytes([chance.randrange(256)]) + packet[at + 1 :],
        lambda: packet[:at] + chance.choice(SPICE) + packet[at:],
        lambda: packet[:at] + packet[end:],
        lambda: packet[:at] + packet[at:end] * 2 + packet[end:],
        lambda: packet[:at] + chance.choice(corpus)[at:],
        lambda: packet + _line(chance),
        lambda: b"".join(chance.sample(lines, len(lines))),
        lambda: (
            b"".join(lines[: chance.randrange(len(lines) + 1)])
            + _line(chance)
            + b"".join(lines[chance.randrange(len(lines) + 1) :])
        ),
    )
    return chance.choice(mutations)()[: reference.PACKET_BYTES + 8]


def packets(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Without end: (direction, packet)."""
    corpus = [path.read_bytes() for path in sorted(DIRECTORY.iterdir())]
    while True:
        packet = chance.choice(corpus)
        for _ in range(chance.randint(0, 4)):
            packet = _mutate(packet, corpus, chance)
        yield chance.choice(["UP", "DOWN"]), packet


def expected(direction: str, packet: bytes) -> bytes:
    """The result of codec.c for it."""
    try:
        verb, fields = reference.decode(packet, direction)
    except reference.Refused as refused:
        return b"error %b\n" % str(refused).encode()
    shown = [
        (key, fields[key].replace(b"\0", b"?")) for key in reference.table()[1] if key in fields
    ]
    return b"verb %b\n" % verb.encode() + b"".join(
        b"%b %d %b\n" % (key.encode(), len(value), value) for key, value in shown
    )


def compare(codec: Path, batch: list[tuple[str, bytes]]) -> None:
    """AssertionError where the two differ, or the codec does not survive."""
    stream = b"".join(
        struct.pack("<BH", direction == "UP", len(packet)) + packet for direction, packet in batch
    )
    result = subprocess.run(
        [codec, "stream"], input=stream, capture_output=True, env=ENVIRONMENT, check=False
    )
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    rest = result.stdout
    for direction, packet in batch:
        wanted = expected(direction, packet)
        assert rest.startswith(wanted), (direction, packet, wanted, rest[: len(wanted) + 40])
        rest = rest[len(wanted) :]
    assert rest == b""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source, count = packets(random.Random(options.seed)), 0
    with tempfile.TemporaryDirectory() as directory:
        codec = compile_codec(Path(directory))
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            compare(codec, [next(source) for _ in range(BATCH)])
            count += BATCH
    print(f"{count} packets, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
