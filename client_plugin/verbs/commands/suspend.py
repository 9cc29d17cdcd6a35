"""`nodemgr suspend TASK`: a task's GPU memory goes to host memory, and its room is free."""

from __future__ import annotations

import contextlib
import sys
import threading

from client_plugin.messages import verbs as messages
from client_plugin.messages.form import stated
from client_plugin.units import format_size
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue_actions import AS_USER
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator


TIMEOUT_S = 600.0
"""Of the answer: a GPU's memory has to cross the bus, and orders are carried out in turn."""

QUIET_S = 2.0
"""A person at a terminal waits so long without a line."""
MEANWHILE = "`nodemgr status` in another terminal shows its state meanwhile"


@contextlib.contextmanager
def explained(line: str) -> Iterator[None]:
    """Says the line at a terminal if what is done here takes long."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(QUIET_S, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _moves(way: choice.Way, task: str) -> str:
    """With the memory that the task has, where that is known."""
    rows = way.status()["tasks"] if sys.stderr.isatty() else []
    size = next((row["memory_bytes"] for row in rows if row["id"] == task), None)
    amount = "" if size is None else f"{format_size(size)} of "
    return stated(f"{amount}GPU memory of {task} is being moved to host memory", MEANWHILE)


def run(said: Said) -> int:
    way = choice.node_or_env(said.whom())
    with explained(_moves(way, said.task)):
        answer = way.ask("task_suspend", TIMEOUT_S, task=said.task)
    say(messages.CHANGED(subject=answer["task"], done="is suspended"))
    return 0


VERB = Verb(
    "suspend",
    VERBS["suspend"],
    run,
    (VerbOption("task", kind=kinds.TASK, required=True), AS_USER, RUN_DIR),
    text="The processes of TASK live on, and lose nothing: their next use of the GPU waits until "
    "`nodemgr resume TASK` has brought the memory back. The task keeps its GPUs in the quota of "
    "its environment. It needs NVIDIA driver 570 or newer, and as much host memory.\n\nAn admin "
    "may suspend any task, a user those of the environment. Processes that share GPU memory or "
    "use managed memory cannot be suspended: they go on, and one line names them.",
)
