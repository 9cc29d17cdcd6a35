"""A client's hand in the turns file of a launch gate (csrc/gate/gate.h has the layout)."""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Mapping
from types import TracebackType

from nodemgr.edge.compute.launch_gate import SLOTS

TOKEN, FLOOR, URGENT, ROWS, ROW_BYTES = 16, 24, 64, 128, 128
VIRTUAL, IN_FLIGHT, GAP, USED, LAST_ACTIVITY, LAUNCHES, WAITING = range(0, 56, 8)
BEAT, GENERATION = 56, 64


class Turns:
    """The file, mapped for writing. Closed at the end of a `with`."""

    def __init__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        assert size == ROWS + SLOTS * ROW_BYTES, "the layout of version 1"
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()

    def token(self, *, epoch: int, slot: int) -> None:
        struct.pack_into("=Q", self._map, TOKEN, epoch << 16 | slot + 1)

    def urgent(self, bits: int) -> None:
        struct.pack_into("=Q", self._map, URGENT, bits)

    def word(self, offset: int, value: int) -> None:
        """One of the page's own."""
        struct.pack_into("=Q", self._map, offset, value)

    def beats(self, slot: int, beat: int) -> None:
        struct.pack_into("=I", self._map, ROWS + slot * ROW_BYTES + BEAT, beat)

    def row(self, slot: int, words: Mapping[int, int]) -> None:
        for offset, value in words.items():
            struct.pack_into("=Q", self._map, ROWS + slot * ROW_BYTES + offset, value)

    def generation(self, slot: int, generation: int) -> None:
        struct.pack_into("=I", self._map, ROWS + slot * ROW_BYTES + GENERATION, generation)

    def garbage(self, salt: int) -> None:
        """Random bytes everywhere."""
        self._map[:] = random.Random(salt).randbytes(len(self._map))
