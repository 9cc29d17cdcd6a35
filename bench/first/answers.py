"""The steps `answers` and `lookups`: the driver beside the simulator and beside the shim.

Knows: programs/driver_answers.py, programs/driver_lookups.py, the tables of names. Must not know:
which answer is right: the driver's is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from driver_library import LIBRARY, folder_of_linker, make_simulated
from lacking import Lacking
from machine import GIB, KINDS, ROOT, ended, node, python

STATES = ("before cuInit", "without a context", "with a context")
NAMES = ROOT / "csrc" / "sim" / "driver" / "driver_names.txt"
HOOKS = ROOT / "csrc" / "hooks" / "hooks.def"
SHIM = "libnodemgr"
RUN_S = 30
SHOWN = 3


def answers(out: Path, limit_s: float) -> str:
    """All differences in answers.txt."""
    with (
        tempfile.TemporaryDirectory(prefix="nmf", dir="/tmp") as folder,
        node(bare_suffices=True) as running,
    ):
        running.envs(8 * GIB)
        simulated = {name: os.environ[name] for name in os.environ if name != "LD_LIBRARY_PATH"}
        try:
            make_simulated(Path(folder) / "node", "1x80GiB", simulated)
        except RuntimeError as error:
            raise Lacking(str(error)) from None
        real = answers_in(running.around("bare"), "driver")
        sides = {"simulator": answers_in(simulated, "simulator")}
        if "shim" in running.kinds():
            sides["shim"] = answers_in(running.around("shim"), "shim")
        bare_alone = running.bare_alone()
    differing = {
        side: [
            f"{call}: driver {code}, {side} {found.get(call)}"
            for call, code in real.items()
            if found.get(call) != code
        ]
        for side, found in sides.items()
    }
    text = [f"{call} = {code}" for call, code in real.items()]
    for side, lines in differing.items():
        text += [f"\n== {side} differs", *lines]
    (out / "answers.txt").write_text("\n".join(text) + "\n")
    counts = "; ".join(
        f"{side} differs in {len(lines)} {lines[:SHOWN] or ''}" for side, lines in differing.items()
    )
    return f"{len(real)} codes: {counts}{bare_alone}"


def answers_in(environ: Mapping[str, str], what: str) -> dict[str, str]:
    """Codes by call; one that does not return, or ends the process, is the last of its state."""
    found = {}
    for state in STATES:
        try:
            run = ended(python("driver_answers.py", state), environ, RUN_S, what)
            text, end = run.stdout, f"the process ended with {run.returncode}"
        except subprocess.TimeoutExpired as error:
            text, end = (error.stdout or b"").decode(), f"no end within {RUN_S} s"
        for line in text.splitlines():
            call, _, code = line.partition(" = ")
            found[f"{state}: {call}"] = code or end
    return found


def lookups(out: Path, limit_s: float) -> str:
    """All differences in lookups.txt."""
    listed = {line.split()[0] for line in lines_of(NAMES)}
    bases = {re.sub(r"(_v\d+)?(_pt[sd][zs])?$", "", name) for name in listed}
    exported = exports()
    with tempfile.NamedTemporaryFile("w", prefix="nmf") as names, node() as running:
        names.write("\n".join(sorted(listed | bases | exported)))
        names.flush()
        running.envs(8 * GIB)
        found = {
            kind: running.output(kind, python("driver_lookups.py", names.name), RUN_S).splitlines()
            for kind in KINDS
        }
    hooked, odd = 0, []
    for kind in KINDS[1:]:
        count, others = differing(found["bare"], found[kind])
        hooked += count
        odd += [f"{kind}: {line}" for line in (*others, *shared_hooks(found["bare"], found[kind]))]
    unknown = sorted(exported - listed)
    (out / "lookups.txt").write_text("\n".join([f"exports not listed: {unknown}", *odd]) + "\n")
    return (
        f"{len(found['bare'])} answers each: {hooked} hooked, {len(odd)} others differ"
        f" {odd[:SHOWN] or ''}; exports that csrc/sim/driver/driver_names.txt lacks: {len(unknown)}"
    )


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and line[0] != "#"]


def exports() -> set[str]:
    """The driver's exported functions; empty where there is no nm."""
    folder = folder_of_linker(dict(os.environ))
    if folder is None or not (nm := shutil.which("nm")):
        return set()
    listed = subprocess.run(
        [nm, "-D", "--defined-only", str(folder / LIBRARY)],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    return set(re.findall(r" [TtiW] (cu[A-Z]\w+)$", listed, re.MULTILINE))


def differing(bare: Sequence[str], shim: Sequence[str]) -> tuple[int, list[str]]:
    """Answers that are a hook of a table's name in place of a function; all other differences."""
    names = set(re.findall(r"\w+", HOOKS.read_text()))
    hooks, others = 0, []
    for one, other in zip(bare, shim, strict=True):
        (*asked, function), (*same, found) = one.split(), other.split()
        if (asked, function) == (same, found):
            continue
        if asked == same and function != "0" and found.startswith(SHIM) and asked[1] in names:
            hooks += 1
        else:
            others.append(f"{one} -> {other}")
    return hooks, others


def shared_hooks(bare: Sequence[str], shim: Sequence[str]) -> list[str]:
    """Names for which the driver has two functions by version, and the shim one hook for both.

    The hook then has the arguments of one of them (cuLaunchHostFunc and its _v2).
    """
    behind: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for one, other in zip(bare, shim, strict=True):
        function, (_, name, *asked, found) = one.split()[-1], other.split()
        if len(asked) > 1 and found.startswith(SHIM):
            behind[name, asked[1], found].add(function)
    return [
        f"{name} with flags {flags}: one hook for {' '.join(sorted(functions))}"
        for (name, flags, _), functions in behind.items()
        if len(functions) > 1
    ]
