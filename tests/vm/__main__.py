"""`python -m tests.vm [CASE…]`: try the cases in virtual machines; one line a case."""

from __future__ import annotations

import argparse
import fcntl
import sys
import time

from tests.vm import images
from tests.vm.cases import CASES, Lab
from tests.vm.machine import MachineFault


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all of --list")
    parser.add_argument("--list", action="store_true", help="name the cases, and do nothing")
    parser.add_argument(
        "--before", metavar="COMMIT", help="the version that is upgraded; without it no upgrade"
    )
    return parser


def tried(lab: Lab, name: str) -> bool:
    """Prints the case's line. False: it failed."""
    begun = time.monotonic()
    try:
        result = CASES[name](lab)
    except Exception as error:  # the other cases are tried all the same
        kind = "" if isinstance(error, MachineFault) else f"{type(error).__name__} "
        print(f"FAIL  {name}  {time.monotonic() - begun:.0f} s  {kind}{error}", flush=True)
        return False
    print(f"ok    {name}  {time.monotonic() - begun:.0f} s  {result}", flush=True)
    return True


def main() -> int:
    said = parser().parse_args()
    if unknown := [name for name in said.cases if name not in CASES]:
        print(f"no case {', '.join(unknown)}; there are: {' '.join(CASES)}", file=sys.stderr)
        return 2
    if said.list:
        for name, case in CASES.items():
            print(f"{name:12} {(case.__doc__ or '').splitlines()[0]}")
        return 0
    if (why := images.lacking()) is not None:
        print(f"skipped: {why}")
        return 0
    with open(images.cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one machine at a time
        lab = Lab(said.before)
        results = [tried(lab, name) for name in said.cases or CASES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
