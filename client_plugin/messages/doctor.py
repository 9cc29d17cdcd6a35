"""The checks of `nodemgr doctor` in a container, and what they find. The node's use some, too."""

from __future__ import annotations

from .form import CONTAINER, DRIVER, MANAGER, NODE, PROGRAM, Check, CheckDetail

# -- the checks, with their cures --

CHECK_ENVIRONMENT = Check(
    CONTAINER,
    "environment",
    "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env show NAME)",
)
CHECK_PRELOAD = Check(
    CONTAINER,
    "preload",
    "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env show NAME);"
    " use an image with glibc: on musl nothing of nodemgr is active",
)
CHECK_HOOK = Check(
    CONTAINER,
    "hook",
    "unset what keeps Python from PYTHONPATH; with -E and -I the shim alone asks for GPUs",
)
CHECK_SOCKET = Check(
    CONTAINER,
    "socket",
    "the node's manager must run (systemctl status nodemgr), and the env's directory be mounted",
)
CHECK_SOCKET_FULL = Check(
    CONTAINER,
    "socket",
    "end programs of this environment that are connected; an administrator's `nodemgr doctor` names"
    " those with most, and the settings have max_connections_per_env",
)
CHECK_LEDGER = Check(
    PROGRAM,
    "ledger",
    "such a program escapes its quota: static linking, NODEMGR_OFF, or an old lease; end it",
)
CHECK_DRIVER = Check(
    CONTAINER,
    "driver",
    "bring the driver in, too: --device nvidia.com/gpu=all (the NVIDIA container toolkit makes it)",
)

# -- what they find --

CHECK_FAILED = CheckDetail(NODE, "it cannot be checked: {error}")
DRIVER_DOES_NOT_LOAD = CheckDetail(DRIVER, "the driver does not load: {error}")
CLIENT_IS_OFF = CheckDetail(
    PROGRAM, "NODEMGR_OFF=1 is set: the client does nothing in programs started from here"
)
CONF_INCOMPLETE = CheckDetail(NODE, "{directory}/client.conf names no env or no address")
ENVIRONMENT_FOUND = CheckDetail(MANAGER, "environment {env}, manager at {address}")
IMAGE_HAS_MUSL = CheckDetail(CONTAINER, "this image has musl, which ignores {file}")
SHIM_IS_HERE = CheckDetail(PROGRAM, "{library} is in this process")
FILE_FAULT = CheckDetail(NODE, "{file}: {error}")
SHIM_NOT_NAMED = CheckDetail(
    CONTAINER, "the shim is not in this process, and {file} names {entries}"
)
NO_PYTHON_IN_PATH = CheckDetail(CONTAINER, "no python3 in PATH")
PYTHON_HAS_HOOK = CheckDetail(PROGRAM, "{python} starts with the import hook")
PYTHON_WITHOUT_HOOK = CheckDetail(PROGRAM, "{python} starts without the import hook")
PYTHON_WITHOUT_HOOK_SAYS = CheckDetail(PROGRAM, "{python} starts without the import hook: {error}")
MANAGER_ANSWERS = CheckDetail(MANAGER, "the manager answers")
NO_LEDGER_OVER_UDP = CheckDetail(MANAGER, "over UDP there is none: each process has a fixed cap")
WITHOUT_LEDGER = CheckDetail(PROGRAM, "processes that use the driver without a ledger: {pids}")
SECOND_DRIVER = CheckDetail(
    PROGRAM,
    "processes with a second driver (dlmopen), whose memory the ledger does not have: {pids}",
)
NO_DRIVER_USERS = CheckDetail(PROGRAM, "no process here uses the driver at the moment")
ALL_WITH_LEDGER = CheckDetail(PROGRAM, "in all processes here that use the driver: {count}")
LIBRARIES_LOAD = CheckDetail(DRIVER, "{libraries} load")
