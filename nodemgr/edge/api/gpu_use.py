"""The past use of the GPUs, for views that show it.

Knows: the form of the answer, where the past is asked for. Must not know: the asker, how a minute
is recorded. All GPUs are in it, as in a status: their use names no environment.
"""

from __future__ import annotations

import json
from typing import Any

from nodemgr.edge.api.job_views import answer_of_past
from nodemgr.edge.api.verb_table import VIEWERS, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import (
    Argument,
    JsonText,
    Later,
    OperationError,
    integer,
)
from nodemgr.edge.store.reader import HistoryQuery, HistoryReader

SCHEMA_VERSION = 1
SECOND_NS = 1_000_000_000
DAY_S = 86_400
ARGUMENTS = {
    "since_wall_ns": Argument(integer(0, 2**63 - 1)),
    "until_wall_ns": Argument(integer(0, 2**63 - 1)),
}
_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class PastUse:
    """Reads the record of each minute."""

    def __init__(self, daemon: Daemon, past: HistoryReader) -> None:
        self._daemon = daemon
        self._past = past

    @verb("samples", VIEWERS, ARGUMENTS)
    def samples(self, who: Speaker, arguments: dict[str, Any]) -> Later:
        """Utilisation and memory in steps; without times: of the last day."""
        now_s = -(-self._daemon.clock.wall_ns() // SECOND_NS)
        until_s = arguments.get("until_wall_ns", now_s * SECOND_NS) // SECOND_NS
        since_s = arguments.get("since_wall_ns", max(0, until_s - DAY_S) * SECOND_NS) // SECOND_NS
        if since_s > until_s:
            raise OperationError(
                "the time `since` is later than `until`",
                "name an earlier `since`; without `until` it is the present time",
            )
        in_order = sorted(self._daemon.state.gpus.values(), key=lambda gpu: gpu.index)
        present = [gpu.uuid for gpu in in_order]
        until_s = max(since_s, min(until_s, now_s))

        def told(past: HistoryQuery) -> JsonText:
            steps, means = past.gpu_minutes(since_s, until_s)
            unknown = [None] * steps.length
            gpus: dict[str, Any] = {}
            for uuid in (*present, *(uuid for uuid in means if uuid not in present)):
                percents, memory_bytes = means.get(uuid, (unknown, unknown))
                gpus[uuid] = {"utilization_percent": percents, "memory_used_bytes": memory_bytes}
            answer = {"step_s": steps.step_s, "since": steps.since_s, "gpus": gpus}
            return JsonText(_to_text({"schema_version": SCHEMA_VERSION, **answer}))

        return Later(lambda reply: self._past.ask(who.env or "", told, answer_of_past(reply)))
