"""axe-core finds nothing: each view, in light and dark, on a phone and a desktop, and dialogs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.tab import StandInSite, Tab, fetch_axe, stand_in, tab

pytestmark = pytest.mark.slow

VIEWS = {
    "#/": "Tasks",
    "#/tasks?find=alice&sort=-use": "Find",
    "#/queue": "Running jobs",
    "#/timeline": "Leases in this time",
    "#/history": "Jobs that have ended",
    "#/quotas": "GPU hours",
    "#/jobs/j1": "Last lines of attempt 1",
}
"""Route -> a text of the complete view."""
RUN = "async () => (await axe.run(document)).violations"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = fetch_axe(tmp_path_factory.mktemp("axe"))
    if source is None:
        pytest.skip("npm cannot fetch axe-core here")
    return source


@pytest.fixture(scope="module")
def busy() -> Iterator[StandInSite]:
    with stand_in("--gpus", "4", "--tasks", "4", "--waiting", "210") as found:
        yield found


each_look = pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("phone", "light"),
        ("laptop", "dark"),
        pytest.param("phone", "dark", marks=pytest.mark.long),
        pytest.param("laptop", "light", marks=pytest.mark.long),
    ],
)
"""Each size and each scheme once; both sizes in both schemes with `-m long`."""


def findings(opened: Tab) -> list[str]:
    return [
        f"{opened.page.url} {found['id']}: {node['target']} {node['failureSummary']}"
        for found in opened.page.evaluate(RUN)
        for node in found["nodes"]
    ]


def test_a_fault_is_found(chromium: Any, busy: StandInSite, axe: str) -> None:
    with tab(chromium, busy.site) as opened:
        opened.open("admin")
        opened.page.evaluate(axe)
        opened.page.evaluate("""() => {
            const grey = document.createElement('p');
            grey.textContent = 'hardly to be seen';
            grey.style.color = '#ddd';
            document.getElementById('main').append(grey);
        }""")
        assert any("color-contrast" in line for line in findings(opened))


@each_look
def test_every_view(chromium: Any, busy: StandInSite, axe: str, size: str, scheme: str) -> None:
    found = []
    with tab(chromium, busy.site, size, color_scheme=scheme) as opened:
        opened.open("admin")
        opened.page.evaluate(axe)
        for route, text in VIEWS.items():
            opened.go(route)
            opened.expect(text)
            if route == "#/timeline":
                opened.page.wait_for_selector(".lease")
            found += findings(opened)
    assert found == []


@each_look
def test_dialogs(chromium: Any, busy: StandInSite, axe: str, size: str, scheme: str) -> None:
    found = []
    with tab(chromium, busy.site, size, color_scheme=scheme) as opened:
        opened.open("admin")
        opened.page.evaluate(axe)
        for route, button in {"#/": "Release", "#/queue": "Withdraw", "#/quotas": "Change"}.items():
            opened.go(route)
            opened.page.get_by_role("button", name=button).first.click()
            opened.page.locator("dialog[open]").wait_for()
            found += findings(opened)
            opened.page.keyboard.press("Escape")
            opened.page.locator("dialog").wait_for(state="detached")
    assert found == []


@each_look
def test_without_a_token(
    chromium: Any, busy: StandInSite, axe: str, size: str, scheme: str
) -> None:
    found = []
    with tab(chromium, busy.site, size, color_scheme=scheme) as opened:
        opened.open()
        opened.page.evaluate(axe)
        found += findings(opened)
        opened.go("#/history")
        opened.expect("Make one on the node")
        opened.page.get_by_role("button", name="Enter the token").click()
        opened.page.locator("dialog[open]").wait_for()
        found += findings(opened)
    assert found == []


@pytest.mark.parametrize("size", ["phone", "laptop"])
def test_the_page_is_whole_on_each_size(chromium: Any, busy: StandInSite, size: str) -> None:
    """Nothing is wider than the screen."""
    with tab(chromium, busy.site, size) as opened:
        opened.open("admin")
        for route, text in VIEWS.items():
            opened.go(route)
            opened.expect(text)
            wide = opened.page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, route


NARROW_TILES = """() => [...document.querySelectorAll(".tile dd")]
    .filter((figure) => figure.scrollWidth > figure.clientWidth)
    .map((figure) => figure.innerText)"""


@pytest.mark.parametrize("size", ["phone", "small", "laptop"])
def test_no_total_is_wider_than_its_card(chromium: Any, busy: StandInSite, size: str) -> None:
    with tab(chromium, busy.site, size) as opened:
        opened.open("admin")
        opened.page.locator(".tile .meter").first.wait_for()
        assert opened.page.evaluate(NARROW_TILES) == []


def test_bars_and_the_timeline_have_words(chromium: Any, busy: StandInSite) -> None:
    with tab(chromium, busy.site, reduced_motion="reduce") as opened:
        opened.open("admin")
        bar = opened.page.locator(".bar").first.get_attribute("aria-label")
        assert bar.startswith("Memory: alice ")
        assert "of 10 GiB" in bar
        opened.go("#/timeline")
        lease = opened.page.locator(".lease").first
        lease.wait_for()
        assert "python" in (lease.get_attribute("aria-label") or "") or lease.get_attribute("title")
        lease.focus()
        opened.page.keyboard.press("ArrowRight")
        opened.page.locator(".lease.chosen").wait_for()
        assert "GPU 0" in opened.page.locator(".detail").inner_text()
        assert opened.page.locator(".row .lease[tabindex='0']").count() == 4  # one a GPU


BEYOND = """() => [...document.querySelectorAll(".lease")].filter((lease) => {
    const bar = lease.getBoundingClientRect();
    const lane = lease.parentElement.getBoundingClientRect();
    return bar.left < lane.left - 0.01 || bar.right > lane.right + 0.01;
}).length"""


def test_no_bar_of_the_timeline_is_beyond_its_ends(chromium: Any, busy: StandInSite) -> None:
    """A lease that has just begun is narrower than the least width of a bar."""
    with tab(chromium, busy.site, "phone") as opened:
        opened.open("admin")
        now = opened.page.evaluate("Math.floor(Date.now() / 1000)")
        for hours in (1, 168):
            opened.go(f"#/timeline?hours={hours}&until={now}")
            opened.page.locator(".lease").first.wait_for()
            assert opened.page.evaluate(BEYOND) == 0
