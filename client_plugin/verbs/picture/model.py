"""The model of `top`: views and keys in, lines of the picture and orders out.

Knows: which panel has the keys, the question that is open, the layout of the whole picture. Must
not know: terminals, the way to the manager, clocks: moments are handed in.
"""

from __future__ import annotations

from client_plugin.messages import status as status_messages
from client_plugin.messages.form import sentence
from client_plugin.verbs.picture import compact, keys, rows
from client_plugin.verbs.picture.columns import GPUS, QUEUE, TASKS
from client_plugin.verbs.picture.pager import Pager
from client_plugin.verbs.picture.panel import Panel, details
from client_plugin.verbs.picture.spans import fitted, width, wrapped
from client_plugin.verbs.presentation import cells as row_cells
from client_plugin.verbs.presentation.tables import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, NamedTuple, Optional

    from client_plugin.verbs.picture.rows import NodeView, PictureRow
    from client_plugin.verbs.picture.spans import PictureLine

    class KeyOrder(NamedTuple):
        kind: str
        subject: str

else:
    from collections import namedtuple

    KeyOrder = namedtuple("KeyOrder", "kind subject")
    """What a key asks for: `kind` release, withdraw, hold, unhold, log or quit; of this task, job
    or request."""

NAME = "nodemgr top"
LEAST_PANEL = 3
"""The fewest lines of each of several panels; where these do not fit, one panel is shown."""
LEAST_WITH_CLOCK = 40
MOST_MESSAGE_LINES = 3
ANSWERS = "y: yes, any other key: no."
ASKED = {
    "release": "Take the GPUs of {} back? {} Its processes live on, their next allocation fails.",
    "withdraw": "Withdraw {}? {} A job that runs is ended.",
}
ORDER = ("gpus", "tasks", "queue")
PAGER_ACTIONS = frozenset({"up", "down", "page_up", "page_down", "first", "last"})
"""While a text covers the picture, any other key goes back."""


class TopModel:
    """All that the picture shows; `lines` draws it, `press` takes a key."""

    def __init__(self, scope: str) -> None:
        """`scope`: the node's or the environment's name."""
        self._scope = printable(scope)
        self._view: Optional[NodeView] = None
        self._colours = rows.EnvColours()
        self._panels: Dict[str, Panel] = {
            "gpus": Panel("GPUs", GPUS, sentence(status_messages.NO_GPU()), "uuid"),
            "tasks": Panel("Tasks", TASKS, "No task uses a GPU."),
            "queue": Panel("Queue", QUEUE, sentence(status_messages.NOTHING_WAITS())),
        }
        self._rows: Dict[str, List[PictureRow]] = {name: [] for name in ORDER}
        self._parts = rows.EnvParts((), self._colours)
        self._focus = "tasks"
        self._filter = ""
        self._is_filtering = False
        self._is_expanded = False
        self._question: Optional[KeyOrder] = None
        self._question_text = ""
        self._message = ""
        self._is_failure = False
        self._away = ""
        self._pager: Optional[Pager] = None
        self._log_of = ""
        self._page = 1

    # -- what is known --

    @property
    def view(self) -> Optional[NodeView]:
        return self._view

    def take(self, view: NodeView) -> None:
        """The manager answered."""
        self._view = view
        self._away = ""
        for env in view.status["envs"]:
            self._colours.of(env["name"])
        self._rows["gpus"] = rows.gpu_rows(view)
        self._rows["tasks"] = rows.task_rows(view, self._colours)
        self._parts = rows.EnvParts(self._rows["tasks"], self._colours)
        self._take_queue()
        for name, panel in self._panels.items():
            panel.learn(self._rows[name])
        self._fill()

    def take_figures(self, figures: PictureRow) -> None:
        """Figures of the same tasks came."""
        self._away = ""
        rows.update(self._rows["gpus"], figures["gpus"], "uuid")
        rows.update(self._rows["tasks"], figures.get("jobs", ()), "job")
        rows.update(self._rows["tasks"], figures["tasks"], "id")
        self._fill()

    def _take_queue(self) -> None:
        if self._view is not None:
            self._rows["queue"] = rows.queue_rows(self._view, self._colours, self._is_expanded)

    def _fill(self) -> None:
        """The panels have the rows, as far as the filter lets them through."""
        self._parts.share_out(self._rows["gpus"])
        for name, panel in self._panels.items():
            found = self._rows[name]
            is_filtered = name != "gpus" and self._filter
            panel.show(rows.matching(found, self._filter) if is_filtered else found)

    def fail(self, message: str) -> None:
        """The manager did not answer; what it answered last stays in the picture."""
        self._away = message

    def answered(self, message: str, is_failure: bool) -> None:
        """The outcome of an order."""
        self._message, self._is_failure = message, is_failure

    def add_log(self, job: str, data: bytes) -> None:
        if self._pager is not None and self._log_of == job:
            self._pager.add(data)

    @property
    def log_of(self) -> str:
        """The job whose log is in the picture, if one is."""
        return self._log_of if self._pager is not None else ""

    # -- keys --

    def press(self, key: str, letter: Optional[str] = None) -> Optional[KeyOrder]:
        """`key`: its name; `letter`: what it types, if anything. Returns an order to carry out."""
        self._message = ""
        if self._question is not None:
            order, self._question = self._question, None
            if letter in ("y", "Y"):
                return order
            self.answered("Nothing was changed.", False)
            return None
        if self._is_filtering:
            self._type(key, letter)
            return None
        action = keys.ACTIONS.get(key) or keys.ACTIONS.get(letter or "")
        if action is None:
            return None
        if self._pager is not None and action not in PAGER_ACTIONS:
            action = "back"
        found: Optional[KeyOrder] = getattr(self, f"_{action}")()
        return found

    def type_text(self, text: str) -> None:
        """A text that was pasted."""
        if self._is_filtering:
            self._filter += printable(text.replace("\n", " "))
            self._fill()

    def _type(self, key: str, letter: Optional[str]) -> None:
        if key == "escape":
            self._filter, self._is_filtering = "", False
        elif key == "enter":
            self._is_filtering = False
        elif key == "backspace":
            self._filter = self._filter[:-1]
        elif letter is not None and letter.isprintable():
            self._filter += letter
        self._fill()

    @property
    def _panel(self) -> Panel:
        return self._panels[self._focus]

    def _quit(self) -> KeyOrder:
        return KeyOrder("quit", "")

    def _help(self) -> None:
        self._open(Pager("Keys of nodemgr top (Esc: back)", keys.help_lines(self._width)))

    def _open(self, pager: Pager, log_of: str = "") -> None:
        self._pager, self._log_of = pager, log_of

    def _details(self) -> None:
        chosen = self._panel.chosen
        if chosen is not None:
            name = chosen["index"] if self._focus == "gpus" else chosen["id"]
            title = f"{'GPU ' if self._focus == 'gpus' else ''}{printable(str(name))} (Esc: back)"
            self._open(Pager(title, details(self._panel.columns, chosen, self._width)))

    _width = 80
    """The width of the last picture."""

    def _next_panel(self, by: int = 1) -> None:
        self._focus = ORDER[(ORDER.index(self._focus) + by) % len(ORDER)]

    def _previous_panel(self) -> None:
        self._next_panel(-1)

    def _sort(self) -> None:
        if self._focus == "gpus":
            self.answered("GPUs stand in the order of their indices.", False)
        self._panel.sort_by_next()

    def _reverse(self) -> None:
        self._panel.reverse()

    def _begin_filter(self) -> None:
        self._is_filtering = True

    def _expand(self) -> None:
        self._is_expanded = not self._is_expanded
        self._take_queue()
        self._fill()

    def _back(self) -> None:
        if self._pager is not None:
            self._pager, self._log_of = None, ""
        else:
            self._filter = ""
            self._fill()

    def _move(self, by: int) -> None:
        if self._pager is not None:
            self._pager.move(by)
        else:
            self._panel.move(by)

    def _up(self) -> None:
        self._move(-1)

    def _down(self) -> None:
        self._move(1)

    def _page_up(self) -> None:
        self._move(-self._page)

    def _page_down(self) -> None:
        self._move(self._page)

    def _first(self) -> None:
        self._move(-(10**9))

    def _last(self) -> None:
        self._move(10**9)

    # -- orders --

    def _release(self) -> None:
        row = self._chosen_entry()
        if row is None:
            return
        if self._focus == "queue" and row.get("job"):
            self.answered(f"{row['id']} holds no GPU yet: w withdraws it.", True)
        elif self._focus == "tasks" and not row["gpus"]:
            self.answered(f"{row['id']} holds no GPU: w ends it.", True)
        else:
            self._ask("release", row)

    def _withdraw(self) -> None:
        row = self._chosen_entry()
        if row is None:
            return
        if self._focus == "tasks" and not row.get("job"):
            self.answered(f"{row['id']} is no job: r takes its GPUs back.", True)
        else:
            self._ask("withdraw", row)

    def _hold(self) -> Optional[KeyOrder]:
        row = self._chosen_entry()
        if row is None:
            return None
        if not row.get("job"):
            self.answered(f"{row['id']} is no job: only jobs can be held.", True)
            return None
        return KeyOrder("unhold" if row["state"] in ("held", "paused") else "hold", _job_of(row))

    def _log(self) -> Optional[KeyOrder]:
        row = self._chosen_entry()
        if row is None:
            return None
        if not row.get("job"):
            self.answered(f"{row['id']} is no job: only jobs have a log here.", True)
            return None
        if " " in row["id"]:
            self.answered(
                f"{row['id']} has a log for each of its jobs: e shows each job of the array on its "
                "own line.",
                True,
            )
            return None
        self._open(Pager(f"Output of {row['job']} (Esc: back)", at_end=True), row["job"])
        return KeyOrder("log", row["job"])

    def _chosen_entry(self) -> Optional[PictureRow]:
        if self._focus == "gpus":
            self.answered(
                "No entry is chosen: choose a task or an entry of the queue first (Tab).", True
            )
            return None
        if self._panel.chosen is None:
            self.answered(self._panel.empty, True)
        return self._panel.chosen

    def _ask(self, kind: str, row: PictureRow) -> None:
        subject = _job_of(row) if kind == "withdraw" or row.get("job") else row["id"]
        subject = row["id"] if kind == "release" else subject
        self._question = KeyOrder(kind, subject)
        asked = ASKED[kind].format(f"{row['id']} of {row['env']}", ANSWERS)
        self._question_text = f"{asked} ({row_cells.who(row)}: {row['command']})"

    # -- the picture --

    def lines(self, cells: int, height: int, now_s: float, clock: str) -> List[PictureLine]:
        """Exactly `height` lines of exactly `cells` cells. `clock`: the time, as it is shown."""
        self._width = cells
        below = self._below(cells)[: max(0, height - 1)]
        above = [] if self._pager is not None else self._above(cells, clock)
        above = above[: max(0, height - len(below) - 2)]
        room = height - len(above) - len(below)
        self._page = max(1, room - 2)
        if self._pager is not None:
            middle = self._pager.lines(cells, room)
        else:
            middle = self._middle(cells, room, now_s)
        empty = [fitted([], cells) for _ in range(room - len(middle))]
        return [*above, *middle[:room], *empty, *below]

    def whole(self, cells: int, now_s: float, clock: str) -> List[PictureLine]:
        """All rows, for a printer; without what belongs to keys."""
        found = self._above(cells, clock)
        for name in ORDER:
            panel = self._panels[name]
            found += [fitted([], cells), *panel.lines(cells, panel.wanted(), now_s)]
        view = self._view
        more = 0 if view is None else view.status.get("queue_length", 0) - len(view.queue)
        if more > 0:
            found.append(fitted([(status_messages.MORE_WAIT(more=more), "dim")], cells))
        return found

    def _above(self, cells: int, clock: str) -> List[PictureLine]:
        """The node in one line; below it faults, if there are any."""
        if self._view is None:
            return [fitted([(f"{NAME}  {self._scope}", "bold")], cells)]
        waiting = self._view.status.get("queue_length", 0)
        pieces = rows.totals(self._rows["gpus"], len(self._view.status["tasks"]), waiting)
        clock = f"  {clock}" if cells >= LEAST_WITH_CLOCK else ""
        room = cells - width(clock)
        text = f"{NAME}  {self._scope}"
        if width(text) + 2 + width(pieces[0]) > room:
            text = pieces.pop(0)
        for piece in pieces:
            if width(text) + 2 + width(piece) <= room:
                text += f"  {piece}"
        found = [[*fitted([(text, "bold")], room), (clock, "dim")]]
        if self._away:
            found.append(fitted([(printable(self._away), "bold red")], cells))
        warnings = self._view.warnings
        if warnings and not self._away:
            more = f" (and {len(warnings) - 1} more: nodemgr status)" if len(warnings) > 1 else ""
            text = printable(warnings[0])
            found.append(fitted([(text, "yellow"), (more, "yellow")], cells))
        return found

    def _middle(self, cells: int, room: int, now_s: float) -> List[PictureLine]:
        if room < LEAST_PANEL * len(ORDER):
            return self._panel.lines(cells, room, now_s, True)
        beside = compact.beside(len(self._panels["gpus"].rows), cells, max(2, room // 3))
        gaps = len(ORDER) - 1
        heights = self._heights(room - gaps, beside)
        is_loose = sum(heights.values()) < room - gaps
        if not is_loose:
            heights = self._heights(room, beside)
        found: List[PictureLine] = []
        for name in ORDER:
            if is_loose and found:
                found.append(fitted([], cells))
            if name == "gpus" and beside > 1 and self._focus != "gpus":
                found += self._gpus(cells, heights[name], beside)
            else:
                panel, is_focus = self._panels[name], self._focus == name
                found += panel.lines(cells, heights[name], now_s, is_focus)
        return found

    def _heights(self, room: int, beside: int) -> Dict[str, int]:
        """GPUs get up to half of the lines; the panel with the keys gets the most of the rest."""
        wanted = {name: panel.wanted() for name, panel in self._panels.items()}
        wanted["gpus"] = 1 + -(-(wanted["gpus"] - 1) // beside)
        found = {name: min(LEAST_PANEL, lines) for name, lines in wanted.items()}
        small = "tasks" if self._focus == "queue" else "queue"
        large = "queue" if self._focus == "queue" else "tasks"

        def give(name: str, most: int) -> None:
            left = room - sum(found.values())
            found[name] += max(0, min(left, most, wanted[name] - found[name]))

        give("gpus", room // 2 - found["gpus"])
        left = room - sum(found.values())
        give(large, left - min(wanted[small] - found[small], left // 3))
        for name in (small, large, "gpus"):
            give(name, room)
        return found

    def _gpus(self, cells: int, height: int, beside: int) -> List[PictureLine]:
        gpus = self._panels["gpus"].rows
        return [compact.title(cells, beside), *compact.lines(gpus, cells, beside)][:height]

    def _below(self, cells: int) -> List[PictureLine]:
        """The question, the filter or the message, or else the keys."""
        if self._question is not None:
            return _message(self._question_text, cells, "bold yellow")
        if self._message:
            return _message(self._message, cells, "bold red" if self._is_failure else "bold")
        if self._is_filtering:
            return [fitted([("Filter: ", "bold"), (f"{self._filter}_", "")], cells)]
        if self._pager is not None:
            return [fitted([("Esc back  PgUp PgDn  Home End", "dim")], cells)]
        if self._filter:
            text = f"Filter: {self._filter}  (Esc: all rows)"
            return [fitted([(text, "bold")], cells)]
        return [fitted([(keys.last_line(cells), "dim")], cells)]


def _job_of(row: PictureRow) -> str:
    """A folded array by its name; those that wait together, unfolded, as `j12.*`."""
    name: str = row["id"] if row.get("request") or "position" in row else row["job"]
    return f"{row['job']}.*" if "[" in name else name.partition(" ")[0]


def _message(text: str, cells: int, style: str) -> List[PictureLine]:
    parts = wrapped(printable(text), cells)[:MOST_MESSAGE_LINES]
    return [fitted([(part, style)], cells) for part in parts]
