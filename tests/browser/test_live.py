"""The page beside a manager: grants, actions, tokens, addresses, hostile names, restarts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.edge.host.clock import RealClock
from tests.browser.tab import Tab, free_port, tab
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import ROOT, Manager
from tests.support.udp_clients import FakeClient
from tests.support.web import Site

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
MARKS = "x\N{RIGHT-TO-LEFT OVERRIDE}y\N{RIGHT-TO-LEFT MARK}z"
SEEN = """text => {
    window.seen = new Promise((found) => {
        const look = () => document.body.innerText.includes(text) && found(Date.now() / 1000);
        new MutationObserver(look).observe(document.body,
            { childList: true, subtree: true, characterData: true });
        look();
    });
}"""
FOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"


class ShiftedClock(RealClock):
    """The system's clocks, of which the wall clock can be put forward."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def wall_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.ahead_ns


class Node:
    """A manager in this process with two environments, and its page below a base path."""

    def __init__(self) -> None:
        self.clock = ShiftedClock()
        self.manager = LocalManager(clock=self.clock, web="127.0.0.1:0", web_base="/gpus")
        self.site = Site(str(self.manager.service._page.url))
        for env in ("alice", "bob"):
            self.manager.call("quota_set", env=env, gpus=2)

    def token(self, env: str | None = None, for_ms: int = HOUR_MS) -> str:
        whose = {"admin": True} if env is None else {"env": env}
        return str(self.manager.call("web_token", for_ms=for_ms, **whose)["token"])

    def client(self, env: str = "alice", gpus: int = 2, **fields: Any) -> FakeClient:
        client = FakeClient(self.manager.env_dir(env))
        client.acquire(gpus, **fields)
        return client

    def tasks(self, env: str = "alice") -> list[str]:
        rows = self.manager.call("status")["tasks"]
        return [row["id"] for row in rows if row["env"] == env]


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with node.manager:
        yield node


@pytest.fixture
def opened(chromium: Any, node: Node) -> Iterator[Tab]:
    with tab(chromium, node.site) as found:
        yield found


def test_a_grant_and_its_end_are_shown(node: Node, opened: Tab) -> None:
    opened.open(node.token())
    opened.expect("No task holds a GPU.")
    opened.page.evaluate(SEEN, "fake train.py")
    with node.client(command="fake train.py"):
        granted = node.manager.events("task.granted")[-1]
        seen = opened.page.evaluate("window.seen")
        print(f"from the grant to the page: {seen - granted['time_ns'] / 1e9:.2f} s")
        assert opened.page.title().startswith("2/4 GPUs")
    opened.expect("No task holds a GPU.")


def test_the_card_of_a_drained_gpu_has_the_remedy(node: Node, opened: Tab) -> None:
    opened.open(node.token())
    opened.expect("No task holds a GPU.")
    node.manager.call("gpu_drain", index=1, note="fan")
    opened.expect("nodemgr gpu resume 1 ends that")
    card = opened.page.locator("li.gpu.drained")
    assert card.count() == 1
    assert card.locator(".gpu-use").inner_text() == "drained"
    node.manager.call("gpu_resume", index=1)
    opened.expect_none("nodemgr gpu resume 1 ends that")
    assert card.count() == 0


def test_without_a_token_there_are_totals_and_the_way_to_a_token(node: Node, opened: Tab) -> None:
    page = opened.page
    with node.client(command="secret-command"):
        opened.open()
        opened.expect("2 of 4")
        assert "nodemgr web token" in opened.text
        assert not any(word in opened.text for word in ("alice", "secret-command"))
        opened.go("#/tasks")
        opened.expect("See tasks, users and jobs")
        page.get_by_role("button", name="Enter the token").click()
        page.get_by_role("textbox", name="Token").fill("nmw-w1-" + "A" * 43)
        opened.allowed += ("401",)
        page.keyboard.press("Enter")
        page.locator("dialog [role=alert]").filter(has_text="token").wait_for()
        page.get_by_role("textbox", name="Token").fill(node.token("alice"))
        page.keyboard.press("Enter")
        opened.expect("secret-command")  # the view of the address
        page.get_by_role("button", name="Leave").click()
        opened.expect("See tasks, users and jobs")
        assert page.evaluate("sessionStorage.length") == 0


def test_the_token_is_in_no_address_and_in_no_log(
    node: Node, opened: Tab, capfd: pytest.CaptureFixture[str]
) -> None:
    token = node.token("alice")
    opened.open(token)
    for route, text in {
        "#/tasks": "Find",
        "#/queue": "Running jobs",
        "#/timeline": "Leases in this time",
        "#/history": "Jobs that have ended",
        "#/quotas": "GPU hours",
    }.items():
        opened.go(route)
        opened.expect(text)
        assert opened.page.url.endswith(route)
    assert not any(token in url for url in opened.urls[1:])
    assert not any(token in url.partition("#")[0] for url in opened.urls)
    assert token not in "".join(capfd.readouterr())


def test_a_token_that_expires_while_the_page_is_open(node: Node, opened: Tab) -> None:
    with node.client(command="fake train.py"):
        opened.open(node.token("alice", 60_000), "#/tasks")
        opened.expect("fake train.py")
        opened.allowed += ("401",)
        node.clock.ahead_ns += 60_001 * 1_000_000
        opened.page.locator("#state").filter(has_text="expired").wait_for()
        opened.expect("See tasks, users and jobs")
        assert "fake train.py" not in opened.text
        assert opened.page.evaluate("sessionStorage.length") == 0


def test_addresses_can_be_shared_and_go_back(node: Node, opened: Tab) -> None:
    token = node.token()
    page = opened.page
    opened.open(token)
    page.get_by_role("link", name="Tasks", exact=True).click()
    page.get_by_label("Find").fill("nothing-like-it")
    opened.expect("Nothing here holds")
    shared = page.url
    page.get_by_role("link", name="Quotas").click()
    opened.expect("New environment")
    page.go_back()
    opened.expect("Nothing here holds")
    assert page.url == shared
    assert page.get_by_label("Find").input_value() == "nothing-like-it"
    page.go_forward()
    opened.expect("New environment")
    second = Tab(page.context.new_page(), node.site)
    second.page.goto(shared)
    second.expect("See tasks, users and jobs")  # the token is in no address
    second.page.get_by_role("button", name="Enter the token").click()
    second.page.get_by_role("textbox", name="Token").fill(token)
    second.page.keyboard.press("Enter")
    second.expect("Nothing here holds")
    assert second.page.url == shared
    second.check()


def test_names_of_others_are_shown_as_text(node: Node, opened: Tab) -> None:
    page = opened.page
    with node.client(command=f"{HOSTILE} {MARKS}"):
        opened.open(node.token())
        for route in ("#/", "#/timeline", "#/tasks"):
            opened.go(route)
            page.locator("td .command").filter(has_text="onerror").wait_for()
            assert page.locator("main img, main script").count() == 0
        opened.expect("Find")
        shown = page.locator("td .command").inner_text()
        assert shown.startswith(HOSTILE)
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in shown
        assert page.evaluate("window.hacked") is None
        page.get_by_role("button", name="Release task").click()
        page.locator("dialog").get_by_text("onerror").wait_for()
        assert page.locator("dialog img").count() == 0
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")


def test_release_by_keyboard_asks_first(node: Node, opened: Tab) -> None:
    press = opened.page.keyboard.press
    with node.client():
        (task,) = node.tasks()
        opened.open(node.token("alice"))
        opened.expect("Release")
        opened.page.locator("h1 a").focus()
        for _ in range(40):
            press("Tab")
            if opened.page.evaluate(FOCUSED) == f"Release task {task}":
                break
        assert opened.page.evaluate(FOCUSED) == f"Release task {task}"
        press("Enter")
        opened.page.get_by_role("heading", name=f"Release task {task} of alice?").wait_for()
        assert opened.page.evaluate(FOCUSED) == "Cancel"
        press("Escape")
        opened.page.locator("dialog").wait_for(state="detached")
        assert opened.page.evaluate(FOCUSED) == f"Release task {task}"
        assert node.tasks() == [task]
        press("Enter")
        press("Tab")
        press("Enter")
        opened.expect(f"Task {task} is released.")
        opened.expect("No task holds a GPU.")
        assert node.tasks() == []


def test_the_skip_link_leads_to_the_content(node: Node, opened: Tab) -> None:
    opened.open()
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate(FOCUSED) == "Skip to content"
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.id") == "main"


def test_withdraw_takes_a_request_out_of_the_queue(node: Node, opened: Tab) -> None:
    node.manager.call("quota_set", env="alice", gpus=4)
    with node.client("bob"), FakeClient(node.manager.env_dir("alice")) as waiting:
        waiting.ask(4)
        opened.open(node.token("alice"), "#/queue")
        opened.page.get_by_role("button", name="Withdraw").click()
        (row,) = node.manager.call("status")["queue"]
        dialog = opened.page.locator("dialog")
        dialog.get_by_role("heading", name=f"Withdraw {row['id']} of alice?").wait_for()
        dialog.get_by_role("button", name="Withdraw").click()
        opened.expect(f"{row['id']} is withdrawn.")
        opened.expect("No request waits.")
        assert node.manager.call("status")["queue"] == []


def test_withdraw_takes_the_jobs_of_a_folded_array_and_no_other(chromium: Any) -> None:
    manager = Manager("1x80GiB", options=["--web", f"127.0.0.1:{free_port()}"]).start()
    try:
        manager.quota("alice", 1)
        manager.hold("alice")
        environ = {**os.environ, "NODEMGR_RUN_DIR": str(manager.run_dir)}
        for words in (
            ("submit", "--env", "alice", "--array", "0-4", "--", "true"),
            ("queue", "hold", "j1.1", "j1.3"),
            ("queue", "unhold", "j1.3"),  # it waits in a row of its own now
        ):
            nodemgr = [sys.executable, "-m", "nodemgr", *words]
            subprocess.run(nodemgr, env=environ, cwd=ROOT, check=True, timeout=WAIT_LIMIT_S)
        token = manager.call("web_token", admin=True, for_ms=HOUR_MS)["token"]
        with tab(chromium, Site(f"http://{manager.options[-1]}/")) as opened:
            opened.open(token, "#/queue")
            opened.page.get_by_role("button", name="Withdraw j1 (4 jobs)").click()
            dialog = opened.page.locator("dialog")
            dialog.get_by_text("4 jobs leave the queue for good").wait_for()
            dialog.get_by_role("button", name="Withdraw").click()
            opened.expect("j1 (4 jobs) is withdrawn.")
            opened.page.get_by_role("button", name="Withdraw j1.1").wait_for()
            (left,) = manager.call("status")["queue"]
            assert (left["id"], left["state"]) == ("j1.1", "held")
    finally:
        manager.close()


def test_an_admin_sets_quotas_by_a_form(node: Node, opened: Tab) -> None:
    page = opened.page
    alert = page.locator("dialog [role=alert]")
    opened.open(node.token(), "#/quotas")
    page.get_by_role("button", name="Change the quota of alice").click()
    page.get_by_label("GPUs", exact=True).fill("-1")
    page.keyboard.press("Enter")
    alert.filter(has_text="-1 is not a whole number").wait_for()
    page.get_by_label("GPUs", exact=True).fill("3")
    page.get_by_label("Memory in GiB").fill("24")
    page.keyboard.press("Enter")
    opened.expect("The quota of alice is set.")
    opened.expect("0 of 3")
    (quota,) = node.manager.call("quota_show", env="alice")["quotas"]
    assert (quota["gpus"], quota["memory_bytes"]) == (3, 24 * 2**30)
    page.get_by_role("button", name="New environment").click()
    page.get_by_label("Name", exact=True).fill("no name")
    opened.allowed += ("400",)
    page.keyboard.press("Enter")
    alert.filter(has_text="name").wait_for()
    page.get_by_label("Name", exact=True).fill("carol")
    page.keyboard.press("Enter")
    opened.expect("The quota of carol is set.")
    page.get_by_role("button", name="Change the quota of carol").wait_for()


def test_an_envs_viewer_has_no_form_for_quotas(node: Node, opened: Tab) -> None:
    opened.open(node.token("alice"), "#/quotas")
    opened.expect("0 of 2")
    assert opened.page.get_by_role("button", name="Change").count() == 0
    assert opened.page.get_by_role("button", name="New environment").count() == 0
    assert "bob" not in opened.text


def test_the_page_survives_kill_9_of_the_manager(chromium: Any) -> None:
    port = free_port()
    manager = Manager("2x80GiB", options=["--web", f"127.0.0.1:{port}"]).start()
    try:
        manager.quota("alice", 2)
        token = manager.call("web_token", admin=True, for_ms=HOUR_MS)["token"]
        with tab(chromium, Site(f"http://127.0.0.1:{port}/")) as opened:
            opened.allowed += ("ERR_", "503")
            opened.open(token)
            opened.expect("No task holds a GPU.")
            opened.page.evaluate("window.same = true")
            manager.kill()
            opened.page.wait_for_selector(".pulse.away")
            opened.page.locator("#state").filter(has_text="away since").wait_for()
            opened.expect("No task holds a GPU.")  # the last view stays
            manager.start()
            opened.page.wait_for_selector(".pulse.live")
            opened.expect_none("away since")
            manager.hold("alice")
            opened.page.get_by_role("button", name="Release task").wait_for()
            assert opened.page.evaluate("window.same") is True
    finally:
        manager.close()


def test_the_timeline_opens_on_what_there_is(node: Node, opened: Tab) -> None:
    with node.client(command="fake train.py"):
        opened.open(node.token(), "#/timeline")
        opened.page.locator(".lease").first.wait_for()
        assert opened.page.locator("#hours").input_value() == "1"
        opened.page.select_option("#hours", "24")
        opened.page.wait_for_function("location.hash.includes('hours=24')")
        assert opened.page.locator("#hours").input_value() == "24"
