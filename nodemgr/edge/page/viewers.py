"""Server-sent events: each viewer gets a snapshot and changes; how many, and who is dropped.

Knows: viewers by scope, the pace, which viewer is dropped. Must not know: HTTP headers, tokens'
form. One view is asked for and compared for all viewers of a scope, and only while there are some.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

from client_plugin.messages.form import stated
from nodemgr.edge.host import stderr_log
from nodemgr.edge.page.changes import changes
from nodemgr.edge.page.channel import Channel, ManagerAway, RequestRefused

PERIOD_S = 0.9
"""Between two views: a page follows a change within a second."""
MAX_VIEWERS = 200
MAX_OF_TOKEN, MAX_OF_ENV, MAX_OF_ADDRESS = 20, 60, 100
"""Streams of one token, of all tokens of one env, and of one address.

Loopback has no bound of its own: a proxy or a tunnel brings the viewers of many from there. An
administrator has none but that of the token.
"""
DROP_S = 10.0
"""A viewer that has read nothing for so long is dropped."""
COMMENT_S = 15.0
COMMENT = b":\n\n"
_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def event(name: str, data: object) -> bytes:
    """One event. JSON of ASCII has no line break in it."""
    return f"event: {name}\ndata: {_to_text(data)}\n\n".encode()


class Scope(NamedTuple):
    """A part of the node that a viewer may see."""

    name: str
    """public, env or admin."""
    env: str | None = None


PUBLIC = Scope("public")
ADMIN = "admin"
"""The name of the scope of administrators."""


class Output(Protocol):
    """The connection of a viewer."""

    def send(self, data: bytes) -> Awaitable[Any]:
        """Done when the data has left this process."""

    def drop(self) -> None:
        """Close it at once."""

    def end(self) -> None:
        """Close it when everything is sent."""


class Viewer:
    """One open stream."""

    def __init__(
        self, output: Output, token: str | None, scope: Scope, near: str | None = None
    ) -> None:
        self.token = token
        self.scope = scope
        self.near = near
        self._output = output
        self._unsent: asyncio.Future[Any] | None = None
        self.opened_s = time.monotonic()
        self._last_s = time.monotonic()
        """When something was last sent."""
        self.is_behind = True
        """It lacks a change, and needs a snapshot."""

    def is_ready(self) -> bool:
        """Whether it has read everything that was sent."""
        return self._unsent is None or self._unsent.done()

    def is_stuck(self) -> bool:
        return not self.is_ready() and time.monotonic() - self._last_s > DROP_S

    def send(self, data: bytes) -> None:
        if self.is_ready():
            self._last_s = time.monotonic()
        sent = asyncio.ensure_future(self._output.send(data))
        sent.add_done_callback(_retrieved)
        self._unsent = sent

    def comment(self) -> None:
        """Shows proxies, and us, that the connection lives."""
        if self.is_ready() and time.monotonic() - self._last_s > COMMENT_S:
            self.send(COMMENT)

    def drop(self) -> None:
        self._output.drop()

    def end(self, data: bytes) -> None:
        """Send a last event and close."""
        if self.is_ready():
            self.send(data)
        self._output.end()


def _many(what: str, remedy: str) -> str:
    return stated(what, remedy, "viewers")


def _retrieved(sent: asyncio.Future[Any]) -> None:
    """A closed connection is reported by the server, not by this future."""
    if not sent.cancelled():
        sent.exception()


class _ViewersOfScope:
    """The viewers of one scope."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.view: dict[str, Any] | None = None
        self._snapshot = b""

    def take(self, view: dict[str, Any]) -> bytes | None:
        """The event for viewers that have the last view; None: there is nothing to send."""
        change = None if self.view is None else changes(self.view, view)
        if self.view is None or change is not None:
            self._snapshot = b""
        self.view = view
        return None if change is None else event("change", change)

    def snapshot(self) -> bytes:
        if not self._snapshot:
            self._snapshot = event("snapshot", self.view)
        return self._snapshot


class Viewers:
    """All open streams."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._groups: dict[Scope, _ViewersOfScope] = {}
        self._pace: asyncio.Task[None] | None = None
        self.dropped = 0
        """Viewers that were dropped because they did not read."""
        self._firsts: set[asyncio.Future[None]] = set()
        """First views of scopes that have just got a viewer."""
        channel.subscribe(self._manager_changed)

    def __len__(self) -> int:
        return sum(len(group.viewers) for group in self._groups.values())

    def refusal(self, token: str | None, scope: Scope, near: str | None) -> str | None:
        """Why one more cannot come; None: it can. `near`: its address (hosts.neighbours)."""
        every = [viewer for group in self._groups.values() for viewer in group.viewers]
        if token is not None and sum(other.token == token for other in every) >= MAX_OF_TOKEN:
            return _many(f"{MAX_OF_TOKEN} pages with this token are open", "close one")
        if scope.env is not None and self._count(scope) >= MAX_OF_ENV:
            return _many(f"{MAX_OF_ENV} pages of {scope.env} are open", "close one")
        is_bound = near is not None and scope.name != ADMIN
        if is_bound and sum(other.near == near for other in every) >= MAX_OF_ADDRESS:
            return _many(f"{MAX_OF_ADDRESS} pages of {near} are open", "close one")
        if len(every) < MAX_VIEWERS or self._displaced(scope) is not None:
            return None
        return stated(
            "as many pages as allowed are open", "close one, wait, or enter a token", "viewers"
        )

    def _count(self, scope: Scope) -> int:
        group = self._groups.get(scope)
        return 0 if group is None else len(group.viewers)

    def _displaced(self, scope: Scope) -> Viewer | None:
        """The viewer that makes room for one of this scope where all places are taken; or None.

        The oldest without a token; else, of the env with most, if that has more than this one has
        then, or this is an administrator.
        """
        if scope == PUBLIC:
            return None
        fullest = PUBLIC
        if PUBLIC not in self._groups:
            of_envs = [other for other in self._groups if other.env is not None]
            fullest = max(of_envs, key=self._count, default=PUBLIC)
            if scope.name != ADMIN and self._count(fullest) <= self._count(scope) + 1:
                return None
        group = self._groups.get(fullest)
        return None if group is None else min(group.viewers, key=lambda other: other.opened_s)

    def add(self, viewer: Viewer) -> None:
        """Its snapshot follows. Where all places are taken, another one goes (`_displaced`)."""
        displaced = self._displaced(viewer.scope) if len(self) >= MAX_VIEWERS else None
        if displaced is not None:
            self.remove(displaced)
            displaced.drop()
        group = self._groups.setdefault(viewer.scope, _ViewersOfScope())
        group.viewers.add(viewer)
        if not self._channel.is_here:
            viewer.send(event("manager", {"state": "away"}))
        elif group.view is not None:
            viewer.send(group.snapshot())
            viewer.is_behind = False
        if self._pace is None:
            self._pace = asyncio.get_running_loop().create_task(self._run())
        elif viewer.is_behind and self._channel.is_here:
            first = asyncio.ensure_future(self._show(viewer.scope, group))
            self._firsts.add(first)
            first.add_done_callback(self._firsts.discard)
            first.add_done_callback(_retrieved)

    def remove(self, viewer: Viewer) -> None:
        group = self._groups.get(viewer.scope)
        if group is not None:
            group.viewers.discard(viewer)
            if not group.viewers:
                del self._groups[viewer.scope]

    def _manager_changed(self, is_here: bool) -> None:
        told = event("manager", {"state": "here" if is_here else "away"})
        for group in self._groups.values():
            group.view = None
            for viewer in group.viewers:
                viewer.is_behind = True
                viewer.send(told)

    async def _run(self) -> None:
        """Sends views until the last viewer has gone."""
        try:
            while self._groups:
                began_s = time.monotonic()
                if self._channel.is_here:
                    await self._turn()
                self._drop_stuck()
                await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - began_s)))
        finally:
            self._pace = None

    async def _turn(self) -> None:
        try:
            await self._judge()
            for scope, group in list(self._groups.items()):
                await self._show(scope, group)
        except ManagerAway:
            return  # the channel reports it
        except Exception as error:  # the other viewers go on
            stderr_log.fault("in the views of the web page", error)

    async def _judge(self) -> None:
        """Ends the streams of tokens that have expired or were revoked."""
        with_token = [
            viewer
            for group in self._groups.values()
            for viewer in group.viewers
            if viewer.token is not None
        ]
        tokens = list({viewer.token for viewer in with_token})
        if not tokens:
            return
        judged = dict(
            zip(tokens, await self._channel.ask("judge", None, {"tokens": tokens}), strict=True)
        )
        for viewer in with_token:
            told = judged[viewer.token]
            if "error" in told:
                viewer.end(event("token", told))
                self.remove(viewer)

    async def _show(self, scope: Scope, group: _ViewersOfScope) -> None:
        token = next((viewer.token for viewer in group.viewers), None)
        try:
            change = group.take(await self._channel.ask("view", token))
        except ManagerAway:
            raise
        except RequestRefused:
            return  # the token ended since it was judged: the next turn tells its viewers
        for viewer in group.viewers:
            if not viewer.is_ready():
                viewer.is_behind = True
            elif viewer.is_behind:
                viewer.send(group.snapshot())
                viewer.is_behind = False
            elif change is not None:
                viewer.send(change)
            else:
                viewer.comment()

    def _drop_stuck(self) -> None:
        stuck = [
            viewer
            for group in self._groups.values()
            for viewer in group.viewers
            if viewer.is_stuck()
        ]
        self.dropped += len(stuck)
        for viewer in stuck:
            self.remove(viewer)
            viewer.drop()
