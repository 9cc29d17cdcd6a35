"""The device gate without eBPF: rules of the devices controller (cgroup v1) of one container.

Knows: devices.list, devices.allow and devices.deny. Must not know: leases, how a container is
found. Cheap to import.

A cgroup of that controller allows everything but its exceptions (a privileged container), or
nothing but its exceptions. The kernel compares exceptions literally, so a rule `c 195:* rw` is
taken back by the same words alone. The kernel applies a shut to the cgroups below, but not an open.
To make a node (`m`) stays allowed: that opens nothing.
"""

from __future__ import annotations

from pathlib import Path

from nodemgr.edge.kernel.device_nodes import CONTROL_MINORS, GPU_MAJOR, DeviceNode, Nodes

ANY = "*"


class RulesTooWide(OSError):
    """The container may open devices of every kind by one rule, from which no GPU can be taken out.

    One line.
    """


def settle(cgroup: Path, nodes: Nodes, devices: set[DeviceNode]) -> None:
    """Of the gated devices exactly these can be opened.

    OSError where the kernel refuses, or the cgroup is gone.
    """
    rules = [line.split() for line in (cgroup / "devices.list").read_text().splitlines()]
    if any(kind == "a" for kind, *_ in rules):
        for device in sorted(nodes.all_gpus() - devices):
            _write(cgroup / "devices.deny", device)
    else:
        for kind, name, access in rules:
            if kind == "c" and set(access) & set("rw"):
                _take_back(cgroup, nodes, devices, name)
    below = [directory for directory in sorted(cgroup.rglob("*")) if directory.is_dir()]
    for directory in [cgroup, *below]:
        for device in sorted(devices):
            _write(directory / "devices.allow", device)


def _take_back(cgroup: Path, nodes: Nodes, devices: set[DeviceNode], name: str) -> None:
    """One exception `MAJOR:MINOR`, as far as it opens what is to be shut."""
    major, _, minor = name.partition(":")
    if major == ANY:
        raise RulesTooWide(
            f"the device rule `c {name}` allows every device: start the container without it"
        )
    if not nodes.is_gated(DeviceNode(int(major), 0)):
        return
    if minor == ANY:
        (cgroup / "devices.deny").write_text(f"c {name} rw")
        for control in CONTROL_MINORS if int(major) == GPU_MAJOR else ():
            _write(cgroup / "devices.allow", DeviceNode(GPU_MAJOR, control))
    elif nodes.is_gated(device := DeviceNode(int(major), int(minor))) and device not in devices:
        _write(cgroup / "devices.deny", device)


def _write(file: Path, device: DeviceNode) -> None:
    file.write_text(f"c {device.major}:{device.minor} rw")
