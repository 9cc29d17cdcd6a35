"""Checkpoints on disk: written beside the old one, in the background, then renamed over it.

The one before stays beside the newest. Both frameworks write ZIP files, whose sums of bytes are
checked before a read: PyTorch's own reader does not see a changed byte of a tensor.

Knows: files. Must not know: the contents (the framework serialises), workers, steps.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import zipfile
from typing import Any, BinaryIO, Callable, List, Optional

from .. import stderr

BEFORE = ".before"
"""The end of the older checkpoint's name."""


class Checkpoints:
    """A file and the one before, replaced at most every `every_s` seconds."""

    def __init__(
        self,
        path: Optional[str],
        every_s: float,
        write: Callable[[Any, BinaryIO], None],
        written: Callable[[Any], None],
    ) -> None:
        """`write`: serialise a snapshot into a file; `written`: called with it afterwards."""
        self.path = None if path is None else os.path.abspath(path)
        self._every_s = every_s
        self._write = write
        self._written = written
        self._next_s = time.monotonic() + every_s
        self._writer: Optional[threading.Thread] = None

    def found(self) -> List[str]:
        """The newest checkpoint and the one before. Without the newest the training begins anew."""
        if self.path is None or not os.path.exists(self.path):
            return []
        return [each for each in (self.path, self.path + BEFORE) if os.path.exists(each)]

    def drop_newest(self) -> None:
        """It is damaged: the one before is not to be replaced by it."""
        assert self.path is not None
        with contextlib.suppress(OSError):
            os.replace(self.path + BEFORE, self.path)

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
            replaced(self.path, lambda file: self._write(contents, file), keeps=True)
        except (OSError, RuntimeError) as error:  # torch.save wraps the errors of a file
            stderr.say_once(
                f"elastic: no checkpoint at {self.path} ({reason(error)}); an older one stays "
                "as it is",
                "free space there, or name another path",
            )
        else:
            self._written(contents)


def reason(error: BaseException) -> str:
    """The first line of an error that has one."""
    root = error
    while root.__cause__ is not None or root.__context__ is not None:
        root = root.__cause__ or root.__context__  # type: ignore[assignment]
    lines = (str(root) if isinstance(root, OSError) else str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def check(path: str) -> None:
    """Raises ValueError, OSError or BadZipFile: the file is damaged."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it is damaged")


def _keep(path: str) -> None:
    """The file gets a second name, or a copy where the file system has no such names."""
    if not os.path.exists(path):
        return
    other = path + BEFORE + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(other)
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
    os.replace(other, path + BEFORE)


def replaced(path: str, write: Callable[[BinaryIO], None], *, keeps: bool = False) -> None:
    """The file has all of the new contents or all of the old ones, after a power failure too.

    `path`: absolute. `keeps`: the old contents stay in a file beside it.
    """
    fresh = path + ".new"
    try:
        with open(fresh, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keeps:
            _keep(path)
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
