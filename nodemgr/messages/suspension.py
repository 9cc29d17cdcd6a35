"""Messages about suspended tasks: refusals of an order, and why a suspension failed."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- orders --

BEING_RESUMED = Message("{task} is being resumed", "wait for its end", code="busy")

# -- why a suspension failed --

SHARES_MEMORY = Part(
    "the driver cannot suspend process {pid}, which shares GPU memory with another process or uses"
    " managed memory",
)
OLD_DRIVER = Part("the driver cannot suspend processes, which needs version 570 or newer")
