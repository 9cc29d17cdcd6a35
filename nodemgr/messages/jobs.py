"""Messages of orders about jobs and queues, and of the places where jobs run."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- which jobs --

NOT_STARTED = Message(
    "{job} has not started yet, and has no log",
    "`nodemgr queue position {job}` says why",
    code="refused",
)
# -- where a job runs --

RUNNER_ON_NODE = Message(
    "on the node itself jobs are started by the node's own launcher",
    "start no runner there",
    code="refused",
)

# -- arguments of a job: what WRONG_ARGUMENT says of them --

NOT_JOB = Part("is no job: j12, or j12.3 of an array")
NOT_CURSOR = Part("is no place in the list: send the end that the last page returned")
MUST_BE_NUMBERS = Part("must be a list of at most {limit} numbers")

# -- what a runner is answered, and why an attempt could not start --

NO_ATTEMPT = Message(
    "no such attempt is to start here", "the runner takes the next one", code="refused"
)
