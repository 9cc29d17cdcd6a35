"""Messages of the administrators' verbs: quota, env, setup, serve, web, events."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
)

# -- the ways to the manager --

SOCKET_CLOSED_TO_USER = Message(
    "{path} is not open to you",
    "its group may use it (usermod -aG nodemgr USER), as root may",
    code="unreachable",
)
NO_MANAGER = Message(
    "no manager runs on {path}",
    "start one with `nodemgr serve`, or name its --run-dir",
    code="unreachable",
)
MANAGER_ENDED = Message(
    "the manager on {path} ended before it answered",
    "see its log, and look with `nodemgr status` if the order was carried out",
    code="unreachable",
)
MANAGER_SILENT = Message(
    "the manager on {path} does not answer",
    "see if it runs (nodemgr doctor)",
    code="unreachable",
)

# -- quotas and environments --

UNKNOWN_ON_NODE = Message(
    "this node has no {kind} {name!r}",
    "`getent {database}` lists them",
    code="usage",
)
MEMORY_TWICE = Message(
    "--memory and --memory-per-gpu set the same limit",
    "name one of them",
    code="usage",
)
NOBODY_AND_USERS = Message(
    "--nobody together with --user or --group",
    "name one of them",
    code="usage",
)
PER_GPU_WITHOUT_GPUS = Message(
    "--memory-per-gpu needs a number of GPUs",
    "name it with --gpus",
    code="usage",
)
PER_GPU_OF_NONE = Message(
    "--memory-per-gpu with --gpus 0, where there is no GPU to have memory on",
    "leave --memory-per-gpu out",
    code="usage",
)
MEMORY_ABOVE_ANY_NODE = Message(
    "--memory-per-gpu times --gpus is more memory than any node has",
    "name less",
    code="usage",
)
QUOTAS_NOT_SET = Message(
    "not set: {envs}", "mend what the lines above name, and load the file again"
)
QUOTAS_SET = Notice("{count} of {all} quotas are set")
FILE_UNREADABLE = Message("{path} cannot be read ({error})", "name a file that this user may read")
FILE_WITHOUT_QUOTAS = Message(
    "{path} has no quotas",
    "name what `nodemgr quota show --json` printed, or a manager's state.db",
)
DATABASE_WITHOUT_QUOTAS = Message(
    "{path} has no quotas that can be read ({error})",
    "name a whole state.db of a manager, or a backup of one",
)
WARNING = Notice("warning: {line}")
WARNING_OF_ENV = Notice("warning: {env}: {line}")
FAILURE_OF_ENV = Notice("{env}: {line}")
TASK_RUNS = Notice("{task} runs: {command} ({pids})")
REQUEST_WAITS = Notice("{request} waits")
JOB_IS_LIVE = Notice("{job} is a job that has not ended")
ENV_REMOVED = Notice("{env} is removed")
ENV_REMOVED_CONTAINERS = Notice(
    "{env} is removed; containers that have its device go on without GPUs"
)
ENV_WITHOUT_DEVICE = Message(
    "warning: no container can be given {env}, whose name is none for a CDI device",
    "make an environment whose name ends with a letter or digit",
)
ENGINE_MUST_READ = Message(
    "the container engine must be told to read {path}",
    "podman: --cdi-spec-dir; docker: cdi-spec-dirs in daemon.json",
)
CLIENTS_NEED_KEY = Message(
    "clients on other machines need {path}",
    "copy it there, and name it in their NODEMGR_ENV_DIR",
)

# -- setup --

SETUP_NEEDS_ROOT = Message(
    "this changes the system",
    "run it as root (sudo nodemgr setup), or look first with --dry-run",
    code="usage",
)
NO_SETUP = Message(
    "no setup was made here ({path} is missing)",
    "there is nothing to take back",
)
SETUP_BLIND = Message("cannot look at what is there ({error})", "run it as root, or mend that")
NO_TERMINAL = Message(
    "no terminal to ask on",
    "give --yes, or --dry-run to look",
    code="usage",
)
STEP_FAILED = Message(
    "could not {step}: {error} ({before})",
    "mend that and run it again, or `nodemgr setup --uninstall` takes it back",
)
UNINSTALL_FAILED = Message(
    "could not {step}: {error} ({before}) at the removal", "mend that and run it again"
)
COMMAND_FAILED = Message("{command}: {error}", "run that command by hand to see more of it")

# -- the other verbs --

PAGE_EXTRA = Message(
    "the web page (--web) needs the extra `faces`",
    "{install}",
)
UNKNOWN_EVENT = Message(
    "there is no event {name!r}",
    "name one of {known}{meant}",
    code="usage",
)
NO_ENV_YET = Notice("no environment yet (nodemgr env create ENV --gpus N)")
NO_WEB_TOKEN = Notice("no token (nodemgr web token makes one)")
GPU_IS_DRAINED = Notice("GPU {index} gets no new task (nodemgr gpu resume {index} ends that)")
GPU_RESUMED = Notice("GPU {index} gets tasks again; {failures} recorded failures count")
GPU_FAILURE_RECORDED = Notice("failure {failures} of GPU {index} is recorded")
GPU_REPAIRED = Notice("GPU {index} is repaired: {failures} recorded failures count")
