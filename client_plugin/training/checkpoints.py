"""Checkpoints on disk: written beside the old one, in the background, then renamed over it.

Knows: files. Must not know: the contents (the framework serialises), workers, steps.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, BinaryIO, Callable, Optional

from .. import faults
from ..messages import training as messages


class Checkpoints:
    """One file, replaced at most every `every_s` seconds."""

    def __init__(
        self,
        path: Optional[str],
        every_s: float,
        write: Callable[[Any, BinaryIO], None],
        written: Callable[[str], None],
    ) -> None:
        """`write`: serialise a snapshot into a file; `written`: called with the path after it."""
        self.path = None if path is None else os.path.abspath(path)
        self._every_s = every_s
        self._write = write
        self._written = written
        self._next_s = time.monotonic() + every_s
        self._writer: Optional[threading.Thread] = None

    @property
    def exists(self) -> bool:
        return self.path is not None and os.path.exists(self.path)

    def offer(self, snapshot: Callable[[], Any]) -> None:
        """At a step boundary: begins a checkpoint where one is due and none is being written."""
        if self.path is None or time.monotonic() < self._next_s:
            return
        if self._writer is not None and self._writer.is_alive():
            return
        self._next_s = time.monotonic() + self._every_s
        self._writer = threading.Thread(
            target=self._replace, args=(snapshot(),), name="nodemgr checkpoint", daemon=True
        )
        self._writer.start()

    def settle(self) -> None:
        """Waits for the checkpoint that is being written."""
        if self._writer is not None:
            self._writer.join()

    def final(self, snapshot: Callable[[], Any]) -> None:
        if self.path is not None:
            self.settle()
            self._replace(snapshot())

    def _replace(self, contents: Any) -> None:
        assert self.path is not None
        try:
            replaced(self.path, lambda file: self._write(contents, file))
        except (OSError, RuntimeError) as error:  # torch.save wraps the errors of a file
            faults.say_once(messages.CHECKPOINT_FAILED(path=self.path, error=reason(error)))
        else:
            self._written(self.path)


def reason(error: BaseException) -> str:
    """The first line of an error that has one."""
    root = error
    while root.__cause__ is not None or root.__context__ is not None:
        root = root.__cause__ or root.__context__  # type: ignore[assignment]
    lines = (str(root) if isinstance(root, OSError) else str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def replaced(path: str, write: Callable[[BinaryIO], None]) -> None:
    """The file has all of the new contents or all of the old ones, after a power failure too.

    `path`: absolute.
    """
    fresh = path + ".new"
    try:
        with open(fresh, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
