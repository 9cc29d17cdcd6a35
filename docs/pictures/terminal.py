"""A shell on a pseudo-terminal, and what it shows as an SVG.

Knows: terminals, rich. Must not know: nodemgr.

rich lays each run of characters out by its width, so any monospaced font of the reader fits. The
font that rich names by an address is left out: a picture asks no other host for anything.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LONGEST_S = 30.0
PROMPT = "$ "
BACKGROUND, FOREGROUND = (24, 27, 33), (214, 219, 228)
COLOURS = (
    *((40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123)),
    *((97, 175, 239), (198, 120, 221), (86, 182, 194), (171, 178, 191)),
)
BRIGHT_COLOURS = (
    *((92, 99, 112), (240, 128, 137), (172, 215, 141), (249, 212, 143)),
    *((117, 195, 255), (218, 140, 241), (106, 202, 214), (255, 255, 255)),
)
ERASE_REST = "\x1b[K"


class NotShown(Exception):
    """The text did not come. One line."""


class Shell:
    """bash, or another command, on a terminal of this size."""

    def __init__(
        self, command: Sequence[str], columns: int, variables: Mapping[str, str], directory: Path
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            env={**variables, "PS1": PROMPT, "BASH_SILENCE_DEPRECATION_WARNING": "1"},
            cwd=directory,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._text = ""

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def wait_for(self, pattern: str) -> str:
        """The screen's lines, once the last of them match. Raises NotShown."""
        until = time.monotonic() + LONGEST_S
        while not re.search(pattern, shown(self._text)):
            left_s = max(0.0, until - time.monotonic())
            if not select.select([self._master], [], [], left_s)[0]:
                raise NotShown(f"no {pattern!r} within {LONGEST_S:g} s: {self._text!r}")
            try:
                self._text += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # the shell has ended
                raise NotShown(f"no {pattern!r}: {self._text!r}") from None
        return shown(self._text)

    def run(self, line: str) -> str:
        """Run one command; return the lines of the terminal from its prompt to its end."""
        self.wait_for(r"\$ $")
        self._text = PROMPT
        self.type(line)
        return self.wait_for(r"\n\$ $").removesuffix(PROMPT).rstrip("\n")

    def begin(self, line: str) -> None:
        """Types a command; `wait_for` reads what it shows."""
        self.wait_for(r"\$ $")
        self._text = PROMPT
        self.type(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


def shown(text: str) -> str:
    """The lines as a terminal shows them: of a line that is rewritten, the last state."""
    lines = []
    for line in text.split("\n"):
        last = line.rstrip("\r").rsplit("\r", 1)[-1]
        lines.append(last.rsplit(ERASE_REST, 1)[0] if last.endswith(ERASE_REST) else last)
    text = "\n".join(line.replace(ERASE_REST, "") for line in lines)
    return re.sub(r"\x1b\[\?[0-9]+[hl]", "", text)


def svg(name: str, title: str, columns: int, *parts: str) -> str:
    """The picture of a terminal with these texts below each other.

    A part that begins with `# ` is a remark of the picture's own.
    """
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    theme = TerminalTheme(BACKGROUND, FOREGROUND, list(COLOURS), list(BRIGHT_COLOURS))
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for part in parts:
        text = Text(part, "italic bright_black") if part[:2] == "# " else Text.from_ansi(part)
        console.print(text, soft_wrap=False, overflow="fold", highlight=False)
    exported = console.export_svg(title=title, theme=theme, unique_id=f"nodemgr-{name}")
    return without_addresses(exported)


def without_addresses(picture: str) -> str:
    """Without the fonts' addresses and the maker's; the name of the SVG format alone stays."""
    picture = re.sub(r"<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    # each line is clipped to its cell, which cuts underscores off in most fonts
    picture = re.sub(r"<clipPath .*?</clipPath>\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r' clip-path="[^"]*"', "", picture)
    picture = re.sub(r"@font-face\s*{[^}]*}\s*", "", picture)
    return "".join(line.rstrip() + "\n" for line in picture.splitlines())
