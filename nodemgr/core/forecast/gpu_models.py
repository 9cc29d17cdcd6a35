"""GPU models: peaks and bandwidths for estimates that need no measurement.

Knows: the data sheets' figures of each model, the names by which NVML and people call it. Must not
know: the GPUs of the node.

Each row names the page of NVIDIA that its figures were compared with (`source`). The pages were
read in copies and quotations of others, since NVIDIA's own site was out of reach. Capabilities are
those of NVIDIA's page "CUDA GPU Compute Capability" and of its page for older GPUs. A test holds
that each FP32 peak is that of the row's units at a clock such GPUs have, and that the rows agree
with the simulator's table (csrc/sim/node/models.def).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nodemgr.core.model.values import replace, value

GIB = 1 << 30


@value
class GpuRates:
    """One model. Rates are peaks: 10^9 floating-point operations, or bytes, in a second."""

    name: str
    """As NVML has it."""
    word: str
    """The short name for people, as in `--simulate`."""
    memory_bytes: int
    major: int
    """The compute capability."""
    minor: int
    cores: int
    """FP32 units of the whole GPU."""
    float32_gflops: int
    tensor_gflops: int
    """16-bit floating point on tensor cores, dense, with FP32 sums."""
    bandwidth_gb_per_s: int
    source: str = ""
    """The page with these figures; empty: a user named them."""

    @property
    def hardware(self) -> tuple[int, int, int]:
        """The source's hardware features: capability, memory in GiB, cores ([78])."""
        return self.major, self.memory_bytes // GIB, self.cores

    def gflops(self, precision: str) -> int:
        """The peak for a precision of features.PRECISIONS."""
        tensor = PRECISION_OF_TENSOR_CORES.get(precision)
        if tensor is not None and (self.major, self.minor) >= tensor.since:
            return max(1, self.tensor_gflops * tensor.times_per_mille // 1000)
        if precision == "float64":
            return max(1, self.float32_gflops // (2 if (self.major, self.minor) in FP64 else 64))
        return max(1, self.float32_gflops)


class TensorRate(NamedTuple):
    """Tensor cores have the precision since this capability, at this part of the 16-bit rate."""

    since: tuple[int, int]
    times_per_mille: int


PRECISION_OF_TENSOR_CORES = {
    "float16": TensorRate((7, 0), 1000),
    "bfloat16": TensorRate((8, 0), 1000),
    "tf32": TensorRate((8, 0), 500),
    "int8": TensorRate((7, 5), 2000),
}
FP64 = frozenset(((6, 0), (7, 0), (8, 0), (9, 0)))
"""Capabilities of data centres' GPUs with FP64 units at half the FP32 rate."""


def _row(
    name: str, word: str, gib: int, capability: tuple[int, int], units: tuple[int, int],
    teraflops: tuple[float, float], bandwidth: int, source: str,
) -> GpuRates:  # fmt: skip
    """`units`: multiprocessors, and FP32 units of each; `teraflops`: FP32, 16-bit tensor."""
    return GpuRates(
        name, word, gib * GIB, *capability, units[0] * units[1],
        round(teraflops[0] * 1000), round(teraflops[1] * 1000), bandwidth, source,
    )  # fmt: skip


AMPERE = "NVIDIA Ampere Architecture In-Depth (NVIDIA Technical Blog), tables 3 and 4"
A100_SHEET = f"NVIDIA A100 Tensor Core GPU Datasheet, June 2021; {AMPERE}"
V100_SHEET = f"NVIDIA V100 Tensor Core GPU Datasheet; {AMPERE}"
GA102 = "NVIDIA Ampere GA102 GPU Architecture, white paper V2.0"
HOPPER = "NVIDIA Hopper Architecture In-Depth (NVIDIA Technical Blog), tables 3 and 4"
H100_SHEET = f"NVIDIA H100 Tensor Core GPU Datasheet; {HOPPER}"

GPU_MODELS = (
    _row("Tesla P100-SXM2-16GB", "P100-16GiB", 16, (6, 0), (56, 64), (10.6, 21.2), 720, AMPERE),
    _row("Tesla V100-SXM2-16GB", "V100-16GiB", 16, (7, 0), (80, 64), (15.7, 125), 900, AMPERE),
    _row("Tesla V100-SXM2-32GB", "V100-32GiB", 32, (7, 0), (80, 64), (15.7, 125), 900, AMPERE),
    _row("Tesla V100-PCIE-16GB", "V100-PCIE-16GiB", 16, (7, 0), (80, 64), (14.0, 112), 900,
         V100_SHEET),
    _row("Tesla V100-PCIE-32GB", "V100-PCIE-32GiB", 32, (7, 0), (80, 64), (14.0, 112), 900,
         V100_SHEET),
    _row("Tesla T4", "T4-16GiB", 16, (7, 5), (40, 64), (8.1, 65), 320,
         "NVIDIA T4, product page (2560 CUDA cores, 320+ GB/s)"),
    _row("NVIDIA A10", "A10-24GiB", 24, (8, 6), (72, 128), (31.2, 125), 600,
         "NVIDIA A10 Tensor Core GPU Datasheet (72 RT cores, one for each multiprocessor)"),
    _row("NVIDIA A30", "A30-24GiB", 24, (8, 0), (56, 64), (10.3, 165), 933,
         "NVIDIA A30 Tensor Core GPU Datasheet; multiprocessors by its FP32 peak at 1440 MHz"),
    _row("NVIDIA A40", "A40-48GiB", 48, (8, 6), (84, 128), (37.4, 149.7), 696,
         f"NVIDIA A40 Datasheet; {GA102}"),
    _row("NVIDIA RTX A6000", "A6000-48GiB", 48, (8, 6), (84, 128), (38.7, 154.8), 768, GA102),
    _row("NVIDIA A100-SXM4-40GB", "A100-40GiB", 40, (8, 0), (108, 64), (19.5, 312), 1555,
         A100_SHEET),
    _row("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GiB", 40, (8, 0), (108, 64), (19.5, 312), 1555,
         A100_SHEET),
    _row("NVIDIA A100-SXM4-80GB", "A100-80GiB", 80, (8, 0), (108, 64), (19.5, 312), 2039,
         A100_SHEET),
    _row("NVIDIA A100 80GB PCIe", "A100-PCIE-80GiB", 80, (8, 0), (108, 64), (19.5, 312), 1935,
         A100_SHEET),
    _row("NVIDIA GeForce RTX 3090", "RTX3090-24GiB", 24, (8, 6), (82, 128), (35.6, 71), 936,
         f"{GA102}, table 9"),
    _row("NVIDIA GeForce RTX 4090", "RTX4090-24GiB", 24, (8, 9), (128, 128), (82.6, 165.2), 1008,
         "NVIDIA Ada GPU Architecture, white paper V2.1, appendix A, table 2"),
    _row("NVIDIA L4", "L4-24GiB", 24, (8, 9), (58, 128), (30.3, 121), 300,
         "NVIDIA L4 Tensor Core GPU Datasheet; multiprocessors by its FP32 peak at 2040 MHz"),
    _row("NVIDIA L40S", "L40S-48GiB", 48, (8, 9), (142, 128), (91.6, 362.05), 864,
         "NVIDIA L40S Datasheet, September 2023"),
    _row("NVIDIA H100 80GB HBM3", "H100-80GiB", 80, (9, 0), (132, 128), (67, 989.5), 3350,
         H100_SHEET),
    _row("NVIDIA H100 PCIe", "H100-PCIE-80GiB", 80, (9, 0), (114, 128), (51, 756.5), 2000,
         H100_SHEET),
    _row("NVIDIA H200", "H200-141GiB", 141, (9, 0), (132, 128), (67, 989.5), 4800,
         f"NVIDIA H200 Tensor Core GPU Datasheet, 2024; the multiprocessors of an H100: {HOPPER}"),
)  # fmt: skip
"""The table of all models. A GPU whose name is not here has no roofline estimate."""
SIMULATED = "Simulated GPU"
"""The simulator's device of any size, with the figures of an H100."""
OWN = re.compile(
    r"(?P<name>[^:]{1,64}):(?P<tflops>[0-9]{1,5}(?:\.[0-9]{1,3})?):(?P<gbps>[0-9]{1,6})"
    r":(?P<gib>[0-9]{1,5})",
    re.ASCII,
)
"""`NAME:TFLOPS:GBPS:GIB`: FP32 peak, bandwidth and memory of a model that the table lacks."""
OWN_CAPABILITY = (6, 0)
"""Without tensor cores: the named peak is that of every precision but float64."""


def find(text: str) -> GpuRates | None:
    """The model of this NVML name, short name or `NAME:TFLOPS:GBPS:GIB`; None: unknown."""
    if (found := OWN.fullmatch(text)) is not None:
        return _own(found)
    if text == SIMULATED:
        h100 = find("H100-80GiB")
        return None if h100 is None else replace(h100, name=SIMULATED)
    folded = text.casefold()
    for model in GPU_MODELS:
        if folded in (model.name.casefold(), model.word.casefold()):
            return model
    return None


def like(text: str) -> list[str]:
    """The short names that a name without a row may mean: `A100` and `A100-80GB`, say."""
    beginning = re.sub("gb$", "gib", text.casefold().removeprefix("nvidia").strip())
    if not any(map(str.isdecimal, beginning)):
        return []
    return [model.word for model in GPU_MODELS if model.word.casefold().startswith(beginning)]


def _own(found: re.Match[str]) -> GpuRates | None:
    gflops, bandwidth, gib = round(float(found["tflops"]) * 1000), found["gbps"], found["gib"]
    if not found["name"].isprintable() or 0 in (gflops, int(bandwidth), int(gib)):
        return None
    return GpuRates(
        found["name"], found["name"], int(gib) * GIB, *OWN_CAPABILITY, 0, gflops, gflops,
        int(bandwidth),
    )  # fmt: skip
