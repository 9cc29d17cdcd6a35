"""NVIDIA's device nodes by number: which of them are gated, and which belong to a GPU.

Knows: /dev/nvidiaN is (195, N); capabilities, which MIG needs, have a major of their own that the
kernel chose, and a list of minors by GPU. Must not know: the rights of envs. Cheap to import.

Never gated: nvidiactl and nvidia-modeset (195, 255 and 254), nvidia-uvm, nvidia-caps-imex-channels.
They belong to no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nodemgr._native import lib

GPU_MAJOR: int = lib.NM_GATE_GPU_MAJOR
CONTROL_MINORS: tuple[int, ...] = (lib.NM_GATE_MODESET, lib.NM_GATE_CONTROL)
MAJORS_FILE = Path("/proc/devices")
CAPS_NAME = "nvidia-caps"
CAPS_FILE = Path("/proc/driver/nvidia-caps/mig-minors")
_CAP_OF_GPU = re.compile(r"gpu([0-9]{1,6})/\S+ ([0-9]{1,7})", re.ASCII)


class DeviceNode(NamedTuple):
    """A character device."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """The device nodes of a node. GPUs are named by the minor of their /dev/nvidiaN."""

    caps_major: int | None = None
    caps: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Minors of the capabilities of each GPU's instances.

    The capability to make instances is left out: no container gets it.
    """

    def of_gpus(self, gpus: Iterable[int]) -> set[DeviceNode]:
        """The device nodes that a holder of these GPUs may open."""
        found = set()
        for gpu in gpus:
            found.add(DeviceNode(GPU_MAJOR, gpu))
            if self.caps_major is not None:
                found.update(DeviceNode(self.caps_major, minor) for minor in self.caps.get(gpu, ()))
        return found

    def all_gpus(self) -> set[DeviceNode]:
        """The device nodes of all present and future GPUs."""
        return self.of_gpus(
            {minor for minor in range(256) if minor not in CONTROL_MINORS} | self.caps.keys()
        )


def nodes() -> Nodes:
    """The device nodes of the driver that is loaded now."""
    return parse(_text(MAJORS_FILE), _text(CAPS_FILE))


def parse(majors: str, caps: str) -> Nodes:
    """The nodes by the text of both files."""
    by_gpu: dict[int, set[int]] = {}
    for line in caps.splitlines():
        if match := _CAP_OF_GPU.fullmatch(line):
            by_gpu.setdefault(int(match[1]), set()).add(int(match[2]))
    return Nodes(_caps_major(majors), {gpu: frozenset(minors) for gpu, minors in by_gpu.items()})


def _caps_major(majors: str) -> int | None:
    """Character devices stand before block devices."""
    for line in majors.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if name == CAPS_NAME and number.isascii() and number.isdigit():
            return int(number)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
