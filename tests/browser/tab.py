"""A tab of Chromium with the web page, and what it must never do.

Knows: playwright, a Chromium of the system, axe-core of the npm registry. Must not know: any one
test. Nothing of it is installed; axe-core is fetched into a temporary directory.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.jupyterlab import ROOT
from tests.support.limits import WAIT_LIMIT_S
from tests.support.web import Site

LIMIT_MS = WAIT_LIMIT_S * 1_000
SIZES = {"phone": (390, 844), "small": (1000, 800), "laptop": (1280, 800), "wide": (1920, 1080)}
FETCH_LIMIT_S = 60


class Tab:
    """One page of the browser. `close` holds that it made no error and asked no other host."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.site = site
        self.errors: list[str] = []
        self.urls: list[str] = []
        self.allowed: tuple[str, ...] = ()
        """Parts of messages of the console that a test causes on purpose."""
        page.set_default_timeout(LIMIT_MS)
        page.on("pageerror", lambda error: self.errors.append(f"pageerror {error}"))
        page.on("console", self._said)
        page.on("request", lambda request: self.urls.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def open(self, token: str | None = None, route: str = "#/") -> Tab:
        """Enters by the fragment, as a link does; then the address is `route`."""
        self.page.goto(self.site.url + (route if token is None else f"#token={token}"))
        if token is not None:
            self.page.wait_for_selector("#nav:not([hidden])")
            self.go(route)
        else:
            self.page.wait_for_selector("main > *")
        return self

    def go(self, route: str) -> None:
        self.page.evaluate("route => { location.hash = route; }", route)

    def expect(self, text: str) -> None:
        """Until the page shows it."""
        self.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)

    def expect_none(self, text: str) -> None:
        self.page.wait_for_function("text => !document.body.innerText.includes(text)", arg=text)

    @property
    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def check(self) -> None:
        errors = [line for line in self.errors if not any(part in line for part in self.allowed)]
        assert errors == []
        foreign = [url for url in self.urls if not url.startswith(self.site.url)]
        assert foreign == []


@contextmanager
def tab(chromium: Any, site: Site, size: str = "laptop", **context: Any) -> Iterator[Tab]:
    """A tab in a context of its own."""
    width, height = SIZES[size]
    opened = chromium.new_context(viewport={"width": width, "height": height}, **context)
    try:
        found = Tab(opened.new_page(), site)
        yield found
        found.check()
    finally:
        opened.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StandInSite(NamedTuple):
    """A page of the stand-in node (tests/browser/page_node.py)."""

    site: Site
    page_pid: int


@contextmanager
def stand_in(*options: str) -> Iterator[StandInSite]:
    command = [sys.executable, "-m", "tests.browser.page_node", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        told = json.loads(started.stdout.readline())
        try:
            yield StandInSite(Site(told["url"]), told["page_pid"])
        finally:
            started.communicate(timeout=WAIT_LIMIT_S)


def fetch_axe(directory: Path) -> str | None:
    """The source of axe-core, packed by npm; None where npm or the registry is missing."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        subprocess.run(
            [npm, "pack", "axe-core@4", "--silent"],
            cwd=directory, check=True, capture_output=True, timeout=FETCH_LIMIT_S,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    (packed,) = directory.glob("axe-core-*.tgz")
    with tarfile.open(packed) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()
