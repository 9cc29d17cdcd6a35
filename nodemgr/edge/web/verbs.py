"""The verbs of the page process, and the caller that a viewer's token makes.

Knows: which view of the manager each verb is. Must not know: sockets, HTTP. The token of a viewer
is judged here, not in the page process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemgr.edge.api.verb_table import PAGE, VIEWERS, Right, Speaker, verb
from nodemgr.edge.rpc.operation import Argument, Later, OperationError
from nodemgr.edge.web.metric_values import MetricValues
from nodemgr.edge.web.scope_views import ScopeViews
from nodemgr.edge.web.tokens import WebTokens
from nodemgr.messages import web as messages

MAX_JUDGED = 1_000
SECOND_NS = 1_000_000_000
THE_PAGE = Speaker(PAGE, "the web page", "the web page", None)


def _tokens(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_JUDGED:
        raise OperationError(messages.MUST_BE_TOKENS(limit=MAX_JUDGED))
    return value


class WebVerbs:
    """The verbs, on the views of a manager."""

    def __init__(
        self,
        views: ScopeViews,
        metrics: MetricValues,
        tokens: WebTokens,
        hello: Mapping[str, Any],
    ) -> None:
        """`hello`: what the page process is told of itself."""
        self._views, self._metrics, self._tokens, self._hello = views, metrics, tokens, hello

    def caller(self, token: object) -> Speaker:
        """The viewer with this token; None: one without. Raises OperationError."""
        if token is None:
            return THE_PAGE
        viewer = self._tokens.judge(token)
        right = Right.ADMIN_TOKEN if viewer.env is None else Right.ENV_TOKEN
        return Speaker(right, viewer.name, viewer.name, viewer.env)

    @verb("hello", PAGE)
    def _greet(self, _who: Speaker, _given: dict[str, Any]) -> Mapping[str, Any]:
        return self._hello

    @verb("judge", PAGE, {"tokens": Argument(_tokens, required=True)})
    def _judge(self, _who: Speaker, given: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._judged(one) for one in given["tokens"]]

    @verb("view", PAGE | VIEWERS)
    def _view(self, who: Speaker, _given: dict[str, Any]) -> Later:
        return Later(lambda reply: self._views.get(who, reply))

    @verb("metrics", PAGE | VIEWERS)
    def _metric_values(self, who: Speaker, _given: dict[str, Any]) -> Later:
        return Later(lambda reply: self._metrics.get(who, reply))

    def _judged(self, token: object) -> dict[str, Any]:
        try:
            viewer = self._tokens.judge(token)
        except OperationError as error:
            return {"error": str(error), "code": error.code}
        return {
            "scope": "admin" if viewer.env is None else "env",
            "env": viewer.env,
            "token": viewer.token_id,
            "expires": viewer.expires_wall_ns // SECOND_NS,
        }
