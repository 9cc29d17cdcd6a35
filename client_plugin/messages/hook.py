"""The messages of the import hook, of its adapters and of the wait in Python."""

from __future__ import annotations

from .form import Message

PART_FAILED = Message(
    "{part} failed ({kind}: {error}); the program goes on without it",
    "`nodemgr doctor` checks the client",
)
HOOK_ALONE = Message(
    "only the Python hook is active in this process, and no memory quota holds in it, because"
    " another LD_PRELOAD has taken the place of libnodemgr.so",
    "add to the variable instead",
)
