"""The verbs of users: `nodemgr` inside a container, and the same verbs of the node's own `nodemgr`.

One module a verb, imported when it is called. Standard library only, Python 3.8 and later, nothing
of `nodemgr`: an administrator's verbs are the node's (nodemgr/cli). A verb is a table of options
(parser) and a function; kinds, tables and units serve several of them.
"""

from __future__ import annotations

import errno
import os
import sys

from client_plugin.ways import ctrl_c
from client_plugin.ways.faults import Exit, Fault, say
from client_plugin.ways.retry_timeout import through_restart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List

    from client_plugin.verbs.arguments.parser import Verb

VERBS = {
    "run": "Run a command in an environment of this node.",
    "submit": "Have a command run in an environment when its turn comes.",
    "predict": "Predict the memory and the time of a training, without a GPU.",
    "queue": "Show the requests and jobs that wait or run; change them.",
    "logs": "Show a job's output, and with --follow new output.",
    "wait": "Wait until jobs have ended, and return their exit code.",
    "history": "Show the jobs that have ended, or all about one job.",
    "report": "Show GPU hours, waits and jobs of each environment.",
    "status": "Show GPUs, environments, tasks and the queue.",
    "top": "Show GPUs, tasks and the queue live, and change them by keys.",
    "release": "Take a task's GPUs back, or a waiting request out of the queue.",
    "suspend": "Move a task's GPU memory to host memory, and free its room on the GPU.",
    "resume": "Bring a suspended task's GPU memory back.",
    "keep": "Keep an idle task's GPU memory on its GPUs for a time.",
    "kernel": "Make Jupyter kernels that run in an environment.",
}
"""Verb -> its line in the help. The verb is also the module's name in commands; it has a VERB."""
UNDER_QUEUE = {
    "position": "Show the place of JOB, and why it waits.",
    "withdraw": "Take jobs (or waiting requests, r17) out of their queue, or end those that run.",
    "hold": "Take jobs out of their queue until they are unheld.",
    "unhold": "Put held jobs at the end of their queue, or paused ones back at their places.",
    "move": "Put JOB at the end of another queue, or at the front of its own.",
    "requeue": (
        "Run jobs again, also ended ones; a running job is ended first (by an "
        "admin's order it keeps its place)."
    ),
    "create": "Make a queue, or change it (for admins).",
    "rm": "Remove an empty queue (for admins).",
}
INSIDE = {
    **{verb: line for verb, line in VERBS.items() if verb not in ("run", "kernel")},
    "doctor": "Check the client in this container; a failed check names its remedy.",
}
"""Those of a container, where commands and kernels are in the environment without these two."""
ON_THE_NODE = (
    "allocations",
    "completion",
    "demo",
    "env",
    "events",
    "kernel",
    "quota",
    "run",
    "serve",
    "setup",
)

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of an output that takes no more bytes.

An error of a file that a verb opened has the file's name beside it.
"""


def find(name: str) -> Verb:
    """A verb of VERBS or INSIDE."""
    module = f"client_plugin.verbs.commands.{name}"
    __import__(module)
    verb: Verb = sys.modules[module].VERB
    return verb


def main(words: List[str], inside: bool = False) -> int:
    """Run the verb that `words` begin with; returns the exit code."""
    return guarded(lambda: _inside(words) if inside else _said(words, inside))


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`, which may print.

    A user's mistake ends in one line, never in a traceback.
    """
    try:
        if sys.stdout is None:  # the starter has closed it
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for good)
        code = work()
        sys.stdout.flush()
        return code
    except Fault as fault:
        say(fault.message)
        return fault.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()
        return Exit.BROKEN_PIPE
    except OSError as fault:
        if fault.errno not in NOT_WRITTEN or fault.filename is not None:
            raise
        say(
            f"the output cannot be written: {fault.strerror}",
            "free space there, or write it elsewhere",
        )
        give_up_stdout()
        return Exit.FAILED


def give_up_stdout() -> None:
    """Python would complain once more at exit about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(words: List[str], inside: bool) -> int:
    from client_plugin.verbs.arguments import parser

    try:
        said = parser.parse(find(words[0]), words[1:], inside)
    except parser.HelpWanted as wanted:
        print(parser.help_of(wanted.verb))
        return 0
    ctrl_c.interrupt()
    return through_restart(lambda: said.verb.run(said), said.no_wait)


def _inside(words: List[str]) -> int:
    """The main program in a container, with the list of its verbs."""
    if words and words[0] in INSIDE:
        return _said(words, True)
    if words and words[0] in ON_THE_NODE:
        known = ", ".join(INSIDE)
        raise Fault(
            f"{words[0]} is a verb of the node's own nodemgr",
            f"in a container there are {known}",
            code=Exit.USAGE,
        )
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, INSIDE)) + 2
        lines = [
            "Usage: nodemgr VERB [OPTIONS] ...",
            "",
            "Verbs:",
            *(f"  {verb:{width}}{line}" for verb, line in INSIDE.items()),
        ]
        (sys.stdout if words else sys.stderr).write("\n".join(lines) + "\n")
        return 0 if words else Exit.USAGE
    from client_plugin.messages import arguments as messages
    from client_plugin.ways.nearest import did_you_mean

    line = messages.NO_SUCH_COMMAND(word=words[0], meant=did_you_mean(words[0], INSIDE))
    raise Fault(messages.SEE_HELP(line=line, path="nodemgr"), code=Exit.USAGE)
