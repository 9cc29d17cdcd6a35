"""The verbs on tokens of the web page, for administrators and for the users of an env.

Knows: the right to each verb. Must not know: the form of a token, sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodemgr.edge.api.client_verbs import Ordered
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.rpc.operation import (
    Argument,
    Operation,
    OperationError,
    Operations,
    check,
    env_name,
    flag,
    integer,
    text,
)
from nodemgr.edge.web.tokens import MAX_TOKEN_MS, MIN_TOKEN_MS, WebTokens
from nodemgr.messages import web as messages

FOR = Argument(lambda value: _validity(value), required=True)
ID = Argument(text, required=True)


class TokenOperations:
    """The verbs, on the tokens of a manager."""

    def __init__(self, tokens: WebTokens, *, is_on: bool) -> None:
        """`is_on`: the manager serves the page."""
        self.tokens = tokens
        self._is_on = is_on
        self._of_users: Mapping[str, tuple[Mapping[str, Argument], Callable[..., Any]]] = {
            "web_token": (
                {"for_ms": FOR},
                lambda session, given: self._make(session.env, given["for_ms"], session.user),
            ),
            "web_tokens": ({}, lambda session, _: tokens.list(session.env)),
            "web_revoke": (
                {"token": ID},
                lambda session, given: tokens.revoke(given["token"], session.env, session.user),
            ),
        }

    def for_admins(self, others: Operations) -> Operations:
        """These verbs beside `others`, of which `quota_rm` also revokes the env's tokens."""
        by = {"by": Argument(text)}
        scope = {"env": Argument(env_name)}
        mine = {
            "web_token": Operation(
                {**scope, "admin": Argument(flag), "for_ms": FOR, **by}, self._make_as_admin
            ),
            "web_tokens": Operation(
                {**scope, **by}, lambda given: self.tokens.list(given.get("env"))
            ),
            "web_revoke": Operation(
                {"token": ID, **by},
                lambda given: self.tokens.revoke(given["token"], None, _by(given)),
            ),
        }
        removal = others["quota_rm"]

        def remove_env(given: dict[str, Any]) -> Any:
            env, name = given["env"], _by(given)
            result = removal.perform(given)
            self.tokens.forget_env(env, name)
            return result

        return {**others, **mine, "quota_rm": Operation(removal.arguments, remove_env)}

    def ordered(self, others: Ordered) -> Ordered:
        """The same over an env's client socket, beside the verbs of `others`."""

        def perform(session: Session, verb: str, given: object) -> Any:
            row = self._of_users.get(verb)
            if row is None:
                return others(session, verb, given)
            arguments, act = row
            return act(session, check(arguments, given))

        return perform

    def _make_as_admin(self, given: dict[str, Any]) -> dict[str, Any]:
        env = given.get("env")
        if (env is None) is not given.get("admin", False):
            raise OperationError(messages.TOKEN_FOR_WHOM())
        return self._make(env, given["for_ms"], _by(given))

    def _make(self, env: str | None, for_ms: int, by: str) -> dict[str, Any]:
        if not self._is_on:
            raise OperationError(messages.NO_WEB_PAGE())
        return self.tokens.make(env, for_ms, by)


def _by(given: Mapping[str, Any]) -> str:
    return str(given.get("by", "an administrator"))


def _validity(value: object) -> int:
    try:
        return int(integer(MIN_TOKEN_MS, MAX_TOKEN_MS)(value))
    except OperationError:
        raise OperationError(messages.TOKEN_VALIDITY()) from None
