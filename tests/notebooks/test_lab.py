"""A notebook in a real JupyterLab and a real browser.

The status bar and its panel, the wait in the cell, Interrupt and Restart. The kernels
are those of `nodemgr kernel install`; the GPUs are simulated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import later, require
from tests.support.jupyterlab import ROOT, Lab, Page, browser, install_extension
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

require("jupyterlab", "jupyterlab")
require("playwright.sync_api", "playwright")
playwright = later("playwright.sync_api")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="there is no chromium on this system"),
]

STANDINS = ROOT / "tests" / "hook" / "standins"
HOSTILE = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'
HOLD = "import sys, cupy; print(cupy.first_use(), flush=True); sys.stdin.read()"
NONE = "^GPU \N{EN DASH}$"
CELLS = ["import torch; torch.first_use()", "40 + 2", "%gpu status", "%gpu acquire 1"]


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager("2x80GiB").start()
    manager.quota("alice", 2)
    manager.quota("bob", 2)
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def lab(node: Manager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("lab")
    variables = install_extension(directory / "prefix")
    found = Lab(directory / "server", variables)
    try:
        install_kernel(node, found, "alice")
        yield found
    finally:
        found.close()


def install_kernel(node: Manager, lab: Lab, env: str) -> None:
    """A kernelspec whose kernels find the simulator and the stand-in frameworks."""
    install = [
        sys.executable, "-m", "nodemgr", "kernel", "install", env, "--user",
        "--run-dir", str(node.run_dir), "--python", sys.executable,
    ]  # fmt: skip
    environ = {**node.environment_of(env, shim=False), "JUPYTER_DATA_DIR": str(lab.data)}
    del environ["NODEMGR_ENV_DIR"]
    subprocess.run(install, env=environ, check=True, timeout=WAIT_LIMIT_S, cwd=ROOT)
    add_variables(lab, f"nodemgr-{env}", {"PYTHONPATH": f"{STANDINS}:{ROOT}"})


def add_variables(lab: Lab, kernel: str, variables: dict[str, str]) -> None:
    path = lab.data / "kernels" / kernel / "kernel.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": variables}))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(chromium: Any, lab: Lab) -> Iterator[Page]:
    """A page whose kernels are shut down afterwards; it had no error and asked no other site."""
    context = chromium.new_context()
    opened = Page(context.new_page(), lab)
    yield opened
    opened.page.evaluate("async () => { await jupyterapp.serviceManager.sessions.shutdownAll(); }")
    context.close()
    assert opened.errors == []
    assert opened.foreign == []


def hold(node: Manager, env: str, *arguments: str) -> subprocess.Popen[str]:
    """A program that holds both GPUs until its input ends."""
    program = node.spawn(env, [sys.executable, "-c", HOLD, *arguments], PYTHONPATH=str(STANDINS))
    assert program.stdout is not None
    assert program.stdout.readline() == "2\n"
    return program


def tasks(node: Manager, env: str) -> list[dict[str, Any]]:
    return [task for task in node.status()["tasks"] if task["env"] == env]


def test_a_notebooks_wait_grant_and_release_are_seen_in_the_status_bar(
    node: Manager, lab: Lab, page: Page
) -> None:
    holding = hold(node, "bob")
    events = node.events(since=None)
    page.open(lab.url(lab.notebook("wait", "nodemgr-alice", CELLS)))
    page.expect_item(NONE)
    assert node.status()["queue"] == []  # the kernel started at once and asked for nothing

    page.run_cell(0)
    page.expect_item("^GPU waiting: place 1 of 1$")
    page.expect_output(0, "bob")
    clock = page.cell(0).locator(".jp-OutputArea-output").inner_text()
    page.page.wait_for_function(
        "before => document.querySelector('.jp-OutputArea-output').innerText !== before", arg=clock
    )
    assert page.cell(0).locator(".jp-OutputArea-output").count() == 1  # the line updates itself

    page.command("notebook:interrupt-kernel")
    page.expect_output(0, "KeyboardInterrupt")
    page.expect_item(NONE)
    node.await_no_queue()

    holding.communicate(timeout=WAIT_LIMIT_S)
    page.run_cell(0)
    page.expect_item(r"^GPU 0,1 · ([0-9.]+/)?160 GiB")
    page.run_cell(2)
    page.expect_output(2, "(this kernel)")

    panel = page.open_panel()
    assert "GPU 0" in panel.inner_text()
    panel.get_by_role("button", name="Release").click()
    page.page.locator(".jp-Dialog .jp-mod-accept").click()
    events.expect("task.ended", env="alice")
    page.expect_item(NONE)
    panel.get_by_text("Tasks of alice").wait_for()
    assert tasks(node, "alice") == []


def test_a_restart_gives_the_gpus_back(node: Manager, lab: Lab, page: Page) -> None:
    page.open(lab.url(lab.notebook("restart", "nodemgr-alice", CELLS)))
    page.run_cell(3)
    page.expect_item("^GPU [01] · ")
    (task,) = tasks(node, "alice")
    (pid,) = task["pids"]
    events = node.events(since=None)
    began = time.monotonic()
    page.command("notebook:restart-kernel")
    page.page.locator(".jp-Dialog .jp-mod-accept").click()
    events.expect("task.ended", env="alice")
    took_s = time.monotonic() - began
    page.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status==='idle'"
    )
    page.expect_item(NONE)
    assert not Path(f"/proc/{pid}").exists()
    print(f"restart: {took_s:.2f} s from the command to the end of the task")


def test_a_manager_that_goes_away_is_shown_and_so_is_its_return(
    node: Manager, lab: Lab, page: Page
) -> None:
    page.open(lab.url(lab.notebook("away", "nodemgr-alice", CELLS)))
    page.run_cell(3)
    page.expect_item("^GPU [01] · ")
    node.stop()
    try:
        page.expect_item("^GPU: no manager$")
        page.run_cell(1)
        page.expect_output(1, "42")
    finally:
        node.start()
    page.expect_item("^GPU [01] · ")


def test_text_of_others_is_no_html(node: Manager, lab: Lab, page: Page) -> None:
    holding = hold(node, "alice", HOSTILE)
    page.open(lab.url(lab.notebook("hostile", "nodemgr-alice", CELLS)))
    page.expect_item(NONE)
    panel = page.open_panel()
    panel.get_by_text("onerror").wait_for()
    assert HOSTILE in panel.inner_text()
    assert panel.locator("img, script").count() == 0
    assert page.page.evaluate("window.hacked") is None
    holding.communicate(timeout=WAIT_LIMIT_S)
    page.page.wait_for_function(
        "() => !document.querySelector('.nodemgr-panel').innerText.includes('onerror')"
    )


def test_a_kernel_outside_of_any_environment(lab: Lab, page: Page) -> None:
    page.open(lab.url(lab.notebook("outside", "python3", CELLS)))
    page.expect_item(NONE)
    page.open_panel().get_by_text("This kernel is in no environment").wait_for()
    page.run_cell(1)
    page.expect_output(1, "42")


@pytest.mark.parametrize(
    ("path", "body", "token", "status"),
    [
        ("/nodemgr/gpu", None, False, 403),
        ("/nodemgr/release", {"id": "t1"}, False, 403),
        ("/nodemgr/gpu?kernel=none", None, True, 404),
        ("/nodemgr/gpu?kernel=..%2F..", None, True, 404),
        ("/nodemgr/release", {"id": "../x"}, True, 400),
        ("/nodemgr/release", {"id": 7}, True, 400),
        ("/nodemgr/release", ["t1"], True, 400),
        ("/nodemgr/release", {"id": "t1" * 99}, True, 400),
        ("/nodemgr/release", {"id": "t\N{ARABIC-INDIC DIGIT ONE}"}, True, 400),
        ("/nodemgr/release", {"id": "t1", "kernel": 7}, True, 400),
        ("/nodemgr/release", b"\xff\xfe", True, 400),
        ("/nodemgr/release", {"id": "t1", "kernel": "none"}, True, 404),
        ("/nodemgr/release", {"id": "t1"}, True, 409),
        ("/nodemgr/gpu", None, True, 200),
    ],
)
def test_requests_without_a_page(lab: Lab, path: str, body: Any, token: bool, status: int) -> None:
    assert lab.request(path, body, token=token)[0] == status
