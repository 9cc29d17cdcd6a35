"""A leader under a lease that a test makes: `python fake_membership.py FD_IN FD_OUT WORDS…`.

The test writes a line of JSON for each event of the lease, and reads one for each word of the
leader. WORDS are those of client_plugin/elastic/command.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from client_plugin.elastic.lease_events import (
    LeasedGpu,
    LeaseEnded,
    LeaseEvent,
    Offered,
    Recalled,
    Rejoined,
    Withdrawn,
)


class FakeMembership:
    """The form of `client_plugin.elastic.membership.Membership`."""

    def __init__(self, source: int, target: int, gpus: int) -> None:
        self.token = "0" * 32
        self._source = source
        self._target = target
        self._gpus = [self._gpu(index) for index in range(gpus)]

    def gpus(self) -> tuple[LeasedGpu, ...]:
        return tuple(self._gpus)

    def fileno(self) -> int:
        return self._source

    def events(self) -> list[LeaseEvent]:
        data = os.read(self._source, 65_536)
        if not data:
            return [LeaseEnded("the test has ended")]
        return [self._event(json.loads(line)) for line in data.splitlines()]

    def accepted(self, gpu: str) -> None:
        self._write("accepted", gpu)

    def decline(self, gpu: str) -> None:
        self._forget(gpu)
        self._write("decline", gpu)

    def left(self, gpu: str) -> None:
        self._forget(gpu)
        self._write("left", gpu)

    def release(self) -> None:
        self._write("release", "")

    def _event(self, order: dict[str, object]) -> LeaseEvent:
        index = order.get("gpu", 0)
        assert isinstance(index, int)
        gpu = self._gpu(index)
        match order["is"]:
            case "offer":
                self._gpus.append(gpu)
                return Offered(gpu)
            case "recall":
                within_s = order["within_s"]
                assert isinstance(within_s, (int, float))
                return Recalled(gpu.uuid, time.monotonic() + within_s, "bob")
            case "withdraw":
                return Withdrawn(gpu.uuid)
            case "rejoin":
                return Rejoined()
        return LeaseEnded("an administrator took it away")

    def _gpu(self, index: int) -> LeasedGpu:
        return LeasedGpu(f"GPU-{index}", index)

    def _forget(self, gpu: str) -> None:
        self._gpus = [kept for kept in self._gpus if kept.uuid != gpu]

    def _write(self, word: str, gpu: str) -> None:
        os.write(self._target, json.dumps([word, gpu]).encode() + b"\n")


if __name__ == "__main__":
    from client_plugin.elastic import command, leader

    task = command.ElasticTask(sys.argv[3:])
    lease = FakeMembership(int(sys.argv[1]), int(sys.argv[2]), task.minimum)
    sys.exit(leader.lead(task, lease))
