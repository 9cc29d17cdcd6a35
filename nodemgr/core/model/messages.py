"""The messages of the core: refusals, reasons to wait, the ends of tasks and jobs.

A reason to wait is a Part: `nodemgr queue` prints it in a column, and the waiting line ends with
it.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- reasons to wait --

NEXT_KNOWN_END = Part("next known end {clock}: {env}/{job}, time limit")
RESUME_NEEDS_ROOM = Part("{task} is suspended and needs {need} again on {gpus}, {free} free")
ABOVE_NODE = Part(
    "needs {gpus}, but the node has {fitting} in service for it ({others}): keeps no GPU, and takes"
    " its place again when enough are back",
)
HELD = Part("{why} (nodemgr queue unhold {job})")
SILENT_ON = Part(
    "{env}/{task} holds {gpus} since {clock} and is silent: it is stopped, or runs another program",
)
GPU_LOST = Part("{gpus} lost")
GPU_DRAINED = Part("{gpus} drained")
TOO_SMALL = Part("{gpus} too small, or without memory to spare")

# -- refusals of requests and submissions --

NEGATIVE_RESTARTS = Message("a number of restarts must be 0 or more", code="usage")

# -- the entries of a job's history --

WAS_REQUEUED = Part("requeued")

# -- objections to orders about jobs and queues --

JOB_BEING_ENDED = Message(
    "{job} is being ended already", "wait for its end (nodemgr wait {job})", code="refused"
)

# -- the ends of tasks, requests and jobs --

GPUS_WENT = Message(
    "{gpus} went to others while the task was stopped",
    "run it again",
)
JOINED = Part("it joined a task that has a lease")

# -- elastic tasks --

"""In the place of a request: the reason of a recall."""
