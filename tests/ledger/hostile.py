"""A process of an environment that does all that it can to its ledger and its socket.

Run in the environment: hostile.py SECONDS SEED

It gets a grant like any process. Then, by a seeded choice, again and again: any words anywhere in
the usage file, all of it at once, through a mapping of its own or by write; resizing, sealing,
mapping the limits for writing; descriptors closed, doubled, given back; garbage and mutated packets
on its connection and on new ones, with descriptors that are none of a ledger. Says "granted", then
"done" with a count.

Exit code 1 with a line where the kernel let it do what it must not: change a file's size, its
seals, or the limits.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORDS_SIZE_BYTES = 8
SLOTS = 1024
TOKEN = "ab" * 16


def packet(verb: str, **fields: object) -> bytes:
    return f"NODEMGR/1 {verb}\n".encode() + b"".join(
        b"%b=%b\n" % (key.encode(), str(value).encode()) for key, value in fields.items()
    )


class Hostile:
    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.address = str(directory / "socket")
        self.chance = chance
        self.own = self.connect()
        self.own.send(packet("ACQUIRE", rid=1, task=TOKEN, command="hostile"))
        answer, fds, _, _ = socket.recv_fds(self.own, 1200, 4)
        if len(fds) != 2:
            raise SystemExit(f"no grant: {answer!r}")
        self.limits, self.usage = fds
        self.size = os.fstat(self.usage).st_size
        self.words = mmap.mmap(self.usage, self.size)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.address)
        connection.setblocking(False)
        connection.setblocking(True)
        return connection

    # -- what it does --

    def some_words(self) -> None:
        for _ in range(64):
            at = self.chance.randrange(self.size // WORDS_SIZE_BYTES) * WORDS_SIZE_BYTES
            word = self.chance.choice(
                [0, 1, (1 << 64) - 1, (1 << 48) - 1, 1 << 48, self.chance.getrandbits(64)]
            )
            self.words[at : at + WORDS_SIZE_BYTES] = word.to_bytes(WORDS_SIZE_BYTES, "little")

    def first_words(self) -> None:
        """Garbage in the first words of the used slots."""
        for slot in range(16):
            word = self.chance.getrandbits(64) >> self.chance.randrange(64)
            self.words[slot * WORDS_SIZE_BYTES : (slot + 1) * WORDS_SIZE_BYTES] = word.to_bytes(
                WORDS_SIZE_BYTES, "little"
            )

    def beat_words(self) -> None:
        """Beat words of the used slots: backwards, still, huge, of other generations."""
        first = self.size - SLOTS * WORDS_SIZE_BYTES
        for slot in range(16):
            low = self.chance.getrandbits(3)
            word = self.chance.choice([0, 1, (1 << 48) - 1, (1 << 64) - 1, low, 1 << 48 | low])
            at = first + slot * WORDS_SIZE_BYTES
            self.words[at : at + WORDS_SIZE_BYTES] = word.to_bytes(WORDS_SIZE_BYTES, "little")

    def all_words(self) -> None:
        self.words[:] = self.chance.choice(
            [bytes(self.size), b"\xff" * self.size, self.chance.randbytes(self.size)]
        )

    def other_sizes(self) -> None:
        for fd in (self.limits, self.usage):
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.chance.choice([0, 1, 4096, self.size * 2]))
                raise SystemExit("it could change a file's size")

    def other_seals(self) -> None:
        for fd in (self.limits, self.usage):
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
                raise SystemExit("it could seal a file")

    def limits_for_writing(self) -> None:
        with contextlib.suppress(OSError):
            mmap.mmap(self.limits, os.fstat(self.limits).st_size)
            raise SystemExit("it could map the limits for writing")
        with contextlib.suppress(OSError):
            os.pwrite(self.limits, b"\xff" * 64, 0)
            raise SystemExit("it could write the limits")

    def descriptors(self) -> None:
        doubled = os.dup(self.usage)
        again = mmap.mmap(doubled, self.size)
        os.close(doubled)
        again[:WORDS_SIZE_BYTES] = self.chance.randbytes(WORDS_SIZE_BYTES)
        again.close()

    def garbage(self) -> bytes:
        well_formed = packet(
            self.chance.choice(["ACQUIRE", "REJOIN", "BEAT", "RELEASE", "CANCEL", "ASK", "HELLO",
                "GRANT"]),
            rid=self.chance.getrandbits(self.chance.choice([3, 64])), task=TOKEN, lease="t1",
            slot=self.chance.randrange(2000),
            generation=self.chance.randrange(1 << 16), what=self.chance.choice(["status", "release",
                "doctor"]),
        )  # fmt: skip
        at = self.chance.randrange(len(well_formed))
        return self.chance.choice(
            [well_formed, well_formed[:at], self.chance.randbytes(self.chance.randrange(1, 1500))]
        )

    def send(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.chance.random() < 0.3:
                socket.send_fds(
                    connection,
                    [self.garbage()],
                    [self.usage, self.chance.choice([0, self.limits, self.usage])],
                )
            else:
                connection.send(self.garbage(), socket.MSG_DONTWAIT)

    def on_new_connections(self) -> None:
        with contextlib.suppress(OSError), self.connect() as connection:
            for _ in range(8):
                self.send(connection)

    def on_its_own(self) -> None:
        """Never a RELEASE of itself: it wants to stay."""
        with contextlib.suppress(OSError):
            self.own.send(
                self.chance.choice(
                    [
                        packet("BEAT", task=TOKEN),
                        self.chance.randbytes(60),
                        packet("BEAT", task="zz"),
                    ]
                )
            )
        with contextlib.suppress(OSError):
            self.own.recv(1200, socket.MSG_DONTWAIT)


def main() -> None:
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    hostile = Hostile(Path(os.environ["NODEMGR_ENV_DIR"]), random.Random(seed))
    print("granted", flush=True)
    deeds: list[Callable[[], None]] = [
        hostile.some_words, hostile.first_words, hostile.beat_words, hostile.all_words,
        hostile.other_sizes, hostile.other_seals,
        hostile.limits_for_writing, hostile.descriptors, hostile.on_new_connections,
        hostile.on_its_own,
    ]  # fmt: skip
    end, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < end:
        hostile.chance.choice(deeds)()
        count += 1
    print("done", count, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
