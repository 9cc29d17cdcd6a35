"""The lines of the manager and of its page in the log (stderr, the journal)."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
    Part,
)

# -- the manager --

READY = Notice("ready on {directory}: {facts}")
TASKS_FOUND = Part("{tasks} found again")
UDP_TOO = Part("clients also on UDP {address}")
PAGE_AT = Part("web page at {url}")
ENDS = Notice("ends ({signal}); GPUs and memory stay with {tasks}")
RIGHTS_NOT_DROPPED = Message(
    "the manager goes on with more rights than it needs: {error}",
    "start it by its service (`nodemgr setup`)",
)
INTERNAL_FAULT_AT = Message(
    "internal fault {where}: {error}",
    "please report it with the lines below",
)
EFFECT_FAILED = Message("{effect} failed: {error}", "`nodemgr doctor` looks for the cause")
ANSWER_LOST = Message(
    "an answer on the control socket was lost ({error})",
    "give the order again if its verb reports no answer",
)
PROCESS_NOT_ENDED = Message(
    "process {pid} could not be ended",
    "it is gone already, or not ours to end (a manager of root may end every process)",
)
LEDGER_LOST = Message(
    "the memory ledger of env {env} is lost: its running tasks are fenced, new ones begin with a"
    " new ledger",
    "start its tasks again",
)

# -- the store --

JOBS_REFUSED = Message("jobs are refused: {why}", "make room on the disk of --state-dir")
JOBS_TAKEN_AGAIN = Notice("jobs are taken again")
USE_NOT_RECORDED = Message(
    "the use of the GPUs is not recorded: {error}",
    "make room on the disk of --state-dir, or repair it",
)
USE_RECORDED_AGAIN = Notice("the use of the GPUs is recorded again")
STORE_NOT_WRITTEN = Message(
    "the store cannot be written: {error}; nothing is granted until it can, releases and running"
    " tasks go on",
    "make room on the disk of --state-dir, or repair it",
)
STORE_WRITTEN_AGAIN = Notice("the store can be written again")

# -- clients and containers --

ENV_NOT_REFRESHED = Message(
    "the directory of env {env} could not be refreshed, its clients do not see this change:"
    " {error}",
    "correct that, then set the quota once more (`nodemgr quota set`)",
)
CDI_NOT_WRITTEN = Message(
    "{path} could not be written, containers do not see this change: {error}",
    "make the directory writable, or name another (cdi_dir)",
)
GATE_IS_WRONG = Message(
    "the device gate of env {env} is not as it should be: {error}",
    "the manager tries again; `nodemgr doctor` shows when it is mended",
)
NODE_GATE_IS_WRONG = Message(
    "the device gate of the node is not as it should be: {error}",
    "the manager tries again; `nodemgr doctor` shows when it is mended",
)
GATE_TAKEN_OFF = Notice("the device gate of env {env} was taken off {cgroup}, and is there again")
NO_GATE = Message("no device gate: {why}")
CROWD = Message(
    "environment {env} has all the {connections} connections that it may: its further processes"
    " are not heard ({here} are from {place}, {of_process} of pid {pid})",
    "end some, or raise max_connections_per_env",
)
ON_THE_NODE = Part("the node itself")
IN_CONTAINER = Part("container {container}")
GRANTED_WITHOUT_GATE = Message(
    "task {task} is granted without a launch gate, so its share is not kept: {error}",
    "raise the limits of the manager (`nodemgr doctor` checks them) or end processes of its GPUs,"
    " then start the task again",
)
GATE_IS_FULL = Part("{most} processes pass the launch gate of one of its GPUs, the most")
GATE_PARTED = Notice(
    "the launch gate of GPU {index} had words that no honest process writes, or no turns ({fault}):"
    " each environment has a gate of its own there for now",
)
GATE_OFFENDER = Notice(
    "process {pid} of {task} (env {env}), or another one of this env, garbles the launch gate of"
    " GPU {index} ({fault}), which no other env has; enforce={enforce}",
)
STRANGERS_SHUT_OUT = Notice(
    "more than {limit} connections a second to the socket of env {env} by users who may not enter"
    " it ({user} is one): for {pause} s the kernel lets only its users connect",
)
SOCKET_STAYS_CLOSED = Notice(
    "the socket of env {env} stays closed to users who may not enter it: {error}"
)
DESCRIPTORS_EXHAUSTED = Message(
    "descriptors are exhausted ({connections} connections): new clients wait until one ends",
    "raise the limit (LimitNOFILE= of the service, ulimit -n)",
)
DRIVER_LIMIT_NOT_SET = Notice(
    "the driver's own memory limit could not be set, the ledger alone holds: {error}"
)

SUSPENSION_UNREACHABLE = Notice(
    "the suspension process cannot be reached ({error}); another one continues the order"
)
SUSPENSION_ENDED = Notice(
    "the suspension process has ended in the order {verb} {task}; another one continues it, {limit}"
    " times at most",
)

# -- jobs --

NO_LAUNCHER = Message(
    "no job can be started: {why}", "`nodemgr doctor` names the cure; jobs wait meanwhile"
)
JOBS_UNLIMITED = Message(
    "CPUs and host memory of jobs have no limits: {why}",
    "nodemgr-jobs (`nodemgr setup`) keeps them, with cgroup version 2 and its controllers of both",
)
SPARE_TAKES_OVER = Notice("the launcher of jobs has died; a spare one takes over")
LAUNCHERS_DIED = Message(
    "its launchers have died, and the manager may start no other",
    "restart it (no task and no job is lost)",
)
OUTPUT_IN_HISTORY_ALONE = Notice("the end of job {job}'s output is in the history alone: {error}")
FILES_NOT_REMOVED = Message(
    "what job {job} left cannot be removed: {error}",
    "remove its directory under jobs in the state directory",
)
STORE_LOST = Part("{why} (earlier losses: nodemgr events --since 0 --name store.lost)")
UNKNOWN_JOBS_RUN = Part(
    "running, and not known to the store: {jobs}; what runs goes on within its time limit and is"
    " not started again (nodemgr queue withdraw ends it)",
)
UNKNOWN_FILES = Part(
    "the files of {jobs}, which the store does not know, are kept under jobs in the state"
    " directory",
)

# -- the web page --

PAGE_CANNOT_LISTEN = Message(
    "the web page cannot listen on {host}:{port} ({error})",
    "name another address (--web), or end the program that listens there",
)
PAGE_SHUT_OUT = Message(
    "the web page cannot reach the manager: {directory} is closed to other users",
    "chmod o+x {directory}, or name another --run-dir",
)
PAGE_REFUSED_AT_SOCKET = Message(
    "the web page cannot reach the manager: its user may not open {path}",
    "remove what stands there, and restart the manager (no task is lost)",
)
PAGE_NOT_SERVED = Message(
    "the web page cannot be served: {error}", "correct that; it starts again by itself"
)
PAGE_ENDED = Notice("the web page's process has ended ({ending}); the next one starts in {pause} s")
STARTER_ENDED = Notice(
    "the web page's starter has ended ({ending}); the next one starts in {pause} s"
)
PAGE_IS_OVER = Message(
    "the web page's starter has ended, and with it the page",
    "restart the manager (no task and no job is lost)",
)
