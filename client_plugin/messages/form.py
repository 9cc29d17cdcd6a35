"""The form of a message, a row of a table and the line that is printed of it; and of a reason.

A line has three parts: the event, whose limit was met or which part is at fault, and the remedy.

A reason to wait is data until it is shown: clauses, each a form and its fields. A field whose name
ends in `_minute` or `_second` is a wall time in seconds. Each face writes it in its own zone, to
that precision. `entry` is the waiting entry; a face may name its array instead.

Knows: the grammar of a line. Must not know: any message, any exit code, any clock. The manager's
core may import this module: it is values alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    Clause = List[Any]  # a form and its fields, as JSON has it


class MessageLine(str):
    """A line for people, and the code of the failure. An empty code: it has none."""

    __slots__ = ("begins_with_field", "code")
    code: str
    begins_with_field: bool
    """Whether it begins with a name, whose first letter keeps its case."""


class Message:
    """One row: the event and whose limit it is, the remedy, and the code of the failure.

    A call with the fields of its template returns the line.
    """

    __slots__ = ("_form", "code", "next", "template", "what")

    def __init__(self, what: str, next: str = "", code: str = "") -> None:
        """`what` and `next`: templates with named fields.

        `next` is empty only where `what` names the remedy itself. In brackets it follows a blank.
        """
        self.what = what
        self.next = next
        self.code = code
        self.template = _joined(what, next)
        self._form: Optional[str] = None

    def __call__(self, /, **fields: object) -> MessageLine:
        """The line, on one line and printable. A missing field is a question mark."""
        text = self._text(fields)
        return _line(_one_line(text), self.code, self.what.startswith("{"))

    def _text(self, fields: Dict[str, object]) -> str:
        if self._form is None:
            self._form = _compiled(self.template)
        try:
            return self._form % fields
        except Exception:
            return _plain(self.template, fields)


class Part(Message):
    """A row whose text stands only inside the lines of other rows, as one of their fields.

    Reasons to wait are made often, and the line around them is made printable: a part is not.
    """

    __slots__ = ()

    def __call__(self, /, **fields: object) -> MessageLine:
        return _line(self._text(fields), self.code, self.what.startswith("{"))


class Notice(Message):
    """A row that reports progress or good news: no remedy is needed."""

    __slots__ = ()


class CheckDetail(Part):
    """The result of a check of `nodemgr doctor`. The remedy is the cure of the check."""

    __slots__ = ()


def relayed(text: str) -> MessageLine:
    """The line that another process sent, which made it from its own table."""
    return _line(_one_line(text), "", begins_with_field=True)


def stated(what: str, next: str, code: str = "") -> MessageLine:
    """A line with one use, at its place: the event, the remedy, the code of the failure.

    A line with several uses is a row of a table (`Message`).
    """
    return _line(_one_line(_joined(what, next)), code, begins_with_field=False)


def notice(text: str, code: str = "") -> MessageLine:
    """A line with one use that needs no remedy: progress, good news, a rule (`... must ...`)."""
    return _line(_one_line(text), code, begins_with_field=False)


class SpokenError(Exception):
    """An error whose text a person reads: one line with the event, the remedy and a code."""

    def __init__(self, what: str, next: str = "", code: str = "") -> None:
        """`what`: a whole line of a table, or with `next` the parts of a line with one use."""
        self.line = as_line(what, next, code)
        super().__init__(self.line)


def as_line(what: str, next: str = "", code: str = "") -> MessageLine:
    """`what` where it is a line already."""
    if isinstance(what, MessageLine) and not next:
        return what
    return stated(what, next, code)


def sentence(line: str) -> str:
    """The line with a full stop, and a capital where it does not begin with a name."""
    named = getattr(line, "begins_with_field", False)
    return (line if named else line[:1].upper() + line[1:]) + "."


_FORMS: Dict[str, Part] = {}


class Reason(str):
    """The clauses, and as text their sentence with times in UTC."""

    __slots__ = ("clauses",)
    clauses: List[Clause]

    def __new__(cls, clauses: List[Clause]) -> Reason:
        reason = super().__new__(cls, sentence_of(clauses, utc))
        reason.clauses = clauses
        return reason

    def __reduce__(self) -> Tuple[object, ...]:
        """A copy is made of the clauses, too: the text alone would be read as clauses."""
        return type(self), (self.clauses,)


def reason_of(form: str, **fields: object) -> Reason:
    """A reason of one clause."""
    return Reason([[form, fields]])


def joined_reasons(parts: Iterable[Reason]) -> Reason:
    """One reason with the clauses of all parts."""
    return Reason([clause for part in parts for clause in part.clauses])


def sentence_of(clauses: Iterable[Clause], clock: Callable[[int, bool], str]) -> str:
    """The clauses as one line of text. `clock(wall_s, to_seconds)` writes a time."""
    return "; ".join([_filled(form, fields, clock) for form, fields in clauses])


def _filled(form: str, fields: Dict[str, Any], clock: Callable[[int, bool], str]) -> str:
    """The form with its fields. A form is parsed once: most of them recur."""
    parsed = _FORMS.get(form) or _FORMS.setdefault(form, Part(form))
    times = [name for name in fields if name.endswith(("_minute", "_second"))]
    if times:
        shown = {name: clock(fields[name], name.endswith("_second")) for name in times}
        fields = {**fields, **shown}
    return parsed._text(fields)


def reason_fields(text: Optional[str]) -> Dict[str, Any]:
    """The fields of a row that say why it waits; `clauses` is None for a text without any."""
    return {"reason": text, "clauses": text.clauses if isinstance(text, Reason) else None}


def placed(queue: str, position: int, ahead: int, why: str) -> str:
    """Where an entry stands, and why it waits.

    `ahead`: the number of entries in other queues that are served before it.
    """
    others = f" (after {ahead} in other queues)" if ahead else ""
    return f"place {position} in queue {queue}{others}: {why}"


def utc(wall_s: int, to_seconds: bool) -> str:
    """`14:05 UTC` of a wall time; to the second `14:05:10 UTC`."""
    minutes, second = divmod(wall_s, 60)
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}{f':{second:02}' * to_seconds} UTC"


def _joined(what: str, next: str) -> str:
    joint = " " if next.startswith("(") else "; " if ": " in what else ": "
    return what + joint + next if next else what


def _line(text: str, code: str, begins_with_field: bool) -> MessageLine:
    line = MessageLine(text)
    line.code = code
    line.begins_with_field = begins_with_field
    return line


def _compiled(template: str) -> str:
    """The template for the operator %, which is faster than `format`."""
    form = []
    for index, part in enumerate(template.split("{")):
        if index == 0:
            form.append(part.replace("%", "%%"))
            continue
        field, _, rest = part.partition("}")
        name, _, kind = field.partition("!" if "!" in field else ":")
        kind = f"{kind}s" if not kind or kind[-1].isdigit() else kind
        form.append(f"%({name}){kind}{rest.replace('%', '%%')}")
    return "".join(form)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _plain(template: str, fields: Dict[str, object]) -> str:
    """The template filled in without its formats, and with what there is."""
    parts: List[str] = []
    for index, part in enumerate(template.split("{")):
        field, _, rest = part.partition("}")
        if index == 0:
            parts.append(part)
            continue
        try:
            parts.append(str(fields[field.partition(":")[0].partition("!")[0]]) + rest)
        except Exception:
            parts.append("?" + rest)
    return "".join(parts)
