"""The messages of the picture of `nodemgr top`, which prints a refusal as a sentence."""

from __future__ import annotations

from .form import Message, Notice

NOTHING_CHANGED = Notice("nothing was changed")
GPUS_NOT_SORTED = Notice("GPUs stand in the order of their indices")
REQUEST_HOLDS_NONE = Message("{id} holds no GPU yet", "w withdraws it")
TASK_HOLDS_NONE = Message("{id} holds no GPU", "w ends it")
NO_JOB_TO_WITHDRAW = Message("{id} is no job", "r takes its GPUs back")
NO_JOB_TO_HOLD = Message("{id} is no job", "only jobs can be held")
NO_JOB_WITH_LOG = Message("{id} is no job", "only jobs have a log here")
LOG_OF_ARRAY = Message(
    "{id} has a log for each of its jobs", "e shows each job of the array on its own line"
)
CHOOSE_FIRST = Message("no entry is chosen", "choose a task or an entry of the queue first (Tab)")
PICTURE_IS_OLD = Message(
    "no manager answers", "the picture is of {clock}, and goes on when one does"
)
RELEASED = Notice("{subject} is released")
WITHDRAWN_FROM_TOP = Notice("{subject} is withdrawn")
HELD_FROM_TOP = Notice("{subject} is held")
WAITS_AGAIN = Notice("{subject} waits again")
