"""The cost of the queue's operations at 100 and at 20 000 entries.

Every tenth entry is an array. Plain structures that can do some of the operations stand beside it.

    python bench/queue_operations.py

Prints nanoseconds per operation, the median of several rounds. The two sizes take turns, so that a
slow moment of the machine slows both. Operations that only read run nine times in a row, so that
cold caches do not count. The references: an OrderedDict (insert, withdraw, pop, peek, but no
position), and a list, which finds a position by counting. Standard library only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import parse
from nodemgr.core.state.work_queue import WorkQueue

FEW = 100
CALLS = 50
ENVS = 20
NAMES = ("high", "normal", "low")


class Queues:
    """The node's: three ranks, twenty envs, ageing on."""

    def __init__(self, size: int) -> None:
        self.queue = WorkQueue(
            (("high", 300), ("normal", 200), ("low", 100)), ageing=36_000_000_000
        )
        self.clock = 0
        for number in range(size):
            self.insert(f"r{number}", number, size=1 if number % 10 else 2)
        self.spread = [f"r{number}" for number in range(0, size, max(1, size // CALLS))][:CALLS]
        self.new = [f"n{number}" for number in range(CALLS)]

    def insert(self, entry: str, number: int, size: int = 1) -> None:
        self.clock += 2
        self.queue.insert(NAMES[number % 3], entry, self.clock, f"env{number % ENVS}", size=size)

    def rounds(self) -> dict[str, float]:
        """Leaves the queue as it was, except for the order of the first entries."""
        queue, spread, new = self.queue, self.spread, self.new
        figures = {
            "insert": timed(
                lambda: [self.insert(entry, number) for number, entry in enumerate(new)]
            )
        }
        figures["position"] = read(lambda: [queue.position(entry) for entry in spread])
        figures["peek"] = read(lambda: [queue.peek() for _ in spread])
        figures["move to another's end"] = timed(lambda: [self.to_end(entry) for entry in new])
        figures["move between others"] = timed(lambda: [self.to_middle(entry) for entry in new])
        figures["move to the front"] = timed(lambda: [self.to_front(entry) for entry in new])
        figures["pop"] = timed(lambda: [queue.pop() for _ in new])
        for number, entry in enumerate(new):
            if entry not in queue:
                self.insert(entry, number)
        figures["withdraw"] = timed(lambda: [queue.withdraw(entry) for entry in new])
        popped = [f"r{number}" for number in range(2 * CALLS) if f"r{number}" not in queue]
        for number, entry in enumerate(popped):
            self.insert(entry, number)
        figures["a look that leaves out 20 groups"] = read(self.run_pass, 1)
        return figures

    def to_end(self, entry: str) -> None:
        self.clock += 2
        self.move(entry, "low", self.clock)

    def to_middle(self, entry: str) -> None:
        self.move(entry, "normal", self.clock // 2)

    def to_front(self, entry: str) -> None:
        self.move(entry, "high", (self.queue.front("high") or 0) - 1)

    def move(self, entry: str, name: str, stamp: int) -> None:
        group = self.queue.group(entry)
        self.queue.withdraw(entry)
        self.queue.insert(name, entry, stamp, group)

    def run_pass(self) -> None:
        walk = self.queue.walk()
        for _ in walk:
            walk.drop(walk.group)


class Ordered:
    """An OrderedDict: one queue, without positions."""

    def __init__(self, size: int) -> None:
        self.row = OrderedDict((f"r{number}", number) for number in range(size))
        self.new = [f"n{number}" for number in range(CALLS)]

    def rounds(self) -> dict[str, float]:
        row, new = self.row, self.new

        def insert() -> None:
            for entry in new:
                row[entry] = 0

        figures = {"insert": timed(insert)}
        figures["peek"] = read(lambda: [next(iter(row)) for _ in new])
        figures["move to the front"] = timed(
            lambda: [row.move_to_end(entry, last=False) for entry in new]
        )
        figures["pop"] = timed(lambda: [row.popitem(last=False) for _ in new])
        insert()
        figures["withdraw"] = timed(lambda: [row.pop(entry) for entry in new])
        return figures


class Listed:
    """A list: positions by counting."""

    def __init__(self, size: int) -> None:
        self.row = [f"r{number}" for number in range(size)]
        self.spread = self.row[:: max(1, size // 5)][:5]

    def rounds(self) -> dict[str, float]:
        return {"position": timed(lambda: [self.row.index(entry) + 1 for entry in self.spread], 5)}


def timed(work: Callable[[], object], calls: int = CALLS) -> float:
    start_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start_ns) / calls


def read(work: Callable[[], object], calls: int = CALLS) -> float:
    return statistics.median(timed(work, calls) for _ in range(9))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--entries", type=int, default=20_000, help="of the long queue")
    options = parse(parser, rounds=1, entries=1_000)
    sizes = (FEW, options.entries)
    subjects = {
        (name, size): kind(size)
        for size in sizes
        for name, kind in (("WorkQueue", Queues), ("OrderedDict", Ordered), ("list", Listed))
    }
    samples: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(options.rounds):
        for (name, size), subject in subjects.items():
            for operation, nanoseconds in subject.rounds().items():
                samples.setdefault((name, operation, size), []).append(nanoseconds)
    medians = {key: statistics.median(values) for key, values in samples.items()}
    print(f"{'nanoseconds, median':46}{sizes[0]:>12,}{sizes[1]:>14,}{'ratio':>8}")
    for name, operation in dict.fromkeys((name, operation) for name, operation, _ in medians):
        few, many = (medians[name, operation, size] for size in sizes)
        print(f"{name:13}{operation:33}{few:12,.0f}{many:14,.0f}{many / few:8.1f}")


if __name__ == "__main__":
    main()
