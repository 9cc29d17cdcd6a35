"""Messages of `nodemgr demo`: its headlines, what each step found, and why a step is missed.

A part stands in the line about the step that did not happen.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Part,
)

# -- why a step is missed --

PID_NOT_GRANTED = Part("pid {pid} is not in the grant of {task}")
