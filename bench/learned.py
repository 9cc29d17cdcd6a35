"""All tables of forecasts, elastic training and placement, made anew in one run.

    python bench/learned.py FOLDER [--only WORD,...] [--short]

Each program runs as its page says. Its output is a file of FOLDER, with the commit, the date and
the load. Beside the tables of measured times, one after the other, run those that no load changes.
A program that fails stops no other; the last lines name it, and each missed target. policies.py
writes docs/placement.md (needs matplotlib); others need torch and tensorflow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arguments import parse

BENCH = Path(__file__).resolve().parent
MEASURED = (
    "elastic/changes --rounds 1",
    "elastic/fits",
    "elastic/published",
    "forecast/second_time",
    "forecast/scripts",
    "forecast/table",
    "forecast/intervals --runs 1240 --steps 5",
)
COUNTED = (
    "forecast/memory",
    "placement/waiting --seeds 300",
    "placement/classes --seeds 300",
    "placement/policies --seeds 300 --write",
)
MISSED = ("ABOVE the target", "BELOW the target")
started: list[subprocess.Popen[bytes]] = []


def made(line: str, given: argparse.Namespace, commit: str) -> list[str]:
    """A line for each target that the program missed, or for its failure."""
    name, *words = line.split()
    words = ["--short"] if given.short else words
    path = given.folder / f"{name.replace('/', '-')}{''.join(words)}.txt"
    with path.open("w") as file:
        print(f"{name} {' '.join(words)}, {commit}, {now()}", file=file, flush=True)
        command = [sys.executable, str(BENCH / f"{name}.py"), *words]
        started.append(subprocess.Popen(command, cwd=BENCH.parent, stdout=file, stderr=file))
        code = started[-1].wait()
        print(f"exit code {code}, {now()}", file=file)
    said = path.read_text().splitlines()
    print(f"{line}: {said[-1]}", flush=True)
    if code == 0:
        return []
    missed = [text for text in said if text.startswith(MISSED)]
    return [f"{line}: {text}" for text in missed or [f"failed: {said[-2]}"]]


def commit_at_start() -> str:
    """Asked once: a program that writes a page makes the checkout dirty."""
    ask = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(ask, cwd=BENCH, capture_output=True, text=True).stdout.strip()


def now() -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}, load {os.getloadavg()[0]:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for the outputs; made if it is not there")
    parser.add_argument("--only", default="", help="programs with one of these words")
    given = parse(parser, only="waiting,classes")
    given.folder.mkdir(parents=True, exist_ok=True)
    lanes = [
        [line for line in lane if any(word in line for word in given.only.split(","))]
        for lane in (MEASURED, COUNTED)
    ]
    pool, commit = ThreadPoolExecutor(), commit_at_start()
    try:
        found = list(pool.map(lambda lane: [made(line, given, commit) for line in lane], lanes))
    except BaseException:  # SIGTERM, Ctrl-C: a program ends what it has started itself
        for lane in lanes:
            lane.clear()
        for each in started:
            each.terminate()
        raise
    missed = [text for lane in found for texts in lane for text in texts]
    print("\n".join(missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
