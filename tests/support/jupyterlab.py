"""A real JupyterLab with the wheel of jupyter/, and a page of it in Chromium.

Knows: the server's command line, the lab's own JavaScript objects, playwright. Must not know: any
one test. Needs jupyterlab, playwright and a Chromium of the system; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"kernelStatus": {"showProgress": False}},
}
LIMIT_MS = WAIT_LIMIT_S * 1_000
READY = """() => {
    const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    return context && context.isReady && context.session?.kernel?.status === 'idle'
        && context.session.kernel.connectionStatus === 'connected';
}"""


def browser() -> str | None:
    """The Chromium of this system."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def install_extension(prefix: Path) -> dict[str, str]:
    """Build and install the wheel of jupyter/ there; the variables by which Jupyter finds it."""
    source = prefix / "source"
    shutil.copytree(ROOT / "jupyter", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--no-index", "--prefix", str(prefix), str(source),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=WAIT_LIMIT_S)
    (packages,) = prefix.glob("lib/python*/site-packages")
    return {
        "JUPYTER_PATH": str(prefix / "share" / "jupyter"),
        "JUPYTER_CONFIG_PATH": str(prefix / "etc" / "jupyter"),
        "PYTHONPATH": f"{packages}:{ROOT}",
    }


class Lab:
    """One server in a directory of its own."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self.directory = directory
        self.notebooks = directory / "notebooks"
        self.data = directory / "data"
        self.token = secrets.token_hex(16)
        settings = directory / "settings"
        for made in (self.notebooks, self.data, settings):
            made.mkdir(parents=True)
        (settings / "overrides.json").write_text(json.dumps(SETTINGS))
        self.log = directory / "server.log"
        places = {
            name: str(directory / place)
            for name, place in {
                "HOME": "home", "JUPYTER_DATA_DIR": "data", "JUPYTER_CONFIG_DIR": "config",
                "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
                "JUPYTERLAB_SETTINGS_DIR": "user-settings", "IPYTHONDIR": "ipython",
            }.items()
        }  # fmt: skip
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NODEMGR_", "CUDA_", "LD_", "JUPYTER"))
        }
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
            "--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={self.token}",
            "--expose-app-in-browser", f"--ServerApp.root_dir={self.notebooks}",
            f"--LabApp.app_settings_dir={settings}",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env={**inherited, **places, **variables}, cwd=directory,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.port = self._port()

    def _port(self) -> int:
        """Reads the log with `tail -f`, which ends with the server."""
        follow = subprocess.Popen(
            ["tail", "-n", "+1", f"--pid={self.process.pid}", "-f", str(self.log)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert follow.stdout is not None
        try:
            for line in follow.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)/lab", line):
                    return int(found[1])
        finally:
            follow.kill()
            follow.wait()
            follow.stdout.close()
        raise AssertionError(f"JupyterLab has not started:\n{self.log.read_text()}")

    def notebook(self, name: str, kernel: str, cells: Sequence[str]) -> str:
        """Write a notebook; the path of its page."""
        rows = [
            {
                "id": f"cell{number}", "cell_type": "code", "source": source, "metadata": {},
                "outputs": [], "execution_count": None,
            }
            for number, source in enumerate(cells)
        ]  # fmt: skip
        content = {
            "cells": rows,
            "metadata": {"kernelspec": {"name": kernel, "display_name": kernel}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.notebooks / f"{name}.ipynb").write_text(json.dumps(content))
        # a workspace of its own: JupyterLab opens the notebooks of an earlier test again
        return f"/lab/workspaces/{name}/tree/{name}.ipynb"

    def url(self, path: str, *, token: bool = True) -> str:
        return f"http://127.0.0.1:{self.port}{path}" + (f"?token={self.token}" if token else "")

    def request(self, path: str, body: Any = None, *, token: bool = True) -> tuple[int, Any]:
        """A request without a browser: status and JSON."""
        headers = {"Authorization": f"token {self.token}"} if token else {}
        data = json.dumps(body).encode() if not isinstance(body, (bytes, type(None))) else body
        asked = urllib.request.Request(self.url(path, token=False), data=data, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=WAIT_LIMIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=WAIT_LIMIT_S)


class Page:
    """A notebook in the browser, with the item of the status bar."""

    def __init__(self, page: Any, lab: Lab) -> None:
        self.page = page
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(LIMIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._requested(request.url, lab))

    def _requested(self, url: str, lab: Lab) -> None:
        if not url.startswith((f"http://127.0.0.1:{lab.port}/", "data:", "blob:")):
            self.foreign.append(url)

    def open(self, url: str) -> None:
        """A notebook; returns when its kernel is ready."""
        self.page.goto(url)
        self.page.wait_for_function(READY)

    def command(self, name: str) -> None:
        """Start one of JupyterLab's commands; do not wait for its end."""
        self.page.evaluate("name => { void window.jupyterapp.commands.execute(name); }", name)

    def run_cell(self, number: int) -> None:
        select = (
            "number => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = number }"
        )
        self.page.evaluate(select, number)
        self.command("notebook:run-cell")

    def cell(self, number: int) -> Any:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(number)

    def expect_output(self, number: int, text: str) -> None:
        self.cell(number).locator(".jp-OutputArea-output", has_text=text).first.wait_for()

    def item_text(self) -> str:
        return str(self.page.locator("#nodemgr-gpu button").inner_text())

    def expect_item(self, pattern: str) -> str:
        """Until the status bar shows this; its text."""
        self.page.wait_for_function(
            "pattern => new RegExp(pattern, 'u').test("
            "document.querySelector('#nodemgr-gpu button')?.textContent || '')",
            arg=pattern,
        )
        return self.item_text()

    def open_panel(self) -> Any:
        self.page.locator("#nodemgr-gpu button").click()
        panel = self.page.locator(".nodemgr-panel")
        panel.wait_for()
        return panel
