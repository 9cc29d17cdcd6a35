"""Recognise a command that ran before: a key of its program and arguments, and their numbers.

Knows: programs, scripts, files that arguments name. Must not know: what earlier runs took, or the
manager. The environment, the GPUs and the modules of the program (prediction/closure.py) are no
part of the key: the manager compares them.

An argument, or its part behind `=`, is a number, a file (its content, or its size if it is large),
a folder (the number of its entries), a path that does not exist yet, or else its text. The working
directory counts, and that of a script: a copy elsewhere has other modules beside it.
"""

from __future__ import annotations

import json
import math
import os
import re
from itertools import islice

from client_plugin.prediction import closure
from client_plugin.verbs.launch import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

FORMAT = 1
MAX_PROGRAM_BYTES = 4 << 20
MAX_FILE_BYTES = 1 << 20
"""Of the files that arguments name; beyond, the size of one counts."""
MAX_ENTRIES = 2_000
"""Of folders; beyond, the size of one counts."""
MAX_WORDS = 1_000
MAX_NUMBERS = 64
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"}
VARIABLES = re.compile(
    "PYTORCH_CUDA_ALLOC_CONF|TF_FORCE_GPU_ALLOW_GROWTH|XLA_PYTHON_CLIENT_[A-Z_]*"
)
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def recognised(
    command: List[str], program: str, seen: Optional[Dict[Any, Any]] = None
) -> Optional[Dict[str, Any]]:
    """`key` and `numbers` of a command in this directory; None: it is one that has none.

    `seen`: what the caller's commands just before have read of programs, scripts and packages.
    """
    try:
        return _recognised(command, program, _Left({} if seen is None else seen))
    except (OSError, ValueError):
        return None


def _recognised(command: List[str], program: str, left: _Left) -> Optional[Dict[str, Any]]:
    image = left.once(programs.image_of, program, os.environ.get("PATH"))
    words: List[str] = command[1:]
    own: List[Any] = []
    if _PYTHON.fullmatch(os.path.basename(image)) is None:
        if os.path.basename(image) in SHELLS and not _names_work(words, image != program):
            return None
    else:
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(image)))
        own = [prefix, left.once(closure.package_folders, prefix)]
    if own:
        if left.once(os.path.realpath, image) != left.once(os.path.realpath, program):
            words = [program, *words]  # a script with #!: the kernel starts Python with it
        begun = _of_script(words, left)
        if begun is None:
            return None
        code, words = begun
    else:
        code = left.once(_of_file, program)
    numbers: List[float] = []
    if len(words) > MAX_WORDS or "-" in words or "/dev/stdin" in words:
        return None
    template = [_form(word, numbers, left) for word in words]
    if len(numbers) > MAX_NUMBERS:
        return None
    said = left.once(_said)
    text = json.dumps([FORMAT, os.getcwd(), own, said, code, template])
    return {"key": _sha256(text.encode()), "numbers": numbers}


def _said() -> List[Tuple[str, str]]:
    """The variables that count."""
    return sorted(pair for pair in os.environ.items() if VARIABLES.fullmatch(pair[0]))


def _names_work(words: List[str], is_script: bool) -> bool:
    """Whether a shell runs a script or a line, and takes no input."""
    is_line = any(re.match("-[a-z]*c", word) for word in words)
    return is_script or is_line or any(not word.startswith("-") for word in words)


def _of_script(words: List[str], left: _Left) -> Optional[Tuple[str, List[str]]]:
    """The script, module or line of Python, and the words behind it; None: no file of its own."""
    options: List[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            if word == "-":
                return None
            return json.dumps([options, left.once(_of_file, _main_of(word))]), rest
        options.append(word)
        found = re.match("-[^-cmWX]*([cmWX])(.*)", word, re.DOTALL)
        if found is None:
            continue
        value = found[2] or (rest.pop(0) if rest else "")
        if found[1] == "c":
            return json.dumps([options, value]), rest
        options.append(value)
        if found[1] == "m":
            return json.dumps([options, left.once(_of_file, _module(value))]), rest
    return None


def _of_file(path: str) -> str:
    code = closure.digest(closure.content(path, MAX_PROGRAM_BYTES))
    return f"{code} {os.path.dirname(os.path.realpath(path))}"


def _of_content(path: str) -> str:
    return closure.digest(closure.content(path, MAX_FILE_BYTES))


def _main_of(path: str) -> str:
    return os.path.join(path, "__main__.py") if os.path.isdir(path) else path


def _module(name: str) -> str:
    """Its file below this directory. Raises OSError: there is none."""
    path = os.path.join(*name.split("."))
    return _main_of(path) if os.path.isdir(path) else path + ".py"


class _Left:
    """Bytes and entries that may still be read: the verb waits for them."""

    def __init__(self, seen: Dict[Any, Any]) -> None:
        self.read_bytes = MAX_FILE_BYTES
        self.entries = MAX_ENTRIES
        self._seen = seen

    def once(self, read: Callable[..., Any], *of: Any) -> Any:
        """The result of `read`, or that which an earlier command of the caller had."""
        if (read, of) not in self._seen:
            self._seen[read, of] = read(*of)
        return self._seen[read, of]


def _form(word: str, numbers: List[float], left: _Left) -> str:
    whole = _value(word, numbers, left)
    if whole is not None:
        return whole
    head, sign, value = word.partition("=")
    part = _value(value, numbers, left) if sign else None
    return f"={word}" if part is None else f"={head}={part}"


def _value(text: str, numbers: List[float], left: _Left) -> Optional[str]:
    """The sign of a number or a path; None: it is a text."""
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        numbers.append(float(text))
        return "#"
    if not text or "\0" in text:
        return None
    if os.path.isdir(text):
        with os.scandir(text) as entries:
            count = sum(1 for _ in islice(entries, left.entries + 1))
        is_many = count > left.entries
        left.entries = max(0, left.entries - count)
        size = os.stat(text).st_size if is_many else count
        return f"@/{is_many}{size:.1e}"
    if os.path.isfile(text):
        size = os.stat(text).st_size
        if size > left.read_bytes:
            return f"@{size:.1e}"
        left.read_bytes -= size
        if text.endswith(".py"):
            return "@" + str(left.once(_of_file, text))
        return "@" + str(left.once(_of_content, text))
    return "@new" if _is_new(text) else None


def _is_new(text: str) -> bool:
    """A name of a model or an address may have slashes, too: its folder is not there."""
    folder, _, _ = text.rpartition("/")
    return text.startswith("/") or (bool(folder) and os.path.isdir(folder))


def _sha256(data: bytes) -> str:
    for name in ("_sha2", "_sha256", "hashlib"):  # the first two cost no import of OpenSSL
        try:
            return str(__import__(name).sha256(data).hexdigest())
        except ImportError:
            continue
    raise ValueError
