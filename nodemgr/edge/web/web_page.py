"""The manager's side of the web page as one part: begun before the rights go, opened at the end.

Knows: the order of a start, which parts are there without a page. Must not know: how a part works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nodemgr.core.state.node_state import State
from nodemgr.edge.api.verb_table import Verbs
from nodemgr.edge.api.views import Views
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import OperationError, Reply
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.web import page_host
from nodemgr.edge.web.metric_values import MetricValues
from nodemgr.edge.web.page_host import PageHost
from nodemgr.edge.web.scope_views import ScopeViews
from nodemgr.edge.web.token_operations import TokenOperations
from nodemgr.edge.web.tokens import WebTokens
from nodemgr.edge.web.verbs import WebVerbs
from nodemgr.edge.web.view_server import ViewServer
from nodemgr.paths import installed_version


class WebPage:
    """Tokens are there always; the page process if the settings name an address."""

    def __init__(self, settings: Settings) -> None:
        """Starts the page process. Called before threads and while all rights are there.

        Raises PageHostFault.
        """
        self._hello: Mapping[str, Any] = {}
        self._host: PageHost | None = None
        self._server: ViewServer | None = None
        if settings.web is None:
            page_host.clear(settings.run_dir)
            return
        self._host = PageHost.begin(
            settings.run_dir, settings.web, settings.web_hosts, settings.web_base
        )
        host, port = settings.web
        self._hello = {
            "host": host,
            "port": port,
            "names": [host, *settings.web_hosts],
            "base": settings.web_base,
            "version": installed_version(),
        }

    @property
    def url(self) -> str | None:
        return None if self._host is None else self._host.url

    def read_tokens(self, journal: Journal, clock: Clock, state: State) -> TokenOperations:
        """From the store."""
        return TokenOperations(WebTokens(journal, clock, state), is_on=self._host is not None)

    def verbs(self, daemon: Daemon, views: Views, tokens: WebTokens) -> WebVerbs:
        metrics = MetricValues(daemon, views)
        return WebVerbs(ScopeViews(daemon, views), metrics, tokens, self._hello)

    def open(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, own: WebVerbs, verbs: Verbs
    ) -> None:
        """Answers the page process from now on."""
        if self._host is None:
            return

        def begin(verb: str, token: object, given: object, reply: Reply) -> None:
            try:
                caller = own.caller(token)
            except OperationError as error:
                reply(error)
            else:
                verbs.begin(caller, verb, given, reply)

        self._server = ViewServer(loop, clock, self._host.listener, begin)
        self._host.watch(loop)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._host is not None:
            self._host.close()
