"""A stand-in for Slurm's commands, in a folder whose `bin` goes first on PATH."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("slurm_program.py")
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")


class SlurmStandIn:
    def __init__(self, path: Path, *nodes: str) -> None:
        self.path = path
        self._forgotten: list[dict[str, Any]] = []
        (path / "bin").mkdir(parents=True)
        for name, text in (("nodes", " ".join(nodes)), ("next", "1"), ("fails", ""), ("site", "")):
            (path / name).write_text(text)
        for command in COMMANDS:
            words = shlex.join([sys.executable, str(PROGRAM), str(path), command])
            script = path / "bin" / command
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o755)

    @property
    def search_path(self) -> str:
        return f"{self.path / 'bin'}:{os.environ['PATH']}"

    def fails(self, **lines: str) -> None:
        """From now on these commands fail with a line each, and the others do not."""
        (self.path / "fails").write_text("".join(f"{c} {line}\n" for c, line in lines.items()))

    def site(self, text: str) -> None:
        (self.path / "site").write_text(text)

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.path.glob("job-*"))]

    def forget(self) -> None:
        """As a slurmctld without its state: what runs, runs on; ids are given again."""
        self._forgotten += self.jobs()
        for file in self.path.glob("job-*"):
            file.unlink()
        (self.path / "next").write_text("1")

    def close(self) -> None:
        """Ends the pilots that are left, and not what they started."""
        for job in (*self.jobs(), *self._forgotten):
            if job["pid"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job["pid"], signal.SIGKILL)
