"""The steps `facts` and `node`: the machine as found, and whether `serve` finds its GPU.

Nothing is changed. Each command may be absent.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from machine import node as running_node

COMMANDS = (
    "uname -a", "id", "cat /proc/driver/nvidia/version", "ls -l /dev", "ldconfig -p",
    "nvidia-smi", "nvidia-smi -q", "mount", "cat /sys/fs/cgroup/cgroup.controllers",
    "cat /proc/self/cgroup", "cat /proc/self/status", "nproc", "cat /proc/meminfo",
    "cat /proc/sys/kernel/unprivileged_bpf_disabled", "cat /etc/os-release", "df -h",
)  # fmt: skip
ABLE = {
    "PID namespaces": "unshare -p -f true",
    "mount namespaces": "unshare -m true",
    "user namespaces": "unshare -U true",
    "network namespaces": "unshare -n true",
}
PACKAGES = (
    *("torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "numba", "numba-cuda", "triton", "numpy"),
    *("pyzmq", "cffi", "psutil", "nvidia-ml-py", "click", "pytest", "setuptools"),
)
TOOLS = ("cc", "gcc", "clang", "nvcc", "ptxas", "podman", "runc", "systemctl", "bpftool", "srun")
COMMAND_S = 10


def facts(out: Path, limit_s: float) -> str:
    """All of it in facts.txt."""
    said = {command: said_by(command) for command in COMMANDS}
    able = [what for what, command in ABLE.items() if not said_by(command, print_code=True)]
    versions = {name: found for name in PACKAGES if (found := version(name))}
    tools = [tool for tool in TOOLS if said_by(f"which {tool}")]
    device = nvml_facts()
    text = "".join(f"== {command}\n{printed}\n" for command, printed in said.items())
    found = {"able": able, "tools": tools, "packages": versions, "nvml": device}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("CUDA", "NVIDIA", "LD_", "PYTHON"))
    }
    (out / "facts.txt").write_text(
        f"{json.dumps(found, indent=1)}\n{json.dumps(environment, indent=1)}\n{text}"
    )
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    cgroup = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1 or none"
    knows = "libcuda.so.1" in said["ldconfig -p"]
    return (
        f"{device}; Python {platform.python_version()}; device nodes {' '.join(nodes) or 'none'};"
        f" cgroup {cgroup}; ldconfig {'knows' if knows else 'does not know'} libcuda;"
        f" {', '.join(able) or 'no namespaces'}; {' '.join(tools)};"
        f" {' '.join(f'{name} {found}' for name, found in versions.items())}"
    )


def said_by(command: str, *, print_code: bool = False) -> str:
    """All that it prints, or why there is nothing; `print_code`: nothing where it ends well."""
    try:
        ended = subprocess.run(
            command.split(), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except FileNotFoundError:
        return "there is no such program" if not command.startswith("which") else ""
    except subprocess.TimeoutExpired:
        return f"silent for {COMMAND_S} s"
    if print_code:
        return str(ended.returncode or "")
    return ended.stdout if command.startswith("which") else ended.stdout + ended.stderr


def version(package: str) -> str | None:
    """As installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nvml_facts() -> str:
    """Name, driver, memory, MIG and ECC of the first GPU, or why NVML does not answer."""
    try:
        import pynvml as nvml
    except ModuleNotFoundError:
        return "NVML not asked: pynvml is not installed"
    try:
        nvml.nvmlInit()
        device = nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    asked = {
        "GPUs": lambda: nvml.nvmlDeviceGetCount(),
        "name": lambda: nvml.nvmlDeviceGetName(device),
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "CUDA": lambda: nvml.nvmlSystemGetCudaDriverVersion_v2(),
        "bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).total,
        "MIG": lambda: nvml.nvmlDeviceGetMigMode(device)[0],
        "ECC": lambda: nvml.nvmlDeviceGetEccMode(device)[0],
        "compute mode": lambda: nvml.nvmlDeviceGetComputeMode(device),
        "virtualisation": lambda: nvml.nvmlDeviceGetVirtualizationMode(device),
    }
    found = []
    for name, ask in asked.items():
        try:
            found.append(f"{name} {ask()}")
        except nvml.NVMLError as error:
            found.append(f"{name}: {error}")
    return ", ".join(found)


def node(out: Path, limit_s: float) -> str:
    """The first GPU as the manager reports it."""
    with running_node() as found:
        status = found.manager.status()
        print(json.dumps(status, indent=1))
        gpus = status["gpus"]
        if not gpus:
            raise RuntimeError(f"serve runs and lists no GPU: {found.manager.log.strip()[-200:]}")
        gpu = gpus[0]
        return (
            f"{len(gpus)} x {gpu['name']}, {gpu['memory_total_bytes']} bytes, state {gpu['state']}"
        )
