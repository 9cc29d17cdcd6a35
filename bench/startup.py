"""The cost of an environment for a process that never uses CUDA.

`python -c pass` and `/bin/true`, bare and inside.

    python bench/startup.py [--rounds 300] [--python PYTHON]

Bare and inside are started in turns, so that a slow moment of the machine slows both; the table
shows medians, their difference and ratio, and the processor time beside them, which a busy machine
changes less. `inside`: the shim preloaded, client.conf there, the hook found through it. `hook
alone`: PYTHONPATH instead of the shim. Needs no manager and no GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arguments import parse
from nodemgr.paths import payload_dir

PAYLOAD = payload_dir()
LIBRARY = PAYLOAD / "client_plugin" / "_lib" / "libnodemgr.so"
TARGETS_MS = {"python -c pass": 2.0, "/bin/true": 0.3}


@dataclass(frozen=True)
class Run:
    """One life of a process: from before the fork to after the reaping, and its processor time."""

    wall_ms: float
    cpu_ms: float


def run(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    begin_ns = time.perf_counter_ns()
    pid = os.posix_spawn(command[0], list(command), dict(environment))
    _, status, used = os.wait4(pid, 0)
    end_ns = time.perf_counter_ns()
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return Run((end_ns - begin_ns) / 1e6, (used.ru_utime + used.ru_stime) * 1e3)


def measure(
    command: Sequence[str], environments: Mapping[str, Mapping[str, str]], rounds: int
) -> dict[str, list[Run]]:
    """The runs in each environment.

    One more round at the beginning warms the caches and does not count.
    """
    taken: dict[str, list[Run]] = {name: [] for name in environments}
    for number in range(rounds + 1):
        order = list(environments.items())
        for name, environment in order if number % 2 else reversed(order):
            one = run(command, environment)
            if number:
                taken[name].append(one)
    return taken


def environments(env_dir: Path) -> dict[str, dict[str, str]]:
    bare = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NODEMGR_", "LD_PRELOAD", "PYTHON"))
    }
    return {
        "bare": bare,
        "inside": {**bare, "NODEMGR_ENV_DIR": str(env_dir), "LD_PRELOAD": str(LIBRARY)},
        "hook alone": {
            **bare,
            "NODEMGR_ENV_DIR": str(env_dir),
            "PYTHONPATH": str(PAYLOAD / "sitecustomize"),
        },
    }


def check(python: str, inside: Mapping[str, str]) -> None:
    """That the hook really is where its price is measured."""
    look = (
        "import sys; sys.exit(not any(getattr(finder, 'nodemgr', False) for finder in"
        " sys.meta_path))"
    )
    if subprocess.run([python, "-c", look], env=dict(inside), check=False).returncode != 0:
        raise SystemExit("the hook is not installed inside: is the library built?")


def report(title: str, taken: Mapping[str, list[Run]]) -> None:
    wall_ms = {name: statistics.median(one.wall_ms for one in runs) for name, runs in taken.items()}
    cpu_ms = {name: statistics.median(one.cpu_ms for one in runs) for name, runs in taken.items()}
    for name in taken:
        row = f"{title:16} {name:12} {wall_ms[name]:9.3f}"
        if name != "bare":
            row += (
                f" {wall_ms[name] - wall_ms['bare']:+10.3f} {wall_ms[name] / wall_ms['bare']:7.2f}"
                f" {TARGETS_MS[title]:8.1f}"
            )
        print(f"{row:68} {cpu_ms[name]:9.3f} {cpu_ms[name] - cpu_ms['bare']:+10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--python", default=sys.executable)
    arguments = parse(parser, rounds=2)
    true = shutil.which("true") or "/bin/true"
    with tempfile.TemporaryDirectory(prefix="nm") as directory:
        (Path(directory) / "client.conf").write_text("env=bench\naddress=unix:socket\n")
        everywhere = environments(Path(directory))
        check(arguments.python, everywhere["inside"])
        print(f"{arguments.rounds} rounds, in turns; milliseconds\n")
        print(
            f"{'command':16} {'environment':12} {'median':>9} {'difference':>10} {'ratio':>7}"
            f" {'at most':>8} {'CPU':>12} {'difference':>10}"
        )
        report(
            "python -c pass",
            measure([arguments.python, "-c", "pass"], everywhere, arguments.rounds),
        )
        shim_only = {name: everywhere[name] for name in ("bare", "inside")}
        report("/bin/true", measure([true], shim_only, 3 * arguments.rounds))


if __name__ == "__main__":
    main()
