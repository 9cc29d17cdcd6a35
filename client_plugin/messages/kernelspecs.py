"""The messages of `nodemgr kernel`."""

from __future__ import annotations

from .form import Message, Notice, Part

KERNEL_OF_ANOTHER = Message(
    "{directory} is a kernel that nodemgr has not written",
    "choose another --name, or remove it with jupyter kernelspec remove",
)
KERNEL_NOT_WRITTEN = Message("{directory} cannot be written ({error})", "{remedy}")
OTHER_DATA_DIR = Part("name another with JUPYTER_DATA_DIR")
USER_OR_ROOT = Part("add --user, or run as root")
KERNEL_DOUBTED = Notice("warning: {doubt}")
KERNEL_WRITTEN = Notice("kernel {name} is written to {directory}")
NO_PYTHON = Message("no python3 is in PATH", "name one with --python")
PYTHON_MUTE = Message(
    "{python} has not answered within {seconds} s whether it has ipykernel",
    "the kernel needs it",
)
PYTHON_NOT_EXECUTED = Message(
    "{python} cannot be executed ({error})", "name a Python with --python"
)
NO_PYTHON_3 = Message("{python} is no Python 3", "name one with --python")
NO_IPYKERNEL = Message(
    "{python} has no ipykernel",
    "the kernel starts after {python} -m pip install ipykernel",
)
NO_OWN_KERNEL = Message(
    "no kernel {name!r} was written by nodemgr",
    "(nodemgr kernel list shows those that were)",
)
KERNEL_NOT_REMOVED = Message("{directory} cannot be removed ({error})", "run as root")
KERNEL_STAYS = Message("{directory} cannot be removed: {error}", "remove it by hand")
KERNEL_REMOVED = Notice("kernel {name} is removed from {directory}")
NO_KERNEL_YET = Notice("no kernel yet (nodemgr kernel install ENV --user)")
