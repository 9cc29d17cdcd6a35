"""The reasons why an attempt of a job did not begin, or was lost: parts of the line about the job.

The supervisor's own reasons are in client_plugin/messages/attempts.py.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    CONTAINER,
    JOB,
    MANAGER,
    NODE,
    ORDER,
    RIGHTS,
    SETTINGS,
    Message,
    Part,
)

NEVER_BEGAN = Part(NODE, "lost: it was never begun")
SUPERVISOR_KILLED = Part(NODE, "its supervisor was killed; what was left of it was ended")
SUPERVISOR_ENDED = Part(NODE, "its supervisor ended before it began")
NO_RUNNER_THERE = Part(CONTAINER, "no process in its container could begin it")
CONTAINER_STOPPED = Part(
    CONTAINER,
    "its container was stopped, or its supervisor there was killed; what was left of it was ended",
)
NODE_WENT_DOWN = Part(NODE, "the node went down while it ran")
OTHERS_LEFT = Part(RIGHTS, "{why}, except processes that are not ours to end: {count}")
NOT_OF_THIS_USER = Part(
    RIGHTS,
    "this manager belongs to uid {uid} and starts its own user's jobs alone: ask an admin for the"
    " node's own",
)
FILES_NOT_WRITTEN = Part(NODE, "its files cannot be written to {directory}: {error}")
COULD_NOT_START = Part(MANAGER, "could not be started: {error}")
COULD_NOT_BEGIN = Part(CONTAINER, "it could not be begun")
REPORT_NOT_WRITTEN = Part(NODE, "the disk does not take this report now")
END_NOT_WRITTEN = Part(NODE, "the disk did not take how it ended")
NOTHING_KNOWN = Part(NODE, "nothing is known of it any more")
RUNNER_NOT_NEEDED = Part(JOB, "no job of this place is left")
NUL_IN_ORDER = Part(
    ORDER, "its command, directory or environment has a NUL in it, or there is no command"
)
LONG_COMMAND_OF_JOB = Part(
    ORDER, "its command and environment have {size_bytes} bytes, at most {limit_bytes} are taken"
)
LOG_HELD_BY_OWNER = Part(CONTAINER, "its owner keeps it from being read")
OUTPUT_WAS_LARGE = Message(
    SETTINGS,
    "the output was dropped: it took more than twice the {limit} bytes of job_log_bytes",
    "print less, or an administrator raises it",
)
COMMAND_UNREADABLE = Part(NODE, "its command cannot be read from the store: {error}")
COMMAND_GONE = Part(NODE, "its command is not in the store any more: submit it again")
MANAGER_ENDED_FIRST = Part(MANAGER, "the manager ended before it was begun")
END_FORGOTTEN = Part(SETTINGS, "the history does not reach back to its end")
