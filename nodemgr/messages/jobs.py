"""Messages of orders about jobs and queues, and of the places where jobs run."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- the jobs of a cluster's head --

NOT_ASSIGNMENT = Part("must be a head's name, and for a key HEAD/GENERATION/JOB/ATTEMPT")
MUST_BE_ASSIGNMENTS = Part("must be a list of at most {limit} keys")
ASSIGNMENT_GONE = Message(
    "{key} has ended here, and its head has acknowledged that",
    "nothing is to be done",
    code="refused",
)
ROOTS_ORDER = Message(
    "a job that runs as another user is root's to assign, on this node",
    "submit it as its user (nodemgr submit)",
    code="refused",
)
OTHER_USER = Message(
    "uid {uid} is {user} at the head and {name} on this node",
    "give the user the same number on each node",
    code="refused",
)

# -- which jobs --

NO_JOB = Message(
    "there is no job {job!r}",
    "`nodemgr queue` shows what waits, `nodemgr history` what has ended",
    code="not_found",
)
NO_RECORD = Message(
    "no task {task} is recorded",
    "`nodemgr status` shows the tasks that run, `nodemgr allocations` those that have ended",
    code="not_found",
)
ENV_HAS_NO_JOB = Message(
    "{env} has no job {job!r}",
    "`nodemgr queue` shows what waits, `nodemgr history` what has ended",
    code="not_found",
)
NO_REQUEST = Message(
    "no request {request!r} waits here",
    "`nodemgr status` shows requests, and the tasks of those that were granted",
    code="not_found",
)
JOB_ENDED = Message(
    "{job} has ended ({state})",
    "run it again with `nodemgr queue requeue {again}`",
    code="refused",
)
JOB_ENDED_LONG_AGO = Message(
    "{job} has ended ({state})", "to run it again, submit it again", code="refused"
)
ARRAY_ENDED = Message(
    "{job} is an array that has ended",
    "name the element that is to run again ({element})",
    code="refused",
)
JOB_TOO_OLD = Message(
    "{job} ended so long ago that its command and variables are not kept",
    "submit it again ({command})",
    code="refused",
)
IS_ARRAY = Message(
    "{job} is an array",
    "name one of its elements, for example {element}",
    code="usage",
)
NOT_STARTED = Message(
    "{job} has not started yet, and has no log",
    "`nodemgr queue position {job}` says why",
    code="refused",
)
NO_LOG = Message(
    "{job} has no log of a start {attempt}",
    "`nodemgr history {job}` lists its starts",
    code="not_found",
)
IDS_OR_FILTER = Message(
    "this order takes ids or a filter, and not both",
    "name ids, or --name, --state, --mine or --all-of",
    code="usage",
)
NO_SPEAKER = Message(
    "this connection does not identify your user",
    "name the user instead of --mine",
    code="usage",
)
# -- queues --

QUEUE_OR_FIRST = Message(
    "the new place of the job is missing, or given twice",
    "name a queue (for its end) or --first (for the front of the job's own queue)",
    code="usage",
)
FRONT_OF_QUEUE = Message(
    "the front of a queue is for administrators: root, the manager's user, the group nodemgr",
    "ask one of them, or name a queue",
    code="refused",
)
QUEUE_IS_NEW = Message(
    "queue {queue} is new and has no rank",
    "name its rank (--rank N; high has 300, normal 200, low 100)",
    code="usage",
)

# -- where a job runs --

OTHER_USERS_JOBS = Message(
    "this manager runs as {user} and can run that user's jobs alone",
    "submit as {user}, or ask for a manager that runs as root",
    code="refused",
)
SUBMIT_OVER_UDP = Message(
    "over UDP the user of a job is not known",
    "submit it on the node or in a container of the node",
    code="refused",
)
SOCKET_OF_CONTAINERS = Message(
    "this socket is for containers",
    "on the node itself, submit without NODEMGR_ENV_DIR",
    code="refused",
)
OTHER_SANDBOX = Message(
    "a job of this sandbox would run outside of it",
    "submit on the node itself, or in a container that was started with its environment's device",
    code="refused",
)
SUBMITTER_ENDED = Message(
    "the process that submitted the job has ended", "submit it again", code="refused"
)
RUNNER_ON_NODE = Message(
    "on the node itself jobs are started by the node's own launcher",
    "start no runner there",
    code="refused",
)
OTHER_RUNNER = Message(
    "jobs are started here by another runner already",
    "start no second one",
    code="refused",
)
OLD_RUNNER = Message(
    "the client of this container is older than the manager, and starts no jobs for it",
    "start the container anew",
    code="refused",
)
NO_REPORT = Message(
    "this is no report of a job's begin or end", "the client sends another", code="refused"
)
RUNNER_OF_OTHER_PLACE = Message(
    "this runner is another place's already",
    "start one in each container",
    code="refused",
)
NO_RUNNERS = Message(
    "this manager starts no jobs in containers",
    "submit the job on the node itself",
    code="refused",
)

# -- arguments of a job: what WRONG_ARGUMENT says of them --

NOT_JOB = Part("is no job: j12, or j12.3 of an array")
NOT_TASK = Part("is no task: t17, as nodemgr status shows it")
NOT_WAITER = Part("is neither a job (j12) nor a waiting request (r17)")
NOT_ORDERED = Part("is no job (j12), waiting request (r17) or lease (t17)")
BAD_KEY = Part("must be 16 to 64 hexadecimal digits of the submitter's own choice")
NOT_QUEUE_NAME = Part("is no name of a queue: {form}")
NOT_CURSOR = Part("is no place in the list: send the end that the last page returned")
MUST_BE_JOBS = Part("must be a list of at most {limit} jobs")
MUST_BE_SUBMISSIONS = Part("must be a list of 1 to {limit} jobs")
MUST_BE_IDS = Part("must be a list of at most {limit} ids")
YIELDS_SOONER = Part(
    "where a latency-sensitive task needs its GPU, the job has {most} after its --signal",
)
MUST_BE_SIGNAL = Part("must be a signal ({names}) and a time in ms")
MUST_BE_NUMBERS = Part("must be a list of at most {limit} numbers")
MUST_BE_SHORT = Part("must be a text of at most {limit} characters on one line")
HAS_NUL = Part("must be texts without NUL")
NOT_ENCODABLE = Part("has characters that this system cannot encode: leave them out")
LONG_STRING = Part("holds one of {size_bytes} bytes: the system takes at most {limit_bytes}")
MUST_BE_TEXTS = Part("must be a list of at most {limit} texts")
LONG_STRINGS = Part("are more than {limit_bytes} bytes together: send fewer (env -i)")
NO_COMMAND = Part("names no command: name one after --")
MUST_BE_VARIABLES = Part("must be a list of NAME=value")
MUST_BE_ABSOLUTE = Part("must be an absolute path")

# -- what a runner is answered, and why an attempt could not start --

NO_ATTEMPT = Message(
    "no such attempt is to start here", "the runner takes the next one", code="refused"
)
ATTEMPT_TAKEN = Message(
    "another process has started this attempt, or it is over",
    "the runner takes the next one",
    code="refused",
)
OTHER_GROUP = Message(
    "the job was submitted with group {job_group}, but the runner of its container was started"
    " with group {runner_group}",
    "submit it again with the group of the container",
    code="refused",
)
FILES_UNREADABLE = Message(
    "the files of the job cannot be opened ({error})",
    "see `nodemgr doctor` and the manager's log",
    code="refused",
)
