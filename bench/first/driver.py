"""The step `driver`: first calls, a context's bytes, times of kernels; bare, shim and gated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from machine import GIB, node, per_kind, python

ROUNDS = 3
FIRST_CALLS = ("cuInit", "retain")


def driver(out: Path, limit_s: float) -> str:
    with node(bare_suffices=True) as running:
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in running.kinds()}
        running.envs(8 * GIB)
        for _ in range(ROUNDS):
            for kind in found:
                printed = running.output(kind, python("driver_facts.py"))
                found[kind].append(json.loads(printed.splitlines()[-1]))
        return line(found) + running.bare_alone()


def line(found: dict[str, list[dict[str, Any]]]) -> str:
    """Codes of the first calls where one failed, else medians and the last round's facts."""
    codes = {
        f"{kind} {call}": row[call]
        for kind, rows in found.items()
        for row in rows
        for call in FIRST_CALLS
        if row[call]
    }
    if codes:
        raise RuntimeError(f"the driver does not start: {codes}")
    times = {
        call: per_kind({kind: [row[f"{call}_ms"] for row in rows] for kind, rows in found.items()})
        for call in FIRST_CALLS
    }
    bare = found["bare"][-1]
    kernels = {
        kind: {name.removeprefix("sleep_us_"): us for name, us in rows[-1]["kernel_us"].items()}
        for kind, rows in found.items()
    }
    codes_without = {kind: rows[-1]["without_context"] for kind, rows in found.items()}
    return (
        f"cuInit {times['cuInit']} ms, retain {times['retain']} ms ({'/'.join(found)});"
        f" a context {bare['context']}; bytes taken {bare['taken']};"
        f" us of kernels by nominal us {kernels};"
        f" cuEventElapsedTime without a context {elapsed(codes_without)};"
        f" memory seen in 8 GiB {found.get('shim', [{}])[-1].get('total')}; CUDA {bare['version']}"
    )


def elapsed(codes: dict[str, dict[str, Any]]) -> str:
    return "/".join(str(codes[kind]["cuEventElapsedTime"]) for kind in codes)
