"""The verbs on tokens of the web page, for administrators and for the users of an env.

Knows: the right to each. Must not know: the form of a token, sockets.
"""

from __future__ import annotations

from typing import Any

from nodemgr.edge.api.verb_table import ADMIN, ENV, Speaker, verb
from nodemgr.edge.rpc.operation import (
    Argument,
    OperationError,
    env_name,
    flag,
    integer,
    text,
)
from nodemgr.edge.web.tokens import MAX_TOKEN_MS, MIN_TOKEN_MS, WebTokens
from nodemgr.messages import web as messages

FOR = Argument(lambda value: _validity(value), required=True)
BY_ENV = {"env": Argument(env_name)}


class TokenOperations:
    """The verbs, on the tokens of a manager."""

    def __init__(self, tokens: WebTokens, *, is_on: bool) -> None:
        """`is_on`: the manager serves the page."""
        self.tokens = tokens
        self._is_on = is_on

    @verb(
        "web_token", ENV | ADMIN, {**BY_ENV, "admin": Argument(flag), "for_ms": FOR}, changes=True
    )
    def _make(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        env, for_admin = who.scope(given), given.get("admin", False)
        if (env is None) is not for_admin:
            raise OperationError(messages.TOKEN_FOR_WHOM())
        if not self._is_on:
            raise OperationError(messages.NO_WEB_PAGE())
        return self.tokens.make(env, given["for_ms"], who.user)

    @verb("web_tokens", ENV | ADMIN, BY_ENV)
    def _list(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self.tokens.list(who.scope(given))

    @verb("web_revoke", ENV | ADMIN, {"token": Argument(text, required=True)}, changes=True)
    def _revoke(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self.tokens.revoke(given["token"], who.env, who.user)


def _validity(value: object) -> int:
    try:
        return int(integer(MIN_TOKEN_MS, MAX_TOKEN_MS)(value))
    except OperationError:
        raise OperationError(messages.TOKEN_VALIDITY()) from None
