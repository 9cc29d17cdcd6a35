"""`top` drawn by textual: committed pictures, each key, colours, the written cells."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from client_plugin.verbs.picture.model import KeyOrder, TopModel
from client_plugin.verbs.picture.rows import NodeView
from client_plugin.verbs.screen import printed
from client_plugin.verbs.screen.live import Picture, TopApp, changed_cells
from tests.verbs.top import drawings, node_views
from tests.verbs.top.node_views import NOW_S

MOST_BYTES = 200_000


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Shown:
    """An application with its model, and the orders that keys gave."""

    def __init__(self, view: NodeView, **options: Any) -> None:
        self.model = TopModel("gpu-01")
        self.model.take(view)
        self.orders: list[KeyOrder] = []
        self.app = TopApp(self.model, self.orders.append, now=lambda: NOW_S + 3, **options)

    def text(self) -> list[str]:
        """The screen as it is composed."""
        picture = self.app.query_one(Picture)
        return [picture.render_line(y).text.rstrip() for y in range(picture.size.height)]


def drawn(
    shown: Shown, size: tuple[int, int], work: Callable[[Any], Coroutine[Any, Any, Any]]
) -> Any:
    async def all_of_it() -> Any:
        async with shown.app.run_test(size=size) as pilot:
            await pilot.pause()
            return await work(pilot)

    return asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("name", "view", "size", "is_coloured", "keys"),
    [
        ("small", "small_node", (80, 24), True, ()),
        ("small-plain", "small_node", (80, 24), False, ()),
        ("small-wide", "small_node", (160, 30), True, ()),
        ("empty", "empty_node", (80, 24), True, ()),
        ("full", "full_node", (80, 24), True, ()),
        ("full-wide", "full_node", (160, 48), True, ("tab",)),
        ("full-wide-plain", "full_node", (160, 48), False, ()),
        ("tiny", "small_node", (20, 5), True, ()),
        ("tiny-gpus", "small_node", (20, 5), True, ("shift+tab",)),
        ("question", "small_node", (80, 24), True, ("down", "r")),
        ("sorted", "full_node", (80, 24), True, ("s", "s", "s", "s", "s")),
        ("help", "small_node", (80, 24), True, ("question_mark",)),
        ("fields", "small_node", (80, 24), True, ("enter",)),
    ],
)
def test_the_picture_is_the_committed_one(
    name: str, view: str, size: tuple[int, int], is_coloured: bool, keys: tuple[str, ...]
) -> None:
    shown = Shown(getattr(node_views, view)(), is_coloured=is_coloured)

    async def picture(pilot: Any) -> str:
        await pilot.press(*keys)
        await pilot.pause()
        return drawings.svg_of(shown.app)

    svg = drawn(shown, size, picture)
    drawings.assert_same(name, svg)
    assert len(svg.encode()) < MOST_BYTES
    assert "@font-face" not in svg


def test_a_picture_without_colours_has_none() -> None:
    """Letters, dim letters and the ground; each is a grey or nearly one."""

    def greyness(name: str) -> set[bool]:
        svg = (drawings.PICTURES / f"{name}.svg").read_text()
        found = re.findall(r"-r[0-9]+ {[^}]*fill: #(..)(..)(..)", svg)
        parts = [[int(part, 16) for part in colour] for colour in found]
        return {max(colour) - min(colour) < 8 for colour in parts}

    assert greyness("small-plain") == {True}
    assert greyness("small") == {True, False}


def test_keys_become_orders() -> None:
    shown = Shown(node_views.small_node())

    async def press(pilot: Any) -> None:
        await pilot.press("r", "y", "w", "y", "tab", "h", "end", "h", "home", "l", "escape")

    drawn(shown, (80, 24), press)
    assert shown.orders == [
        KeyOrder("release", "t1"), KeyOrder("withdraw", "j7"), KeyOrder("hold", "j1"),
        KeyOrder("unhold", "j5"), KeyOrder("log", "j1"),
    ]  # fmt: skip


def test_a_filter_is_typed_and_pasted() -> None:
    shown = Shown(node_views.small_node())

    async def type_in(pilot: Any) -> list[str]:
        from textual import events

        await pilot.press("slash", "q", "backspace")
        shown.app.post_message(events.Paste("bo"))
        await pilot.pause()
        await pilot.press("B")
        await pilot.pause()
        return shown.text()

    texts = drawn(shown, (80, 24), type_in)
    assert texts[-1] == "Filter: boB_"
    assert [line.split()[0] for line in texts if line.startswith("t")] == ["t2", "t4"]


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("Q", 0), ("ctrl+c", 130)])
def test_keys_that_end_it(key: str, code: int) -> None:
    shown = Shown(node_views.small_node())

    async def press(pilot: Any) -> None:
        await pilot.press(key)

    drawn(shown, (80, 24), press)
    assert shown.app.return_value == code


def test_work_of_another_thread_is_drawn() -> None:
    import threading

    shown = Shown(node_views.empty_node())

    async def work(pilot: Any) -> list[str]:
        done = threading.Thread(
            target=shown.app.call_soon, args=(lambda: shown.model.take(node_views.small_node()),)
        )
        done.start()
        done.join()
        await pilot.pause()
        return shown.text()

    texts = drawn(shown, (80, 24), work)
    assert any(line.startswith("t1 ") for line in texts)


def test_it_follows_the_size_of_the_terminal() -> None:
    shown = Shown(node_views.small_node())

    async def resize(pilot: Any) -> tuple[list[str], list[str]]:
        await pilot.resize_terminal(20, 5)
        await pilot.pause()
        small = shown.text()
        await pilot.resize_terminal(120, 30)
        await pilot.pause()
        return small, shown.text()

    small, large = drawn(shown, (80, 24), resize)
    assert len(small) == 5
    assert len(large) == 30
    assert "HOST" in "".join(large)


def test_changed_cells_alone_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(node_views.small_node())
    written: list[Any] = []

    async def change(pilot: Any) -> None:
        picture = shown.app.query_one(Picture)
        monkeypatch.setattr(picture, "refresh", lambda *regions: written.extend(regions))
        picture.draw()
        assert written == [], "nothing changed"
        view = node_views.small_node()
        view.status["tasks"][2]["utilization_percent"] = 9
        shown.model.take(view)
        picture.draw()

    drawn(shown, (80, 24), change)
    (region,) = written
    assert (region.width, region.height) == (len(" 9 %") + len("  "), 1), "a cell of the table"


def test_a_resumed_picture_is_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind Ctrl-Z and fg the terminal has forgotten it."""
    shown = Shown(node_views.small_node())
    written: list[Any] = []

    async def resume(pilot: Any) -> None:
        picture = shown.app.query_one(Picture)
        monkeypatch.setattr(picture, "refresh", lambda *regions: written.append(regions))
        shown.app.app_resume_signal.publish(shown.app)
        await pilot.pause()

    drawn(shown, (80, 24), resume)
    assert written == [()]


def test_the_changed_cells_of_a_line() -> None:
    old = [("abc", ""), ("日本", "red"), ("xyz", "")]
    assert changed_cells(old, [("abX", ""), ("日本", "red"), ("xyz", "")], 10) == (0, 3)
    assert changed_cells(old, [("abc", ""), ("日本", "green"), ("xyz", "")], 10) == (3, 7)
    assert changed_cells(old, [("abc", ""), ("日", "red"), ("本xyz", "")], 10) == (3, 10)
    assert changed_cells(old, [*old, ("  ", "")], 12) == (10, 12)
    assert changed_cells([*old, ("  ", "")], old, 12) == (10, 12)
    assert changed_cells([], old, 10) == (0, 10)


def test_a_line_that_the_terminal_sees_wider_is_drawn_to_its_end() -> None:
    """A heart with a variation selector has one cell in the picture, and two in rich."""
    heart = [("ab❤\N{VARIATION SELECTOR-16}", ""), ("xyz", ""), ("12", "")]
    assert changed_cells(heart, [heart[0], ("xyZ", ""), heart[2]], 8) == (4, 8)
    assert changed_cells([("abcdef", ""), ("12", "")], [*heart[:2], ("12", "")], 8) == (0, 8)


def test_an_ascii_terminal_gets_ascii() -> None:
    shown = Shown(node_views.full_node(), is_ascii=True)

    async def text(pilot: Any) -> str:
        return "".join(shown.text())

    assert drawn(shown, (80, 24), text).isascii()


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    printed.show([[("[red]x[/red] :smile: ", "bold"), ("\\[", "red"), ("  ", "")]], 80)
    assert capsys.readouterr().out == "[red]x[/red] :smile: \\[\n"
