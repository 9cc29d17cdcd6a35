"""`python -m tests.slurm`: a pool on a real Slurm, under a storm; one line of figures.

`python -m tests.slurm time preemption suspension foreign`: the scenarios of these names instead.
"""

from __future__ import annotations

import argparse
import sys

from tests.slurm import scenarios, site, storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[[], *scenarios.ALL])
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if why := site.missing():
        sys.exit(f"skipped: {why}")
    for name in args.scenarios:
        print(f"{name}: {scenarios.ALL[name]()}", flush=True)
    if not args.scenarios:
        with storm.cluster("--idle-return", "5s") as made:
            print(storm.play(made, args.jobs, args.seconds, args.seed), flush=True)


if __name__ == "__main__":
    main()
