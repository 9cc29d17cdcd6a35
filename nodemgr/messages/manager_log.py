"""The lines of the manager and of its page in the log (stderr, the journal)."""

from __future__ import annotations

from client_plugin.messages.form import (
    CONTAINER,
    DRIVER,
    JOB,
    MANAGER,
    NODE,
    RIGHTS,
    SETTINGS,
    WEB,
    Message,
    Notice,
    Part,
)

# -- the manager --

READY = Notice(MANAGER, "ready on {directory}: {facts}")
TASKS_FOUND = Part(MANAGER, "{tasks} found again")
UDP_TOO = Part(MANAGER, "clients also on UDP {address}")
PAGE_AT = Part(WEB, "web page at {url}")
ENDS = Notice(MANAGER, "ends ({signal}); GPUs and memory stay with {tasks}")
RIGHTS_NOT_DROPPED = Message(
    RIGHTS,
    "the manager goes on with more rights than it needs: {error}",
    "start it by its service (`nodemgr setup`)",
)
INTERNAL_FAULT_AT = Message(
    MANAGER,
    "internal fault {where}: {error}",
    "please report it with the lines below",
    note="The manager goes on, except where the next line reports its end.",
)
EFFECT_FAILED = Message(MANAGER, "{effect} failed: {error}", "`nodemgr doctor` looks for the cause")
ANSWER_LOST = Message(
    MANAGER,
    "an answer on the control socket was lost ({error})",
    "give the order again if its verb reports no answer",
)
PROCESS_NOT_ENDED = Message(
    NODE,
    "process {pid} could not be ended",
    "it is gone already, or not ours to end (a manager of root may end every process)",
)
LEDGER_LOST = Message(
    MANAGER,
    "the memory ledger of env {env} is lost: its running tasks are fenced, new ones begin with a"
    " new ledger",
    "start its tasks again",
)

# -- the store --

JOBS_REFUSED = Message(NODE, "jobs are refused: {why}", "make room on the disk of --state-dir")
JOBS_TAKEN_AGAIN = Notice(NODE, "jobs are taken again")
USE_NOT_RECORDED = Message(
    NODE,
    "the use of the GPUs is not recorded: {error}",
    "make room on the disk of --state-dir, or repair it",
)
USE_RECORDED_AGAIN = Notice(NODE, "the use of the GPUs is recorded again")
STORE_NOT_WRITTEN = Message(
    NODE,
    "the store cannot be written: {error}; nothing is granted until it can, releases and running"
    " tasks go on",
    "make room on the disk of --state-dir, or repair it",
)
STORE_WRITTEN_AGAIN = Notice(NODE, "the store can be written again")

# -- clients and containers --

ENV_NOT_REFRESHED = Message(
    NODE,
    "the directory of env {env} could not be refreshed, its clients do not see this change:"
    " {error}",
    "correct that, then set the quota once more (`nodemgr quota set`)",
)
CDI_NOT_WRITTEN = Message(
    NODE,
    "{path} could not be written, containers do not see this change: {error}",
    "make the directory writable, or name another (cdi_dir)",
)
GATE_IS_WRONG = Message(
    NODE,
    "the device gate of env {env} is not as it should be: {error}",
    "the manager tries again; `nodemgr doctor` shows when it is mended",
)
GATE_TAKEN_OFF = Notice(
    CONTAINER, "the device gate of env {env} was taken off {cgroup}, and is there again"
)
NO_GATE = Message(NODE, "no device gate: {why}")
CROWD = Message(
    SETTINGS,
    "environment {env} has all the {connections} connections that it may: its further processes"
    " are not heard ({here} are from {place}, {of_process} of pid {pid})",
    "end some, or raise max_connections_per_env",
)
ON_THE_NODE = Part(NODE, "the node itself")
IN_CONTAINER = Part(CONTAINER, "container {container}")
GRANTED_WITHOUT_GATE = Message(
    NODE,
    "task {task} is granted without a launch gate, so its share is not kept: {error}",
    "raise the limits of the manager (`nodemgr doctor` checks them) or end processes of its GPUs,"
    " then start the task again",
)
GATE_IS_FULL = Part(NODE, "{most} processes pass the launch gate of one of its GPUs, the most")
GATE_PARTED = Notice(
    NODE,
    "the launch gate of GPU {index} had words that no honest process writes, or no turns ({fault}):"
    " each environment has a gate of its own there for now",
)
GATE_OFFENDER = Notice(
    NODE,
    "process {pid} of {task} (env {env}), or another one of this env, garbles the launch gate of"
    " GPU {index} ({fault}), which no other env has; enforce={enforce}",
)
STRANGERS_SHUT_OUT = Notice(
    RIGHTS,
    "more than {limit} connections a second to the socket of env {env} by users who may not enter"
    " it ({user} is one): for {pause} s the kernel lets only its users connect",
)
SOCKET_STAYS_CLOSED = Notice(
    NODE, "the socket of env {env} stays closed to users who may not enter it: {error}"
)
DESCRIPTORS_EXHAUSTED = Message(
    NODE,
    "descriptors are exhausted ({connections} connections): new clients wait until one ends",
    "raise the limit (LimitNOFILE= of the service, ulimit -n)",
)
DRIVER_LIMIT_NOT_SET = Notice(
    DRIVER, "the driver's own memory limit could not be set, the ledger alone holds: {error}"
)

SUSPENSION_UNREACHABLE = Notice(
    NODE, "the suspension process cannot be reached ({error}); another one continues the order"
)
SUSPENSION_ENDED = Notice(
    DRIVER,
    "the suspension process has ended in the order {verb} {task}; another one continues it, {limit}"
    " times at most",
)

# -- jobs --

NO_LAUNCHER = Message(
    NODE, "no job can be started: {why}", "`nodemgr doctor` names the cure; jobs wait meanwhile"
)
SPARE_TAKES_OVER = Notice(NODE, "the launcher of jobs has died; a spare one takes over")
LAUNCHERS_DIED = Message(
    NODE,
    "its launchers have died, and the manager may start no other",
    "restart it (no task and no job is lost)",
)
OUTPUT_IN_HISTORY_ALONE = Notice(
    JOB, "the end of job {job}'s output is in the history alone: {error}"
)
FILES_NOT_REMOVED = Message(
    NODE,
    "what job {job} left cannot be removed: {error}",
    "remove its directory under jobs in the state directory",
)
STORE_LOST = Part(NODE, "{why} (earlier losses: nodemgr events --since 0 --name store.lost)")
UNKNOWN_JOBS_RUN = Part(
    JOB,
    "running, and not known to the store: {jobs}; what runs goes on within its time limit and is"
    " not started again (nodemgr queue withdraw ends it)",
)
UNKNOWN_FILES = Part(
    JOB,
    "the files of {jobs}, which the store does not know, are kept under jobs in the state"
    " directory",
)

# -- the web page --

PAGE_CANNOT_LISTEN = Message(
    WEB,
    "the web page cannot listen on {host}:{port} ({error})",
    "name another address (--web), or end the program that listens there",
)
PAGE_SHUT_OUT = Message(
    WEB,
    "the web page cannot reach the manager: {directory} is closed to other users",
    "chmod o+x {directory}, or name another --run-dir",
)
PAGE_REFUSED_AT_SOCKET = Message(
    WEB,
    "the web page cannot reach the manager: its user may not open {path}",
    "remove what stands there, and restart the manager (no task is lost)",
)
PAGE_NOT_SERVED = Message(
    WEB, "the web page cannot be served: {error}", "correct that; it starts again by itself"
)
PAGE_ENDED = Notice(
    WEB, "the web page's process has ended ({ending}); the next one starts in {pause} s"
)
STARTER_ENDED = Notice(
    WEB, "the web page's starter has ended ({ending}); the next one starts in {pause} s"
)
PAGE_IS_OVER = Message(
    WEB,
    "the web page's starter has ended, and with it the page",
    "restart the manager (no task and no job is lost)",
)
