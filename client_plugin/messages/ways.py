"""The messages of a verb on its way to the manager: run directory, environment, socket, answer."""

from __future__ import annotations

from .form import Message, Notice

# -- the manager --

NO_MANAGER_ON = Message(
    "no manager runs on {run_dir}", "start one with nodemgr serve, or name its --run-dir"
)
MANAGER_MUTE = Message(
    "the manager on {run_dir} does not answer", "look whether it runs (nodemgr doctor)"
)
TRYING_FOR = Notice("{line}; trying for {seconds:.0f} s in all (--no-wait: not at all)")
MEANWHILE = Notice("{line}; {then}")
