"""`python -m tests.cluster.storm --jobs 1000 --kills 100`: kills, stops and cuts under many jobs.

Each job runs 0.2 s and writes its number when it begins. In the end each has begun once and ended
well, and the books of head and nodes are equal. A job of which the supervisor was killed begins
again by right, and is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter

from tests.cluster.site import Site, site
from tests.support.limits import until

SCRIPT = "sleep 0.2"
ARRAY = 10
"""Of twenty jobs ten are an array."""
KINDS = ("head", "node", "stop head", "stop node", "cut", "connections")
WITH_RUNNERS = (*KINDS, "runner")


class Storm:
    def __init__(
        self, made: Site, seed: int, kinds: tuple[str, ...], pauses_s: tuple[float, ...]
    ) -> None:
        self.site, self.dice, self.kinds = made, random.Random(seed), kinds
        self.pauses_s = pauses_s
        self.tally: Counter[str] = Counter()
        self.jobs: list[str] = []
        self.faults: list[BaseException] = []

    def submit(self, count: int) -> None:
        try:
            while len(self.jobs) < count:
                left = count - len(self.jobs)
                array = ARRAY if len(self.jobs) % (2 * ARRAY) == 0 and left >= ARRAY else 0
                self.jobs += self.site.submit(SCRIPT, array=array)
        except BaseException as fault:  # told in the main thread
            self.faults.append(fault)
            raise

    def strike(self, kind: str) -> None:
        made, name = self.site, self.dice.choice(sorted(self.site.nodes))
        if kind == "head":
            made.restart_head()
        elif kind == "node":
            made.restart_node(name)
        elif kind == "connections":
            made.do(made.wires[name].cut)
        elif kind == "runner":
            for pid in made.supervisors(name)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.tally["runners"] += 1
        else:
            way = (
                made.cut(name) if kind == "cut"
                else made.stopped(made.head.signal if kind == "stop head" else made.stop_node(name))
            )  # fmt: skip
            with way:
                time.sleep(self.dice.choice(self.pauses_s))
        self.tally[kind] += 1

    def blow(self, jobs: int, strikes: int) -> None:
        """A strike after each so many jobs that have begun."""
        submitter = threading.Thread(target=self.submit, args=(jobs,))
        submitter.start()
        for number in range(strikes):
            wanted = jobs * number // strikes
            until(lambda wanted=wanted: len(self.site.begun()) >= wanted or self.faults)  # type: ignore[misc]
            assert not self.faults, self.faults
            self.strike(self.kinds[number % len(self.kinds)])
        while submitter.is_alive():
            submitter.join(1.0)
        assert not self.faults, self.faults

    def count(self, jobs: int) -> dict[str, int]:
        self.site.until_up()
        rows = self.site.until_ended(*self.jobs)
        self.site.settled()
        begun = self.site.begun()
        states = Counter(row["state"] for row in rows.values())
        twice = sum(count > 1 for count in begun.values())
        lost = [number for number in range(1, jobs + 1) if number not in begun]
        assert not lost, lost
        assert states == {"done": jobs}, states
        assert len(set(self.jobs)) == jobs
        assert twice <= self.tally["runners"], [n for n, count in begun.items() if count > 1]
        return {**self.tally, "jobs": jobs, "begun twice": twice, "lost": 0}


def storm(
    jobs: int, strikes: int, seed: int = 1, kinds: tuple[str, ...] = KINDS,
    pauses_s: tuple[float, ...] = (0.1, 1.0, 6.0), **more: object,
) -> dict[str, int]:  # fmt: skip
    """`pauses_s`: of a stopped process and of a node that is cut off; 5 s make it silent."""
    with site(**more) as made:
        blown = Storm(made, seed, kinds, pauses_s)
        blown.blow(jobs, strikes)
        return blown.count(jobs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.storm")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runners", action="store_true", help="supervisors are killed, too")
    parser.add_argument("--node-python", help="of an earlier version, for the first node")
    args = parser.parse_args()
    programs = [(args.node_python, "-m", "nodemgr")] if args.node_python else []
    kinds = WITH_RUNNERS if args.runners else KINDS
    print(json.dumps(storm(
        args.jobs, args.kills, args.seed, kinds, nodes=args.nodes, simulate="8x8GiB",
        programs=programs,
    )))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
