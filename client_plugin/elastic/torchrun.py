"""torchrun as the command of an elastic task: the leader takes its place, and starts its script.

A torchrun on each GPU would begin a training of its own there. Its options about nodes, processes,
the rendezvous, restarts and logs have no meaning under a leader; those about the script have.

Knows: the options of torch.distributed.run. Must not know: workers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from typing import List, NamedTuple, NoReturn, Optional

MODULES = ("torch.distributed.run", "torch.distributed.launch")
VALUES = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf",
    "max-restarts", "monitor-interval", "start-method", "event-log-handler", "role", "log-dir",
    "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters",
    "duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr",
    "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout",
)  # fmt: skip
"""Options with a value."""
FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env")
OF_THE_SCRIPT = ("module", "no-python", "run-path", "use-env")
"""Options that say how the script is started."""
LETTERS = {"module": "-m", "redirects": "-r", "tee": "-t"}


class BadTorchrun(Exception):
    """The words are none that torchrun would take; the message is its parser's."""


class Replaced(NamedTuple):
    """The command that torchrun would start on each GPU."""

    command: List[str]
    unused: List[str]
    """Options that have no meaning here, as `--tee`."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadTorchrun(message)


def replaced(command: List[str]) -> Optional[Replaced]:
    """The script's own command; None: the command is not torchrun. Raises BadTorchrun."""
    found = _split(command)
    if found is None:
        return None
    python, module, words = found
    parsed = _parser().parse_args(words)
    unused = [
        "--" + name for name in (*VALUES, *FLAGS)
        if name not in OF_THE_SCRIPT and getattr(parsed, name.replace("-", "_"))
    ]  # fmt: skip
    if parsed.no_python and parsed.module:
        raise BadTorchrun("--no-python and --module exclude each other")
    start = [python, "-u", *(["-m"] if parsed.module else [])]
    rank = ["--local-rank=0"] if module == MODULES[1] and not parsed.use_env else []
    script = [parsed.script, *rank, *parsed.rest]
    return Replaced(script if parsed.no_python else [*start, *script], unused)


class _Found(NamedTuple):
    python: str
    module: str
    words: List[str]


def _split(command: List[str]) -> Optional[_Found]:
    """The interpreter of torchrun, its module, and its own words."""
    if not command:
        return None
    if os.path.basename(command[0]) == "torchrun":
        return _Found(_interpreter(command[0]), MODULES[0], command[1:])
    if not re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        return None
    for place, word in enumerate(command[1:], 1):
        if word == "-m" and command[place + 1 : place + 2] in ([MODULES[0]], [MODULES[1]]):
            return _Found(command[0], command[place + 1], command[place + 2 :])
        if not word.startswith("-") or word in ("-m", "-c"):
            return None
    return None


def _interpreter(program: str) -> str:
    """PYTHON_EXEC, else the Python of torchrun's first line, else the one beside it."""
    chosen = os.environ.get("PYTHON_EXEC")
    if chosen:
        return chosen
    path = shutil.which(program) or program
    try:
        with open(path, "rb") as file:
            first = os.fsdecode(file.readline(4_096)).strip()
    except OSError:
        first = ""
    words = first[2:].split() if first.startswith("#!") else []
    if len(words) == 1 and os.path.basename(words[0]).startswith("python"):
        return words[0]
    beside = os.path.join(os.path.dirname(os.path.abspath(path)), "python")
    return beside if os.path.exists(beside) else "python3"


def _parser() -> _Parser:
    parser = _Parser("torchrun", add_help=False)
    for name in (*VALUES, *FLAGS):
        forms = ["--" + name, "--" + name.replace("-", "_"), LETTERS.get(name, "--" + name)]
        action = {"action": "store_true"} if name in FLAGS else {}
        parser.add_argument(*dict.fromkeys(forms), **action)  # type: ignore[arg-type]
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser
