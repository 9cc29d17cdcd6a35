"""`python -m tests.soak`: every scenario at full size, a minute each; one line of figures for each. Exit code 1 where one did not hold."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from tests.soak.run import FULL, SCENARIOS, soak
from tests.support.manager import Manager


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="of each scenario (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=FULL.processes)
    parser.add_argument("--threads", type=int, default=FULL.threads)
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    size = dataclasses.replace(FULL, processes=options.processes, threads=options.threads)
    failed = 0
    for name in options.scenarios or SCENARIOS:
        manager = Manager(simulate="1x16GiB").start()
        try:
            tally = soak(manager, name, size, options.seconds, options.seed)
        except AssertionError as fault:
            failed += 1
            print(f"{name:9} FAILED (seed {options.seed}): {fault}", flush=True)
        else:
            figures = ", ".join(f"{value} {key}" for key, value in dataclasses.asdict(tally).items() if isinstance(value, int))
            print(f"{name:9} held: {figures}; highest sum {100 * tally.most_of_grant:.2f} % of the grant", flush=True)
        finally:
            manager.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
