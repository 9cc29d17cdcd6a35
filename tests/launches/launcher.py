"""A process that launches by every route, call by call.

Knows: the table of hooks, the probe. Must not know: the gate.
"""

from __future__ import annotations

import re
import struct

from tests.shim.world import CSRC, Probe

ROW = re.compile(r"^NM_LAUNCH\(CUDA, (\w+), (\w+), (\d+), (\w+),", re.MULTILINE)
ROWS = {
    name: (base, int(since), 2 if stream == "PER_THREAD" else 0)
    for name, base, since, stream in ROW.findall((CSRC / "hooks" / "hooks.def").read_text())
}


def address(probe: Probe, name: str, route: str) -> int:
    base, since, flags = ROWS.get(name, ("cuGraphLaunch", 10000, 2 * name.endswith("_ptsz")))
    return int(probe.tell("resolve", route, name, base, since, flags))


class Launcher:
    """A probe with a kernel, a stream and a graph."""

    def __init__(self, probe: Probe, route: str, kernel: str = "sleep_us_2") -> None:
        self.probe, self.route = probe, route
        module, stream = probe.alloc(8), probe.alloc(8)
        image = probe.alloc(content=b"image\0")
        assert probe.call("cuModuleLoadData", module, image) == 0
        assert probe.call("cuStreamCreate", stream, 1) == 0
        self.module, self.stream = probe.u64(module), probe.u64(stream)
        self.kernel = self.function(kernel)

    def function(self, name: str) -> int:
        out, text = self.probe.alloc(8), self.probe.alloc(content=f"{name}\0".encode())
        assert self.probe.call("cuModuleGetFunction", out, self.module, text) == 0
        return self.probe.u64(out)

    def call(self, name: str, *arguments: int) -> int:
        return int(self.probe.tell("call", address(self.probe, name, self.route), *arguments))

    def launch(self, name: str = "cuLaunchKernel") -> int:
        grid = (1, 1, 1, 32, 1, 1, 0)
        if "KernelEx" in name:
            config = struct.pack("<7I4xQQI4x", *grid, self.stream, 0, 0)
            return self.call(name, self.probe.alloc(content=config), self.kernel, 0, 0)
        if "MultiDevice" in name:
            entry = struct.pack("<Q7I4xQQ", self.kernel, *grid, self.stream, 0)
            return self.call(name, self.probe.alloc(content=entry), 1, 0)
        if name in ("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"):
            return self.call(name, self.kernel, 1, 1, self.stream)
        tail = (0,) if "Cooperative" in name else (0, 0)
        return self.call(name, self.kernel, *grid, self.stream, *tail)

    def captured(self, kernels: int = 1) -> int:
        """A graph of that many launches."""
        graph = self.probe.alloc(8)
        assert self.call("cuStreamBeginCapture_v2", self.stream, 0) == 0
        for _ in range(kernels):
            assert self.launch() == 0
        assert self.call("cuStreamEndCapture", self.stream, graph) == 0
        return self.probe.u64(graph)

    def instantiated(self, graph: int) -> int:
        out = self.probe.alloc(8)
        assert self.probe.call("cuGraphInstantiateWithFlags", out, graph, 0) == 0
        return self.probe.u64(out)

    def graph(self, kernels: int = 1) -> int:
        """An executable graph of that many launches."""
        return self.instantiated(self.captured(kernels))
