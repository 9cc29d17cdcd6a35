"""`nodemgr release TASK`: take a lease back, or a waiting request out of the queue."""

from __future__ import annotations

from client_plugin.messages import verbs as messages
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue_actions import AS_USER, FILTERS, order
from client_plugin.verbs.presentation import cells, tables
from client_plugin.ways import choice
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import say


def run(said: Said) -> int:
    tasks = list(dict.fromkeys(said.task))
    if len(tasks) != 1 or said.all_of or said.name or said.state or said.mine:
        return order(said, tasks, "release", "is released; its processes live on, a job's end")
    way = choice.node_or_env(said.whom())
    there = way.status()["tasks"] if tasks[0].startswith("t") else ()
    rows = [row for row in there if row["id"] == tasks[0]]
    if isinstance(way, choice.UserWay):
        released = way.question("release", tasks[0])
    else:
        released = ControlConnection(said.whom().found_run_dir()).call("release", task=tasks[0])
    pids = cells.pids(rows[0], said.inside) if rows else "-"
    if rows and rows[0].get("job"):
        done = f"is released: {rows[0]['job']} is withdrawn, and its processes are ended"
        say(messages.CHANGED(subject=released["task"], done=done))
    elif pids == "-":
        say(messages.CHANGED(subject=released["task"], done="is released"))
    else:
        size = tables.size(rows[0].get("memory_bytes") or 0) or ""
        say(
            f"{released['task']} is released; process {pids} lives on and keeps {size} of GPU "
            "memory until it frees the memory or ends"
        )
    return 0


VERB = Verb(
    "release",
    VERBS["release"],
    run,
    (VerbOption("task", kind=kinds.TASK, repeat=True), *FILTERS, AS_USER, RUN_DIR),
    text="TASK is a task (t17), or a waiting request (r17). The task's processes live on; "
    "their next allocation fails with "
    "CUDA_ERROR_OUT_OF_MEMORY, and they may ask anew. A job's task takes the job along: the job is "
    "withdrawn, and its processes are ended.\n\nAn admin may release any task, "
    "a user those of the environment. A filter "
    "(--name matches the command) takes all that it matches, in one step.",
)
