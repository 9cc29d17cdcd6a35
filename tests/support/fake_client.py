"""A client process that speaks the wire by hand, driven line by line.

It is a process of its own, because the kernel's word on it counts.

Run as a program it obeys JSON orders on stdin and answers each with one JSON line. It shares no
code with nodemgr on purpose: what it sends and reads is the contract's text.
"""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time

LIMITS, USAGE = 0, 1
SLOTS = 1024
MOST_FDS = 34


class Client:
    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.fds: list[int] = []

    def do_connect(self, path: str) -> dict:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(300)
        self.sock.connect(path)
        return {}

    def do_become(self, user: int, groups: list[int]) -> dict:
        """Another user from now on (the interpreter itself may be unreadable for that user)."""
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        return {}

    def do_close(self) -> dict:
        self.sock.close()
        self.sock = None
        return {}

    def do_send(self, text: str, with_fds: bool = False) -> dict:
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self.fds))] if with_fds else []
        )
        try:
            self.sock.sendmsg([text.encode("latin-1")], rights)
        except PermissionError:  # a manager that has its ledgers takes no descriptors
            self.sock.send(text.encode("latin-1"))
        return {}

    def do_flood(self, text: str, count: int) -> dict:
        for _ in range(count):
            self.sock.send(text.encode("latin-1"))
        return {}

    def do_send_from_child(self, text: str) -> dict:
        """A forked child writes on the connection that it inherited."""
        pid = os.fork()
        if pid == 0:
            self.sock.send(text.encode("latin-1"))
            os._exit(0)
        os.waitpid(pid, 0)
        return {"pid": pid}

    def do_receive(self, timeout_s: float = 60.0) -> dict:
        """The next packet, or null where none comes or (with "end") the manager is gone."""
        if not select.select([self.sock], [], [], timeout_s)[0]:
            return {"text": None}
        packet, ancillary, _, _ = self.sock.recvmsg(
            65_536, socket.CMSG_SPACE(4 * MOST_FDS), socket.MSG_CMSG_CLOEXEC
        )
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                self.do_drop_fds()
                self.fds = array.array("i", data).tolist()
        return {
            "text": packet.decode("latin-1") if packet else None,
            "end": not packet,
            "fds": len(self.fds),
        }

    def do_drop_fds(self) -> dict:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        return {}

    def do_inodes(self) -> dict:
        return {"inodes": [os.fstat(fd).st_ino for fd in self.fds]}

    def do_map(self) -> dict:
        """Keeps the usage file mapped, as a program does that closed the descriptor."""
        self.mapping = mmap.mmap(self.fds[USAGE], os.fstat(self.fds[USAGE]).st_size)
        self.limits_mapping = mmap.mmap(
            self.fds[LIMITS], os.fstat(self.fds[LIMITS]).st_size, mmap.MAP_SHARED, mmap.PROT_READ
        )
        return {}

    def do_write(self, fd: int, offset: int, words: list[int]) -> dict:
        """Writes words of 64 bits into the file of a received descriptor, by its number."""
        with mmap.mmap(self.fds[fd], os.fstat(self.fds[fd]).st_size) as file:
            struct.pack_into(f"={len(words)}Q", file, offset, *words)
        return {}

    def do_read(self, fd: int, offset: int) -> dict:
        """The word there."""
        return {"word": struct.unpack("=Q", os.pread(self.fds[fd], 8, offset))[0]}

    def do_charge(self, row: int, slot: int, generation: int, size: int) -> dict:
        """Writes a word of the ledger, true or not."""
        with mmap.mmap(self.fds[USAGE], os.fstat(self.fds[USAGE]).st_size) as words:
            struct.pack_into("=Q", words, 8 * (row * SLOTS + slot), generation << 48 | size)
        return {}

    def do_word(self, row: int, slot: int) -> dict:
        with mmap.mmap(self.fds[USAGE], os.fstat(self.fds[USAGE]).st_size) as words:
            word = struct.unpack_from("=Q", words, 8 * (row * SLOTS + slot))[0]
        return {"generation": word >> 48, "size": word & (1 << 48) - 1}

    def do_limit(self, row: int) -> dict:
        """Reads limit and correction of a row.

        The header has 64 bytes, each row 128, with the UUID in the first 48.
        """
        with mmap.mmap(
            self.fds[LIMITS], os.fstat(self.fds[LIMITS]).st_size, mmap.MAP_SHARED, mmap.PROT_READ
        ) as limits:
            limit, total, correction = struct.unpack_from("=3Q", limits, 64 + 128 * row + 48)
        return {"limit": limit, "total": total, "correction": correction}

    def do_beat_every(self, text: str, period_s: float) -> dict:
        """Beats in the background until the process ends."""

        def run() -> None:
            while True:
                with contextlib.suppress(OSError, AttributeError):
                    self.sock.send(text.encode())
                time.sleep(period_s)

        threading.Thread(target=run, daemon=True).start()
        return {}

    def do_raise_word(self, slot: int, generation: int, count: int) -> dict:
        """A beat in the ledger: the words stand behind those of the 16 GPUs and 64 bytes more."""
        with mmap.mmap(self.fds[USAGE], os.fstat(self.fds[USAGE]).st_size) as words:
            struct.pack_into("=Q", words, 8 * 16 * SLOTS + 64 + 8 * slot, generation << 48 | count)
        return {}

    def do_raise_word_every(self, slot: int, generation: int, period_s: float) -> dict:
        """The same in the background until the process ends."""

        def run() -> None:
            count = 0
            while True:
                self.do_raise_word(slot, generation, count := count + 1)
                time.sleep(period_s)

        threading.Thread(target=run, daemon=True).start()
        return {}

    def do_spawn(self) -> dict:
        """A child of its own to obey: it reads the rest of our orders, we wait."""
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            os._exit(0)
        return {"pid": os.getpid()}


def main() -> None:
    client = Client()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(client, "do_" + order.pop("do"))(**order)
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
