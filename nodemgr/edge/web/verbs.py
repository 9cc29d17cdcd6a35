"""The verbs of the page process, the caller that a viewer's token makes, and the verbs on tokens.

Knows: which view of the manager each verb is, the right to each. Must not know: sockets, HTTP. The
token of a viewer is judged here, not in the page process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemgr.edge.api.verb_table import ADMIN, ENV, PAGE, VIEWERS, Right, Speaker, verb
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    env_name,
    flag,
    integer,
    text,
)
from nodemgr.edge.web.metric_values import MetricValues
from nodemgr.edge.web.scope_views import ScopeViews
from nodemgr.edge.web.tokens import MAX_TOKEN_MS, MIN_TOKEN_MS, WebTokens

MAX_JUDGED = 1_000
SECOND_NS = 1_000_000_000
THE_PAGE = Speaker(PAGE, "the web page", "the web page", None)


def _tokens(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_JUDGED:
        raise OperationError(f"must be a list of at most {MAX_JUDGED} tokens")
    return value


def _validity(value: object) -> int:
    try:
        return int(integer(MIN_TOKEN_MS, MAX_TOKEN_MS)(value))
    except OperationError:
        raise OperationError("a token must be valid for at least 1min and at most 90d") from None


BY_ENV = {"env": Argument(env_name)}
OF_TOKEN = {
    **BY_ENV, "admin": Argument(flag), "for_ms": Argument(_validity, required=True)
}  # fmt: skip


class WebVerbs:
    """The verbs, on the views and the tokens of a manager."""

    def __init__(
        self,
        views: ScopeViews,
        metrics: MetricValues,
        tokens: WebTokens,
        hello: Mapping[str, Any],
    ) -> None:
        """`hello`: what the page process is told of itself; empty: the manager serves no page."""
        self._views, self._metrics, self._tokens, self._hello = views, metrics, tokens, hello

    def viewer(self, token: object) -> Speaker:
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

    @verb("web_token", ENV | ADMIN, OF_TOKEN, changes=True)
    def _make(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        env, for_admin = who.scope(given), given.get("admin", False)
        if (env is None) is not for_admin:
            raise OperationError(
                "a token is of one environment or of an administrator", "say --env ENV or --admin"
            )
        if not self._hello:
            raise OperationError(
                "this manager serves no web page",
                "start it with --web 127.0.0.1:8088 (or set `web`)",
                "refused",
            )
        return self._tokens.make(env, given["for_ms"], who.user if who.env else who.name)

    @verb("web_tokens", ENV | ADMIN, BY_ENV)
    def _list(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self._tokens.list(who.scope(given))

    @verb("web_revoke", ENV | ADMIN, {"token": Argument(text, required=True)}, changes=True)
    def _revoke(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self._tokens.revoke(given["token"], who.env, who.user if who.env else who.name)
