"""The view of each scope of the web page: everyone's totals, an env's part, the whole node.

Knows: which view a scope gets, and how long a view is cached. Must not know: tokens, sockets. A
view is made once for all viewers of its scope, and at most twice a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodemgr.core.lifecycle import queue_settings
from nodemgr.edge.api.verb_table import PAGE, Speaker
from nodemgr.edge.api.views import Views
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply
from nodemgr.messages import orders as messages

VALID_NS = 500_000_000
SECOND_NS = 1_000_000_000
NO_ENV = ""
"""No environment has this name: the status of its users has the GPUs and nobody's rows."""
SUMMED = ("memory_total_bytes", "memory_granted_bytes", "memory_used_bytes", "power_w")
"""The fields of a GPU's row of which the totals have the sum."""
_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _known(gpus: list[dict[str, Any]], field: str) -> list[float] | None:
    """The figures of the GPUs that have one; None where a healthy GPU has none, or no GPU has."""
    if any(row[field] is None and row["state"] == "healthy" for row in gpus):
        return None
    return [row[field] for row in gpus if row[field] is not None] or None


def _total(gpus: list[dict[str, Any]], field: str) -> float | None:
    figures = _known(gpus, field)
    return None if figures is None else sum(figures)


def _mean(gpus: list[dict[str, Any]], field: str) -> int | None:
    figures = _known(gpus, field)
    return None if figures is None else round(sum(figures) / len(figures))


def totals(gpus: list[dict[str, Any]], tasks: int, waiting: int) -> dict[str, Any]:
    """The use of the whole node without a GPU, an env or a task by name.

    `gpus`: the GPUs' rows of a status. A sum or mean is None where the figure of a healthy GPU is
    unknown: a part of the node's figure would pass for the whole.
    """
    return {
        "gpus": len(gpus),
        "gpus_healthy": sum(row["state"] == "healthy" for row in gpus),
        "gpus_held": sum(row["tasks"] > 0 for row in gpus),
        **{field: _total(gpus, field) for field in SUMMED},
        "utilization_percent": _mean(gpus, "utilization_percent"),
        "tasks": tasks,
        "waiting": waiting,
    }


class ScopeViews:
    """The views, as JSON texts."""

    def __init__(self, daemon: Daemon, views: Views) -> None:
        self._daemon = daemon
        self._views = views
        self._cached: dict[str | None, tuple[int, JsonText]] = {}
        """By env, None for the whole node, NO_ENV for totals: until when (ns), and the view."""
        self._asked: dict[str | None, list[Reply]] = {}
        """Callers of a view that is being made."""

    def get(self, viewer: Speaker, reply: Reply) -> None:
        """Calls `reply` with the view of this viewer."""
        key = NO_ENV if viewer.right is PAGE else viewer.env
        cached = self._cached.get(key)
        if cached is not None and self._daemon.clock.monotonic_ns() < cached[0]:
            reply(cached[1])
            return
        callers = self._asked.setdefault(key, [])
        callers.append(reply)
        if len(callers) == 1:
            # the status itself waits for fresh figures
            self._daemon.process_locations.when_known(lambda: self._make(key))

    def _make(self, key: str | None) -> None:
        try:
            self._views.status(key).begin(lambda status: self._made(key, status))
        except Exception as error:  # the callers need an answer in any case
            stderr_log.fault("in a view of the web page", error)
            self._made(key, OperationError(messages.INTERNAL_FAULT(error=repr(error))))

    def _made(self, key: str | None, status: Any) -> None:
        now_ns = self._daemon.clock.monotonic_ns()
        self._cached = {env: cached for env, cached in self._cached.items() if now_ns < cached[0]}
        view = status if isinstance(status, OperationError) else self._view(key, status)
        if isinstance(view, JsonText):
            self._cached[key] = now_ns + VALID_NS, view
        for reply in self._asked.pop(key):
            reply(view)

    def _view(self, key: str | None, status: JsonText) -> JsonText:
        now = self._daemon.clock.wall_ns() / SECOND_NS
        if key == NO_ENV:
            return JsonText(_to_text({**self._totals_of(json.loads(status)), "now": now}))
        scope = "admin" if key is None else "env"
        return JsonText(f'{{"scope":"{scope}","now":{now!r},{status[1:]}')

    def _totals_of(self, status: Mapping[str, Any]) -> dict[str, Any]:
        state = self._daemon.state
        queues = queue_settings.rows(state)
        return {
            "schema_version": status["schema_version"],
            "scope": "public",
            "totals": totals(status["gpus"], len(state.tasks), len(state.requests)),
            "queues": [{"name": name, "length": state.queued.get(name, 0)} for name in queues],
        }
