"""`nodemgr submit --from FILE`: a job for every line, on one connection, many in one order.

Knows: how lines become orders, what is printed of each. Must not know: how a line is written
(lines), what a job asks for (submit_context). A lost order is sent again under its keys.
An id is printed after the manager has accepted the job. After the first Ctrl-C the verb still waits
for the answer to the order that it has sent, prints it, and sends no other.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from client_plugin.messages import arguments as words
from client_plugin.messages.form import notice, relayed, stated
from client_plugin.verbs.arguments import lines
from client_plugin.verbs.arguments.parser import Said, WrongValue, mistake
from client_plugin.verbs.commands.submit_context import (
    WISHES,
    SubmitContext,
    find_way,
    job_arguments,
    may_be_known,
    new_key,
    wished_variables,
    wishes_of,
)
from client_plugin.verbs.launch import programs, runner
from client_plugin.verbs.launch.known_programs import compare
from client_plugin.verbs.launch.recognition import recognised
from client_plugin.ways.choice import ASK_TIMEOUT_S
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Away, Exit, Fault, say
from client_plugin.ways.refusals import refusal
from client_plugin.ways.retry_timeout import RetryTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from client_plugin.ways.choice import UserWay

MOST_JOBS = 128
"""The most jobs in one order (nodemgr/edge/api/job_arguments.py: 256)."""
MOST_BYTES = 2**18
"""The most bytes of the jobs' own in an order; with the shared bytes it fits a sheet."""


class Sender:
    """Orders of one call, one after the other. A manager that restarts is connected to again."""

    def __init__(self, way: UserWay, retry_timeout: RetryTimeout) -> None:
        if way.socket is None:
            raise Fault(
                "many jobs at once need the UNIX socket",
                "over UDP submit one at a time",
                code=Exit.USAGE,
            )
        self._path = way.socket
        self._retry_timeout = retry_timeout
        self._talk: Optional[Conversation] = None
        self._asking = False
        self._noted: List[str] = []
        self._interrupted = self._is_cut = False
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        if self._asking and not self._interrupted:
            self._interrupted = True  # after the answer
        else:
            self._is_cut = self._asking
            raise KeyboardInterrupt

    def check(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def send(self, arguments: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Raises Fault."""
        rows: List[Dict[str, Any]] = self._retry_timeout.outlast(lambda: self._once(arguments))
        return rows

    def ask(self, verb: str, **arguments: Any) -> Any:
        """The answer to an order that changes nothing. Raises Fault.

        On a connection of its own: a late answer is nobody else's.
        """
        with Conversation(self._path, ASK_TIMEOUT_S) as talk:
            return talk.order(verb, arguments)[0]

    def _once(self, arguments: Dict[str, Any]) -> List[Dict[str, Any]]:
        self.check()
        if self._talk is None:
            self._talk = Conversation(self._path).__enter__()
        self._asking = True
        try:
            answer, _ = self._talk.order("job_submit_many", arguments)
        except Away:
            self.close()
            raise
        finally:
            self._asking = False
        note = answer.get("note")
        if note and note not in self._noted:
            self._noted.append(note)
            say(relayed(note))
        rows: List[Dict[str, Any]] = answer["jobs"]
        return rows

    def is_lost(self) -> bool:
        """Whether the answer to the order under way is lost."""
        return self._retry_timeout.lost or self._is_cut

    def close(self) -> None:
        if self._talk is not None:
            self._talk.__exit__()
            self._talk = None

    def end(self) -> None:
        self.close()
        signal.signal(signal.SIGINT, self._before)


class JobBatch:
    """The lines that wait to be sent together, and what came of all."""

    def __init__(self, said: Said, around: SubmitContext, sender: Sender) -> None:
        self._said = said
        self._defaults = wishes_of(said)
        self._around = around
        self._sender = sender
        self._environ: List[str] = []
        self._rows: List[Tuple[int, Dict[str, Any], str]] = []
        """(line, job, error): one of both."""
        self._jobs = 0
        self._size_bytes = 0
        self._last = 0
        """The last reported line."""
        self.failed = 0
        self.total = 0
        self.known = 0
        self._seen: Dict[Any, Any] = {}
        """Programs that the lines that wait have read (recognition.py)."""

    def take(self, number: int, line: bytes) -> None:
        if not line.strip() or line.lstrip().startswith(b"#"):
            return
        try:
            job, environ = self._job(line.strip())
        except (WrongValue, Fault) as wrong:
            self._rows.append((number, {}, lines.cut(str(wrong))))
            return
        size_bytes = len(json.dumps(job))
        if self._jobs and (
            environ is not self._environ
            or self._jobs == MOST_JOBS
            or self._size_bytes + size_bytes > MOST_BYTES
        ):
            self.flush()
        self._environ = environ
        self._rows.append((number, job, ""))
        self._jobs += 1
        self._size_bytes += size_bytes

    def _job(self, line: bytes) -> Tuple[Dict[str, Any], List[str]]:
        """The order's arguments, and the variables that it shares with other orders.

        Raises WrongValue, Fault.
        """
        if len(line) > lines.MAX_LINE_BYTES:
            raise WrongValue(f"is longer than {lines.MAX_LINE_BYTES} bytes")
        command, own = lines.parse(line, WISHES)
        wishes = {**self._defaults, **own}
        wished = self._around.sized(job_arguments(wishes))
        program = programs.program_of(command[0])
        environ = self._around.environ(program)
        known = None
        if may_be_known(self._said, wished):
            known = recognised(command, program, self._seen)
        if known is not None:
            wished["recognised"] = {**known, "holds": False}
        return {
            "argv": command,
            "key": new_key(),
            "variables": wished_variables(wished, wishes.get("visible_as")),
            **wished,
        }, environ

    def flush(self) -> None:
        """Sends what waits, and prints what came of it.

        Raises Fault where the manager takes none at all.
        """
        jobs = [job for _, job, _ in self._rows if job]
        self._jobs = self._size_bytes = 0
        self._seen.clear()
        known = [job["recognised"] for job in jobs if "recognised" in job]
        if not compare(self._sender.ask, known):
            for job in jobs:
                job.pop("recognised", None)
        answers = iter(self._send(jobs))
        rows, self._rows = self._rows, []
        for number, job, wrong in rows:
            self._last = number
            told = next(answers) if job else {"error": wrong}
            self.total += 1
            self.known += "earlier" in told
            if "error" in told:
                self.failed += 1
            print(
                told["job"] if "job" in told else notice(f"error: line {number}: {refusal(told)}")
            )
        sys.stdout.flush()
        self._sender.check()

    def stopped(self) -> str:
        """The lines at which it stopped, and the state of the lines behind."""
        first, last = (
            self._last + 1,
            max((number for number, _, _ in self._rows), default=self._last),
        )
        if not self._sender.is_lost():
            return stated(
                f"stopped: line {first} and those behind it were not submitted",
                "submit these again",
            )
        return stated(
            f"stopped: whether lines {first} to {last} were submitted is not known",
            "(nodemgr queue shows it); those behind were not",
        )

    def _send(self, jobs: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        if not jobs:
            return []
        around = {"cwd": self._around.cwd, "umask": self._around.umask, "environ": self._environ}
        try:
            return self._sender.send({**around, "jobs": jobs})
        except Away:
            raise
        except Fault as fault:
            if fault.code != Exit.USAGE:
                raise
            if len(jobs) == 1:
                return [{"error": fault.message}]
            half = len(jobs) // 2  # too long together
            return self._send(jobs[:half]) + self._send(jobs[half:])


def run(said: Said) -> int:
    if said.command:
        mistake(said.verb, stated("--from brings the commands", "leave COMMAND out"))
    try:
        descriptor = (
            0 if said.from_file == "-" else os.open(said.from_file, os.O_RDONLY | os.O_CLOEXEC)
        )
    except OSError as error:
        fault = words.FILE_OF_JOBS_UNREADABLE(name=said.from_file, error=error.strerror)
        raise Fault(fault) from None
    retry_timeout = RetryTimeout(0) if said.no_wait else RetryTimeout()
    way = find_way(said, retry_timeout)
    sender = Sender(way, retry_timeout)
    batch = JobBatch(said, SubmitContext(way, said), sender)
    try:
        for some in lines.read(descriptor, said.from_file):
            for number, line in some:
                batch.take(number, line)
            batch.flush()
    except (Fault, KeyboardInterrupt):
        say(batch.stopped())
        raise
    finally:
        sender.end()
        if descriptor:
            os.close(descriptor)
        if said.inside:
            runner.ensure(said.whom())
    if batch.known:
        say(
            f"{batch.known} of {batch.total} commands ran before: figures of their runs are filled "
            "in"
        )
    if batch.failed:
        say(
            f"{batch.failed} of {batch.total} lines were not submitted",
            "the output has an error in place of each id",
        )
    return Exit.FAILED if batch.failed else 0
