"""The first minutes on a real GPU: each step answers one question, prints one line, stops no other.

    python bench/first [--out DIR] [--seconds N] [--only A,B] [--wheels DIR] [--simulate NODE]

Writes details to at most eight files in DIR and prints a table last. Needs Python alone; a step
names what it lacks. Changes nothing of the machine and no setting of the GPU.
docs/inside/real-gpu.md says what to take along.

Standard library only: a bare machine has nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from driver_library import ROOT, Driver, find_driver, make_simulated
from plan import NAMES, STEPS, Step
from runner import HeldGpu, Outcome, run_step

LEAST_PYTHON = (3, 11)
LEAST_S = 10.0
"""No step begins with less time."""
LINE_CHARACTERS = 600
BUILD_S = 150.0


def main() -> int:
    if sys.version_info < LEAST_PYTHON:
        sys.exit(f"Python {'.'.join(map(str, LEAST_PYTHON))} or later is needed: set $PYTHON")
    options = parse()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="nmf", dir="/tmp") as temporary:
        environ = dict(os.environ)
        add_wheels(environ, options.wheels, Path(temporary) / "wheels")
        if options.simulate is not None:
            try:
                make_simulated(Path(temporary) / "node", options.simulate, environ)
            except RuntimeError as error:
                sys.exit(str(error))
        print(build_outputs(environ), flush=True)
        driver = find_driver(environ)
        print(driver.line(), flush=True)
        outcomes = run_all(options, out, driver, environ)
    print(table(outcomes, driver), flush=True)
    return int(
        any(outcome.state in ("failed", "timeout", "interrupted") for outcome in outcomes.values())
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python bench/first",
        description="Ask a machine with a GPU what can be asked in some minutes.",
        epilog="Steps: " + ", ".join(NAMES),
    )
    parser.add_argument("--out", type=Path, default=Path("first-gpu"), help="for the details")
    parser.add_argument("--seconds", type=float, default=540, help="for all steps together")
    parser.add_argument("--only", default="", help="names of steps, with commas between")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels that the machine lacks")
    parser.add_argument("--simulate", metavar="NODE", help="a simulated GPU instead, as 1x80GiB")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(options.only) - set(NAMES)):
        parser.error(f"no step is called {', '.join(unknown)}; the steps: {', '.join(NAMES)}")
    if options.wheels is not None and not list(options.wheels.glob("*.whl")):
        parser.error(f"there is no wheel in {options.wheels}")
    return options


def add_wheels(environ: dict[str, str], source: Path | None, target: Path) -> None:
    """Unpacks the wheels beside nothing of the machine, first on the module path of each step."""
    if source is None:
        return
    import zipfile

    for wheel in sorted(source.glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(target)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), environ.get("PYTHONPATH")]))


def build_outputs(environ: dict[str, str]) -> str:
    """Makes the product's libraries and programs in its sources where they are not; a line."""
    python = [sys.executable, "-c", "import nodemgr._native"]
    if subprocess.run(python, cwd=ROOT, env=environ, capture_output=True, check=False).returncode:
        return f"product: {built_by(environ)}"
    return "product: built before"


def built_by(environ: dict[str, str]) -> str:
    """The end of a build in place, and the reason where there is none."""
    try:
        build = subprocess.run(
            [sys.executable, "-m", "csrc.build"],
            cwd=ROOT, env=environ, capture_output=True, text=True, timeout=BUILD_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not built within {BUILD_S:.0f} s"
    last = ((build.stdout + build.stderr).strip().splitlines() or ["no word"])[-1]
    return "built now" if build.returncode == 0 else f"not built: {last}"


def run_all(
    options: argparse.Namespace, out: Path, driver: Driver, environ: dict[str, str]
) -> dict[str, Outcome]:
    """The outcome of each step by its name; an interrupt ends the step under way and the rest."""
    end = time.monotonic() + options.seconds
    outcomes: dict[str, Outcome] = {}
    with (out / "log.txt").open("w") as log, HeldGpu(driver, environ) as held:
        for step in STEPS:
            if options.only and step.name not in options.only:
                continue
            if step.name != "facts":  # which show the GPU as it was found
                held.open()
            try:
                outcome = run_one(step, end - time.monotonic(), out, driver, environ, log.fileno())
            except KeyboardInterrupt:
                outcomes[step.name] = Outcome("interrupted", 0.0, "by a signal")
                break
            outcomes[step.name] = outcome
            text = outcome.line[:LINE_CHARACTERS]
            print(f"{step.name} {outcome.state} {outcome.seconds:.1f} s: {text}", flush=True)
            write_results(out / "results.json", outcomes, driver)
    return outcomes


def run_one(
    step: Step, left_s: float, out: Path, driver: Driver, environ: dict[str, str], log: int
) -> Outcome:
    if step.needs_driver and driver.folder is None:
        return Outcome("skipped", 0.0, driver.reason)
    if left_s < LEAST_S:
        return Outcome("skipped", 0.0, f"no time left: {max(0.0, left_s):.0f} s of --seconds")
    found = run_step(step, min(step.limit_s, left_s), out, environ, log)
    return found.on_simulator() if driver.is_simulated else found


def write_results(path: Path, outcomes: dict[str, Outcome], driver: Driver) -> None:
    rows = {name: outcome._asdict() for name, outcome in outcomes.items()}
    path.write_text(json.dumps({"simulator": driver.is_simulated, "steps": rows}, indent=1) + "\n")


def table(outcomes: dict[str, Outcome], driver: Driver) -> str:
    """One row a step: its state, its seconds, its question, and the first words of its answer."""
    rows = [
        f"{step.name:<11}{found.state:<12}{found.seconds:>6.1f}  {step.question}: {found.line[:90]}"
        for step in STEPS
        if (found := outcomes.get(step.name)) is not None
    ]
    return "\n".join(["", f"{'step':<11}{'state':<12}{'s':>6}  answer{driver.of_figures()}", *rows])


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
