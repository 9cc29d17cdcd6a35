"""Recognise a command that ran before: a key of its program and arguments, and their numbers.

Knows: programs, scripts, files that arguments name. Must not know: what earlier runs took, or the
manager. The environment, the GPUs and the modules of the program (prediction/closure.py) are no
part of the key: the manager compares them.

An argument, or its part behind `=`, is a number, a file (its content, or its size if it is large),
a folder (the number of its entries), a path that does not exist yet, or else its text.
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
    from typing import Any, Dict, List, Optional, Tuple

FORMAT = 1
MAX_PROGRAM_BYTES = 4 << 20
MAX_FILE_BYTES = 1 << 20
MAX_ENTRIES = 2_000
"""Of a folder; above, its own size counts."""
MAX_NUMBERS = 64
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"}
VARIABLES = re.compile(
    "PYTORCH_CUDA_ALLOC_CONF|TF_FORCE_GPU_ALLOW_GROWTH|XLA_PYTHON_CLIENT_[A-Z_]*"
)
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def recognised(command: List[str], program: str) -> Optional[Dict[str, Any]]:
    """`key` and `numbers` of a command in this directory; None: it is one that has none."""
    try:
        return _recognised(command, program)
    except (OSError, ValueError):
        return None


def _recognised(command: List[str], program: str) -> Optional[Dict[str, Any]]:
    image = programs.image_of(program, os.environ.get("PATH"))
    words: List[str] = command[1:]
    own: List[Any] = []
    if _PYTHON.fullmatch(os.path.basename(image)) is None:
        if os.path.basename(image) in SHELLS and not _names_work(words, image != program):
            return None
    else:
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(image)))
        own = [prefix, closure.package_folders(prefix)]
    if own and os.path.realpath(image) == os.path.realpath(program):
        begun = _of_script(words)
        if begun is None:
            return None
        code, words = begun
    else:
        code = closure.digest(closure.content(program, MAX_PROGRAM_BYTES))
    numbers: List[float] = []
    template = [_form(word, numbers) for word in words]
    if len(numbers) > MAX_NUMBERS or "-" in words or "/dev/stdin" in words:
        return None
    said = sorted(pair for pair in os.environ.items() if VARIABLES.fullmatch(pair[0]))
    text = json.dumps([FORMAT, own, said, code, template])
    return {"key": _sha256(text.encode()), "numbers": numbers}


def _names_work(words: List[str], is_script: bool) -> bool:
    """Whether a shell runs a script or a line, and takes no input."""
    is_line = any(re.match("-[a-z]*c", word) for word in words)
    return is_script or is_line or any(not word.startswith("-") for word in words)


def _of_script(words: List[str]) -> Optional[Tuple[str, List[str]]]:
    """The script, module or line of Python, and the words behind it; None: no file of its own."""
    options: List[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            if word == "-":
                return None
            code = closure.digest(closure.content(_main_of(word), MAX_PROGRAM_BYTES))
            return json.dumps([options, code]), left
        options.append(word)
        found = re.match("-[^-cmWX]*([cmWX])(.*)", word, re.DOTALL)
        if found is None:
            continue
        value = found[2] or (left.pop(0) if left else "")
        if found[1] == "c":
            return json.dumps([options, value]), left
        options.append(value)
        if found[1] == "m":
            code = closure.digest(closure.content(_module(value), MAX_PROGRAM_BYTES))
            return json.dumps([options, code]), left
    return None


def _main_of(path: str) -> str:
    return os.path.join(path, "__main__.py") if os.path.isdir(path) else path


def _module(name: str) -> str:
    """Its file below this directory. Raises OSError: there is none."""
    path = os.path.join(*name.split("."))
    return _main_of(path) if os.path.isdir(path) else path + ".py"


def _form(word: str, numbers: List[float]) -> str:
    whole = _value(word, numbers)
    if whole is not None:
        return whole
    head, sign, value = word.partition("=")
    part = _value(value, numbers) if sign else None
    return f"={word}" if part is None else f"={head}={part}"


def _value(text: str, numbers: List[float]) -> Optional[str]:
    """The sign of a number or a path; None: it is a text."""
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        numbers.append(float(text))
        return "#"
    if not text or "\0" in text:
        return None
    if os.path.isdir(text):
        with os.scandir(text) as entries:
            count = sum(1 for _ in islice(entries, MAX_ENTRIES))
        size = os.stat(text).st_size if count == MAX_ENTRIES else count
        return f"@/{count == MAX_ENTRIES}{size:.1e}"
    if os.path.isfile(text):
        size = os.stat(text).st_size
        if size > MAX_FILE_BYTES:
            return f"@{size:.1e}"
        return "@" + closure.digest(closure.content(text, MAX_FILE_BYTES))
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
