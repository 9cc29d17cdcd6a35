"""`nodemgr keep TASK --for 2h`: no idle policy takes the task's GPU memory for this time."""

from __future__ import annotations

from client_plugin.messages import verbs as messages
from client_plugin.units import format_duration
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue_actions import AS_USER
from client_plugin.ways import choice
from client_plugin.ways.faults import say


def run(said: Said) -> int:
    way = choice.node_or_env(said.whom())
    answer = way.ask("task_keep", task=said.task, for_ms=said.for_ms)
    done = f"keeps its GPU memory for {format_duration(answer['for_ms'])}, also while it is idle"
    say(messages.CHANGED(subject=answer["task"], done=done))
    return 0


VERB = Verb(
    "keep",
    VERBS["keep"],
    run,
    (
        VerbOption("task", kind=kinds.TASK, required=True),
        VerbOption("--for", key="for_ms", kind=kinds.KEEPING, required=True, help="From now on."),
        AS_USER,
        RUN_DIR,
    ),
    text="While another task waits, the GPU memory of an idle task may go to host memory, or its "
    "GPUs are taken back, as the quota says (quota set --idle --when-idle). A use of the GPU "
    "prevents it, too.\n\nA user may keep the tasks of the environment, up to the limit of the "
    "quota (--max-keep); an admin any task.",
)
