"""The checks of `nodemgr doctor` in a container, and what they find. The node's use some, too."""

from __future__ import annotations

from .form import Check, CheckDetail

# -- the checks, with their cures --

CHECK_ENVIRONMENT = Check(
    "environment",
    "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env show NAME)",
)
CHECK_PRELOAD = Check(
    "preload",
    "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env show NAME);"
    " use an image with glibc: on musl nothing of nodemgr is active",
)
CHECK_HOOK = Check(
    "hook",
    "unset what keeps Python from PYTHONPATH; with -E and -I the shim alone asks for GPUs",
)
CHECK_SOCKET = Check(
    "socket",
    "the node's manager must run (systemctl status nodemgr), and the env's directory be mounted",
)
CHECK_SOCKET_FULL = Check(
    "socket",
    "end programs of this environment that are connected; an administrator's `nodemgr doctor` names"
    " those with most, and the settings have max_connections_per_env",
)
CHECK_LEDGER = Check(
    "ledger",
    "such a program escapes its quota: static linking, NODEMGR_OFF, or an old lease; end it",
)
CHECK_DRIVER = Check(
    "driver",
    "bring the driver in, too: --device nvidia.com/gpu=all (the NVIDIA container toolkit makes it)",
)

# -- what they find --

CHECK_FAILED = CheckDetail("it cannot be checked: {error}")
DRIVER_DOES_NOT_LOAD = CheckDetail("the driver does not load: {error}")
CLIENT_IS_OFF = CheckDetail(
    "NODEMGR_OFF=1 is set: the client does nothing in programs started from here"
)
CONF_INCOMPLETE = CheckDetail("{directory}/client.conf names no env or no address")
ENVIRONMENT_FOUND = CheckDetail("environment {env}, manager at {address}")
IMAGE_HAS_MUSL = CheckDetail("this image has musl, which ignores {file}")
SHIM_IS_HERE = CheckDetail("{library} is in this process")
FILE_FAULT = CheckDetail("{file}: {error}")
SHIM_NOT_NAMED = CheckDetail("the shim is not in this process, and {file} names {entries}")
NO_PYTHON_IN_PATH = CheckDetail("no python3 in PATH")
PYTHON_HAS_HOOK = CheckDetail("{python} starts with the import hook")
PYTHON_WITHOUT_HOOK = CheckDetail("{python} starts without the import hook")
PYTHON_WITHOUT_HOOK_SAYS = CheckDetail("{python} starts without the import hook: {error}")
MANAGER_ANSWERS = CheckDetail("the manager answers")
NO_LEDGER_OVER_UDP = CheckDetail("over UDP there is none: each process has a fixed cap")
WITHOUT_LEDGER = CheckDetail("processes that use the driver without a ledger: {pids}")
SECOND_DRIVER = CheckDetail(
    "processes with a second driver (dlmopen), whose memory the ledger does not have: {pids}",
)
NO_DRIVER_USERS = CheckDetail("no process here uses the driver at the moment")
ALL_WITH_LEDGER = CheckDetail("in all processes here that use the driver: {count}")
LIBRARIES_LOAD = CheckDetail("{libraries} load")
