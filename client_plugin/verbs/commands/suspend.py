"""`nodemgr suspend TASK`: a task's GPU memory goes to host memory, and its room is free."""

from __future__ import annotations

from client_plugin.messages import verbs as messages
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue_actions import AS_USER
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TIMEOUT_S = 600.0
"""Of the answer: a GPU's memory has to cross the bus, and orders are carried out in turn."""


def run(said: Said) -> int:
    answer = choice.node_or_env(said.whom()).ask("task_suspend", TIMEOUT_S, task=said.task)
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
