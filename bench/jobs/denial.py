"""The longest step of each order, and the requests of others beside an environment's orders.

    python bench/jobs/denial.py [--seconds 10] [--jobs 11000] [--only steps|requests]

`steps`: for the largest input of each order, the processor time of the longest piece of the
manager's loop, between two looks at its clients, and of the whole order. The aim is 5 ms a piece.

`requests`: milliseconds from a task's request to its grant in one environment, beside two busy
loops (the reference), and beside two processes of another environment that give such orders without
end; in the same run. The aims: 3 times the reference's median, 95 % within 10 times; none refused;
for the orders at most half a core of the manager, which is what it uses less the requests' own part
(that of a request beside the busy loops).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from node import ROOT, Client, Node, against_target, finish, miss, quantile, table

STEP_MS = 5.0
RATIO, RATIO_95, PERCENT = 3.0, 10.0, 50.0
MAX_ARRAY, MAX_NAMED, MAX_MANY = 10_000, 1_000, 128
TIMED = ROOT / "bench" / "jobs" / "timed_manager.py"
FEATURES = {
    "schema_version": 1,
    "framework": "torch 2.5.1",
    "graph": {"addv2": 2_000, "matmul": 4_200, "conv2d": 4_800, "softmax": 100, "maxpool": 3_200},
    "execution": {"batchsize": 32, "iteration": 1_000, "input": 1_000},
    "richer": {
        "parameters": 25_000_000, "activation_bytes": 2**31, "depth": 50, "operations": 10**12,
        "bytes": 10**10, "kernels": 500,
    },
    "work": [["float32", 6, 200 * 10**9, 16 * 10**9, 500]] * 128,
    "memory": {"peak_bytes": 2**32},
}  # fmt: skip


class TimedNode(Node):
    """A manager that measures the pieces of its loop."""

    def start(self) -> None:
        self._file = self.directory / "longest"
        self._file.write_bytes(bytes(16))
        index = self._command.index("-m")
        self._command[index : index + 2] = [str(TIMED), str(self._file)]
        super().start()

    def longest(self) -> tuple[float, float]:
        """(milliseconds of the longest piece since the last call, of all pieces so far)."""
        with self._file.open("r+b") as file:
            longest_ns, all_ns = struct.unpack("=qq", file.read(16))
            file.seek(0)
            file.write(bytes(8))
        return longest_ns / 1e6, all_ns / 1e6


def job(**more: object) -> dict[str, Any]:
    return {
        "argv": ["/bin/true"], "cwd": "/", "environ": ["PATH=/usr/bin:/bin"],
        "key": os.urandom(16).hex(), "hold": True, **more,
    }  # fmt: skip


def parts(talk: Conversation, **arguments: object) -> Iterator[dict[str, Any]]:
    """The answers to one order, which goes on behind each of them."""
    while True:
        answer = talk.order("job_orders", arguments)[0]
        yield answer
        if answer["after"] is None:
            return
        arguments["after"] = answer["after"]


def whole(talk: Conversation, order: str, **given: object) -> int:
    """An order to ids, or to those of a filter; how many rows it has."""
    if "jobs" in given:
        return sum(len(answer["jobs"]) for answer in parts(talk, order=order, **given))
    pages = (page["matched"] for page in parts(talk, order=order, **given))
    return sum(whole(talk, order, jobs=ids, skip=True) for ids in pages if ids)


def many(talk: Conversation, jobs: int, **more: object) -> None:
    """Submits so many."""
    around = {"cwd": "/", "environ": ["PATH=/usr/bin:/bin"]}
    for first in range(0, jobs, MAX_MANY):
        rows = [
            {key: value for key, value in job(**more).items() if key not in around}
            for _ in range(min(MAX_MANY, jobs - first))
        ]
        talk.order("job_submit_many", {**around, "jobs": rows})


def withdraw_all(talk: Conversation) -> None:
    with contextlib.suppress(Fault):
        whole(talk, "withdraw", name="*")


HELD = "ab" * 16
UNKNOWN = [f"j{10**12 + number}" for number in range(MAX_NAMED)]


def orders(talk: Conversation, jobs: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The largest input of each order, one after the other."""
    length = min(MAX_ARRAY, jobs)
    array = [[0, length - 1]]
    ids: list[str] = []
    yield (
        f"submit an array of {length}",
        lambda: ids.append(talk.order("job_submit", job(array=array))[0]["job"]),
    )
    for name in ("job_free", "job_hold"):
        yield f"{name} of it", lambda name=name: talk.order(name, {"job": ids[0]})
    yield "job_show of it", lambda: talk.order("job_show", {"job": ids[0]})
    yield "the queue's first page with it", lambda: talk.order("queue", {})
    yield "job_withdraw of it", lambda: talk.order("job_withdraw", {"job": ids[0]})
    yield "job_show of it, ended", lambda: talk.order("job_show", {"job": ids[0]})
    yield f"{MAX_MANY} jobs with features", lambda: many(talk, MAX_MANY, features=FEATURES)
    large = ["x" * 100_000] * 6
    yield "a job of 600 KiB", lambda: talk.order("job_submit", job(argv=["/bin/true", *large]))
    many(talk, jobs)
    for order in ("hold", "free", "requeue", "withdraw"):
        for what, given in (
            ("a filter that none matches", {"name": "nix*"}),
            (f"{MAX_NAMED} unknown ids", {"jobs": UNKNOWN}),
        ):
            yield (
                f"{order}: {what}",
                lambda order=order, given=given: whole(talk, order, **given),
            )
    yield f"job_wait of {MAX_NAMED} unknown ids", lambda: talk.order("job_wait", {"jobs": UNKNOWN})
    yield "the queue's first page", lambda: talk.order("queue", {})
    for order in ("free", "hold", "withdraw"):
        yield (
            f"{order}: a filter that all match",
            lambda order=order: whole(talk, order, name="*"),
        )


def beat(holder: Client) -> None:
    """Keeps the lease of the only GPU, until the manager has gone."""
    with contextlib.suppress(OSError):
        while True:
            time.sleep(1)
            holder.send("BEAT", task=HELD)


def show_steps(jobs: int) -> None:
    print(f"\n{'order':44}{'longest ms':>12}{'whole ms':>11}")
    longest: dict[str, float] = {}
    with TimedNode("1xH100-80GiB") as node:
        node.call("quota_set", env="hostile", gpus=1)
        # nothing starts meanwhile: the only GPU is held
        node.call("quota_set", env="holder", gpus=1)
        holder = Client(node.env_dir("holder"))
        holder.send("ACQUIRE", rid=1, task=HELD, gpus=1)
        holder.until("GRANT")
        threading.Thread(target=beat, args=(holder,), daemon=True).start()
        with Conversation(node.env_dir("hostile") / "socket", 120.0) as talk:
            for name, order in orders(talk, jobs):
                time.sleep(0.2)
                _, before_ms = node.longest()
                with contextlib.suppress(Fault):
                    order()
                time.sleep(0.2)
                longest[name], after_ms = node.longest()
                print(f"{name:44}{longest[name]:12.1f}{after_ms - before_ms:11.1f}", flush=True)
    name = max(longest, key=lambda name: longest[name])
    against_target(f"the longest step ({name})", longest[name], STEP_MS, "ms")


# -- another environment's requests --


def busy() -> None:
    while True:
        pass


def arrays(talk: Conversation) -> None:
    told = talk.order("job_submit", job(array=[[0, MAX_ARRAY - 1]]))[0]
    talk.order("job_withdraw", {"job": told["job"]})


def filters(talk: Conversation) -> None:
    with contextlib.suppress(Fault):
        whole(talk, "hold", name="nix*")


def unknown(talk: Conversation) -> None:
    whole(talk, "hold", jobs=UNKNOWN)


def features(talk: Conversation) -> None:
    many(talk, MAX_MANY, features=FEATURES)
    withdraw_all(talk)


def holds(talk: Conversation) -> None:
    for order in ("free", "hold"):
        whole(talk, order, name="*")


HOSTILE = {
    "arrays": arrays, "filters": filters, "unknown": unknown, "features": features, "holds": holds
}  # fmt: skip
NEEDS_JOBS = ("filters", "holds")


def be_hostile(kind: str, socket: str) -> None:
    if kind == "busy":
        busy()
    while True:
        with contextlib.suppress(Fault), Conversation(socket, 60.0) as talk:
            while True:
                HOSTILE[kind](talk)


class Request:
    """A task's requests, one after the other, each answered before the next."""

    def __init__(self, node: Node) -> None:
        self._client = Client(node.env_dir("victim"))
        self._numbers = itertools.count(1)
        self.refused = 0

    def once_ms(self) -> float:
        rid = next(self._numbers)
        begin_s, task = time.perf_counter(), f"{rid:032x}"
        self._client.send("ACQUIRE", rid=2 * rid, task=task, gpus=1, memory=2**24)
        while (verb := self._client.receive()[0]) not in ("GRANT", "DENY"):
            pass
        self.refused += verb == "DENY"
        taken_ms = (time.perf_counter() - begin_s) * 1e3
        self._client.send("RELEASE", rid=2 * rid + 1, task=task)
        while self._client.receive()[0] != "ACK":
            pass
        time.sleep(0.01)
        return taken_ms


def beside(node: Node, request: Request, kind: str, seconds: float) -> tuple[list[float], float]:
    """Milliseconds of each request, and the manager's share of a core."""
    socket = str(node.env_dir("hostile") / "socket")
    command = [sys.executable, __file__, "--hostile", kind, "--socket", socket]
    two = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        time.sleep(1)
        begin_s, begin_cpu_s = time.monotonic(), node.cpu_s()
        found = []
        while (passed_s := time.monotonic() - begin_s) < seconds:
            found.append(request.once_ms())
        return found, (node.cpu_s() - begin_cpu_s) / passed_s
    finally:
        for process in two:
            process.kill()
            process.wait()


def show_requests(seconds: float, jobs: int) -> None:
    rows, shares, refused = [], {}, 0
    with Node("2xH100-80GiB") as node:
        for env in ("hostile", "victim"):
            node.call("quota_set", env=env, gpus=1)
        request = Request(node)
        for _ in range(20):
            request.once_ms()
        for kind in ("busy", *HOSTILE):
            with Conversation(node.env_dir("hostile") / "socket", 120.0) as talk:
                withdraw_all(talk)
                if kind in NEEDS_JOBS:
                    many(talk, jobs)
            found, shares[kind] = beside(node, request, kind, seconds)
            rows.append((kind, found))
        refused = request.refused
    table("Another environment's request beside two processes", rows, "ms", "busy")
    print("the manager's share of a core:", *(f"{kind} {of:.0%}" for kind, of in shares.items()))
    (_, reference), *others = rows
    for kind, found in others:
        orders_percent = 100 * (shares[kind] - shares["busy"] * len(found) / len(reference))
        against_target(f"{kind}, of a core for the orders", orders_percent, PERCENT, "%")
        for name, share, most in (("median", 0.5, RATIO), ("95 %", 0.95, RATIO_95)):
            ratio = quantile(found, share) / quantile(reference, 0.5)
            against_target(f"{kind}, {name} to the median of busy loops", ratio, most, "times")
    if refused:
        miss(f"ABOVE: {refused} requests were refused")


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10, help="for each kind of process")
    parser.add_argument("--jobs", type=int, default=11_000, help="that wait in the environment")
    parser.add_argument("--only", choices=("steps", "requests"))
    parser.add_argument("--hostile", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    options = parse(parser, seconds=0.3, jobs=300)
    if options.hostile:
        be_hostile(options.hostile, options.socket)
    if options.only != "requests":
        show_steps(options.jobs)
    if options.only != "steps":
        show_requests(options.seconds, options.jobs)
    return options


if __name__ == "__main__":
    finish(main())
