"""The checks of `nodemgr doctor` on the node: their titles and cures, and what they find."""

from __future__ import annotations

from client_plugin.messages.form import (
    Check,
    CheckDetail,
    Part,
)

# -- the installation --

CHECK_CLIENT_LIBRARY = Check(
    "client library",
    "install again where a C compiler is: {install}",
)
CHECK_VERSIONS = Check(
    "versions",
    "install the same nodemgr here and there, then restart the manager (tasks go on)",
)
CHECK_IMPORT_HOOK = Check(
    "import hook",
    "install again where a C compiler is: {install}",
)
CHECK_EXTENSION = Check(
    "extension",
    "install again where a C compiler is: {install}",
)
SHIM_MISSING = CheckDetail("{library} is missing")
LIBRARY_DOES_NOT_LOAD = CheckDetail("{program} with {library} preloaded: exit {exit_code} {error}")
ENTRY_NOT_FOUND = CheckDetail("the dynamic linker of this system finds no library at {entry}{why}")
LIBRARY_LOADS = CheckDetail("{library} loads into any program")
LIBRARY_FAULT = CheckDetail("a library cannot be used: {error}")
LIBRARY_OF_OTHER_VERSION = CheckDetail(
    "the client library speaks version {theirs}, this nodemgr version {ours}"
)
NO_MANAGER_TO_COMPARE = CheckDetail("client library: {client}; no manager to compare with")
OTHER_VERSIONS = CheckDetail(
    "the manager runs {theirs} (client {their_client}), here is {ours} (client {our_client})",
)
SAME_VERSIONS = CheckDetail("nodemgr {version}, client {client}, here and in the manager")
FILE_LOADS = CheckDetail("{file} loads")
PYTHON_WITHOUT_OUR_HOOK = CheckDetail("{python} starts without the import hook of {payload}")
PYTHON_WITHOUT_OUR_HOOK_SAYS = CheckDetail(
    "{python} starts without the import hook of {payload}: {error}"
)

# -- the node --

FOR_ADMIN = Part("for an administrator: {cure}")
CHECK_MANAGER = Check(
    "manager",
    "start one of your own: nodemgr serve; the node's, as an administrator: systemctl start"
    " nodemgr",
)
CHECK_LEFTOVERS = Check(
    "leftovers",
    "harmless, running tasks wait for a new manager; start it: nodemgr serve (or: systemctl start"
    " nodemgr)",
)
CHECK_OTHER_USERS = Check("other users", "install nodemgr where all users can read it")
OTHERS_CAN_READ = CheckDetail("all users can read the interpreter and the packages")
CHECK_MODES = Check("modes", "stop the manager, remove the run directory, start the manager again")
CHECK_STATE = Check("state", "make room, and keep it the manager's own (chmod 700)")
CHECK_NODE_DRIVER = Check(
    "driver",
    "have the NVIDIA driver installed, or try without a GPU: nodemgr serve --simulate 4x80GiB",
)
CHECK_OPEN_FILES = Check("open files", "raise LimitNOFILE= of the manager's unit, or ulimit -Hn")
CHECK_ENVIRONMENTS = Check(
    "environments",
    "set the quota once more (nodemgr quota set), which writes the directory anew",
)
CHECK_MANAGERS_OWN = Check("manager's own", "start it: nodemgr serve (or: systemctl start nodemgr)")
MAY_NOT_ASK = CheckDetail(
    "only root, the manager's user and the group nodemgr may ask the manager at {directory}"
)
MANAGER_AT = CheckDetail("pid {pid} answers at {directory}")
MANAGER_STUCK = CheckDetail("the manager at {directory} runs but does not answer")
NO_MANAGER_AT = CheckDetail("no manager answers at {directory}")
NEVER_A_MANAGER = CheckDetail("no manager ever ran at {directory}")
NO_LEFTOVERS = CheckDetail("none")
MANAGER_ALIVE = CheckDetail("none: the manager is alive")
ENDED_CLEANLY = CheckDetail("the last manager ended cleanly")
DIED_AND_LEFT = CheckDetail("a manager died and left {names}")
DOES_NOT_EXIST = CheckDetail("{directory} does not exist")
WRONG_MODES = CheckDetail("not as the manager makes them: {files}")
WRONG_MODE = CheckDetail("{label} {path} is {mode} of uid {uid}")
MODES_ARE_WELL = CheckDetail("{directory} is closed to strangers")
MAY_NOT_ASK_FOR_STATE = CheckDetail(
    "only root, the manager's user and the group nodemgr may ask the manager at {directory} for its"
    " state directory"
    " (--state-dir names one)",
)
NOT_YET_THERE = CheckDetail("{directory} does not exist yet")
NOT_OPEN_TO_YOU = CheckDetail("{directory} is not open to you")
NO_DIRECTORY = CheckDetail("{directory} is no directory")
STATE_OPEN_TO_OTHERS = CheckDetail("{directory} is {mode}: keys and records lie there")
OTHERS_STATE = CheckDetail("{directory} is uid {uid}'s")
STATE_READ_ONLY = CheckDetail("{directory} is not writable")
STATE_NEARLY_FULL = CheckDetail("{size} free under {directory}: grants are refused when it is full")
STATE_IS_WELL = CheckDetail("{directory}: {size} free")
SIMULATED_NODE = CheckDetail("a simulated node: no driver needed")
DRIVER_LOADS = CheckDetail("libcuda.so.1 and libnvidia-ml.so.1 load")
MANAGERS_OWN_BELOW = CheckDetail("the check of the manager's own is below")
ANY_NUMBER = CheckDetail("any number")
FILES_OF_MANAGER = CheckDetail(
    "a manager started here may open {files} files, enough for {processes} processes"
)
NO_MANAGER_TO_ASK = CheckDetail("no manager to ask")
ENV_DIRECTORIES_WRONG = CheckDetail("not usable: {faults}")
ENV_DIRECTORIES_WELL = CheckDetail("{count} with client.conf and a socket that answers")

# -- an environment --

CHECK_ENV_DIRECTORY = Check("env directory", "mount RUN/envs/ENV of the node at /run/nodemgr-env")
CHECK_ENV_SOCKET = Check(
    "socket",
    "mount the directory, not the socket file, and check that the manager runs",
)
CHECK_PRELOAD_ACTIVE = Check(
    "preload",
    "mount /etc/ld.so.preload naming the shim into the container, or start programs with nodemgr"
    " run",
)
CHECK_HOOK_ACTIVE = Check(
    "hook",
    "mount /etc/ld.so.preload naming the shim into the container, or start programs with nodemgr"
    " run",
)
CHECK_LEDGER_MAPPED = Check(
    "ledger",
    "such a program escapes its quota: static linking, dlmopen, NODEMGR_OFF, or an old lease; end"
    " it",
)
SHIM_ABSENT = CheckDetail("the shim is not in this process")
SHIM_PRESENT = CheckDetail("the shim is in this process")
ENV_USES_NO_DRIVER = CheckDetail("no process of this environment uses the driver at the moment")
ENV_ALL_WITH_LEDGER = CheckDetail(
    "in all processes of this environment that use the driver: {count}"
)

# -- the kernel --

CHECK_KERNEL = Check(
    "kernel", "Linux 5.4 or newer is needed, and a seccomp profile that allows these calls"
)
CHECK_CONTROL_GROUPS = Check(
    "control groups",
    "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2",
)
CHECK_SELINUX = Check(
    "selinux",
    "start containers with --security-opt label=disable; or label it container_file_t (semanage"
    " fcontext, restorecon) and let container_t connect to the manager's sockets by a local policy",
)
SEALS_FAIL = CheckDetail("sealed memory (memfd, F_SEAL_FUTURE_WRITE): {error}")
PIDFD_FAILS = CheckDetail("pidfd_open: {error}")
KERNEL_NAMES_PEERS = CheckDetail("sealed memory and pidfds work; a socket names its peer by pidfd")
KERNEL_NAMES_NO_PEERS = CheckDetail(
    "sealed memory and pidfds work; a socket does not name its peer by pidfd"
)
KERNEL_PEER_FAULT = CheckDetail("sealed memory and pidfds work; SO_PEERPIDFD: {error}")
CGROUP_V2 = CheckDetail("version 2")
CGROUP_HYBRID = CheckDetail("version 2 beside controllers of version 1")
CGROUP_V1 = CheckDetail(
    "version 1 alone: no device gate, and the driver cannot limit containers itself",
)
NO_CGROUP = CheckDetail("none is mounted: containers cannot be told apart")
SELINUX_ABSENT = CheckDetail("not here")
SELINUX_PERMISSIVE = CheckDetail("permissive")
SELINUX_ENFORCING = CheckDetail("enforcing; {directory} is {label}")
SELINUX_WITHOUT_LABEL = CheckDetail("enforcing; {directory} is without a label")

# -- the manager's own checks: nodemgr/edge/setup/doctor.py --

CHECK_STORE = Check(
    "store",
    "make room or repair the disk under --state-dir; running tasks go on meanwhile",
)
CHECK_FREE_SPACE = Check(
    "free-space", "make room on the disk of --state-dir before grants are refused"
)
CHECK_NVML = Check("nvml", "see nvidia-smi and dmesg; reload the NVIDIA driver or restart the node")
CHECK_GPUS = Check(
    "gpus",
    "see dmesg for Xid errors; reset the GPU (nvidia-smi --gpu-reset) or take it out",
)
CHECK_DESCRIPTORS = Check(
    "descriptors",
    "raise the limit: LimitNOFILE= of the service, ulimit -n before nodemgr serve",
)
CHECK_CONNECTIONS = Check(
    "connections",
    "end the processes that have them, or give each environment more: max_connections_per_env in"
    " the settings",
)
CHECK_ENV_FILES = Check(
    "environments' files",
    "mend what it says, then set the quota once more, or restart the manager: no task is lost",
)
CHECK_GROUP = Check("group", "nothing to do")
CHECK_PRIVILEGES = Check(
    "privileges",
    "see the manager's log for what the kernel refused; start it by its service (nodemgr setup)",
)
CHECK_DRIVER_LIMITS = Check("driver limits", "nothing to do: the ledger holds in any case")
CHECK_SHARES = Check("compute shares", "nothing to do")
CHECK_SUSPENSION = Check("suspension", "nothing to do")
CHECK_CONTAINERS = Check(
    "containers",
    "make the directory writable, or name another (cdi_dir) that the container engine reads",
)
CHECK_UDP = Check("udp", "nothing to do")
CHECK_GATE = Check(
    "device gate",
    "see the manager's log; device_gate in the settings says whether there must be one",
)
CHECK_NODE_GATE = Check(
    "device gate of the node", "see the manager's log; gate_node in the settings turns it on"
)
CHECK_GATE_OF_ENV = Check(
    "device gate",
    "start the container with the environment's CDI device; if it is so, see the manager's log",
)
CHECK_JOBS = Check(
    "jobs",
    "nodemgr setup makes their service, systemctl restart nodemgr-jobs starts it; without systemd"
    " restart the manager: no job is lost",
)
CHECK_KNOWN_JOBS = Check(
    "known jobs",
    "look at what it names (nodemgr queue withdraw ends what runs), and move its directory away;"
    " check the disk of --state-dir",
)
CHECK_SCHEDULER = Check(
    "scheduler",
    "report the fault with the manager's log; all other entries go on without these",
)
CHECK_AUDIT = Check(
    "audit",
    "ask its user to stop it; nodemgr quota set --enforce sets the action against it",
)
STORE_IS_LATE = CheckDetail(
    "the disk of {path} does not keep up: every environment is slowed, tasks that run go on",
)
STORE_IS_WRITTEN = CheckDetail("{path} can be written")
FREE_BESIDE_STORE = CheckDetail("{size} free beside {path}")
DRIVER_ANSWERED = CheckDetail("last answer {age} ms ago")
GPUS_ILL = CheckDetail("ill: GPU {gpus}")
GPUS_HEALTHY = CheckDetail("{count} healthy")
DESCRIPTORS_IN_USE = CheckDetail(
    "{used} of {limit} in use; quotas (of {envs} in all) may come to need {wanted}",
)
AS_THE_QUOTAS_ARE = CheckDetail("as the quotas are")
NO_CROWD = CheckDetail("no environment has all that it may")
NO_GROUP = CheckDetail(
    "there is no group {group}: the manager's own user and root alone may order it",
)
GROUP_MEMBERS = CheckDetail("{group}: {members}")
GROUP_EMPTY = CheckDetail("{group}: no members")
MANAGER_OF_USER = CheckDetail(
    "the manager is uid {uid}: it sees, and ends, this user's processes alone"
)
UNUSED_RIGHTS = CheckDetail("the manager holds {count} capabilities that it does not use")
RIGHTS_HELD = CheckDetail("the manager holds {names}")
RIGHTS_NONE = CheckDetail("the manager holds none")
NOTHING_SET_ASIDE = CheckDetail("no waiting entry is set aside after a fault")
NO_VIOLATION = CheckDetail("the driver shows no memory beyond what was granted")
SHARES_BY_TURNS = CheckDetail(
    "kept by the launch gate: processes take turns (no control daemon of MPS runs here)"
)
SHARES_BY_MPS = CheckDetail(
    "kept by MPS, to which a grant gives a percentage of threads; the launch gate does priority",
)
SUSPENSION_WORKS = CheckDetail(
    "the driver moves the GPU memory of tasks to host memory, but not of processes with shared"
    " (CUDA IPC) or managed memory",
)
SUSPENSION_UNDER_WAY = CheckDetail(
    "the driver moves the GPU memory of {task} now; nothing else was tried meanwhile"
)
SUSPENSION_SKIPPED = CheckDetail(
    "skipped, since {why}; a latency-sensitive request has best-effort jobs queued again instead",
)
UDP_OFF = CheckDetail(
    "off (nodemgr serve --udp HOST:PORT): every client shares a directory with this node",
)
UDP_ON = CheckDetail(
    "{address}, {count} client{plural}, each with whole GPUs or a fixed cap, for lack of a ledger;"
    " their deaths are seen by silence; dropped since the start: {dropped}",
)
CDI_FILE = CheckDetail("{path} names all that they get")
CDI_NODE_MISSING = CheckDetail(
    "{node} is not there, so programs in containers find no CUDA: nvidia-modprobe -u -c=0, then"
    " restart the manager",
)
SIMULATOR_NOT_SHARED = CheckDetail(
    "containers get no simulated driver: {path} is not on a mount of its own (nosuid, nodev,"
    " noexec) that the whole node sees. Remove the file and start the manager anew as root, outside"
    " of a mount namespace",
    code="host",
)
ALL_JOBS_KNOWN = CheckDetail("the store knows all that runs and has run here")
GATE_ON = CheckDetail("on, by eBPF: {count} container{plural} behind it")
GATE_OFF_BY_SETTING = CheckDetail("off, as the settings say (device_gate)")
NODE_GATE_OFF = CheckDetail(
    "off (gate_node): every process outside of containers can open every GPU; BPF works here"
)
NODE_GATE_NOT_HERE = CheckDetail(
    "off: every process outside of containers can open every GPU; gate_node would not work here:"
    " {why}"
)
NODE_GATE_ON = CheckDetail(
    "on, by eBPF: logins (user.slice) and jobs open their own tasks' GPUs alone; root and services"
    " (system.slice) open every GPU"
)
NODE_GATE_WITHOUT_JOBS = CheckDetail(
    "on, by eBPF: logins (user.slice) open their own tasks' GPUs alone; root, services"
    " (system.slice) and jobs, which have no cgroups here, open every GPU"
)
GATE_OFF_FOR_SIMULATION = CheckDetail("off, simulated GPUs have no device nodes")
GATE_OFF = CheckDetail("off: {error}")
GATE_WITHOUT_MINOR = CheckDetail("NVML names no device node of GPU {gpus}: it stays shut")
GATE_NOT_HERE = CheckDetail("none here: this is no container of its own")
GATE_SHUT = CheckDetail("shut, except for the GPUs that the environment holds")
GATE_ABSENT = CheckDetail(
    "not before this container, whose processes can open every GPU that it was given",
)
GATE_UNREADABLE = CheckDetail("its state cannot be read: {error}")
DRIVER_KEEPS_NO_LIMITS = CheckDetail(
    "this driver keeps no memory limits of its own (r615 and newer do): the ledger alone holds",
)
NO_LIMITS_WITHOUT_CGROUP = CheckDetail(
    "no cgroup v2 here, so the driver cannot limit a container: the ledger alone holds"
)
DRIVER_KEEPS_LIMITS = CheckDetail(
    "the driver keeps {count} limits on containers, beside the ledger"
)
JOBS_CANNOT_START = CheckDetail("no job can be started: {why}")
JOBS_BY_OWN_LAUNCHER = CheckDetail("started by the manager's own launcher; {limits}")
JOBS_BY_SERVICE = CheckDetail("started by the service nodemgr-jobs ({path}); {limits}")
JOBS_IN_CGROUPS = Part("each in a cgroup of its own")
JOBS_WITHOUT_LIMITS = Part("--cpus and --host-memory reserve, and limit nothing: {why}")
RUN_WITHOUT_LIMITS = Part("--cpus and --host-memory do not limit this command: {why}")
LAUNCHER_AWAY = Part("the service nodemgr-jobs does not answer")
IN_A_CGROUP = Part("it stays in the cgroup of the job or of the command that it is part of")
NO_CGROUPS = Part("only jobs of the service nodemgr-jobs have cgroups of their own")
NO_SCOPE_MADE = Part("systemd delegates no cgroup to them (journalctl -u nodemgr-jobs)")
NO_CONTROLLERS = Part("their cgroups lack controllers ({names}): look at the kernel's options")
LIMITED_BY_CONTAINER = Part(
    "a process in a container stays in the container's cgroup, and its limits hold"
)
SERVICE_SILENT = CheckDetail("the service nodemgr-jobs does not answer ({why})")
SERVICE_NOT_REACHED = CheckDetail("{socket}: not reached yet")
SERVICE_UNREACHABLE = CheckDetail("{socket}: {error}")
SERVICE_ENDED = CheckDetail("{socket}: {service} has ended")
SERVICE_OF_OTHERS = CheckDetail(
    "{service} starts jobs of {served}, this manager's are in {directory}: systemctl edit"
    " {service}",
)
LAUNCHER_CANNOT_START = CheckDetail("{program} cannot be started: {error}")
