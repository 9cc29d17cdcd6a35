"""Draws `top` live, by textual: one widget, whose changed cells alone are written.

Knows: textual. Must not know: the content of the picture, the way to the manager.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Callable, ClassVar, List, Optional

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from client_plugin.verbs.picture.model import KeyOrder, TopModel
from client_plugin.verbs.picture.spans import in_ascii, without_colours
from client_plugin.verbs.presentation import tables
from client_plugin.ways.faults import Exit

if TYPE_CHECKING:
    from client_plugin.verbs.picture.spans import PictureLine


TERMINAL_PERIOD_S = 1.0
"""The terminal is looked at so often."""


class Picture(Widget):
    """Lines of spans. A line is drawn again from its first changed cell to its last."""

    DEFAULT_CSS = "Picture { width: 100%; height: 100%; background: ansi_default; }"

    def __init__(self, lines_of: Callable[[int, int], List[PictureLine]]) -> None:
        """`lines_of`: width and height -> the lines."""
        super().__init__()
        self._lines_of = lines_of
        self._lines: List[PictureLine] = []

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Have the changed cells written."""
        before, self._lines = self._lines, self._lines_of(*self.size)
        if len(before) != len(self._lines):
            self.refresh()
            return
        changed = [
            Region(begin, at, end - begin, 1)
            for at, (old, new) in enumerate(zip(before, self._lines))
            if old != new
            for begin, end in [changed_cells(old, new, self.size.width)]
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        strip = Strip([Segment(text, Style.parse(style)) for text, style in self._lines[y]])
        return strip.adjust_cell_length(self.size.width)


def changed_cells(old: PictureLine, new: PictureLine, cells: int) -> tuple[int, int]:
    """The first cell of the first changed span, and the one behind the last changed span.

    By rich's widths, with which textual places the spans: for some letters they differ from those
    of the picture, and textual crops or fills such a line at its end.
    """
    same = least = min(len(old), len(new))
    for at in range(least):
        if old[at] != new[at]:
            same = at
            break
    behind = 0
    while behind < least - same and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    begin = min(cells, drawn_width(new[:same]))
    if any(drawn_width(line) != cells for line in (old, new)):
        return begin, cells
    return begin, cells - drawn_width(new[len(new) - behind :])


def drawn_width(line: PictureLine) -> int:
    return sum(cell_len(text) for text, _ in line)


class Called(Message):
    """Work for the application's own thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


class TopApp(App[int]):
    """Keys go to the model, orders to `perform`; the exit code is its result."""

    CSS = "Screen { background: ansi_default; color: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[List[BindingType]] = [
        Binding("ctrl+c", "interrupt", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", priority=True, show=False),
    ]

    def __init__(
        self,
        model: TopModel,
        perform: Callable[[KeyOrder], None],
        begin: Callable[[], None] = lambda: None,
        *,
        is_coloured: bool = True,
        is_ascii: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`begin` is called when the picture can be drawn."""
        super().__init__(ansi_color=True)
        self._model = model
        self._perform = perform
        self._begin = begin
        self._is_coloured = is_coloured
        self._is_ascii = is_ascii
        self._now = now
        self._picture = Picture(self._lines)

    def compose(self) -> ComposeResult:
        yield self._picture

    def _lines(self, width: int, height: int) -> List[PictureLine]:
        now_s = self._now()
        clock = tables.local_time("%H:%M:%S", now_s)
        lines = self._model.lines(width, height, now_s, clock)
        if not self._is_coloured:
            lines = [without_colours(line) for line in lines]
        return [in_ascii(line) for line in lines] if self._is_ascii else lines

    def on_mount(self) -> None:
        """SIGTERM ends it as a key does: otherwise the terminal would stay as it is."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.exit, 128 + signal.SIGTERM)
        self.app_resume_signal.subscribe(self, lambda _: self._picture.refresh())
        self.set_interval(TERMINAL_PERIOD_S, self._end_without_terminal)
        self._begin()

    def _end_without_terminal(self) -> None:
        """A closed terminal tells it by SIGHUP alone, which a container's program never gets."""
        if not self.is_headless and is_hung_up(0):
            self.exit(128 + signal.SIGHUP)

    def on_key(self, event: events.Key) -> None:
        order = self._model.press(event.key, event.character)
        if order is not None and order.kind == "quit":
            self.exit(0)
        elif order is not None:
            self._perform(order)
        self._picture.draw()

    def on_paste(self, event: events.Paste) -> None:
        self._model.type_text(event.text)
        self._picture.draw()

    def action_interrupt(self) -> None:
        self.exit(int(Exit.INTERRUPTED))

    def call_soon(self, work: Callable[[], None]) -> None:
        """Work of another thread, after which the picture is drawn."""
        self.post_message(Called(work))

    def on_called(self, message: Called) -> None:
        message.work()
        self._picture.draw()


def is_hung_up(descriptor: int) -> bool:
    """Whether the other end of this terminal is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(found & (select.POLLHUP | select.POLLERR) for _, found in poll.poll(0))


def show(app: TopApp) -> int:
    """Until a key ends it; returns the exit code."""
    code: Optional[int] = app.run(mouse=False)
    if code == 128 + signal.SIGHUP:  # else Python's own flush fails at its end, and its code is 120
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
    return app.return_code or 1 if code is None else code
