"""A browser's side of the web page: requests, and streams of server-sent events."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.limits import WAIT_LIMIT_S


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and code of a refusal of one line."""
        told = self.json()
        assert set(told) == {"error", "code"}
        assert told["error"]
        assert "\n" not in told["error"]
        return self.status, told["code"]


class Site:
    """The page at one address."""

    def __init__(self, url: str) -> None:
        self.url = url
        host, _, rest = url.removeprefix("http://").partition("/")
        self.base = f"/{rest}"
        name, _, port = host.rpartition(":")
        self.address = name.strip("[]"), int(port)
        self.host = host

    def ask(
        self,
        path: str = "",
        method: str = "GET",
        token: str | None = None,
        body: object = None,
        **headers: str,
    ) -> Answer:
        """One request. A header's underscores are dashes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_LIMIT_S)
        try:
            connection.request(method, path if path[:1] == "/" else self.base + path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def post(self, path: str, token: str | None, body: object, **headers: str) -> Answer:
        return self.ask(path, "POST", token, body, **headers)

    @contextmanager
    def events(self, token: str | None = None) -> Iterator[Stream]:
        stream = Stream(self, token)
        try:
            yield stream
        finally:
            stream.close()

    def raw(self, request: bytes) -> socket.socket:
        """A connection on which these bytes were sent."""
        sock = socket.create_connection(self.address, WAIT_LIMIT_S)
        sock.sendall(request)
        return sock


class Stream:
    """An open stream of events."""

    def __init__(self, site: Site, token: str | None) -> None:
        self._connection = http.client.HTTPConnection(*site.address, timeout=WAIT_LIMIT_S)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connection.request("GET", f"{site.base}events", headers=headers)
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """Name and data of the next event. EOFError where the stream has ended."""
        name = ""
        while line := self.answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                return name, json.loads(value)
        raise EOFError

    def until(self, wanted: str) -> Any:
        """The data of the next event of this name."""
        while True:
            name, data = self.next()
            if name == wanted:
                return data

    def close(self) -> None:
        self._connection.close()
