"""Chromium for the tests of the web page. They are skipped where it or playwright is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.jupyterlab import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Playwright keeps a loop of asyncio running, in which other tests could not run theirs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if browser() is None:
        pytest.skip("there is no chromium on this system")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        yield opened
        opened.close()
