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

from client_plugin.messages.form import relayed
from nodemgr.core.cluster.state import ClusterState
from nodemgr.edge.host import stderr_log
from nodemgr.edge.links.frames import Frame
from nodemgr.edge.rpc.operation import OperationError
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
        if isinstance(said.get("part"), str):
            self._parts.setdefault(number, []).append(said["part"])
            return
        if isinstance(said.get("last"), str):
            try:
                self._answer(
                    number, json.loads("".join((*self._parts.pop(number, ()), said["last"])))
                )
            except ValueError:
                self._answer(number, OperationError(messages.NODE_SILENT(node=node)))
            return
        refusal = said.get("refusal")
        if isinstance(refusal, dict):
            line = relayed(str(refusal.get("error", "")))
            self._answer(number, OperationError(line, str(refusal.get("code", "refused"))))
        else:
            self._answer(number, said.get("ok"))

    def _answer(self, number: int, answer: Any) -> None:
        self._parts.pop(number, None)
        found = self._open.pop(number, None)
        if found is not None:
            found[1](answer)

    # -- sessions --

    def synced(self, node: str) -> None:
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
            self._put(node, env)

    def _put(self, node: str, env: str) -> None:
        row = self._state.envs[env]
        gpus = row.gpus if row.per_node is None else min(row.gpus, row.per_node)
        quota = {**json.loads(row.quota), "gpus": gpus}
        self.order(node, "env_put", {"env": env, "quota": quota}, partial(self._was_put, node, env))

    @staticmethod
    def _was_put(node: str, env: str, answer: Any) -> None:
        if isinstance(answer, OperationError) and answer.code != "busy":  # else: the next session
            stderr_log.say(messages.ENV_REFUSED(env=env, node=node, why=answer.line))
