"""The checks of `nodemgr doctor` on the node: their titles and cures, and what they find."""

from __future__ import annotations

from client_plugin.messages.form import (
    CONTAINER,
    DRIVER,
    MANAGER,
    NODE,
    PROGRAM,
    RIGHTS,
    SETTINGS,
    Check,
    CheckDetail,
    Part,
)

# -- the installation --

CHECK_CLIENT_LIBRARY = Check(
    NODE,
    "client library",
    "install again where a C compiler is: {install}",
)
CHECK_VERSIONS = Check(
    NODE,
    "versions",
    "install the same nodemgr here and there, then restart the manager (tasks go on)",
)
CHECK_IMPORT_HOOK = Check(
    NODE,
    "import hook",
    "install again where a C compiler is: {install}",
)
CHECK_EXTENSION = Check(
    NODE,
    "extension",
    "install again where a C compiler is: {install}",
)
SHIM_MISSING = CheckDetail(NODE, "{library} is missing")
LIBRARY_DOES_NOT_LOAD = CheckDetail(
    NODE, "{program} with {library} preloaded: exit {exit_code} {error}"
)
ENTRY_NOT_FOUND = CheckDetail(
    NODE, "the dynamic linker of this system finds no library at {entry}{why}"
)
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

FOR_ADMIN = Part(RIGHTS, "for an administrator: {cure}")
CHECK_MANAGER = Check(
    MANAGER,
    "manager",
    "start one of your own: nodemgr serve; the node's, as an administrator: systemctl start"
    " nodemgr",
)
CHECK_LEFTOVERS = Check(
    MANAGER,
    "leftovers",
    "harmless, running tasks wait for a new manager; start it: nodemgr serve (or: systemctl start"
    " nodemgr)",
)
CHECK_OTHER_USERS = Check(NODE, "other users", "install nodemgr where all users can read it")
OTHERS_CAN_READ = CheckDetail(NODE, "all users can read the interpreter and the packages")
CHECK_MODES = Check(
    NODE, "modes", "stop the manager, remove the run directory, start the manager again"
)
CHECK_STATE = Check(NODE, "state", "make room, and keep it the manager's own (chmod 700)")
CHECK_NODE_DRIVER = Check(
    DRIVER,
    "driver",
    "have the NVIDIA driver installed, or try without a GPU: nodemgr serve --simulate 4x80GiB",
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
    RIGHTS, "only root, the manager's user and the group nodemgr may ask the manager at {directory}"
)
MANAGER_AT = CheckDetail(MANAGER, "pid {pid} answers at {directory}")
MANAGER_STUCK = CheckDetail(MANAGER, "the manager at {directory} runs but does not answer")
NO_MANAGER_AT = CheckDetail(MANAGER, "no manager answers at {directory}")
NEVER_A_MANAGER = CheckDetail(MANAGER, "no manager ever ran at {directory}")
NO_LEFTOVERS = CheckDetail(MANAGER, "none")
MANAGER_ALIVE = CheckDetail(MANAGER, "none: the manager is alive")
ENDED_CLEANLY = CheckDetail(MANAGER, "the last manager ended cleanly")
DIED_AND_LEFT = CheckDetail(MANAGER, "a manager died and left {names}")
DOES_NOT_EXIST = CheckDetail(NODE, "{directory} does not exist")
WRONG_MODES = CheckDetail(NODE, "not as the manager makes them: {files}")
WRONG_MODE = CheckDetail(NODE, "{label} {path} is {mode} of uid {uid}")
MODES_ARE_WELL = CheckDetail(NODE, "{directory} is closed to strangers")
MAY_NOT_ASK_FOR_STATE = CheckDetail(
    RIGHTS,
    "only root, the manager's user and the group nodemgr may ask the manager at {directory} for its"
    " state directory"
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
    PROGRAM, "in all processes of this environment that use the driver: {count}"
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

# -- the manager's own checks: nodemgr/edge/setup/doctor.py --

CHECK_STORE = Check(
    NODE,
    "store",
    "make room or repair the disk under --state-dir; running tasks go on meanwhile",
)
CHECK_FREE_SPACE = Check(
    NODE, "free-space", "make room on the disk of --state-dir before grants are refused"
)
CHECK_NVML = Check(
    DRIVER, "nvml", "see nvidia-smi and dmesg; reload the NVIDIA driver or restart the node"
)
CHECK_GPUS = Check(
    DRIVER,
    "gpus",
    "see dmesg for Xid errors; reset the GPU (nvidia-smi --gpu-reset) or take it out",
)
CHECK_DESCRIPTORS = Check(
    NODE,
    "descriptors",
    "raise the limit: LimitNOFILE= of the service, ulimit -n before nodemgr serve",
)
CHECK_CONNECTIONS = Check(
    SETTINGS,
    "connections",
    "end the processes that have them, or give each environment more: max_connections_per_env in"
    " the settings",
)
CHECK_ENV_FILES = Check(
    NODE,
    "environments' files",
    "mend what it says, then set the quota once more, or restart the manager: no task is lost",
)
CHECK_GROUP = Check(RIGHTS, "group", "nothing to do")
CHECK_PRIVILEGES = Check(
    RIGHTS,
    "privileges",
    "see the manager's log for what the kernel refused; start it by its service (nodemgr setup)",
)
CHECK_DRIVER_LIMITS = Check(DRIVER, "driver limits", "nothing to do: the ledger holds in any case")
CHECK_SHARES = Check(NODE, "compute shares", "nothing to do")
CHECK_SUSPENSION = Check(DRIVER, "suspension", "nothing to do")
CHECK_CONTAINERS = Check(
    CONTAINER,
    "containers",
    "make the directory writable, or name another (cdi_dir) that the container engine reads",
)
CHECK_UDP = Check(SETTINGS, "udp", "nothing to do")
CHECK_GATE = Check(
    SETTINGS,
    "device gate",
    "see the manager's log; device_gate in the settings says whether there must be one",
)
CHECK_GATE_OF_ENV = Check(
    CONTAINER,
    "device gate",
    "start the container with the environment's CDI device; if it is so, see the manager's log",
)
CHECK_JOBS = Check(
    NODE,
    "jobs",
    "nodemgr setup makes their service, systemctl restart nodemgr-jobs starts it; without systemd"
    " restart the manager: no job is lost",
)
CHECK_KNOWN_JOBS = Check(
    NODE,
    "known jobs",
    "look at what it names (nodemgr queue withdraw ends what runs), and move its directory away;"
    " check the disk of --state-dir",
)
CHECK_SCHEDULER = Check(
    MANAGER,
    "scheduler",
    "report the fault with the manager's log; all other entries go on without these",
)
CHECK_AUDIT = Check(
    PROGRAM,
    "audit",
    "ask its user to stop it; nodemgr quota set --enforce sets the action against it",
)
STORE_IS_LATE = CheckDetail(
    NODE,
    "the disk of {path} does not keep up: every environment is slowed, tasks that run go on",
)
STORE_IS_WRITTEN = CheckDetail(NODE, "{path} can be written")
FREE_BESIDE_STORE = CheckDetail(NODE, "{size} free beside {path}")
DRIVER_ANSWERED = CheckDetail(DRIVER, "last answer {age} ms ago")
GPUS_ILL = CheckDetail(DRIVER, "ill: GPU {gpus}")
GPUS_HEALTHY = CheckDetail(DRIVER, "{count} healthy")
DESCRIPTORS_IN_USE = CheckDetail(
    NODE,
    "{used} of {limit} in use; quotas (of {envs} in all) may come to need {wanted}",
)
AS_THE_QUOTAS_ARE = CheckDetail(NODE, "as the quotas are")
NO_CROWD = CheckDetail(SETTINGS, "no environment has all that it may")
NO_GROUP = CheckDetail(
    RIGHTS,
    "there is no group {group}: the manager's own user and root alone may order it",
)
GROUP_MEMBERS = CheckDetail(RIGHTS, "{group}: {members}")
GROUP_EMPTY = CheckDetail(RIGHTS, "{group}: no members")
MANAGER_OF_USER = CheckDetail(
    RIGHTS, "the manager is uid {uid}: it sees, and ends, this user's processes alone"
)
UNUSED_RIGHTS = CheckDetail(RIGHTS, "the manager holds {count} capabilities that it does not use")
RIGHTS_HELD = CheckDetail(RIGHTS, "the manager holds {names}")
RIGHTS_NONE = CheckDetail(RIGHTS, "the manager holds none")
NOTHING_SET_ASIDE = CheckDetail(MANAGER, "no waiting entry is set aside after a fault")
NO_VIOLATION = CheckDetail(DRIVER, "the driver shows no memory beyond what was granted")
SHARES_BY_TURNS = CheckDetail(
    NODE, "kept by the launch gate: processes take turns (no control daemon of MPS runs here)"
)
SHARES_BY_MPS = CheckDetail(
    NODE,
    "kept by MPS, to which a grant gives a percentage of threads; the launch gate does priority",
)
SUSPENSION_WORKS = CheckDetail(
    DRIVER,
    "the driver moves the GPU memory of tasks to host memory, but not of processes with shared"
    " (CUDA IPC) or managed memory",
)
SUSPENSION_UNDER_WAY = CheckDetail(
    DRIVER, "the driver moves the GPU memory of {task} now; nothing else was tried meanwhile"
)
SUSPENSION_SKIPPED = CheckDetail(
    DRIVER,
    "skipped, since {why}; a latency-sensitive request has best-effort jobs queued again instead",
)
UDP_OFF = CheckDetail(
    SETTINGS,
    "off (nodemgr serve --udp HOST:PORT): every client shares a directory with this node",
)
UDP_ON = CheckDetail(
    SETTINGS,
    "{address}, {count} client{plural}, each with whole GPUs or a fixed cap, for lack of a ledger;"
    " their deaths are seen by silence; dropped since the start: {dropped}",
)
CDI_FILE = CheckDetail(CONTAINER, "{path} names all that they get")
CDI_NODE_MISSING = CheckDetail(
    CONTAINER,
    "{node} is not there, so programs in containers find no CUDA: nvidia-modprobe -u -c=0, then"
    " restart the manager",
)
SIMULATOR_NOT_SHARED = CheckDetail(
    CONTAINER,
    "containers get no simulated driver: {path} is not on a mount of its own (nosuid, nodev,"
    " noexec) that the whole node sees. Remove the file and start the manager anew as root, outside"
    " of a mount namespace",
    code="host",
)
ALL_JOBS_KNOWN = CheckDetail(NODE, "the store knows all that runs and has run here")
GATE_ON = CheckDetail(CONTAINER, "on, by eBPF: {count} container{plural} behind it")
GATE_OFF_BY_SETTING = CheckDetail(SETTINGS, "off, as the settings say (device_gate)")
GATE_OFF_FOR_SIMULATION = CheckDetail(SETTINGS, "off, simulated GPUs have no device nodes")
GATE_OFF = CheckDetail(SETTINGS, "off: {error}")
GATE_WITHOUT_MINOR = CheckDetail(DRIVER, "NVML names no device node of GPU {gpus}: it stays shut")
GATE_NOT_HERE = CheckDetail(CONTAINER, "none here: this is no container of its own")
GATE_SHUT = CheckDetail(CONTAINER, "shut, except for the GPUs that the environment holds")
GATE_ABSENT = CheckDetail(
    CONTAINER,
    "not before this container, whose processes can open every GPU that it was given",
)
GATE_UNREADABLE = CheckDetail(CONTAINER, "its state cannot be read: {error}")
DRIVER_KEEPS_NO_LIMITS = CheckDetail(
    DRIVER,
    "this driver keeps no memory limits of its own (r615 and newer do): the ledger alone holds",
)
NO_LIMITS_WITHOUT_CGROUP = CheckDetail(
    NODE, "no cgroup v2 here, so the driver cannot limit a container: the ledger alone holds"
)
DRIVER_KEEPS_LIMITS = CheckDetail(
    DRIVER, "the driver keeps {count} limits on containers, beside the ledger"
)
JOBS_CANNOT_START = CheckDetail(NODE, "no job can be started: {why}")
JOBS_BY_OWN_LAUNCHER = CheckDetail(NODE, "started by the manager's own launcher")
JOBS_BY_SERVICE = CheckDetail(NODE, "started by the service nodemgr-jobs ({path})")
SERVICE_SILENT = CheckDetail(NODE, "the service nodemgr-jobs does not answer ({why})")
SERVICE_NOT_REACHED = CheckDetail(NODE, "{socket}: not reached yet")
SERVICE_UNREACHABLE = CheckDetail(NODE, "{socket}: {error}")
SERVICE_ENDED = CheckDetail(NODE, "{socket}: {service} has ended")
SERVICE_OF_OTHERS = CheckDetail(
    SETTINGS,
    "{service} starts jobs of {served}, this manager's are in {directory}: systemctl edit"
    " {service}",
)
LAUNCHER_CANNOT_START = CheckDetail(NODE, "{program} cannot be started: {error}")
