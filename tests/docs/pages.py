"""The shell blocks of a page, as one script whose lines have the page's line numbers.

Comments in the page's source, which no reader sees, stand directly before a block that is special:

    <!-- first: COMMANDS -->      what the reader has done before, on one line or on several
    <!-- not run: REASON -->      the block is left out
    <!-- slow: REASON -->         the block runs in `pytest -m slow` alone
    <!-- stays: COMMAND -->       this line starts a program that goes on beside the later lines
    <!-- ctrl_c: COMMAND -->      this line has no end of its own; the reader ends it

Knows: Markdown's fences. Must not know: how a script is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SHELL = "sh"
LANGUAGES = {SHELL, "c", "mermaid", "pycon", "python", "text", "yaml"}
BLOCK = re.compile(
    r"^(?P<comments>(?:<!--.*?-->\n)*) *```(?P<language>\w*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!--\s*(?P<kind>[\w ]+):(?P<value>.*?)-->\n", re.DOTALL)
LINE_MARKS = ("stays", "ctrl_c")
MARKS = {"first", "not run", "slow", *LINE_MARKS}


class PageError(Exception):
    """A fence or a comment that no rule covers. One line."""


@dataclass(frozen=True)
class Block:
    line: int
    """Of the first comment or of the fence, from 0."""
    language: str
    body: str
    marks: tuple[tuple[str, str], ...]

    def has(self, kind: str) -> bool:
        return any(kind == found for found, _ in self.marks)

    def script(self) -> str:
        """As many lines as comments, fence and body have. Raises PageError."""
        body = self.body
        for kind, value in self.marks:
            if kind in LINE_MARKS:
                body, count = re.subn(
                    rf"^(?={re.escape(value.strip())})", f"{kind} ", body, flags=re.MULTILINE
                )
                if count != 1:
                    raise PageError(f"line {self.line + 1}: {count} lines are {value.strip()!r}")
        prepared = (f"{value if kind == 'first' else ''}\n" for kind, value in self.marks)
        return "".join(prepared) + "\n" + body


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page. Raises PageError."""
    fences = comments = 0
    for match in BLOCK.finditer(text):
        marks = tuple((found["kind"], found["value"]) for found in COMMENT.finditer(match[0]))
        block = Block(text.count("\n", 0, match.start()), match["language"], match["body"], marks)
        unknown = {kind for kind, _ in marks} - MARKS
        if unknown and block.language == SHELL:
            raise PageError(f"line {block.line + 1}: no rule covers the comment {unknown}")
        if block.language not in LANGUAGES:
            raise PageError(f"line {block.line + 1}: {block.language or 'no'!r} is no language")
        fences, comments = fences + 2, comments + len([kind for kind, _ in marks if kind in MARKS])
        yield block
    if fences != len(re.findall(r"^ *```", text, re.MULTILINE)):
        raise PageError("a fence has no end, or an end that is no line of its own")
    if comments != len(re.findall(rf"^<!--\s*(?:{'|'.join(MARKS)}):", text, re.MULTILINE)):
        raise PageError("a comment that marks a block stands before none")


def script_of(text: str, with_slow: bool = False) -> str:
    """The lines that run, each at its place in the page. Raises PageError."""
    script = ""
    for block in blocks_of(text):
        left_out = block.has("not run") or (block.has("slow") and not with_slow)
        if block.language == SHELL and not left_out:
            script += "\n" * (block.line - script.count("\n")) + block.script()
    return script
