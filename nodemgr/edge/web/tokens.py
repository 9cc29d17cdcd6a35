"""Tokens of the web page: made, judged, listed and revoked. The manager alone judges them.

Knows: the form of a token, its rows in the store. Must not know: HTTP, the views. A row holds the
SHA-256 of a token. A token has 256 random bits, so that a plain hash cannot be searched.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from typing import Any, NamedTuple

from client_plugin.messages.form import stated
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.entities import MS
from nodemgr.core.state.node_state import State
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.web_token_rows import WebTokenRow
from nodemgr.messages import web as messages
from nodemgr.messages.environments import NO_ENV
from nodemgr.messages.orders import NOT_STORED

MIN_TOKEN_MS, MAX_TOKEN_MS = 60_000, 90 * 86_400_000
MAX_TOKENS, MAX_ENV_TOKENS = 1_000, 100
"""Valid ones; of the node, and of one env."""
NUMBER_META = "web_tokens"
"""The number of the last token: no id is used twice."""
FORM = re.compile(r"nmw-(w[0-9]{1,18})-([A-Za-z0-9_-]{43})", re.ASCII)
SECOND_NS = 1_000_000_000


class TokenHolder(NamedTuple):
    """A token that was judged good."""

    token_id: str
    env: str | None
    """None: an administrator."""
    expires_wall_ns: int

    @property
    def name(self) -> str:
        """As the history records an action."""
        whose = "an administrator" if self.env is None else self.env
        return f"web token {self.token_id} of {whose}"


class WebTokens:
    """All tokens that have not expired, in memory and in the store."""

    def __init__(self, journal: Journal, clock: Clock, state: State) -> None:
        self._journal = journal
        self._clock = clock
        self._state = state
        self._rows = {row.token_id: row for row in journal.web_tokens()}
        self._last = int(journal.meta().get(NUMBER_META, "0"))

    # -- judging --

    def judge(self, token: object) -> TokenHolder:
        """The viewer that sent this token. Raises OperationError, code `token`."""
        found = FORM.fullmatch(token) if isinstance(token, str) else None
        if found is None:
            raise OperationError(
                "this is no token of the web page", "`nodemgr web token` makes one", "token"
            )
        row = self._rows.get(found[1])
        if row is None or not hmac.compare_digest(row.sha256, _digest(found[0])):
            raise OperationError(
                "this token is unknown here, or was revoked",
                "`nodemgr web token` makes one",
                "token",
            )
        if row.expires_wall_ns <= self._clock.wall_ns():
            raise OperationError("this token has expired", "`nodemgr web token` makes one", "token")
        if row.env is not None and row.env not in self._state.envs:
            raise OperationError(
                "the environment of this token was removed",
                "`nodemgr web token` makes one of another environment",
                "token",
            )
        return TokenHolder(row.token_id, row.env, row.expires_wall_ns)

    # -- changes --

    def make(self, env: str | None, for_ms: int, by: str) -> dict[str, Any]:
        """A new token of this env (None: of administrators). Raises OperationError."""
        if env is not None and env not in self._state.envs:
            raise OperationError(NO_ENV(env=env, meant=did_you_mean(env, self._state.envs)))
        now_ns = self._clock.wall_ns()
        expired = {row.token_id for row in self._rows.values() if row.expires_wall_ns <= now_ns}
        self._check_room(env, expired)
        number = self._last + 1
        token_id = f"w{number}"
        token = f"nmw-{token_id}-{secrets.token_urlsafe(32)}"
        row = WebTokenRow(token_id, env, _digest(token), by, now_ns, now_ns + for_ms * MS)
        told = Publish(
            "web.token",
            {"token": token_id, "env": env, "by": by, "expires": row.expires_wall_ns // SECOND_NS},
        )
        changes: dict[str, WebTokenRow | None] = {token_id: row, **dict.fromkeys(expired)}
        facts = {NUMBER_META: str(number)}
        if not self._journal.save_web_tokens(changes, told, facts, must_hold=False):
            raise OperationError(NOT_STORED(fault=self._journal.refused))
        self._last = number
        self._rows[token_id] = row
        for old in expired:
            del self._rows[old]
        return {"schema_version": 1, "token": token, **_told(row)}

    def _check_room(self, env: str | None, expired: Collection[str]) -> None:
        valid = [row for row in self._rows.values() if row.token_id not in expired]
        of_env = sum(row.env == env for row in valid)
        if len(valid) >= MAX_TOKENS or of_env >= MAX_ENV_TOKENS:
            owner = "the node" if len(valid) >= MAX_TOKENS else env or "the administrators"
            most = MAX_TOKENS if len(valid) >= MAX_TOKENS else MAX_ENV_TOKENS
            raise OperationError(
                f"{owner} has {most} tokens of the web page already",
                "revoke one (`nodemgr web tokens` lists them)",
                "refused",
            )

    def revoke(self, token_id: str, env: str | None, by: str) -> dict[str, Any]:
        """`env`: only a token of this env; None: any. Raises OperationError."""
        row = self._rows.get(token_id)
        if row is None or env not in (None, row.env):
            raise OperationError(
                messages.NO_TOKEN(token=token_id)
                if env is None
                else stated(
                    f"{env} has no token {token_id!r}",
                    "`nodemgr web tokens` lists them",
                    "not_found",
                )
            )
        self._remove([row], by)
        return {"token": token_id}

    def forget_env(self, env: str, by: str) -> None:
        """The env was removed: a later env of the same name has other users."""
        if gone := [row for row in self._rows.values() if row.env == env]:
            self._remove(gone, by)

    def _remove(self, rows: list[WebTokenRow], by: str) -> None:
        names = [row.token_id for row in rows]
        for name in names:
            del self._rows[name]
        told = Publish("web.revoked", {"tokens": names, "env": rows[0].env, "by": by})
        self._journal.save_web_tokens(dict.fromkeys(names), told, must_hold=True)

    # -- reading --

    def list(self, env: str | None) -> dict[str, Any]:
        """Those that have not expired, of this env or (None) all."""
        now_ns = self._clock.wall_ns()
        rows = [
            _told(row)
            for row in self._rows.values()
            if row.expires_wall_ns > now_ns and env in (None, row.env)
        ]
        return {"schema_version": 1, "tokens": rows}


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _told(row: WebTokenRow) -> dict[str, Any]:
    return {
        "id": row.token_id,
        "env": row.env,
        "admin": row.env is None,
        "made_by": row.made_by,
        "made": row.made_wall_ns // SECOND_NS,
        "expires": row.expires_wall_ns // SECOND_NS,
    }
