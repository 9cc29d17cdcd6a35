"""The messages of the JupyterLab extension, which asks with the client that it finds."""

from __future__ import annotations

from .form import Message, Part

KERNEL_OUTSIDE = Message(
    "this kernel is in no environment",
    "start one that nodemgr kernel install has made",
)
NO_CLIENT = Message(
    "nodemgr is not installed in the Python of this Jupyter server ({error})",
    "install it there, and restart the server",
)

# -- the cell of the status bar --

CELL_WITHOUT_CLIENT = Part("GPU: no nodemgr")
