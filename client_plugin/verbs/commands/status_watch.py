"""`nodemgr status --watch`: the status again after each event, and once a second for its figures.

Knows: what counts as a change, how a page replaces the last one on a terminal. Must not know: how a
table is made (status), the way to the manager.
"""

from __future__ import annotations

import io
import sys
import time

from client_plugin.verbs.commands import status as status_verb
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.reading import status_warnings
from client_plugin.ways import terminal
from client_plugin.ways.choice import AdminWay
from client_plugin.ways.event_signals import EventSignals
from client_plugin.ways.lasting import LastingWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from client_plugin.verbs.presentation.tables import TableRow
    from client_plugin.ways.choice import Way

PERIOD_S = 1.0
"""The time after which figures are asked for without an event."""
LEAST_S = 0.2
"""Between two questions, however many events come."""
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CUT, WRAP = "\x1b[?7l", "\x1b[?7h"
"""A line that is too long: cut by the terminal, or continued on the next line."""
SHOWN = {
    "gpus": ("index", "state", "memory_granted_bytes", "task_ids", "envs"),
    "envs": ("name", "quota", "gpus", "memory_remaining_bytes", "memory_pending_bytes"),
    "tasks": ("id", "state", "gpus", "pids"),
    "queue": ("id", "position", "gpus", "reason"),
    "residues": ("env", "pid", "gpu", "alive", "exported", "memory_bytes"),
    "violations": ("pid", "gpu", "offence", "enforce"),
}
"""The fields of each table whose change is a block for a pipe; all others pass with time."""


def watch(way: Way, as_json: bool, inside: bool) -> int:
    """Until Ctrl-C. Raises Fault where no manager answers at the start."""
    lasting = LastingWay(way)
    signals = EventSignals(way.run_dir if isinstance(way, AdminWay) else None)
    signals.wait(0)  # subscribed before the first question: no event is missed between
    if as_json:
        show = _print_json
    else:
        show = _Page(inside).draw if sys.stdout.isatty() else Blocks(inside).print
    while True:
        show(lasting.status())
        sys.stdout.flush()
        asked = time.monotonic()
        if signals.wait(PERIOD_S):
            time.sleep(max(0.0, asked + LEAST_S - time.monotonic()))


def _print_json(status: TableRow) -> None:
    print(tables.json_text(status, separators=(",", ":")))


class Blocks:
    """For a pipe: the tables, with the time above, whenever something else than figures changed."""

    def __init__(self, inside: bool) -> None:
        self._inside = inside
        self._last: object = None

    def print(self, status: TableRow) -> None:
        warnings = status_warnings.of_status(status)
        shown = [
            [[row.get(key) for key in keys] for row in status.get(table, ())]
            for table, keys in SHOWN.items()
        ]
        now = (shown, warnings)
        if now == self._last:
            return
        if self._last is not None:
            print()
        self._last = now
        print(tables.local_time("%Y-%m-%d %H:%M:%S"))
        status_verb.show(status, self._inside)
        for line in warnings:
            print(line)


class _Terminal(io.StringIO):
    """Text that is laid out as for the terminal."""

    def isatty(self) -> bool:
        return True


class _Page:
    """For a terminal: each page is written over the last one, so that nothing flickers."""

    def __init__(self, inside: bool) -> None:
        self._inside = inside

    def draw(self, status: TableRow) -> None:
        text = page(self._lines(status), terminal.lines())
        sys.stdout.write(HOME + CUT + text + WRAP + END_OF_SCREEN)

    def _lines(self, status: TableRow) -> List[str]:
        stdout, text = sys.stdout, _Terminal()
        sys.stdout = text
        try:
            status_verb.show(status, self._inside)
        finally:
            sys.stdout = stdout
        title = f"nodemgr status  {tables.local_time('%H:%M:%S')}  (Ctrl-C ends)"
        return [title, "", *text.getvalue().splitlines(), *status_warnings.of_status(status)]


def page(lines: List[str], height: int) -> str:
    """The lines that fit; the last line of the terminal stays free for the cursor."""
    room = max(1, height - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]
    return "".join(f"{line}{END_OF_LINE}\n" for line in lines)
