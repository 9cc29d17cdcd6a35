"""The messages of the users' verbs: jobs, logs, queues, and the start of a command."""

from __future__ import annotations

from .form import (
    Message,
    Notice,
    Part,
)  # fmt: skip

# -- orders to jobs and queues --

CHANGED = Notice("{subject} {done}")
RUN_BY = Part(", or: {interpreter} {name}")
RELEASED_ALIVE = Notice(
    "{task} is released; process {pids} lives on and keeps {size} of GPU memory until it frees"
    " the memory or ends",
)
RESUME_WAITS_FOR_MEMORY = Notice("{task} waits for its GPU memory: {reason}")
ERROR_OF_JOB = Message("{job}: {line}")
MORE_CHANGED = Notice("and {more} more of {count}")
IDS_AND_FILTER = Part("name ids or a filter (--name, --state, --mine, --all-of), and not both")
TWO_ENVS = Message("--env and --all-of name two environments", "leave one of them out")
PLACE_OF_MOVE = Part("name a queue (for its end) or --first (for the front of the job's own queue)")
MOVED_TO_FRONT = Notice("{job} is moved to the front of its queue")
MOVED_TO_END = Notice("{job} is moved to the end of queue {queue}")
EVERYBODY_AND_USERS = Message("--everybody together with --user or --group", "name one of them")
QUEUE_IS_SET = Notice("queue {queue} has rank {rank}{cap}{restarts}{users}")
ACCESS_CHANGED = Notice("{names} {change} access to {whose}")
QUEUE_REMOVED = Notice("queue {queue} is removed")

# -- submit, wait, history, logs --

SUBMITTED = Notice("{job} is submitted")
LINE_REFUSED = Notice("error: line {number}: {error}")
NO_JOB_HAS_ENDED = Notice("no job{of} has ended{since}")
SUBMISSION_UNKNOWN = Message("whether the job was taken is not known", "look with nodemgr queue")
NO_WORKING_DIRECTORY = Message("the working directory is gone", "change to another one")
MANY_NEED_SOCKET = Message(
    "many jobs at once need the UNIX socket", "over UDP submit one at a time"
)
FROM_AND_COMMAND = Message("--from brings the commands", "leave COMMAND out")
STOPPED_BEFORE = Message(
    "stopped: line {first} and those behind it were not submitted",
    "submit these again",
)
STOPPED_WITHIN = Message(
    "stopped: whether lines {first} to {last} were submitted is not known",
    "(nodemgr queue shows it); those behind were not",
)
LINES_NOT_SUBMITTED = Message(
    "{failed} of {total} lines were not submitted",
    "the output has an error in place of each id",
)
OUTCOME = Notice("{job}{of}: {outcome}")
JOBS_CUT = Notice(
    "only the last {count} jobs were read for these lines (--count N reads as many as N lines"
    " take)",
)
FOLLOW_AND_ATTEMPT = Message("--follow reads the present start", "leave --attempt out")
LOG_GONE = Notice("the log is gone, these are its last lines")
OUTPUT_DROPPED = Notice(
    "{size} of its output were dropped here, beyond the room that a log may take (job_log_bytes)",
)
LOG_BEGINS_ANEW = Notice("its log begins anew here")
START_ENDED_WAITING = Notice("{job}: start {attempt} has ended ({how}); waiting for the next")
START_ENDED = Notice("{job}: start {attempt} has ended ({how}); the next follows")
FOLLOWED_JOB_ENDED = Notice("{job} {state}: {how}; nodemgr history {job} has more")
ARRAY_FOLLOWED = Message("{job} is an array", "name one of its jobs ({first}, say)")
STANDING = Notice("{job}: {standing}")

# -- top --

TOP_WITHOUT_TERMINAL = Message(
    "top needs a terminal, and {name} is none",
    "nodemgr top --once prints one picture",
)
TOP_ON_DUMB_TERMINAL = Message(
    "top cannot draw on this terminal (TERM=dumb)",
    "nodemgr top --once prints one picture",
)
TOP_WITHOUT_FACES = Message(
    "top draws with the extra faces, and {name} is not installed here",
    "{remedy}; without it nodemgr top --once prints one picture",
)

# -- the start of a command --

NO_LIMITS_NOW = Notice(
    "--cpus and --host-memory do not limit this command: no manager of its node answers"
)
ABSENT_WAIT = Part("the first use of CUDA will wait for it")
ABSENT_CPU = Part("until it is back there is only the CPU")
ABSENT_ERROR = Part("until it is back each use of CUDA fails")
PROGRAM_NOT_FOUND = Message("{name}: not found", "check the path of the command")
PROGRAM_NOT_IN_PATH = Message("{name}: not found in PATH", "install it, or name its path{or_by}")
PROGRAM_NOT_EXECUTABLE = Message(
    "{name}: not executable", "name a program that you may execute{or_by}"
)
NO_INTERPRETER = Message(
    "{program}: its interpreter is not found", "install it, or correct the #! line"
)
PROGRAM_NOT_EXECUTED = Message(
    "{program}: cannot be executed ({error})", "name a program of this machine"
)
ENV_CLOSED = Message(
    "you may not look into {directory}", "ask an admin to name you in the quota of {env}"
)
GPUS_BEYOND_QUOTA = Message(
    "--gpus {gpus} is more than the quota of {env}, {limit}",
    "ask for fewer, or an admin for more",
)
GPUS_BEYOND_LOAN = Message(
    "--gpus {gpus} is more than the quota of {env}, {limit}, and the {borrow} that it may borrow",
    "ask for fewer, or an admin for more",
)
ELASTIC_WITHOUT_RANGE = Message(
    "--elastic needs a range of GPUs", "name the least and the most, e.g. --gpus 1-4"
)
CHECKPOINT_WITHOUT_ELASTIC = Message(
    "--checkpoint is of elastic tasks", "add --elastic and a range, e.g. --gpus 1-4"
)
GPUS_BEYOND_NODE = Message("--gpus {gpus} is more than this node has, {limit}", "ask for fewer")
MEMORY_BEYOND_QUOTA = Message(
    "--memory {wished} is more than {env} may use on one GPU, {allowed}",
    "ask for less, or an admin for more",
)
MEMORY_RANGE_BEYOND_QUOTA = Message(
    "--memory ends at {wished}; the memory quota of {env} is {allowed}",
    "ask for a smaller range, or an admin for more",
)
MEMORY_RANGE_BEYOND_GPU = Message(
    "--memory ends at {wished}; the largest GPU of the node has {allowed}",
    "ask for a smaller range",
)
CLASS_ABOVE_QUOTA = Message(
    "--class {wished} is above the highest class of {env}, {highest}",
    "ask for that one, or an admin for more (nodemgr quota set {env} --class)",
)
COMPUTE_BEYOND_QUOTA = Message(
    "--compute {wished}% is more than {env} may have of one GPU, {limit}%",
    "ask for less, or an admin for more (nodemgr quota set {env} --compute)",
)
LIBRARY_MISSING = Message(
    "{library} is missing, so nothing here gets a GPU by itself or is held to a quota",
    "install nodemgr again (nodemgr doctor)",
)
LIBRARY_NOT_LISTABLE = Notice(
    "{library} has a blank or colon in its path, so it cannot be preloaded: only the Python hook"
    " is active",
)
STATIC_PROGRAM = Notice(
    "{program} is statically linked: nothing can be preloaded into it, so it gets no GPU by"
    " itself; programs that it starts do",
)
MUSL_PROGRAM = Notice(
    "{program} runs on musl, into which nothing is preloaded: only the Python hook is active, and"
    " no memory quota is enforced in it",
)
FOREIGN_PROGRAM = Notice(
    "{program} is built for another kind of machine: nothing is preloaded into it, so it gets no"
    " GPU by itself",
)
PRIVILEGED_PROGRAM = Notice(
    "{program} is setuid or setgid: nothing is preloaded into it, so it gets no GPU by itself",
)

# -- the runner of a container --

VERB_OF_CONTAINERS = Message(
    "this verb is for containers",
    "on the node itself jobs are submitted by the node's own nodemgr",
)
NO_RUNNER = Message("no job can run in this container: {why}")
JOBS_WITHOUT_RUNNER = Message("jobs wait here and nothing can start them: {why}")
RUNNER_MISSING = Part(
    "{program} is not there, or this image has no glibc: use an image that has it"
)
RUNNER_ENDED = Part("{program} ends with {code}")
