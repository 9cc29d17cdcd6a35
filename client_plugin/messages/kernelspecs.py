"""The messages of `nodemgr kernel`."""

from __future__ import annotations

from .form import COMMAND_LINE, NODE, PROGRAM, RIGHTS, Message, Notice, Part

KERNEL_OF_ANOTHER = Message(
    COMMAND_LINE,
    "{directory} is a kernel that nodemgr has not written",
    "choose another --name, or remove it with jupyter kernelspec remove",
)
KERNEL_NOT_WRITTEN = Message(RIGHTS, "{directory} cannot be written ({error})", "{remedy}")
OTHER_DATA_DIR = Part(COMMAND_LINE, "name another with JUPYTER_DATA_DIR")
USER_OR_ROOT = Part(COMMAND_LINE, "add --user, or run as root")
KERNEL_DOUBTED = Notice(NODE, "warning: {doubt}")
KERNEL_WRITTEN = Notice(NODE, "kernel {name} is written to {directory}")
NO_PYTHON = Message(PROGRAM, "no python3 is in PATH", "name one with --python")
PYTHON_MUTE = Message(
    PROGRAM,
    "{python} has not answered within {seconds} s whether it has ipykernel",
    "the kernel needs it",
)
PYTHON_NOT_EXECUTED = Message(
    PROGRAM, "{python} cannot be executed ({error})", "name a Python with --python"
)
NO_PYTHON_3 = Message(PROGRAM, "{python} is no Python 3", "name one with --python")
NO_IPYKERNEL = Message(
    PROGRAM,
    "{python} has no ipykernel",
    "the kernel starts after {python} -m pip install ipykernel",
    note="The kernelspec is written all the same.",
)
NO_OWN_KERNEL = Message(
    COMMAND_LINE,
    "no kernel {name!r} was written by nodemgr",
    "(nodemgr kernel list shows those that were)",
)
KERNEL_NOT_REMOVED = Message(RIGHTS, "{directory} cannot be removed ({error})", "run as root")
KERNEL_STAYS = Message(NODE, "{directory} cannot be removed: {error}", "remove it by hand")
KERNEL_REMOVED = Notice(NODE, "kernel {name} is removed from {directory}")
NO_KERNEL_YET = Notice(COMMAND_LINE, "no kernel yet (nodemgr kernel install ENV --user)")
