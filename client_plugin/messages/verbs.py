"""The messages of the users' verbs: jobs, logs, queues, and the start of a command."""

from __future__ import annotations

from .form import (
    Message,
    Notice,
    Part,
)  # fmt: skip

# -- orders to jobs and queues --

CHANGED = Notice("{subject} {done}")

# -- submit, wait, history, logs --

SUBMISSION_UNKNOWN = Message("whether the job was taken is not known", "look with nodemgr queue")
NO_WORKING_DIRECTORY = Message("the working directory is gone", "change to another one")

# -- the start of a command --

ABSENT_WAIT = Part("the first use of CUDA will wait for it")
LIBRARY_MISSING = Message(
    "{library} is missing, so nothing here gets a GPU by itself or is held to a quota",
    "install nodemgr again (nodemgr doctor)",
)
