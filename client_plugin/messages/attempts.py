"""The messages about one attempt of a batch job, of which csrc/build.py makes csrc/jobs/messages.h.

nodemgr-supervisor and nodemgr-runner use them. A field is %s in C, `{name:d}` is %lld, and
`{name:.150}` is %.150s; the C call has its arguments in the order of the fields.

A cause is a part: it stands in the line about the job, in `nodemgr queue` and `nodemgr history`. It
has at most 255 bytes.
"""

from __future__ import annotations

from .form import Message, Part

# -- the end of an attempt --

WITHDRAWN = Part("withdrawn")
TIME_LIMIT = Part("time limit")
SUPERVISOR_ASKED = Part("its supervisor was told to end: the node goes down, or a user ended it")
OVER_HOST_MEMORY = Part("host memory, {limit:d} {unit} of --host-memory")
NEARLY_OVER_MEMORY = Message(
    "the job has {percent:d} % of its host memory, {limit:d} {unit}, in use; it is ended at the"
    " limit",
    "submit it with more --host-memory",
)
OVER_ENV_MEMORY = Part("host memory, the limit of all jobs of its environment together")
OVER_NODE_MEMORY = Part("host memory, all that the node has")
OTHERS_GO_ON = Part(
    "processes of other users, which it started, go on: this manager may not end them",
)

# -- the job's process cannot be started --

USER_GONE = Part("user {user:.64} (uid {uid:d}) is not on this node any more")
USER_UNKNOWN = Part("user {user:.64} cannot be looked up: {error}")
GROUPS_NOT_SET = Part("the groups of {user:.64} cannot be set: {error}")
USER_NOT_TAKEN = Part("its process cannot become {user:.64} (uid {uid:d}): {error}")
DIRECTORY_NOT_ENTERED = Part("its directory {directory:.150}: {error}")
PROGRAM_NOT_RUN = Part("{program:.150}: {error}")
NOT_FOUND = Part("not found")
NOT_EXECUTABLE = Part("not executable")
INTERPRETER_NOT_FOUND = Part("{program:.150}: its interpreter is not found")
PROCESS_NOT_STARTED = Part("its process cannot be started: {error}")

# -- its order --

ORDER_NOT_READ = Part("its order cannot be read: {why}")
NO_ORDER = Part("it is not an order")
CUT_OFF = Part("it is cut off")
ORDER_WITHOUT_MEMORY = Part("no memory")
ORDER_INVALID = Part("it has an invalid value")
NO_PROGRAM_NAMED = Part("it has no program to run")
ORDER_NO_FILE = Part("it is not a file")
WRITTEN_BY_OTHERS = Part("another user could have written it")
ORDER_TOO_LONG = Part("it is too long")
NO_END = Part("it cannot be read to its end")

# -- its output --

OUTPUT_BEGINS_ANEW = Message(
    "the output so far was dropped: it passed the {limit:d} bytes of job_log_bytes, and this file"
    " system cannot drop the middle alone",
    "print less, or an administrator raises job_log_bytes",
)
OUTPUT_LOST = Message(
    "{lost:d} bytes of output were dropped here: {error}",
    "an administrator finds out why the node's disk takes no more",
)

# -- the launcher --

ATTEMPT_NOT_OPENED = Part("{jobs:.80}/{attempt:.90}: {error:.60}")
WRITABLE_BY_OTHERS = Part("{jobs:.80}/{attempt:.90}: users other than uid {uid:d} can write there")
NO_SUPERVISOR = Part("no process for its supervisor: {error}")
NOT_A_RUN = Part("its process has ended, or is in a container")
NOT_DELEGATED = Part(
    "it is not below its user's systemd, which alone may move it: start it by "
    "`systemd-run --user --scope`"
)
REQUEST_UNKNOWN = Part("this is not a known request")
NOT_BY_HAND = Message(
    "nodemgr-supervisor is not started by hand",
    "`nodemgr serve` or the service nodemgr-jobs starts it",
)
PATH_NOT_USED = Message(
    "{path:.150} cannot be used: {error}", "correct the path, or the rights on it"
)
LAUNCHER_NOT_STARTED = Message(
    "the launcher of jobs cannot start: {error}",
    "raise the limits of its unit on memory and open files",
)

NO_SCOPE = Message(
    "jobs get no cgroup of their own: {scope:.150}: {error}",
    "boot with cgroup version 2 and restart nodemgr-jobs; without it CPUs and host memory of jobs"
    " have no limits",
)
SCOPE_GONE = Message("{scope:.150} is gone", "nodemgr-jobs begins anew, and makes it again")

# -- the runner in a container --

NO_ENV_DIRECTORY = Message(
    "{directory:.150} is no environment's directory that this process may read",
    "start the container with --device nodemgr.local/env=NAME",
)
ENV_WITHOUT_ADDRESS = Message(
    "client.conf in {directory:.150} names no address",
    "set the quota once more (`nodemgr quota set`), which writes it anew",
)
NO_UNIX_SOCKET = Message(
    "jobs run only where the manager's UNIX socket is reachable, and client.conf in"
    " {directory:.100} names another address",
    "submit the job on the node, or in a container there",
)
SOCKET_PATH_TOO_LONG = Message(
    "the path of the manager's socket below {directory:.150} is too long",
    "mount the environment's directory at a shorter path",
)
SOCKET_UNREACHABLE = Message(
    "{path:.150}: {error}", "`nodemgr doctor` checks whether the manager runs"
)
RUNNER_UNANSWERED = Message(
    "the manager does not answer this container's runner", "`nodemgr doctor` checks it"
)
RUNNER_WITHOUT_SIGNALS = Message(
    "the runner cannot receive signals in this container: {error}",
    "raise the container's limit on open files, or allow signalfd in its seccomp profile",
)
RUNNER_NOT_STARTED = Message(
    "the runner has no process or no descriptor in this container: {error}",
    "raise the container's limits on processes and open files",
)
NO_SUPERVISOR_INSIDE = Part("no process for its supervisor in its container: {error}")
NO_SIGNALS_INSIDE = Part("its supervisor cannot receive signals in this container")
FILES_NOT_LET_IN = Part(
    "the kernel does not let a job's files into this container (SELinux, AppArmor, or no free"
    " descriptor)",
)
