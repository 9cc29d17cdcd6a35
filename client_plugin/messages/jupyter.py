"""The messages of the JupyterLab extension, which asks with the client that it finds."""

from __future__ import annotations

from .form import Message, Notice, Part

KERNEL_OVER_UDP = Message("this environment is reached over UDP", "nodemgr status shows its GPUs")
KERNEL_OUTSIDE = Message(
    "this kernel is in no environment",
    "start one that nodemgr kernel install has made",
)
NO_CLIENT = Message(
    "nodemgr is not installed in the Python of this Jupyter server ({error})",
    "install it there, and restart the server",
)
KERNEL_HOLDS = Notice("{task}: the GPUs of this kernel")
KERNEL_HOLDS_NONE = Notice("this kernel holds no GPU; it asks for GPUs when it first uses CUDA")

# -- the cell of the status bar --

CELL_WITHOUT_CLIENT = Part("GPU: no nodemgr")
CELL_WITHOUT_MANAGER = Part("GPU: no manager")
CELL_WAITING = Part("GPU waiting")
CELL_WAITING_AT = Part("GPU waiting: place {place}{total}")
CELL_NEXT = Part("its turn comes next")
