"""The CDI file: a container runtime's edits for `--device nodemgr.local/env=alice`, as JSON text.

Knows: the rules of the published Container Device Interface: names, the fields of an edit, the
version of each feature. Must not know: the existing directories, the place of the file, its
readers.

Everything is brought in by mounts: variables that a runtime injects vanish under `docker exec`,
sudo and `env -i`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_VENDOR = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_CLASS = r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
_KIND = re.compile(f"{_VENDOR}/{_CLASS}", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)

KIND_FORM = (
    "VENDOR/CLASS, both of a-z 0-9 _ - (and . in VENDOR), beginning with a letter, e.g."
    " nodemgr.local/env"
)
DEVICE_FORM = "an environment whose name ends with a letter or digit"

CdiRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the node and its path in the container.

    It is read-only unless `writable`.
    """

    host_path: str
    container_path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class NumberedNode:
    """A character device that this host need not have a node of."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the node that the runtime runs; `name` is the moment, e.g.

    createRuntime. `args` begins with its own name.
    """

    name: str
    path: str
    args: tuple[str, ...] = ()
    timeout_s: int | None = None
    """After this time the runtime gives up, and the container does not start."""


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes that a runtime makes to a container."""

    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    numbered_nodes: tuple[NumberedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One env's part."""

    name: str
    edits: Edits


def is_kind(text: str) -> bool:
    return _KIND.fullmatch(text) is not None


def is_device_name(text: str) -> bool:
    """Whether an env's name can be a device's: CDI wants a letter or digit at the end."""
    return _DEVICE.fullmatch(text) is not None


def file_name(kind: str) -> str:
    """`nodemgr.json` of `nodemgr.local/env`: the first label of the vendor."""
    return kind.partition("/")[0].partition(".")[0] + ".json"


def version(devices: Sequence[CdiDevice]) -> str:
    """The lowest version of the specification that has all used features.

    Older runtimes refuse a newer one unread.
    """
    return "0.5.0" if any(not device.name[0].isalpha() for device in devices) else "0.3.0"


def document(kind: str, common: Edits, devices: Sequence[CdiDevice]) -> str:
    """The whole file.

    `common` is done for each device; at least one device, each name fit to be one.
    """
    assert devices
    assert all(is_device_name(device.name) for device in devices)
    whole = {
        "cdiVersion": version(devices),
        "kind": kind,
        "devices": [
            {"name": device.name, "containerEdits": _edits(device.edits)} for device in devices
        ],
        "containerEdits": _edits(common),
    }
    if not whole["containerEdits"]:
        del whole["containerEdits"]
    return json.dumps(whole, indent=2) + "\n"


def _edits(edits: Edits) -> CdiRow:
    rows = {
        "deviceNodes": [
            *({"path": path} for path in edits.device_nodes),
            *map(_numbered_node, edits.numbered_nodes),
        ],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
    }
    return {key: value for key, value in rows.items() if value}


def _numbered_node(node: NumberedNode) -> CdiRow:
    return {
        "path": node.path,
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "fileMode": 0o666,
    }


def _mount(mount: Mount) -> CdiRow:
    options = ["rw" if mount.writable else "ro", "nosuid", "nodev", "bind"]
    if mount.writable:
        options.append("noexec")  # of its file system: a user namespace may not take it away
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": options}


def _hook(hook: Hook) -> CdiRow:
    row = {
        "hookName": hook.name,
        "path": hook.path,
        "args": list(hook.args),
        "timeout": hook.timeout_s,
    }
    return {key: value for key, value in row.items() if value}
