"""`nodemgr resume TASK`: a suspended task's GPU memory comes back, as soon as there is room."""

from __future__ import annotations

from client_plugin.messages import verbs as messages
from client_plugin.messages.form import stated
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue_actions import AS_USER
from client_plugin.verbs.commands.suspend import MEANWHILE, TIMEOUT_S, explained
from client_plugin.verbs.presentation import cells
from client_plugin.ways import choice
from client_plugin.ways.faults import say


def run(said: Said) -> int:
    way = choice.node_or_env(said.whom())
    line = stated(f"the GPU memory of {said.task} is being moved back to the GPU", MEANWHILE)
    with explained(line):
        answer = way.ask("task_resume", TIMEOUT_S, task=said.task)
    if answer["reason"] is None:
        say(messages.CHANGED(subject=answer["task"], done="is resumed"))
    else:
        say(f"{answer['task']} waits for its GPU memory: {cells.placed(answer)}")
    return 0


VERB = Verb(
    "resume",
    VERBS["resume"],
    run,
    (VerbOption("task", kind=kinds.TASK, required=True), AS_USER, RUN_DIR),
    text="The whole memory of TASK is reserved on its GPUs first. Without room the task waits for "
    "it in the queue of its environment, and `nodemgr queue` shows it (r17 for t17).\n\nAn admin "
    "may resume any task, a user those of the environment.",
)
