"""The checks of `nodemgr doctor` on the node: their titles and cures, and what they find."""

from __future__ import annotations

from client_plugin.messages.form import CheckDetail, Part

# -- the installation --

LIBRARY_LOADS = CheckDetail("{library} loads into any program")
LIBRARY_FAULT = CheckDetail("a library cannot be used: {error}")

# -- the node --

MAY_NOT_ASK = CheckDetail(
    "only root, the manager's user and the group nodemgr may ask the manager at {directory}"
)

# -- the manager's own checks: nodemgr/edge/setup/doctor.py --

SHARES_BY_TURNS = CheckDetail(
    "kept by the launch gate: processes take turns (no control daemon of MPS runs here)"
)
SUSPENSION_WORKS = CheckDetail(
    "the driver moves the GPU memory of tasks to host memory, but not of processes with shared"
    " (CUDA IPC) or managed memory",
)
ALL_JOBS_KNOWN = CheckDetail("the store knows all that runs and has run here")
GATE_OFF_BY_SETTING = CheckDetail("off, as the settings say (device_gate)")
NODE_GATE_OFF = CheckDetail(
    "off (gate_node): every process outside of containers can open every GPU; BPF works here"
)
DRIVER_KEEPS_NO_LIMITS = CheckDetail(
    "this driver keeps no memory limits of its own (r615 and newer do): the ledger alone holds",
)
JOBS_BY_OWN_LAUNCHER = CheckDetail("started by the manager's own launcher; {limits}")
JOBS_IN_CGROUPS = Part("each in a cgroup of its own")
JOBS_WITHOUT_LIMITS = Part("--cpus and --host-memory reserve, and limit nothing: {why}")
JOBS_WITHOUT_ONE_LIMIT = Part("{option} reserves, and limits nothing: {why}")
LAUNCHER_AWAY = Part("the service nodemgr-jobs does not answer")
IN_A_CGROUP = Part("it stays in the cgroup of the job or of the command that it is part of")
LIMITED_BY_CONTAINER = Part(
    "a process in a container stays in the container's cgroup, and its limits hold"
)
