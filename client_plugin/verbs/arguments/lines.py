"""A line of `nodemgr submit --from FILE`: a command as one writes it for a shell, or a JSON object.

Knows: how both are written, how long a line may be. Must not know: what is done with it.
"""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8

from client_plugin.messages import arguments as messages
from client_plugin.verbs.arguments.parser import WrongValue
from client_plugin.ways.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Sequence, Tuple

    from client_plugin.verbs.arguments.parser import VerbOption

MAX_LINE_BYTES = 2**20
PIECE_BYTES = 2**16
SHOWN_CHARS = 120
COMMAND = "command"
_PIECE = re.compile(
    r"""(?P<blank>\s+)|(?P<plain>[^\s'"\\|&;<>()$`]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>(?:[^"\\$`]|\\.)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)


def split(text: str) -> List[str]:
    """Words, as a shell splits them. Raises WrongValue for what only a shell can do."""
    words: List[str] = []
    at, joined = 0, False
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            letter = text[at]
            if letter in "'\"\\":
                raise WrongValue(
                    "a quotation is not closed, or has a character that needs a shell ($ or `)"
                )
            raise WrongValue(f"{letter} needs a shell, and none runs here: write sh -c '...'")
        at = found.end()
        if found.lastgroup == "blank":
            joined = False
            continue
        piece = found[found.lastgroup or 0]
        if found.lastgroup == "double":
            piece = re.sub(r'\\([\\"$`])', r"\1", piece)
        if joined:
            words[-1] += piece
        else:
            words.append(piece)
        joined = True
    return words


def parse(line: bytes, options: Sequence[VerbOption]) -> Tuple[List[str], Dict[str, Any]]:
    """The command and what is wished for it, by the options' keys. Raises WrongValue."""
    command, wishes = _parse(line, options)
    if any("\0" in word for word in command):
        raise WrongValue("has a NUL character, which no argument can have")
    return command, wishes


def _parse(line: bytes, options: Sequence[VerbOption]) -> Tuple[List[str], Dict[str, Any]]:
    if not line.startswith(b"{"):
        words = split(os.fsdecode(line))
        if not words:
            raise WrongValue("names no command")
        return words, {}
    try:
        said = json.loads(line)
    except RecursionError:
        raise WrongValue(
            "is nested too deep: the values of a job are texts, numbers, lists"
        ) from None
    except ValueError as error:
        raise WrongValue(f"is no JSON object: {error}") from None
    command = said.pop(COMMAND, None)
    if isinstance(command, str):
        command = split(command)
    if (
        not isinstance(command, list)
        or not command
        or not all(isinstance(word, str) for word in command)
    ):
        raise WrongValue(f'names no command: "{COMMAND}" is a text, or a list of words')
    named = {option.names[0].lstrip("-"): option for option in options}
    wishes = {}
    for name, value in said.items():
        option = named.get(name.replace("_", "-"))
        if option is None:
            known = ", ".join((COMMAND, *named))
            raise WrongValue(f"{name[:40]!r} is no option of a job (known: {known})")
        wishes[option.key] = _value(name, option, value)
    return command, wishes


def _value(name: str, option: VerbOption, value: Any) -> Any:
    """The value in the form of the command line."""
    if option.kind is None:
        if not isinstance(value, bool):
            raise WrongValue(f"{name} is true or false")
        return value
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise WrongValue(f"{name} is a text or a whole number")
    try:
        parsed = option.kind.parse(str(value))
    except ValueError as wrong:
        raise WrongValue(f"{name}: {wrong}") from None
    return parsed


def cut(text: str) -> str:
    """An error of a line, which may quote it: its beginning and its end."""
    return (
        text if len(text) <= 2 * SHOWN_CHARS else f"{text[:SHOWN_CHARS]} ... {text[-SHOWN_CHARS:]}"
    )


def read(descriptor: int, name: str) -> Iterator[List[Tuple[int, bytes]]]:
    """The lines of a file with their numbers, as many at a time as can be read now.

    A line that is too long is cut to one byte more than the limit. Raises Fault.
    """
    rest, number, skipping = b"", 0, False
    while True:
        try:
            piece = os.read(descriptor, PIECE_BYTES)
        except OSError as error:
            fault = messages.FILE_OF_JOBS_UNREADABLE(name=name, error=error.strerror)
            raise Fault(fault) from None
        *whole, rest = (rest + piece).split(b"\n") if piece else ((rest, b"") if rest else (b"",))
        lines = []
        for line in whole:
            if not skipping:
                number += 1
                if number == 1:
                    line = line[len(BOM_UTF8) :] if line.startswith(BOM_UTF8) else line
                lines.append((number, line))
            skipping = False
        if skipping:
            rest = b""
        elif len(rest) > MAX_LINE_BYTES:
            number += 1
            lines.append((number, rest[: MAX_LINE_BYTES + 1]))
            rest, skipping = b"", True
        if lines:
            yield lines
        if not piece:
            return
