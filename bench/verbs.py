"""The time of each verb: the wall time of its whole process.

`python -c pass` in the same run is the reference.

    python bench/verbs.py [--rounds 20]

The packages are compiled first, as an installation compiles them. All take turns, so that a slow
moment of the machine slows all of them. A user's verb should cost at most three times a Python that
does nothing, an administrator's six times. The node has queued jobs and some history.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arguments import parse
from node import ROOT, Node, against_target, finish, table

USERS, ADMINS = 3.0, 6.0
PASS = "python -c pass"
SCRIPT = Path(sys.executable).parent / "nodemgr"


def commands() -> dict[str, tuple[list[str], float]]:
    """The command, and how many times the time of PASS it may take."""
    nodemgr = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "nodemgr"]
    alice = ["--env", "alice"]
    users = {
        "submit": ["submit", *alice, "--hold", "--gpus", "0", "--", "true"],
        "queue": ["queue", *alice], "status": ["status", *alice],
        "logs": ["logs", *alice, "j1"], "wait": ["wait", *alice, "j1"],
        "history": ["history", *alice], "top --once": ["top", "--once", *alice],
        "run": ["run", *alice, "--", "true"], "position": ["queue", "position", "j2"],
        "queue, all as root": ["queue"], "status, all as root": ["status"],
    }  # fmt: skip
    admins = {
        "quota show": ["quota", "show"], "env list": ["env", "list"],
        "allocations": ["allocations"], "events": ["events"], "nodemgr --help": ["--help"],
    }  # fmt: skip
    return {
        **{name: ([*nodemgr, *words], USERS) for name, words in users.items()},
        **{name: ([*nodemgr, *words], ADMINS) for name, words in admins.items()},
        "queue, in a container": (
            ["/bin/sh", str(ROOT / "client_plugin" / "bin" / "nodemgr"), "queue"],
            USERS,
        ),
    }


def once(command: Sequence[str], environment: dict[str, str]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    took = (time.perf_counter() - begin) * 1e3
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ends with {done.returncode}: {done.stderr.decode()}")
    return took


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    options = parse(parser, rounds=1)
    rounds = options.rounds
    for package in ("client_plugin", "nodemgr"):  # as an installation leaves them
        compileall.compile_dir(ROOT / package, quiet=2)
    with Node("2x80GiB") as node:
        node.call("quota_set", env="alice", gpus=1)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("NODEMGR_")
        }
        outside = {**kept, "NODEMGR_RUN_DIR": str(node.run_dir)}
        path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
        inside = {**kept, "NODEMGR_ENV_DIR": str(node.env_dir("alice")), "PATH": path}
        tried = commands()
        submit = tried["submit"][0]
        nodemgr = submit[: submit.index("submit")]
        for more in ([], ["--hold"]):
            once(
                [*nodemgr, "submit", "--env", "alice", "--gpus", "0", *more, "--", "true"], outside
            )
        node.call("job_wait", jobs=["j1"])
        bare = [sys.executable, "-c", "pass"]
        took: dict[str, list[float]] = {name: [] for name in (PASS, *tried)}
        for _ in range(rounds):
            took[PASS].append(once(bare, outside))
            for name, (command, _most) in tried.items():
                took[name].append(once(command, inside if "container" in name else outside))
    table("Whole processes", list(took.items()), "ms", PASS)
    bare_ms = sorted(took[PASS])[rounds // 2]
    for name, (_command, most) in tried.items():
        against_target(name, sorted(took[name])[rounds // 2] / bare_ms, most, f"times {PASS}")
    return options


if __name__ == "__main__":
    finish(main())
