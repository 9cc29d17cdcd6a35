"""The manager, with the longest piece of its loop in a file that another program reads.

    python bench/jobs/timed_manager.py FILE serve ...

FILE holds two numbers of 8 bytes: the processor time (ns) of the longest piece of work between two
looks at the sockets' clients, and of all of them. A reader sets the first one back to 0.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodemgr.cli import main
from nodemgr.edge.host.loop import SwallowingSelector

FORM = struct.Struct("=qq")


class Longest:
    """The file."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), FORM.size)
        self._thread = threading.get_ident()

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if threading.get_ident() != self._thread:
                return work(*arguments)
            began_ns = time.thread_time_ns()
            try:
                return work(*arguments)
            finally:
                took_ns = time.thread_time_ns() - began_ns
                longest_ns, all_ns = FORM.unpack_from(self._map)
                FORM.pack_into(self._map, 0, max(longest_ns, took_ns), all_ns + took_ns)

        return run


if __name__ == "__main__":
    longest = Longest(sys.argv.pop(1))
    handle: Any = asyncio.Handle
    handle._run = longest.timed(handle._run)
    swallow = SwallowingSelector.swallow
    selector: Any = SwallowingSelector
    selector.swallow = lambda self, fd, reader: swallow(self, fd, longest.timed(reader))
    sys.argv[0] = "nodemgr"
    main()
