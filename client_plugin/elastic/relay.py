"""Output of workers: whole lines, each with the number of its worker.

One thread for each stream, so that a slow reader of the leader's output stops the writers alone,
never the leader. Knows: file descriptors. Must not know: workers, beyond their numbers.
"""

from __future__ import annotations

import os
import threading
from typing import List

LONGEST = 65_536
"""A longer line is relayed in pieces."""
END_S = 1.0
"""How long the leader waits, at its end, for output that is still under way."""


class Relay:
    """All streams of the workers of one leader."""

    def __init__(self) -> None:
        self._unnamed = 0
        self._threads: List[threading.Thread] = []
        self._writing = threading.Lock()

    def lead(self, worker: int) -> None:
        """From now on this worker's lines have no number: it is the lowest one alive."""
        self._unnamed = worker

    def take(self, worker: int, source: int, target: int) -> None:
        """Relay from descriptor `source`, which becomes the relay's own, to `target`."""
        thread = threading.Thread(target=self._relay, args=(worker, source, target), daemon=True)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(END_S)

    def _relay(self, worker: int, source: int, target: int) -> None:
        rest = b""
        while True:
            chunk = os.read(source, LONGEST)
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) >= LONGEST or (not chunk and rest):
                lines, rest = [*lines, rest], b""
            self._write(worker, lines, target)
            if not chunk:
                break
        os.close(source)

    def _write(self, worker: int, lines: List[bytes], target: int) -> None:
        name = b"" if worker == self._unnamed else b"[worker %d] " % worker
        data = b"".join(name + line + b"\n" for line in lines)
        with self._writing:
            while data:
                try:
                    data = data[os.write(target, data) :]
                except OSError:
                    return  # the reader is gone: the worker's lines are lost, the worker goes on
