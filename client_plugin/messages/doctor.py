"""The checks of `nodemgr doctor` in a container, and what they find. The node's use some, too."""

from __future__ import annotations

from .form import CheckDetail

CHECK_FAILED = CheckDetail("it cannot be checked: {error}")
DRIVER_DOES_NOT_LOAD = CheckDetail("the driver does not load: {error}")
CONF_INCOMPLETE = CheckDetail("{directory}/client.conf names no env or no address")
ENVIRONMENT_FOUND = CheckDetail("environment {env}, manager at {address}")
FILE_FAULT = CheckDetail("{file}: {error}")
NO_PYTHON_IN_PATH = CheckDetail("no python3 in PATH")
PYTHON_HAS_HOOK = CheckDetail("{python} starts with the import hook")
MANAGER_ANSWERS = CheckDetail("the manager answers")
NO_LEDGER_OVER_UDP = CheckDetail("over UDP there is none: each process has a fixed cap")
WITHOUT_LEDGER = CheckDetail("processes that use the driver without a ledger: {pids}")
SECOND_DRIVER = CheckDetail(
    "processes with a second driver (dlmopen), whose memory the ledger does not have: {pids}",
)
