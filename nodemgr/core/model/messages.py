"""The messages of the core: refusals, the ends of tasks and jobs.

A reason to wait is made at its place (scheduler/reasons.py), of clauses.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

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
