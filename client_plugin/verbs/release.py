"""`nodemgr release TASK`: take a lease back, or a waiting request out of the queue."""

from __future__ import annotations

from client_plugin.verbs import VERBS, kinds
from client_plugin.verbs.parser import RUN_DIR, Option, Said, Verb
from client_plugin.ways import choice
from client_plugin.ways.control import Control
from client_plugin.ways.faults import say


def run(said: Said) -> int:
    way = choice.node_or_env(said.whom())
    if isinstance(way, choice.UserWay):
        released = way.question("release", said.task)
    else:
        released = Control(said.whom().found_run_dir()).call("release", task=said.task, by=choice.user())
    say(f"{released['task']} is released")
    return 0


VERB = Verb(
    "release", VERBS["release"], run,
    (Option("task", kind=kinds.TASK, required=True), Option("--env", kind=kinds.ENV, help="As a user of this environment."), RUN_DIR),
    text="TASK is a task (t17), or a waiting request (r17). The task's processes live on; their next allocation fails with "
    "CUDA_ERROR_OUT_OF_MEMORY, and they may ask anew.\n\nAn admin may release any task, a user those of the environment.",
)  # fmt: skip
