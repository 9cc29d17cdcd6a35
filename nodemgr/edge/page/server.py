"""HTTP of the web page: routes, headers, the checks of every request.

Knows: tornado, the manager's verbs by name, which header and status belong to what. Must not know:
the meaning of a view, tokens' form. A token is passed on to the manager, which judges it; it comes
in the Authorization header alone, because a browser sends a cookie of localhost to every port.
Nothing of a request is logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tornado import http1connection, httpserver, iostream, web

from client_plugin.messages.form import relayed
from nodemgr.edge.host import stderr_log
from nodemgr.edge.page import connection_bounds, hosts
from nodemgr.edge.page.channel import Channel, RequestRefused
from nodemgr.edge.page.connection_bounds import Connections
from nodemgr.edge.page.metrics import CONTENT_TYPE, PageMetrics
from nodemgr.edge.page.viewers import PUBLIC, Scope, Viewer, Viewers

STATIC_DIR = Path(__file__).resolve().parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Files of other types are not served."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATUS = {
    "usage": 400,
    "token": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_env": 404,
    "method": 405,
    "refused": 409,
    "quota": 409,
    "host": 421,
    "busy": 429,
    "store": 503,
    "away": 503,
    "viewers": 503,
}
"""Code of a refusal -> HTTP status; any other is 500."""
MAX_HEADER_BYTES, MAX_BODY_BYTES = 16_384, 65_536
MAX_TOKEN_LETTERS = 128
"""A longer one is none of ours, and is none either when it is cut."""
SEND_BUFFER_BYTES = 131_072
RETRY_AFTER_S = 10
SECOND_NS = 1_000_000_000
MAX_SECONDS = 2**33


class PageSettings(NamedTuple):
    """Settings of the page that the manager has."""

    names: tuple[str, ...]
    """Host names that it answers to, beside localhost and its own address."""
    base: str
    """Its path on the site: it begins and ends with a slash."""


class Parameter(NamedTuple):
    """One parameter of a query: the name and the form in which the manager takes it."""

    name: str
    parse: Callable[[str], Any]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise RequestRefused(f"{text[:40]!r} must be a whole number", code="usage")
    return int(text)


def _moment(text: str) -> int:
    seconds = _number(text)
    if seconds > MAX_SECONDS:
        raise RequestRefused(f"{text!r} must be a time in seconds since 1970", code="usage")
    return seconds * SECOND_NS


ENV = {"env": Parameter("env", str)}
PAGE = {"limit": Parameter("limit", _number)}
SINCE = {"since": Parameter("since_wall_ns", _moment)}
UNTIL = {"until": Parameter("until_wall_ns", _moment)}
BEFORE = {"before": Parameter("before", _number)}
READS: Mapping[str, tuple[str, Mapping[str, Parameter]]] = {
    "view": ("view", {}),
    "queue": ("queue", {**ENV, **PAGE, "after": Parameter("after", str)}),
    "history": ("history", {**ENV, **PAGE, **SINCE, **BEFORE}),
    "report": ("report", {**ENV, **SINCE}),
    "timeline": ("leases", {**ENV, **PAGE, **SINCE, **BEFORE, **UNTIL}),
    "samples": ("samples", {**SINCE, **UNTIL}),
    "quotas": ("quota_show", {}),
}
"""GET api/NAME -> the manager's verb and the parameters of the query."""
ACTIONS = {"release": "release", "withdraw": "job_withdraw", "quota": "quota_set"}
"""POST api/NAME -> the manager's verb."""


class Handler(web.RequestHandler):
    """Every request: its checks, its headers, its errors as JSON of one line."""

    def initialize(self, page: Page) -> None:
        self.page = page

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Raises RequestRefused, which `write_error` answers."""
        if not hosts.is_ours(
            self.request.headers.get("Host", ""), self.page.settings.names, self._own_address()
        ):
            raise RequestRefused(
                "this name of the page is unknown to the manager",
                "start the manager with --web-host NAME (or set `web_hosts`)",
                "host",
            )
        if "token" in self.request.query_arguments:
            raise RequestRefused(
                "a token does not belong into an address, which others may read",
                "revoke this one (nodemgr web revoke) and enter a new one on the page",
                "usage",
            )

    def stream(self) -> iostream.IOStream:
        connection = self.request.connection
        assert isinstance(connection, http1connection.HTTP1Connection)
        return connection.stream

    def _own_address(self) -> str:
        """Of this connection's end."""
        try:
            return str(self.stream().socket.getsockname()[0])
        except (OSError, AttributeError):
            return ""  # the viewer has gone

    def token(self) -> str | None:
        """As it was sent, one of ours whole; a proxy's own scheme is no token."""
        scheme, _, value = self.request.headers.get("Authorization", "").partition(" ")
        return value.strip()[:MAX_TOKEN_LETTERS] if scheme.lower() == "bearer" else None

    def check_is_own_page(self) -> None:
        """An action comes from our own page, or from a program. Raises RequestRefused."""
        headers = self.request.headers
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none") or (
            origin is not None and not hosts.is_same_origin(origin, headers.get("Host", ""))
        ):
            raise RequestRefused(
                "another site's page may not act here",
                "act on the page of the manager itself",
                "forbidden",
            )
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise RequestRefused(
                "an action must have the Content-Type application/json", code="usage"
            )
        if self.token() is None:
            raise RequestRefused(
                "an action needs a token", "`nodemgr web token` makes one", "token"
            )

    def answer(self, value: object) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(value, separators=(",", ":")))

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None))[1]
        if isinstance(error, RequestRefused):
            code, text = error.code, str(error)
            self.set_status(STATUS.get(code, 500))
        else:
            code, text = _code_of(status_code), self._reason
        if code in ("away", "viewers", "busy"):
            self.set_header("Retry-After", str(RETRY_AFTER_S))
        if code == "token":
            self.set_header("WWW-Authenticate", "Bearer")
        self.answer({"error": text, "code": code})

    def log_exception(self, _kind: Any, value: BaseException | None, _trace: Any) -> None:
        """A fault of ours, without the request: its headers may hold a token."""
        if value is not None and not isinstance(value, (RequestRefused, web.HTTPError)):
            stderr_log.fault(f"in the web page ({type(self).__name__})", value)

    def query(self, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
        """Raises RequestRefused."""
        given: dict[str, Any] = {}
        for name, values in self.request.query_arguments.items():
            if name not in parameters or len(values) != 1:
                known = ", ".join(sorted(parameters)) or "none"
                raise RequestRefused(
                    f"unknown parameter {name[:40]!r}", f"the parameters are {known}", "usage"
                )
            row = parameters[name]
            given[row.name] = row.parse(values[0].decode("utf-8", "replace"))
        return given


def _code_of(status: int) -> str:
    return next((code for code, known in STATUS.items() if known == status), "internal")


class NotFound(Handler):
    """Everything else."""

    async def prepare(self) -> None:  # type: ignore[override]
        super().prepare()
        raise RequestRefused(
            "there is nothing at this address", "open the page itself, /", "not_found"
        )


class Static(Handler):
    """The page itself and its files."""

    def get(self, name: str = "") -> None:
        found = self.page.files.get(name or "index.html")
        if found is None:
            raise RequestRefused("there is no such file", "open the page itself, /", "not_found")
        self.set_header("Content-Type", found.kind)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("ETag", found.tag)
        if self.check_etag_header():
            self.set_status(304)
            self.finish()
        else:
            self.finish(found.data)

    head = get


class ToBase(Handler):
    """The base without its last slash."""

    def get(self) -> None:
        self.redirect(self.page.settings.base)


class Health(Handler):
    """For programs that watch this one."""

    def get(self) -> None:
        self.answer({"manager": "here" if self.page.channel.is_here else "away"})


class Metrics(Handler):
    """For Prometheus; with a token also the environments that it shows."""

    async def get(self) -> None:
        self.query({})
        text = await self.page.metrics.text(self.token())
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)


class WhoAmI(Handler):
    """The viewer, as the manager judges the token."""

    async def get(self) -> None:
        self.query({})
        self.answer(await self.page.viewer(self.token()))


class Read(Handler):
    """One of READS."""

    async def get(self, name: str) -> None:
        verb, parameters = READS[name]
        arguments = self.query(parameters)
        self.answer(await self.page.channel.ask(verb, self.token(), arguments))


class JobStory(Handler):
    """One job."""

    async def get(self, job: str) -> None:
        self.query({})
        self.answer(await self.page.channel.ask("job_show", self.token(), {"job": job}))


class Action(Handler):
    """One of ACTIONS."""

    async def post(self, name: str) -> None:
        self.check_is_own_page()
        try:
            given = json.loads(self.request.body)
        except (ValueError, RecursionError):
            given = None
        if not (isinstance(given, dict) and all(map(_is_flat, given.values()))):
            raise RequestRefused("an action must be a flat JSON object", code="usage")
        self.answer(await self.page.channel.ask(ACTIONS[name], self.token(), given))


def _is_flat(value: object) -> bool:
    """A value, or a list of them.

    A value that is nested deeper may be too deep for the manager's parser, which then ends the
    connection of the page process.
    """
    rows = value if isinstance(value, list) else [value]
    return not any(isinstance(row, (list, dict)) for row in rows)


class Events(Handler):
    """The stream of one viewer."""

    async def get(self) -> None:
        self.query({})
        token, scope = self.token(), PUBLIC
        near = hosts.neighbours(self.request.remote_ip or "")
        if token is not None:
            told = await self.page.viewer(token)
            scope = Scope(told["scope"], told["env"])
        # between this and `add` nothing is awaited
        if (why := self.page.viewers.refusal(token, scope, near)) is not None:
            raise RequestRefused(why)
        stream = self.stream()
        if stream.closed():
            return  # the viewer has gone meanwhile
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        viewer = Viewer(_Stream(self, stream), token, scope, near)
        viewer.send(b"retry: 1000\n\n")
        self._remove = lambda: self.page.viewers.remove(viewer)
        self.page.viewers.add(viewer)
        await self.page.hold(self)

    def on_connection_close(self) -> None:
        remove = getattr(self, "_remove", None)
        if remove is not None:
            remove()
        self.page.let_go(self)


class _Stream:
    """A viewer's connection."""

    def __init__(self, handler: Events, stream: iostream.IOStream) -> None:
        self._handler = handler
        self._stream = stream

    def send(self, data: bytes) -> Awaitable[Any]:
        self._handler.write(data)
        return self._handler.flush()

    def drop(self) -> None:
        self._stream.close()

    def end(self) -> None:
        self._handler.page.let_go(self._handler)


class PageFile(NamedTuple):
    """A file of the page, in memory."""

    data: bytes
    kind: str
    tag: str


def read_files(directory: Path = STATIC_DIR) -> dict[str, PageFile]:
    """Every file of a known type: later the process may be unable to read them."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found[path.name] = PageFile(data, TYPES[path.suffix], tag)
    return found


class Page:
    """The application and its parts."""

    def __init__(
        self, channel: Channel, settings: PageSettings, files: Mapping[str, PageFile]
    ) -> None:
        self.channel = channel
        self.settings = settings
        self.files = files
        self.viewers = Viewers(channel)
        self.metrics = PageMetrics(channel, self.viewers)
        self._held: dict[Events, asyncio.Future[None]] = {}
        """By open stream, the future that ends it."""

    async def viewer(self, token: str | None) -> dict[str, Any]:
        """Scope, env, name and end of a token. Raises RequestRefused."""
        if token is None:
            return {"scope": "public", "env": None, "token": None, "expires": None}
        judged: dict[str, Any] = (await self.channel.ask("judge", None, {"tokens": [token]}))[0]
        if "error" in judged:
            raise RequestRefused(relayed(str(judged["error"])), code=judged["code"])
        return judged

    def viewer_streams(self) -> set[iostream.IOStream]:
        """The connections of the open streams of events."""
        return {handler.stream() for handler in self._held}

    async def hold(self, handler: Events) -> None:
        """Until the stream ends."""
        self._held[handler] = asyncio.get_running_loop().create_future()
        await self._held[handler]

    def let_go(self, handler: Events) -> None:
        held = self._held.pop(handler, None)
        if held is not None and not held.done():
            held.set_result(None)

    def application(self) -> web.Application:
        base = re.escape(self.settings.base)
        more = {"page": self}
        routes: list[Any] = [
            (base, Static, more),
            (rf"{base}static/([A-Za-z0-9_.-]+)", Static, more),
            (rf"{base}events", Events, more),
            (rf"{base}healthz", Health, more),
            (rf"{base}metrics", Metrics, more),
            (rf"{base}api/session", WhoAmI, more),
            (rf"{base}api/jobs/([A-Za-z0-9.]+)", JobStory, more),
            (rf"{base}api/({'|'.join(READS)})", Read, more),
            (rf"{base}api/({'|'.join(ACTIONS)})", Action, more),
        ]
        if self.settings.base != "/":
            routes.append((re.escape(self.settings.base[:-1]), ToBase, more))
        return web.Application(
            routes,
            default_handler_class=NotFound,
            default_handler_args=more,
            log_function=lambda handler: self.metrics.count(handler.get_status()),
            compress_response=False,
        )


class PageServer(httpserver.HTTPServer):
    """Bounded in connections."""

    connections: Connections

    def handle_stream(self, stream: iostream.IOStream, address: tuple[Any, ...]) -> None:
        if self.connections.admit(stream):
            super().handle_stream(stream, address)
        else:
            stream.close()

    def on_close(self, server_conn: object) -> None:
        super().on_close(server_conn)
        assert isinstance(server_conn, http1connection.HTTP1ServerConnection)
        self.connections.forget(server_conn.stream)


def serve(page: Page, listeners: list[socket.socket]) -> PageServer:
    """Begins to answer; in a running loop."""
    for name in ("tornado.access", "tornado.general", "tornado.application"):
        logging.getLogger(name).disabled = True
    server = PageServer(
        page.application(),
        max_header_size=MAX_HEADER_BYTES,
        max_body_size=MAX_BODY_BYTES,
        idle_connection_timeout=connection_bounds.IDLE_S,
        body_timeout=connection_bounds.BODY_S,
        xheaders=False,
    )
    server.connections = Connections(connection_bounds.limit(), page.viewer_streams)
    server.add_sockets(listeners)
    return server
