"""The checks of `nodemgr doctor` on the node: their titles and cures, and what they find."""

from __future__ import annotations

from client_plugin.messages.form import (
    CONTAINER,
    DRIVER,
    MANAGER,
    NODE,
    PROGRAM,
    RIGHTS,
    Check,
    CheckDetail,
)

# -- the installation --

CHECK_CLIENT_LIBRARY = Check(
    NODE,
    "client library",
    "install again where a C compiler is: pip install --force-reinstall nodemgr",
)
CHECK_VERSIONS = Check(
    NODE,
    "versions",
    "install the same nodemgr here and there, then restart the manager (tasks go on)",
)
CHECK_IMPORT_HOOK = Check(
    NODE,
    "import hook",
    "install again where a C compiler is: pip install --force-reinstall nodemgr",
)
CHECK_EXTENSION = Check(
    NODE,
    "extension",
    "install again where a C compiler is: pip install --force-reinstall nodemgr",
)
SHIM_MISSING = CheckDetail(NODE, "{library} is missing")
LIBRARY_DOES_NOT_LOAD = CheckDetail(
    NODE, "{program} with {library} preloaded: exit {exit_code} {error}"
)
ENTRY_NOT_FOUND = CheckDetail(NODE, "the dynamic linker of this system finds no library at {entry}")
LIBRARY_LOADS = CheckDetail(NODE, "{library} loads into any program")
LIBRARY_FAULT = CheckDetail(NODE, "a library cannot be used: {error}")
LIBRARY_OF_OTHER_VERSION = CheckDetail(
    NODE, "the client library speaks version {theirs}, this nodemgr version {ours}"
)
NO_MANAGER_TO_COMPARE = CheckDetail(NODE, "client library: {client}; no manager to compare with")
OTHER_VERSIONS = CheckDetail(
    NODE,
    "the manager runs {theirs} (client {their_client}), here is {ours} (client {our_client})",
)
SAME_VERSIONS = CheckDetail(NODE, "nodemgr {version}, client {client}, here and in the manager")
FILE_LOADS = CheckDetail(NODE, "{file} loads")
PYTHON_WITHOUT_OUR_HOOK = CheckDetail(NODE, "{python} starts without the import hook of {payload}")
PYTHON_WITHOUT_OUR_HOOK_SAYS = CheckDetail(
    NODE, "{python} starts without the import hook of {payload}: {error}"
)

# -- the node --

CHECK_MANAGER = Check(MANAGER, "manager", "start it: nodemgr serve (or: systemctl start nodemgr)")
CHECK_LEFTOVERS = Check(
    MANAGER,
    "leftovers",
    "harmless, running tasks wait for a new manager; start it: nodemgr serve (or: systemctl start"
    " nodemgr)",
)
CHECK_MODES = Check(
    NODE, "modes", "stop the manager, remove the run directory, start the manager again"
)
CHECK_STATE = Check(NODE, "state", "make room, and keep it the manager's own (chmod 700)")
CHECK_NODE_DRIVER = Check(
    DRIVER,
    "driver",
    "install the NVIDIA driver, or try without a GPU: nodemgr serve --simulate 4x80GiB",
)
CHECK_OPEN_FILES = Check(
    NODE, "open files", "raise LimitNOFILE= of the manager's unit, or ulimit -Hn"
)
CHECK_ENVIRONMENTS = Check(
    NODE,
    "environments",
    "set the quota once more (nodemgr quota set), which writes the directory anew",
)
CHECK_MANAGERS_OWN = Check(
    MANAGER, "manager's own", "start it: nodemgr serve (or: systemctl start nodemgr)"
)
MAY_NOT_ASK = CheckDetail(
    RIGHTS, "only root and the group nodemgr may ask the manager at {directory}"
)
MANAGER_AT = CheckDetail(MANAGER, "pid {pid} answers at {directory}")
MANAGER_STUCK = CheckDetail(MANAGER, "the manager at {directory} runs but does not answer")
NO_MANAGER_AT = CheckDetail(MANAGER, "no manager answers at {directory}")
NEVER_A_MANAGER = CheckDetail(MANAGER, "no manager ever ran at {directory}")
NO_LEFTOVERS = CheckDetail(MANAGER, "none")
MANAGER_ALIVE = CheckDetail(MANAGER, "none: the manager is alive")
ENDED_CLEANLY = CheckDetail(MANAGER, "none: the last manager ended cleanly")
DIED_AND_LEFT = CheckDetail(MANAGER, "a manager died and left {names}")
DOES_NOT_EXIST = CheckDetail(NODE, "{directory} does not exist")
WRONG_MODES = CheckDetail(NODE, "not as the manager makes them: {files}")
WRONG_MODE = CheckDetail(NODE, "{label} {path} is {mode} of uid {uid}")
MODES_ARE_WELL = CheckDetail(NODE, "{directory} is closed to strangers")
MAY_NOT_ASK_FOR_STATE = CheckDetail(
    RIGHTS,
    "only root and the group nodemgr may ask the manager at {directory} for its state directory"
    " (--state-dir names one)",
)
NOT_YET_THERE = CheckDetail(NODE, "{directory} does not exist yet")
NOT_OPEN_TO_YOU = CheckDetail(RIGHTS, "{directory} is not open to you")
NO_DIRECTORY = CheckDetail(NODE, "{directory} is no directory")
STATE_OPEN_TO_OTHERS = CheckDetail(NODE, "{directory} is {mode}: keys and records lie there")
OTHERS_STATE = CheckDetail(RIGHTS, "{directory} is uid {uid}'s")
STATE_READ_ONLY = CheckDetail(NODE, "{directory} is not writable")
STATE_NEARLY_FULL = CheckDetail(
    NODE, "{size} free under {directory}: grants are refused when it is full"
)
STATE_IS_WELL = CheckDetail(NODE, "{directory}: {size} free")
SIMULATED_NODE = CheckDetail(DRIVER, "a simulated node: no driver needed")
DRIVER_LOADS = CheckDetail(DRIVER, "libcuda.so.1 and libnvidia-ml.so.1 load")
MANAGERS_OWN_BELOW = CheckDetail(NODE, "the check of the manager's own is below")
ANY_NUMBER = CheckDetail(NODE, "any number")
FILES_OF_MANAGER = CheckDetail(
    NODE, "a manager started here may open {files} files, enough for {processes} processes"
)
NO_MANAGER_TO_ASK = CheckDetail(MANAGER, "no manager to ask")
ENV_DIRECTORIES_WRONG = CheckDetail(NODE, "not usable: {faults}")
ENV_DIRECTORIES_WELL = CheckDetail(NODE, "{count} with client.conf and a socket that answers")

# -- an environment --

CHECK_ENV_DIRECTORY = Check(
    CONTAINER, "env directory", "mount RUN/envs/ENV of the node at /run/nodemgr-env"
)
CHECK_ENV_SOCKET = Check(
    CONTAINER,
    "socket",
    "mount the directory, not the socket file, and check that the manager runs",
)
CHECK_PRELOAD_ACTIVE = Check(
    CONTAINER,
    "preload",
    "mount /etc/ld.so.preload naming the shim into the container, or start programs with nodemgr"
    " run",
)
CHECK_HOOK_ACTIVE = Check(
    CONTAINER,
    "hook",
    "mount /etc/ld.so.preload naming the shim into the container, or start programs with nodemgr"
    " run",
)
CHECK_LEDGER_MAPPED = Check(
    PROGRAM,
    "ledger",
    "such a program escapes its quota: static linking, dlmopen, NODEMGR_OFF, or an old lease; end"
    " it",
)
SHIM_ABSENT = CheckDetail(CONTAINER, "the shim is not in this process")
SHIM_PRESENT = CheckDetail(CONTAINER, "the shim is in this process")
ENV_USES_NO_DRIVER = CheckDetail(
    PROGRAM, "no process of this environment uses the driver at the moment"
)
ENV_ALL_WITH_LEDGER = CheckDetail(
    PROGRAM, "in all {count} processes of this environment that use the driver"
)

# -- the kernel --

CHECK_KERNEL = Check(
    NODE, "kernel", "Linux 5.4 or newer is needed, and a seccomp profile that allows these calls"
)
CHECK_CONTROL_GROUPS = Check(
    NODE,
    "control groups",
    "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2",
)
CHECK_SELINUX = Check(
    NODE,
    "selinux",
    "start containers with --security-opt label=disable; or label it container_file_t (semanage"
    " fcontext, restorecon) and let container_t connect to the manager's sockets by a local policy",
)
SEALS_FAIL = CheckDetail(NODE, "sealed memory (memfd, F_SEAL_FUTURE_WRITE): {error}")
PIDFD_FAILS = CheckDetail(NODE, "pidfd_open: {error}")
KERNEL_NAMES_PEERS = CheckDetail(
    NODE, "sealed memory and pidfds work; a socket names its peer by pidfd"
)
KERNEL_NAMES_NO_PEERS = CheckDetail(
    NODE, "sealed memory and pidfds work; a socket does not name its peer by pidfd"
)
KERNEL_PEER_FAULT = CheckDetail(NODE, "sealed memory and pidfds work; SO_PEERPIDFD: {error}")
CGROUP_V2 = CheckDetail(NODE, "version 2")
CGROUP_HYBRID = CheckDetail(NODE, "version 2 beside controllers of version 1")
CGROUP_V1 = CheckDetail(
    NODE,
    "version 1 alone: no device gate, and the driver cannot limit containers itself",
)
NO_CGROUP = CheckDetail(NODE, "none is mounted: containers cannot be told apart")
SELINUX_ABSENT = CheckDetail(NODE, "not here")
SELINUX_PERMISSIVE = CheckDetail(NODE, "permissive")
SELINUX_ENFORCING = CheckDetail(NODE, "enforcing; {directory} is {label}")
SELINUX_WITHOUT_LABEL = CheckDetail(NODE, "enforcing; {directory} is without a label")
