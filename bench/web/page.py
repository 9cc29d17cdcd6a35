"""The web page: the processor time of its process, and the scripts of a page in a browser.

Three figures: the page process with ten viewers and figures that change each second; the time
that a page's scripts take for a change of all figures, of which there is one a second; the time
from a grant to its text in the page.

    python bench/web/page.py [--seconds 20] [--grants 10]

The first two are on a stand-in for the manager (tests/browser/page_node.py): 16 GPUs of 50 tasks
each and 1000 waiting rows, and beside it a small node. The third is on a manager with simulated
GPUs. Scripts are measured by Chromium itself. Without playwright or a Chromium of the system, the
first figure alone is printed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import ROOT, Client, Node, against_target, cpu_s, finish, table

VIEWERS = 10
WAIT_S, RETRY_S = 60.0, 0.05
SETTLED_MS = 400
"""After a change has come, until the page has drawn it."""
NODES = {"8 GPUs, 32 tasks": ("8", "4", "20"), "16 GPUs, 800 tasks": ("16", "50", "1000")}
"""Name -> GPUs, tasks of each, waiting rows."""
BIG = "16 GPUs, 800 tasks"
ROUTES = {"now": "#/", "tasks": "#/tasks?sort=-use", "queue": "#/queue"}
MOST_PERCENT, MOST_SCRIPT_MS, MOST_GRANT_MS = 5.0, 50.0, 1_000.0
SEEN = """text => new Promise((found, missed) => {
    setTimeout(() => missed(new Error(`the page does not show ${text}`)), 60_000);
    const watcher = new MutationObserver(look);
    function look() {
        if (!document.body.innerText.includes(text)) return;
        watcher.disconnect();
        found(Date.now());
    }
    watcher.observe(document.body, { childList: true, subtree: true, characterData: true });
    look();
})"""


class Started(NamedTuple):
    """A page of the stand-in."""

    url: str
    pid: int


@contextmanager
def stand_in(gpus: str, tasks: str, waiting: str) -> Iterator[Started]:
    command = [sys.executable, "-m", "tests.browser.page_node", "--gpus", gpus, "--tasks", tasks,
               "--waiting", waiting]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            yield Started(told["url"], told["page_pid"])
        finally:
            process.communicate()


class Viewer:
    """Reads a stream in a thread until the server ends; counts its changes."""

    def __init__(self, url: str) -> None:
        self.changes = 0
        self._changed = threading.Condition()
        self._stream = self._opened(url.removeprefix("http://").rstrip("/"))
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def _opened(host: str) -> http.client.HTTPResponse:
        """The stream. A page that has just started answers "away" until it has its manager."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            connection = http.client.HTTPConnection(host, timeout=WAIT_S)
            connection.request("GET", "/events", headers={"Authorization": "Bearer admin"})
            answer = connection.getresponse()
            if answer.status == HTTPStatus.OK:
                return answer
            if time.monotonic() > deadline_s:
                raise SystemExit(f"no stream: {answer.read().decode(errors='replace')}")
            connection.close()
            time.sleep(RETRY_S)

    def _read(self) -> None:
        answer = self._stream
        try:
            while line := answer.readline():
                if line == b"event: change\n":
                    with self._changed:
                        self.changes += 1
                        self._changed.notify_all()
        except (OSError, http.client.HTTPException):
            return

    def wait_for_change(self) -> None:
        self.wait_for(self.changes + 1)

    def wait_for(self, changes: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.changes >= changes, timeout=WAIT_S):
                raise SystemExit(f"no change came to a viewer within {WAIT_S:g} s")


def viewers_percent(page: Started, seconds: int) -> list[float]:
    """Percent of a core, second by second."""
    viewers = [Viewer(page.url) for _ in range(VIEWERS)]
    for viewer in viewers:
        viewer.wait_for(1)
    percents = []
    for _ in range(seconds):
        before_s, began_s = cpu_s(page.pid), time.monotonic()
        time.sleep(1)
        percents.append(100 * (cpu_s(page.pid) - before_s) / (time.monotonic() - began_s))
    return percents


def metrics(session: Any) -> dict[str, float]:
    rows = session.send("Performance.getMetrics")["metrics"]
    return {row["name"]: float(row["value"]) for row in rows}


def scripts_ms(browser: Any, page: Started, route: str, changes: int) -> tuple[list[float], ...]:
    """(scripts, all work of the page's thread) in ms, for each change of all figures.

    At most one comes each 0.9 s, and a busy machine brings fewer.
    """
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(f"{page.url}#token=admin")
    tab.wait_for_selector(".gpu")
    tab.evaluate("route => { location.hash = route; }", route)
    tab.wait_for_selector("table")
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    viewer = Viewer(page.url)
    scripts, tasks = [], []
    viewer.wait_for_change()
    tab.wait_for_timeout(SETTLED_MS)
    for _ in range(changes):
        before = metrics(session)
        viewer.wait_for_change()
        tab.wait_for_timeout(SETTLED_MS)
        after = metrics(session)
        scripts.append(1e3 * (after["ScriptDuration"] - before["ScriptDuration"]))
        tasks.append(1e3 * (after["TaskDuration"] - before["TaskDuration"]))
    tab.close()
    return scripts, tasks


def grants_ms(browser: Any, grants: int) -> list[float]:
    """From the grant's answer at the client to its text in the page."""
    took = []
    with Node("2x80GiB", "--web", "127.0.0.1:0") as node:
        node.call("quota_set", env="alice", gpus=1)
        token = node.call("web_token", admin=True, for_ms=3_600_000)["token"]
        (url,) = re.findall(r"web page at (\S+?)[,;]?\s", node.ready_line)
        tab = browser.new_page()
        tab.goto(f"{url}#token={token}")
        tab.wait_for_selector(".gpu")
        for number in range(grants):
            client = Client(node.env_dir("alice"))
            name = f"train-{number}.py"
            client.send("ACQUIRE", rid=1, task=f"{number:032x}", command=name)
            client.until("GRANT")
            granted_ms = 1e3 * time.time()
            took.append(tab.evaluate(SEEN, name) - granted_ms)
            client.send("RELEASE", rid=2, task=f"{number:032x}")  # else the next one joins it
            client.until("ACK")
            client.socket.close()
        tab.close()
    return took


@contextmanager
def chromium() -> Iterator[Any]:
    """None where there is no browser."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--grants", type=int, default=10)
    options = parse(parser, seconds=2, grants=2)
    rows = []
    for name, size in NODES.items():
        with stand_in(*size) as page:
            rows.append((name, viewers_percent(page, options.seconds)))
    table(f"The page process, {VIEWERS} viewers", rows, "percent of a core")
    for name, percents in rows:
        middle = sorted(percents)[len(percents) // 2]
        against_target(f"the page process, {name}", middle, MOST_PERCENT, "%")
    with chromium() as browser:
        if browser is None:
            print("skipped: the scripts, since there is no playwright or no chromium here")
            return options
        scripts = []
        with stand_in(*NODES[BIG]) as page:
            for view, route in ROUTES.items():
                script, work = scripts_ms(browser, page, route, options.seconds)
                scripts += [(f"{view}, scripts", script), (f"{view}, all work", work)]
        table(f"A page in Chromium, {BIG}", scripts, "ms a change, at most one in 0.9 s")
        for name, took in scripts[::2]:
            against_target(name, sorted(took)[len(took) // 2], MOST_SCRIPT_MS, "ms")
        took = grants_ms(browser, options.grants)
        table("A grant", [("grant to the page", took)], "ms")
        against_target("grant to the page", max(took), MOST_GRANT_MS, "ms")
    return options


if __name__ == "__main__":
    finish(main())
