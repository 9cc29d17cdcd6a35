"""Messages of a manager that starts: its directories, its store, its driver, its node."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- the store --

STORE_UNUSABLE = Message(
    "{path}: {why}; the manager does not start on it, and leaves it as it is",
    "free the disk or put a backup in its place, or move it and its -wal and -shm away and take"
    " its quotas over (nodemgr quota load FILE)",
)
STORE_FAULT = Part("{path}: {error}")

# -- the container that is not started: gate_hook.py --

NOT_STARTED_CONTAINER = Message(
    "the container is not started: {why}",
)

# -- reasons of the store --

STORE_LOCKED = Part("another program holds the database locked")
