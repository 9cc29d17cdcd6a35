"""A page in the system's Chromium, without a window, as a PNG.

Knows: playwright. Must not know: nodemgr. Nothing is downloaded.
"""

from __future__ import annotations

import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LONGEST_MS = 30_000


class NoBrowser(Exception):
    """One line, with the remedy."""


def screenshot(url: str, shown: str, width: int, height: int, dark: bool, route: str) -> bytes:
    """The page at this size, once it shows the text `shown` and then its view. Raises NoBrowser.

    `route`: the fragment of the view. The figures of the past are awaited.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise NoBrowser("there is no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = opened.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            page.goto(url)
            page.get_by_text(shown).first.wait_for(timeout=LONGEST_MS)
            page.locator(".spark-line[d^=M]").first.wait_for(timeout=LONGEST_MS, state="attached")
            page.evaluate("route => { location.hash = route; }", route)
            if route != "#/":
                page.locator(".lease").first.wait_for(timeout=LONGEST_MS)
            return page.screenshot(type="png")
        finally:
            opened.close()
