"""Messages of the administrators' verbs: quota, env, setup, serve, web, events."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
)

# -- quotas and environments --

WARNING = Notice("warning: {line}")
TASK_RUNS = Notice("{task} runs: {command} ({pids})")

# -- setup --

COMMAND_FAILED = Message("{command}: {error}", "run that command by hand to see more of it")

# -- the other verbs --

PAGE_EXTRA = Message(
    "the web page (--web) needs the extra `faces`",
    "{install}",
)
