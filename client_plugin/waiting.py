"""The line that reports the progress of a wait.

It is rewritten in place where that is possible, else printed at a change, at most once a minute: in
a log, in the background of a shell, and above the clock where a terminal is too narrow for it.

Knows: terminals, IPython's display, the clock. Must not know: the reason of the wait. A process
draws one line for all its threads; of a task's ranks on this host the first one draws it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable

from . import stderr

PREFIX = "nodemgr: "
LOG_PERIOD_S = 60
"""Where stderr is no terminal: between two lines of one wait at least (csrc/client/waiting.c)."""
ERASE = "\r\x1b[K"
_drawer: dict[
    str, Wait
    # "drawer" -> the wait that draws. setdefault() is atomic, and an exception could leave a lock
    # held
] = {}
_settled_ns = {"last": -1}
"""When a wait ended that was the last for all threads that waited then."""


class Wait:
    """One wait of one thread."""

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._style: Plain | None = None
        self._shown = ("", "")

    def show(self, text: str) -> None:
        """`text`: what is waited for, as it stands.

        Cheap to call often: redraws when the text or the second changes.
        """
        if self._style is None:
            if (
                os.environ.get("LOCAL_RANK", "0") != "0"
                or _drawer.setdefault("drawer", self) is not self
            ):
                return
            if self._began_ns <= _settled_ns["last"]:  # it has not looked since
                del _drawer["drawer"]
                return
            self._style = choose()
        now = (stderr.printable(text), self._elapsed())
        if now != self._shown:
            self._shown = now
            self._style.draw(*now)

    def end(self, outcome: str, hint: str = "", is_for_all: bool = False) -> None:
        """Print the last line of a wait that was shown.

        `outcome` is empty if another part prints it. `is_for_all`: no thread waits any more.
        """
        if is_for_all:
            _settled_ns["last"] = time.monotonic_ns()
        if self._style is not None:
            self._style.finish(f"{outcome} after {self._elapsed()}{hint}" if outcome else "")
            self._style = None
        if _drawer.get("drawer") is self:
            del _drawer["drawer"]

    def _elapsed(self) -> str:
        return duration((time.monotonic_ns() - self._began_ns) // 1_000_000_000)


class Plain:
    """A log: a line when the text changes, at most one a minute, no clock."""

    def __init__(self) -> None:
        self._text = ""
        self._printed_ns: int | None = None

    def draw(self, text: str, elapsed: str) -> None:
        self._print_if_due(text, "")

    def _print_if_due(self, text: str, before: str) -> None:
        now_ns = time.monotonic_ns()
        period_ns = LOG_PERIOD_S * 1_000_000_000
        if text != self._text and (
            self._printed_ns is None or now_ns - self._printed_ns >= period_ns
        ):
            self._text, self._printed_ns = text, now_ns
            stderr.write(f"{before}{PREFIX}{text}\n")

    def finish(self, text: str) -> None:
        if text:
            stderr.write(f"{PREFIX}{text}\n")


class Terminal(Plain):
    """One line, rewritten in place; of a text too long for it the end is cut, never the clock.

    Such a text is printed whole above it, as in a log. In the background of a shell all of it is a
    log: the prompt stands where the line would be.
    """

    def draw(self, text: str, elapsed: str) -> None:
        if not in_foreground():
            super().draw(text, elapsed)
            return
        room = max(columns() - len(f"{PREFIX} ({elapsed})") - 1, 0)
        if len(text) > room:
            self._print_if_due(text, ERASE)
            text = "waiting" if text == self._text else text
        shown = text if len(text) <= room else text[: max(room - 1, 0)] + "…"[:room]
        stderr.write(f"\r{PREFIX}{shown} ({elapsed})\x1b[K")

    def finish(self, text: str) -> None:
        if in_foreground():
            stderr.write(ERASE)
        super().finish(text)


class Notebook(Plain):
    """One output of the cell, updated in place through IPython; a log where that fails."""

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__()
        self._display = display
        self._handle: Any = None
        self._failed = False

    def draw(self, text: str, elapsed: str) -> None:
        if self._failed or not self._put(f"{PREFIX}{text} ({elapsed})"):
            super().draw(text, elapsed)

    def finish(self, text: str) -> None:
        if text and (self._failed or not self._put(PREFIX + text)):
            super().finish(text)

    def _put(self, line: str) -> bool:
        data = {"text/plain": line}
        try:
            if self._handle is None:
                self._handle = self._display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
        except Exception as error:
            self._failed = True
            stderr.report("IPython's display", error)
        return not self._failed


def kernel() -> Any:
    """The notebook's kernel that this process is, or None.

    It shows what is written to descriptor 2, where it puts a pipe of its own.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def choose() -> Plain:
    if kernel() is not None:
        from importlib import import_module

        return Notebook(import_module("IPython.display").display)
    try:
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        terminal = False
    return Terminal() if terminal else Plain()


def in_foreground() -> bool:
    """False where a shell reads the terminal of stderr meanwhile; True where that is not known."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return True


def columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def duration(seconds: int) -> str:
    """75 -> 0:01:15: the form of all measured time spans."""
    return f"{seconds // 3_600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def forget() -> None:
    """In a forked child: the line was the parent's."""
    _drawer.clear()
