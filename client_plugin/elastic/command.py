"""The command line that starts a leader, and its reader.

Standard library only. Must not know: what a leader does.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from . import torchrun

_HERE = os.path.dirname(os.path.abspath(__file__))


def leader_command(
    command: List[str],
    *,
    minimum: int,
    maximum: int,
    memory: Optional[str] = None,
    compute: Optional[str] = None,
    checkpoint: Optional[str] = None,
    python: Optional[str] = None,
) -> List[str]:
    """The words that run `command` as the workers of an elastic task.

    `python`: the interpreter of the leader; by default that of this process.
    """
    words = [python or sys.executable, "-I", os.path.join(_HERE, "__main__.py")]
    words += ["--gpus", f"{minimum}-{maximum}"]
    for option, value in (
        ("--memory", memory),
        ("--compute", compute),
        ("--checkpoint", checkpoint),
    ):
        words += [] if value is None else [option, value]
    return [*words, "--", *command]


class ElasticTask:
    """The task of a leader: its command, and the GPUs that it asks for."""

    def __init__(self, words: List[str]) -> None:
        """Raises BadTorchrun."""
        parser = argparse.ArgumentParser("nodemgr-elastic", add_help=False, allow_abbrev=False)
        parser.add_argument("--gpus", default="1-1")
        parser.add_argument("--memory")
        parser.add_argument("--compute")
        parser.add_argument("--checkpoint")
        parser.add_argument("command", nargs="*")
        parsed = parser.parse_args(words)
        least, _, most = parsed.gpus.partition("-")
        self.minimum = int(least)
        self.maximum = int(most or least)
        self.memory: Optional[str] = parsed.memory
        self.compute: Optional[str] = parsed.compute
        self.checkpoint: Optional[str] = parsed.checkpoint
        self.command: List[str] = parsed.command
        """As the user wrote it."""
        found = torchrun.replaced(self.command)
        self.script = self.command if found is None else found.command
        """The command of each worker."""
        self.unused: Optional[List[str]] = None if found is None else found.unused
        """Options of torchrun that have no meaning; None: the command is not torchrun."""
