"""Orders to the suspension process and its answers: one bounded line of words each.

Knows: the two forms. Must not know: sockets, the work of an order.

    suspend t17 10000 4711:889232:1073741824 ...      order: task, lock timeout, PID:start:bytes
    resume t17 10000 4711:889232:0
    try - 0
    done t17                                          answers
    failed t17 in call 4711 cuCheckpointProcessLock CUDA_ERROR_NOT_READY
    failed t17 out container 4711 1073741824 2097152
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE_BYTES = 65_536
"""1024 processes of a ledger, each with three numbers."""
WORD = re.compile(r"[\x21-\x7e]{1,200}")


class LineError(ValueError):
    """A line has not the form."""


class Target(NamedTuple):
    """A process, and the bytes of device memory that it may have."""

    pid: int
    start_ticks: int
    memory_bytes: int


class Order(NamedTuple):
    """Suspend or resume the processes of one task; or try: load the driver, and do no more."""

    verb: str
    task_id: str
    lock_ms: int
    targets: tuple[Target, ...]

    def line(self) -> str:
        words = [":".join(map(str, target)) for target in self.targets]
        return " ".join((self.verb, self.task_id, str(self.lock_ms), *words))

    @classmethod
    def parse(cls, line: str) -> Order:
        """Raises LineError."""
        verb, task_id, *rest = [*line.split(" "), "", ""]
        numbers = [word.split(":") for word in rest[:-2]]
        if verb not in ("suspend", "resume", "try") or not WORD.fullmatch(task_id) or not numbers:
            raise LineError(f"no order: {line[:80]!r}")
        try:
            (lock_ms,), *targets = [[int(text) for text in row] for row in numbers]
            return cls(verb, task_id, lock_ms, tuple(Target(*row) for row in targets))
        except (ValueError, TypeError):
            raise LineError(f"no numbers: {line[:80]!r}") from None


class OrderEnd(NamedTuple):
    """The end of an order."""

    task_id: str
    is_out: bool = False
    """After a failure: no process has device memory."""
    kind: str = ""
    """Of a failure: `call`, `node`, `container`, `driver`; empty: it is done."""
    fields: tuple[str, ...] = ()
    """`call`: PID, function, error. `node`, `container`: PID, bytes needed, bytes free."""

    def line(self) -> str:
        if not self.kind:
            return f"done {self.task_id}"
        place = "out" if self.is_out else "in"
        fields = [re.sub(r"[^\x21-\x7e]", "_", field)[:200] or "_" for field in self.fields]
        return " ".join(("failed", self.task_id, place, self.kind, *fields))

    @classmethod
    def parse(cls, line: str) -> OrderEnd:
        """Raises LineError."""
        words = line.split(" ")
        if not all(WORD.fullmatch(word) for word in words):
            raise LineError(f"no answer: {line[:80]!r}")
        match words:
            case ["done", task_id]:
                return cls(task_id)
            case ["failed", task_id, ("in" | "out") as place, kind, *fields]:
                return cls(task_id, place == "out", kind, tuple(fields))
        raise LineError(f"no answer: {line[:80]!r}")
