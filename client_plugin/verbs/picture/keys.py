"""The keys of `top`: one table for the dispatch, the help and the last line.

Knows: names of keys. Must not know: the work of a key.
"""

from __future__ import annotations

from client_plugin.verbs.picture.spans import wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NamedTuple, Tuple

    class PictureKey(NamedTuple):
        names: Tuple[str, ...]
        action: str
        shown: str
        short: str
        help: str

else:
    from collections import namedtuple

    PictureKey = namedtuple("PictureKey", "names action shown short help")
    """`names`: of the key, as the terminal's library has them, or the letter.

    `action`: the model's method. `shown`, `short`: for the last line; no `short`: the help alone.
    """

KEYS = (
    PictureKey(("q", "Q"), "quit", "q", "quit", "Quit. So does Ctrl-C."),
    PictureKey(("question_mark", "?", "f1"), "help", "?", "help", "This page."),
    PictureKey(("tab",), "next_panel", "Tab", "next",
               "The next table: GPUs, tasks, queue. In a small terminal one is shown at a time."),
    PictureKey(("shift+tab",), "previous_panel", "Shift-Tab", "", "The table before."),
    PictureKey(("s",), "sort", "s", "sort", "Sort by the next column; ▲ and ▼ stand at its title."),
    PictureKey(("S",), "reverse", "S", "", "Reverse the order."),
    PictureKey(("slash", "/"), "begin_filter", "/", "filter",
               "Show the rows with these words alone, in any field. Esc shows all again."),
    PictureKey(("r",), "release", "r", "release",
               "Take the GPUs of the chosen task back, or a waiting request out; asks first."),
    PictureKey(("w",), "withdraw", "w", "withdraw",
               "Take the chosen job or request out of the queue, or end a job; asks first."),
    PictureKey(("h",), "hold", "h", "hold",
               "Hold the chosen job in the queue; a held job: let it wait again."),
    PictureKey(("l",), "log", "l", "log", "The output of the chosen job, as it grows."),
    PictureKey(("enter",), "details", "Enter", "all fields", "All fields of the chosen row."),
    PictureKey(("e",), "expand", "e", "", "Each job of an array on a line of its own, or not."),
    PictureKey(("up", "k"), "up", "Up k", "", "The row above."),
    PictureKey(("down", "j"), "down", "Down j", "", "The row below."),
    PictureKey(("pageup", "ctrl+b"), "page_up", "PgUp", "", "A page up."),
    PictureKey(("pagedown", "ctrl+f", "space"), "page_down", "PgDn", "", "A page down."),
    PictureKey(("home", "g"), "first", "Home g", "", "The first row."),
    PictureKey(("end", "G"), "last", "End G", "", "The last row."),
    PictureKey(("escape",), "back", "Esc", "", "Back; or forget the filter."),
)  # fmt: skip
ACTIONS = {name: key.action for key in KEYS for name in key.names}
LEGEND = (
    ("█", "memory in use, in the colour of its environment"),
    ("░", "memory that is granted and not in use"),
    ("·", "free memory"),
)


def last_line(cells: int) -> str:
    """As many keys as fit: the last ones of the table are left out first."""
    shown = ""
    for key in KEYS:
        if key.short:
            more = f"{shown}  {key.shown} {key.short}" if shown else f"{key.shown} {key.short}"
            if len(more) > cells:
                break
            shown = more
    return shown


def help_lines(cells: int) -> List[str]:
    """A text that is wider goes on below itself."""
    column = max(len(key.shown) for key in KEYS) + 2
    found: List[str] = []
    keys = [(key.shown, key.help) for key in KEYS]
    for name, meaning in [*keys, ("", ""), *LEGEND]:
        first, *more = wrapped(meaning, max(8, cells - column)) or [""]
        found += [f"{name:{column}}{first}", *(" " * column + part for part in more)]
    return found
