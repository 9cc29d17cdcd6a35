"""Messages of a manager that starts: its directories, its store, its driver, its node."""

from __future__ import annotations

from client_plugin.messages.form import COMMAND_LINE, MANAGER, NODE, Message

LONG_SOCKET_PATH = Message(
    COMMAND_LINE,
    "{path} has {length_bytes} bytes, and the name of a UNIX socket at most {limit_bytes}",
    "choose a shorter --run-dir",
    code="usage",
)
OTHERS_DIRECTORY = Message(
    NODE,
    "{path} belongs to user {uid}",
    "name a directory of your own with --run-dir and --state-dir",
)
DIRECTORY_READ_ONLY = Message(
    NODE,
    "{path} cannot be written",
    "name a directory of your own with --run-dir and --state-dir",
)
DIRECTORY_FAILED = Message(
    NODE,
    "the directory {path} cannot be used ({error})",
    "name another with --run-dir and --state-dir",
)
RUN_DIR_TAKEN = Message(
    MANAGER,
    "another manager (pid {pid}) runs on {path}",
    "stop it first, or name another --run-dir and --state-dir",
)
STATE_DIR_TAKEN = Message(
    MANAGER,
    "another manager keeps its state in {path}",
    "stop it first, or name another --state-dir",
)
