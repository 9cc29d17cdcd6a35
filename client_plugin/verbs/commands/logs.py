"""`nodemgr logs JOB`: what a job wrote, and with --follow what it writes, until it has ended."""

from __future__ import annotations

import sys
import time

from client_plugin.messages.form import stated
from client_plugin.units import format_size
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.launch import runner
from client_plugin.verbs.presentation.cells import standing
from client_plugin.verbs.presentation.tables import TableRow
from client_plugin.verbs.presentation.terminal_text import TerminalText
from client_plugin.verbs.reading.job_log import Log, open_log
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say
from client_plugin.ways.lasting import LastingWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional

    from client_plugin.ways.choice import Way

    Write = Callable[[bytes], None]

CHECK_S = 0.25
"""Between two looks at a start that has ended while the manager does not know it yet."""
STANDING_S = 1.0
"""Between two looks at a job that waits."""
LOG_PERIOD_S = 60.0
"""Between two lines about a wait, where stderr is no terminal."""
FINAL = frozenset({"done", "failed", "withdrawn"})
STATES = {"failed": "failed", "withdrawn": "was withdrawn"}


def run(said: Said) -> int:
    if said.follow and said.attempt is not None:
        mistake(said.verb, stated("--follow reads the present start", "leave --attempt out"))
    if said.follow and said.inside:
        runner.ensure(said.whom())
    way = choice.way_to(said.job, said.whom())
    text = TerminalText() if sys.stdout.isatty() and not said.raw else None
    write = _write if text is None else lambda data: _write(text.add(data).encode())
    try:
        if said.follow:
            _follow(LastingWay(way), said.job, write)
        else:
            _copy(open_log(way, said.job, said.attempt), write)
    finally:
        if text is not None:
            _write(text.end().encode())
    return 0


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _copy(log: Log, write: Write) -> None:
    if log.tail is not None:
        say("the log is gone, these are its last lines")
    while _write_next(log, write):
        pass
    log.close()


def _write_next(log: Log, write: Write, wait: bool = False) -> bool:
    """False: nothing more is there now."""
    expected = log.offset
    piece = log.read(wait)
    sys.stdout.flush()
    if piece.at != expected:
        _write(b"\n")
        if piece.at > expected:
            say(
                f"{format_size(piece.at - expected)} of its output were dropped here, beyond the "
                "room that a log may take (job_log_bytes)"
            )
        else:
            say("its log begins anew here")
    write(piece.data)
    return bool(piece.data)


def _follow(way: Way, job: str, write: Write) -> None:
    """Follows all starts of the job from the present one on, over restarts of the manager."""
    _started(way, job)
    number: Optional[int] = None  # the present one
    while True:
        log = open_log(way, job, number)
        told = _follow_one(way, job, log, write)
        log.close()
        number = _next(told, log.attempt)
        if number is None and told["state"] not in FINAL:
            how = _how(told, log.attempt)
            say(f"{job}: start {log.attempt} has ended ({how}); waiting for the next")
            number = _next(_started(way, job, after=log.attempt), log.attempt)
        elif number is not None:
            how = _how(told, log.attempt)
            say(f"{job}: start {log.attempt} has ended ({how}); the next follows")
        if number is None:
            if told["state"] != "done":
                how = _how(told, log.attempt)
                say(f"{job} {STATES[told['state']]}: {how}; nodemgr history {job} has more")
            return


def _next(told: TableRow, number: int) -> Optional[int]:
    """The first start after that one; None: there is none.

    Starts may come and end between two readings.
    """
    return min(
        (attempt["number"] for attempt in told["attempts"] if attempt["number"] > number),
        default=None,
    )


def _how(told: TableRow, number: int) -> str:
    attempt = next((attempt for attempt in told["attempts"] if attempt["number"] == number), None)
    if attempt is None:
        return "unknown"
    if attempt["signal"]:
        return f"signal {attempt['signal']}"
    return (
        f"exit code {attempt['exit_code']}"
        if attempt["exit_code"] is not None
        else attempt["why"] or "unknown"
    )


def _show(way: Way, job: str) -> TableRow:
    """The job's story."""
    rows: List[TableRow] = way.ask("job_show", job=job)["jobs"]
    if rows[0]["job"] != job:
        raise Fault(
            f"{job} is an array", f"name one of its jobs ({rows[0]['job']}, say)", code=Exit.USAGE
        )
    return rows[0]


def _started(way: Way, job: str, after: int = 0) -> TableRow:
    """When it has begun a start beyond that number, or has ended without."""
    told_last, next_s = "", 0.0
    while True:
        told = _show(way, job)
        if told["state"] in FINAL or any(attempt["number"] > after for attempt in told["attempts"]):
            return told
        line = standing(told)
        if line != told_last and (sys.stderr.isatty() or time.monotonic() >= next_s):
            told_last, next_s = line, time.monotonic() + LOG_PERIOD_S
            say(f"{job}: {line}")
        time.sleep(STANDING_S)


def _follow_one(way: Way, job: str, log: Log, write: Write) -> TableRow:
    """Follows one start until it has ended and its output is copied; returns the job's story."""
    while True:
        if _write_next(log, write, wait=True):
            continue
        told = _show(way, job)
        attempt = next(
            (attempt for attempt in told["attempts"] if attempt["number"] == log.attempt), None
        )
        if told["state"] in FINAL or attempt is None or attempt["ended"] is not None:
            while _write_next(log, write):  # output between the last read and the job's end
                pass
            return told
        time.sleep(CHECK_S)


VERB = Verb(
    "logs", VERBS["logs"], run,
    (
        VerbOption("job", kind=kinds.JOB_OR_ENDED, required=True),
        VerbOption("--follow", "-f",
                   help="Go on with new output, over restarts, until the job has ended."),
        VerbOption("--attempt", kind=kinds.count(1),
                   help="The output of an earlier start; 1 is the first."),
        VerbOption("--raw", help="All bytes as they are, also those that steer the terminal."),
        VerbOption("--env", kind=kinds.ENV, help="As a user of this environment."),
        RUN_DIR,
    ),
    text=(
        "Shows the output of JOB on stdout and stderr, of its last start. Of an "
        "array, name one job: j12.3. On a terminal its colours stay, and every other control "
        "character is written out (\\x1b); a pipe gets all bytes as they are."
        ),
)  # fmt: skip
