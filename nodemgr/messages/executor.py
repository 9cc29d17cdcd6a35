"""The reasons why an attempt of a job did not begin, or was lost: parts of the line about the job.

The supervisor's own reasons are in client_plugin/messages/attempts.py.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

NEVER_BEGAN = Part("lost: it was never begun")
SUPERVISOR_KILLED = Part("its supervisor was killed; what was left of it was ended")
SUPERVISOR_ENDED = Part("its supervisor ended before it began")
NO_RUNNER_THERE = Part("no process in its container could begin it")
CONTAINER_STOPPED = Part(
    "its container was stopped, or its supervisor there was killed; what was left of it was ended",
)
NODE_WENT_DOWN = Part("the node went down while it ran")
OTHERS_LEFT = Part("{why}, except processes that are not ours to end: {count}")
NOT_OF_THIS_USER = Part(
    "this manager belongs to uid {uid} and starts its own user's jobs alone: ask an admin for the"
    " node's own",
)
FILES_NOT_WRITTEN = Part("its files cannot be written to {directory}: {error}")
COULD_NOT_START = Part("could not be started: {error}")
COULD_NOT_BEGIN = Part("it could not be begun")
REPORT_NOT_WRITTEN = Part("the disk does not take this report now")
END_NOT_WRITTEN = Part("the disk did not take how it ended")
NOTHING_KNOWN = Part("nothing is known of it any more")
RUNNER_NOT_NEEDED = Part("no job of this place is left")
NUL_IN_ORDER = Part("its command, directory or environment has a NUL in it, or there is no command")
LONG_COMMAND_OF_JOB = Part(
    "its command and environment have {size_bytes} bytes, at most {limit_bytes} are taken"
)
LOG_HELD_BY_OWNER = Part("its owner keeps it from being read")
OUTPUT_WAS_LARGE = Message(
    "the output was dropped: it took more than twice the {limit} bytes of job_log_bytes",
    "print less, or an administrator raises it",
)
COMMAND_UNREADABLE = Part("its command cannot be read from the store: {error}")
COMMAND_GONE = Part("its command is not in the store any more: submit it again")
MANAGER_ENDED_FIRST = Part("the manager ended before it was begun")
END_FORGOTTEN = Part("the history does not reach back to its end")
