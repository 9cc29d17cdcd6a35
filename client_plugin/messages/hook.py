"""The messages of the import hook, of its adapters and of the wait in Python."""

from __future__ import annotations

from .form import Message, Notice

PART_FAILED = Message(
    "{part} failed ({kind}: {error}); the program goes on without it",
    "`nodemgr doctor` checks the client",
)
WAIT_ENDED_BY = Notice(
    "the wait for GPUs was ended by {kind}, which may not be raised: no thread can be started",
)
NO_PROGRESS = Message(
    "nodemgr_progress({done}, {total}) is no progress and is ignored",
    "pass numbers with 0 <= done <= total and total above 0",
)
NOTHING_GRANTED = Message("no GPU was granted", "`nodemgr status` shows the quota")
DRIVER_REMEMBERS = Message(
    "CUDA was already being initialised and may remember that it found no GPU",
    "start the program anew",
)
REFUSED_AND_REMEMBERED = Message(
    "{reason}; CUDA was already being initialised and may remember that it found no GPU",
    "start the program anew to try again",
)
HOOK_ALONE = Message(
    "only the Python hook is active in this process, and no memory quota holds in it, because"
    " another LD_PRELOAD has taken the place of libnodemgr.so",
    "add to the variable instead",
)
