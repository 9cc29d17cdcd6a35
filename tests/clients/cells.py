"""An interpreter that runs cells: programs/cells.py, as tests drive it.

Must not know: what the cells do.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.programs import Program

CELLS = Path(__file__).with_name("programs") / "cells.py"


class Cells:
    """An interpreter in an env that runs cells and lives on when one fails."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pid = program.pid

    def start(self, source: str) -> None:
        assert self.program.process.stdin is not None
        self.program.process.stdin.write(json.dumps(source) + "\n")
        self.program.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        return self.program.line()

    def run(self, source: str) -> Any:
        """The value of the cell's last line."""
        self.start(source)
        answer = self.answer()
        assert "value" in answer, answer
        return answer["value"]

    def fail(self, source: str) -> tuple[str, str]:
        """The class and the text of what the cell raises."""
        self.start(source)
        answer = self.answer()
        assert "error" in answer, answer
        return answer["error"], answer["text"]

    @contextlib.contextmanager
    def fork(self) -> Iterator[int]:
        """Cells within run in a child of the interpreter as it is now; its pid."""
        pid = self.run("child = os.fork()\nif child: os.waitpid(child, 0)\nos.getpid()")
        try:
            yield pid
        finally:
            self.start("os._exit(0)")
            self.answer()

    def end(self) -> str:
        """Its stderr, after a good end."""
        code, stderr = self.program.end()
        assert code == 0, stderr
        return stderr
