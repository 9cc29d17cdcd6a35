"""The step `train`: resident trainings in turns, two bare, two under the shim, one gated.

Knows: programs/transformer.py, the difference of paired rates. Must not know: frameworks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lacking import needs_cuda_torch
from machine import GIB, node, python

from tests.gpu.nvml import driver_bytes
from tests.support.programs import Program

RESIDENT = ("bare", "shim", "gated", "bare", "shim")
TURN_S = 0.4
MOST_TURNS = 20
END_S = 8.0
"""Of the step's limit, to end it."""


def train(out: Path, limit_s: float) -> str:
    needs_cuda_torch()
    end = time.monotonic() + limit_s - END_S
    with node() as running:
        running.envs(30 * GIB)
        resident = [Program(running.start(kind, python("transformer.py"))) for kind in RESIDENT]
        try:
            print([program.line(limit_s) for program in resident])
            rates = in_turns(resident, end)
            gpu = running.manager.status()["gpus"][0]
            inside = [p.pid for p, kind in zip(resident, RESIDENT, strict=True) if kind != "bare"]
            shown_bytes = sum(map(driver_bytes, inside))
        finally:
            for program in resident:
                program.kill()
    print(rates)
    return (
        f"{differences(rates)}; bytes of the environments: ledger {gpu['memory_used_bytes']},"
        f" NVML {shown_bytes}"
    )


def in_turns(resident: Sequence[Program], end: float) -> list[list[float]]:
    """Steps a second of each in each turn; every second turn in the reverse order."""
    rates: list[list[float]] = [[] for _ in resident]
    indices = range(len(resident))
    for turn in range(MOST_TURNS):
        if time.monotonic() + 2 * TURN_S * len(resident) > end:
            break
        for index in indices if turn % 2 == 0 else reversed(indices):
            process = resident[index].process
            assert process.stdin is not None
            process.stdin.write(f"{TURN_S}\n")
            process.stdin.flush()
            rates[index].append(resident[index].line()["rate"])
    return rates


def differences(rates: Sequence[Sequence[float]]) -> str:
    """Of the shim, of the gate, and of one bare process to the other: percent, standard error."""
    if len(rates[0]) < 2:
        raise RuntimeError("there was no time for two turns")
    bare, shim = mean_of(rates, "bare"), mean_of(rates, "shim")
    compared: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
        "shim": (shim, bare),
        "gated": (mean_of(rates, "gated"), bare),
        "second bare": (rates[RESIDENT.index("bare", 1)], rates[0]),
    }
    said = [f"{what} {percent(*pair)}" for what, pair in compared.items()]
    return (
        f"{statistics.mean(bare):.2f} steps/s bare, {len(bare)} turns;"
        f" {', '.join(said)} (standard error)"
    )


def mean_of(rates: Sequence[Sequence[float]], kind: str) -> list[float]:
    """Of the processes of a kind, in each turn."""
    own = [each for each, of in zip(rates, RESIDENT, strict=True) if of == kind]
    return [statistics.mean(turn) for turn in zip(*own, strict=True)]


def percent(rates: Sequence[float], reference: Sequence[float]) -> str:
    """The mean of the paired differences, and its standard error."""
    each = [100 * (one / other - 1) for one, other in zip(rates, reference, strict=True)]
    return f"{statistics.mean(each):+.2f} % ({statistics.stdev(each) / len(each) ** 0.5:.2f})"
