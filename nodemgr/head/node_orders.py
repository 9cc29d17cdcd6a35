"""Orders of the head to its nodes, and their answers; the quotas that each node is to have.

Knows: ids of orders, sessions. Must not know: the asker, how a frame travels.

An order is said once. Its answer is lost with the session: the asker is told so, and asks again. A
quota is said until the node has answered that it has it, and anew in each session.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from nodemgr.core.cluster.state import ClusterState
from nodemgr.edge.host import stderr_log
from nodemgr.edge.links.frames import Frame
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.pieces import MORE, joined
from nodemgr.head.engine import Links
from nodemgr.messages import head as messages

MAX_OPEN = 10_000
"""The most orders that wait for an answer."""


class NodeOrders:
    def __init__(self, state: ClusterState, links: Callable[[], Links | None]) -> None:
        self._state, self._links = state, links
        self._last = 0
        self._open: dict[int, tuple[str, Callable[[Any], None]]] = {}
        self._parts: dict[int, list[str]] = {}

    def order(
        self, node: str, verb: str, arguments: dict[str, Any], then: Callable[[Any], None]
    ) -> None:
        """`then` takes the answer, or an OperationError."""
        links = self._links()
        self._last += 1
        number = self._last
        if links is None or len(self._open) >= MAX_OPEN or node not in self._state.sessions:
            then(OperationError(messages.NODE_SILENT(node=node)))
            return
        self._open[number] = (node, then)
        if not links.say(node, "order", id=number, verb=verb, arguments=arguments):
            self._answer(number, OperationError(messages.NODE_SILENT(node=node)))

    def answered(self, node: str, said: Frame) -> None:
        number = said.get("id")
        if not isinstance(number, int) or self._open.get(number, ("",))[0] != node:
            return
        if (result := joined(said, self._parts.setdefault(number, []))) is not MORE:
            self._answer(number, result)

    def _answer(self, number: int, answer: Any) -> None:
        self._parts.pop(number, None)
        found = self._open.pop(number, None)
        if found is not None:
            found[1](answer)

    # -- sessions --

    def synced(self, node: str) -> None:
        self._keep_envs(node)
        for env in sorted(self._state.envs):
            self._put(node, env)

    def silent(self, node: str) -> None:
        for number in [number for number, (at, _) in self._open.items() if at == node]:
            self._answer(number, OperationError(messages.NODE_SILENT(node=node)))

    def left(self, node: str) -> None:
        links = self._links()
        if links is not None:
            links.forget(node)

    # -- quotas --

    def env_changed(self, env: str) -> None:
        for node in sorted(self._state.sessions):
            if env in self._state.envs:
                self._put(node, env)
            else:
                self._keep_envs(node)

    def _keep_envs(self, node: str) -> None:
        """The node is to have no other environments of the cluster."""

        def answered(answer: Any) -> None:
            if isinstance(answer, OperationError) and answer.code != "busy":
                stderr_log.say(f"{node} keeps an environment that is removed: {answer.line}")

        self.order(node, "env_only", {"envs": sorted(self._state.envs)}, answered)

    def _put(self, node: str, env: str) -> None:
        row = self._state.envs[env]
        quota = {**json.loads(row.quota), "gpus": row.part}
        self.order(node, "env_put", {"env": env, "quota": quota}, partial(self._was_put, node, env))

    @staticmethod
    def _was_put(node: str, env: str, answer: Any) -> None:
        if isinstance(answer, OperationError) and answer.code != "busy":  # else: the next session
            stderr_log.say(f"{node} does not take the quota of {env}: {answer.line}")
