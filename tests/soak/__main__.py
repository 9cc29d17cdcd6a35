"""`python -m tests.soak`: every scenario at full size, a minute each; one line of figures for each.

Exit code 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from tests.soak.hostile import beside_a_hostile_process
from tests.soak.run import FULL, SCENARIOS, Size, soak
from tests.support.manager import Manager

HOSTILE = "hostile"


def play(
    name: str, manager: Manager, size: Size, seconds: float, seed: int, trace: Path | None
) -> str:
    """Its figures."""
    if name == HOSTILE:
        return f"{beside_a_hostile_process(manager, seconds, seed)} hostile deeds"
    tally = soak(manager, name, size, seconds, seed, trace)
    figures = ", ".join(
        f"{value} {key}"
        for key, value in dataclasses.asdict(tally).items()
        if isinstance(value, int)
    )
    return f"{figures}; highest sum {100 * tally.most_of_grant:.2f} % of the grant"


def main() -> int:
    names = [*SCENARIOS, HOSTILE]
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="of each scenario (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=FULL.processes)
    parser.add_argument("--threads", type=int, default=FULL.threads)
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="where to write what led to a failure: words, books, events, samples",
    )
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    size = dataclasses.replace(FULL, processes=options.processes, threads=options.threads)
    failed = 0
    for name in options.scenarios or names:
        manager = Manager(simulate="1x16GiB").start()
        try:
            figures = play(name, manager, size, options.seconds, options.seed, options.trace)
        except AssertionError as fault:
            failed += 1
            print(f"{name:9} FAILED (seed {options.seed}): {fault}", flush=True)
        else:
            print(f"{name:9} held: {figures}", flush=True)
        finally:
            manager.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
