"""Messages of a manager that starts: its directories, its store, its driver, its node."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

LONG_SOCKET_PATH = Message(
    "{path} has {length_bytes} bytes, and the name of a UNIX socket at most {limit_bytes}",
    "choose a shorter --run-dir",
    code="usage",
)
OTHERS_DIRECTORY = Message(
    "{path} belongs to user {uid}",
    "name a directory of your own with --run-dir and --state-dir",
)
DIRECTORY_READ_ONLY = Message(
    "{path} cannot be written",
    "name a directory of your own with --run-dir and --state-dir",
)
DIRECTORY_FAILED = Message(
    "the directory {path} cannot be used ({error})",
    "name another with --run-dir and --state-dir",
)
RUN_DIR_TAKEN = Message(
    "another manager (pid {pid}) runs on {path}",
    "stop it first, or name another --run-dir and --state-dir",
)
STATE_DIR_TAKEN = Message(
    "another manager (pid {pid}) keeps its state in {path}",
    "stop it first, or name another --state-dir",
)

# -- the store --

STORE_UNUSABLE = Message(
    "{path}: {why}; the manager does not start on it, and leaves it as it is",
    "free the disk or put a backup in its place, or move it and its -wal and -shm away and take"
    " its quotas over (nodemgr quota load FILE)",
)
OTHERS_DATABASE = Part("this is another program's database")
DAMAGED_DATABASE = Part("the database is damaged ({error})")
ROW_OF_OTHER_VERSION = Message(
    "the store has a row that this version cannot read ({error})",
    "install the version that wrote it, or name another --state-dir",
)
STORE_FAULT = Part("{path}: {error}")
DISK_RESERVED = Part("{path}: the rest of the disk is kept for grants and releases")
MANY_QUESTIONS = Part("{limit} such questions are waiting already: try again in a moment")
PAST_UNREADABLE = Part("the store's past cannot be read ({error})")
PAST_INTERNAL_FAULT = Part("internal fault: {error}")

# -- the driver, the network, the process --

DRIVER_SILENT = Message(
    "the NVIDIA driver does not answer ({error})",
    "install or load it (nvidia-smi must work), or simulate a node with --simulate 4x80GiB",
)
DRIVER_WITHOUT_GPU = Message(
    "NVML knows no GPU",
    "see nvidia-smi, or simulate a node with --simulate 4x80GiB",
)
DRIVER_FAULT = Message(
    "the driver cannot read its GPUs ({error})",
    "see nvidia-smi, or simulate a node with --simulate 4x80GiB",
)
SIMULATED_NVML_UNUSABLE = Message(
    "the simulated NVML cannot be loaded ({error})",
    "if the file system is mounted noexec, name another --run-dir",
)
UDP_UNBOUND = Message(
    "udp: {host}:{port} cannot be listened on ({error})",
    "{remedy}",
)
NOT_OWN_ADDRESS = Part("name an address of this node, which this is not (ip address lists them)")
PORT_TAKEN = Part("name another port, since another program listens there")
LOW_PORT = Part("name a port from 1024 on, since one below needs root")
UNKNOWN_HOST_NAME = Part("name an address of this node, since no such host is known here")
SEE_ERROR = Part("mend that, or name another address")
CANNOT_START = Message(
    "cannot start: {error}", "mend that (`nodemgr doctor` helps), and start it again"
)
ENDED_BY_FAULT = Message(
    "ended by an internal fault, reported above; running tasks go on",
    "start it again, and please report the fault",
)

# -- the device gate --

GATE_NEEDS_ROOT = Message(
    "only a manager that runs as root can gate devices",
    'run it as root, or set device_gate = "off"',
)
GATE_IMPOSSIBLE = Message(
    "device_gate is on, but devices cannot be gated here: {error}",
    'mend that, or set device_gate = "auto" or "off"',
)
GATE_NEEDS_VERSION_2 = Part(
    "the device gate needs cgroup version 2, which is not mounted here, so containers can open"
    " every GPU that they were given: boot with systemd.unified_cgroup_hierarchy=1, or mount"
    " cgroup2",
)
GATE_FAILED = Part("the kernel refused the device gate ({error})")
NODE_GATE_NEEDS_ROOT = Part("only a manager that runs as root can gate the node's devices")
NODE_GATE_NEEDS_VERSION_2 = Part("cgroup version 2 is not mounted")
NODE_GATE_IMPOSSIBLE = Message(
    "gate_node is true, but the node's devices cannot be gated here: {error}",
    "mend that, or set gate_node = false",
)

# -- the container that is not started: gate_hook.py --

NOT_STARTED_CONTAINER = Message(
    "the container is not started: {why}",
)
HOOK_USAGE = Part("usage: gate_hook.py RUN_DIR ENV, with the container's state on stdin")
HOOK_WITHOUT_PID = Part(
    "its runtime gave no state with a pid on the hook's stdin: use a runtime of OCI 1.0 or newer",
)
ENV_WITHOUT_GATE = Part(
    "environment {env} has no device gate, since it was removed (nodemgr env list) or the manager"
    " never ran with device_gate: make it again, or start the manager with device_gate",
)
CONTAINER_PROCESS_GONE = Part("its process {pid} has ended: start it again")
NO_OWN_CGROUP = Part(
    "it has no cgroup (version 2) of its own, at which the device gate stands: start it with one"
    " (podman: not --cgroups=disabled), boot the node with systemd.unified_cgroup_hierarchy=1, or"
    ' set device_gate = "off"',
)
HOOK_NEEDS_ROOT = Part(
    "only root's container engine can shut its device gate ({error}): start it as root",
)
GATE_NOT_SHUT = Part(
    "its device gate could not be shut ({error}): see `nodemgr doctor`, and start it again"
)

# -- the simulated node --

SIMULATOR_NOT_BUILT = Message(
    "the simulator is not built, since {path} is missing",
    "install the project, or run `python -m csrc.build`",
)
SIMULATOR_IN_USE = Message(
    "{action}: the node there is in use",
    "end its clients and its manager first, or open it instead",
)
NO_SIMULATED_NODE = Message(
    "{action}: there is no simulated node", "start a manager with --simulate first"
)
SIMULATOR_FAILED = Message(
    "{action}: {error}", "name another --run-dir if the disk or its rights are the reason"
)
SIMULATOR_CLOSED = Message("{path}: the handle of the simulated node is closed", "open it again")
SIMULATED_COUNT = Message(
    "a simulated node must have 1 to {limit} devices, not {count}",
    code="usage",
)
SIMULATED_MEMORY = Message(
    "a simulated device must have less than 1 TiB and more than nothing, not {size_bytes} bytes",
    code="usage",
)
SIMULATED_OTHER = Message(
    "{path}: clients still use a node of {other}",
    "end them, or simulate that one",
)
UNKNOWN_MODEL = Part("{text!r}: unknown GPU model; the known ones: {known}")
NODE_OF_GPUS = Part("{text!r}: a node has 1 to {limit} GPUs")

# -- reasons of the store --

DISK_IS_FULL = Part("the disk is full")
STORE_LOCKED = Part("another program holds the database locked")
STORE_READ_ONLY = Part("the file is read-only")
DISK_FAILS = Part("the disk answers with an I/O error")
STORE_DAMAGED = Part("the database is damaged")
LAST_OF_DISK = Part(
    "the disk of {directory} has {free} free, and its last {reserve} are kept for grants and"
    " releases (disk_reserve_bytes): try again when space was freed there",
)
EVENTS_LOST = Part(
    "state.db lacks {events} of before this start: its log was damaged, or it is an older copy",
)
JOB_LOST = Part(
    "{lost}; job {job} was submitted and is not known any more: submit it again, unless it runs",
)
JOBS_LOST = Part(
    "{lost}; jobs {first} to {last} were submitted and are not known any more: submit again those"
    " that do not run",
)

# -- reasons of the device gate --

NO_MAP_OF_GATE = Part("{path} is no map of a device gate: remove it (rm {path})")
