"""The schema of an order on any socket: its arguments, their checks, its answer or refusal.

Knows: JSON's values. Must not know: sockets, the work of a verb.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from client_plugin import fields
from client_plugin.fields import Field
from client_plugin.messages.form import SpokenError, as_line, notice
from client_plugin.units import format_duration
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.model.entities import TaskClass
from nodemgr.edge.kernel.processes import group_id, one_line, user_id
from nodemgr.edge.rpc import long_json
from nodemgr.edge.rpc.turns import Work
from nodemgr.messages import orders as messages
from nodemgr.paths import ENV_NAME_FORM, is_env_name

MAX_NAMES = 256

Reply = Callable[[Any], None]
"""Takes the answer: what JSON can say, a JsonText, or an OperationError."""


class JsonText(str):
    """A result that is JSON text already."""


class OperationError(SpokenError):
    """One line and a code: usage, not_found, unknown_env, refused, quota, store, busy.

    busy: the same order may be taken a moment later.
    """

    def __init__(self, what: str, next: str = "", code: str = "", argument: str = "") -> None:
        """`argument`: the one whose value `what` is about; the line begins with it."""
        fault = as_line(what, next, code)
        super().__init__(notice(f"{argument}: {fault}") if argument else fault)
        self.code, self.argument = code or fault.code or "usage", argument
        self.fields = {"argument": argument, "fault": fault} if argument else {}

    def answer(self) -> dict[str, Any]:
        """The fields of a refusal. A client names the argument as its user typed it."""
        return {"error": str(self), "code": self.code, **self.fields}


class Later:
    """An answer that comes when there is one.

    `begin` is called once, and calls its argument once, in the loop.
    """

    def __init__(self, begin: Callable[[Reply], None]) -> None:
        self.begin = begin


@dataclass(frozen=True, slots=True)
class Argument:
    """One row of a verb's table: how its value is checked. `parse` raises OperationError."""

    parse: Callable[[object], Any]
    required: bool = False


class GivenOrder(NamedTuple):
    """The JSON object that an order is, unchecked."""

    verb: str
    given: object
    by: object
    """The token of a viewer of the web page."""


def parse(body: bytes | str) -> GivenOrder:
    """Raises OperationError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise _not_json() from None
    return _order(message)


def parse_in_turns(body: bytes | str) -> Work[GivenOrder]:
    """As `parse`, for a long order."""
    try:
        message = yield from long_json.read(body)
    except (ValueError, RecursionError):
        raise _not_json() from None
    return _order(message)


def _not_json() -> OperationError:
    return OperationError("an order is one JSON object", 'send one with "verb" and "args"')


def _order(message: object) -> GivenOrder:
    if not isinstance(message, dict) or not isinstance(message.get("verb"), str):
        raise OperationError('an order must be one JSON object with "verb" and "args"')
    return GivenOrder(message["verb"], message.get("args", {}), message.get("by"))


def check(arguments: Mapping[str, Argument], given: object) -> dict[str, Any]:
    """The given arguments, as the verb needs them. Raises OperationError."""
    if not isinstance(given, dict):
        raise OperationError(messages.ARGUMENTS_NOT_OBJECT())
    if unknown := given.keys() - arguments.keys():
        raise OperationError(
            messages.UNKNOWN_ARGUMENT(
                names=", ".join(sorted(repr(name[:40]) for name in unknown))[:200]
            )
        )
    if missing := {name for name, row in arguments.items() if row.required} - given.keys():
        raise OperationError(
            f"argument {', '.join(sorted(missing))} is missing",
            "send it, or use the client of the manager's version",
        )
    return {name: check_argument(name, arguments[name].parse, given[name]) for name in given}


def check_argument(name: str, parse: Callable[[object], Any], value: object) -> Any:
    """The value of one argument. Raises OperationError."""
    try:
        return parse(value)
    except OperationError as error:
        raise OperationError(error.line, code=error.code, argument=name) from None


# -- kinds of arguments --


def integer(low: int, high: int) -> Callable[[object], Any]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise OperationError(f"must be a whole number from {low} to {high}")
        return value

    return parse


def duration(low_ms: int, high_ms: int) -> Callable[[object], Any]:
    within = integer(low_ms, high_ms)

    def parse(value: object) -> int:
        try:
            return int(within(value))
        except OperationError:
            low, high = format_duration(low_ms), format_duration(high_ms)
            raise OperationError(f"must be from {low} to {high}, in whole milliseconds") from None

    return parse


def of_field(
    field: Field, others: Mapping[str, Callable[[object], Any]], *, is_wish: bool = False
) -> Argument:
    """The argument that is named as the field. `others`: the kinds that only the caller knows.

    None stands for no value where the field has a word for that, and for each number or word of a
    wish.
    """
    kinds: Mapping[str, Callable[[object], Any]] = {
        fields.COUNT: integer(field.low, field.high),
        fields.SIZE: integer(field.low, field.high),
        fields.DURATION: duration(field.low, field.high),
        fields.PERCENT: integer(field.low, field.high),
        fields.WORD: task_class if field.name == "task_class" else choice(*field.words),
        **others,
    }
    parse = kinds[field.kind]
    may_be_none = field.unset or (is_wish and field.kind not in fields.LISTS)
    return Argument(optional(parse) if may_be_none else parse)


def optional(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else parse(value)


def choice(*names: str) -> Callable[[object], Any]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            meant = did_you_mean(value, names) if isinstance(value, str) else ""
            raise OperationError(f"must be one of {', '.join(names)}{meant}")
        return value

    return parse


def task_class(value: object) -> TaskClass:
    return TaskClass(choice(*TaskClass)(value))


def text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise OperationError("must be a text of 1 to 256 characters")
    return one_line(value)


def env_name(value: object) -> str:
    if not isinstance(value, str) or not is_env_name(value):
        raise OperationError(f"is no name of an environment: {ENV_NAME_FORM}")
    return value


def names(find: Callable[[str], int | None], what: str) -> Callable[[object], Any]:
    def parse(value: object) -> tuple[str, ...]:
        if (
            not isinstance(value, list)
            or len(value) > MAX_NAMES
            or not all(isinstance(name, str) and name for name in value)
        ):
            raise OperationError(messages.MUST_BE_NAMES(limit=MAX_NAMES, kind=what))
        if unknown := [name for name in value if find(name) is None]:
            raise OperationError(messages.UNKNOWN_NAME(kind=what, name=unknown[0][:40]))
        return tuple(dict.fromkeys(map(_plain, value)))

    return parse


def _plain(name: str) -> str:
    """`54321` of `+54321`, which getent and chown take too."""
    digits = name.removeprefix("+")
    return digits if digits.isascii() and digits.isdigit() else name


def members(
    find_user: Callable[[str], int | None], find_group: Callable[[str], int | None]
) -> dict[str, Argument]:
    """Users and groups: the whole list, or those that come to it and those that leave it."""
    anything = Argument(names(lambda _name: 0, "name"))
    users, groups = Argument(names(find_user, "user")), Argument(names(find_group, "group"))
    return {
        "users": users, "add_users": users, "drop_users": anything,
        "groups": groups, "add_groups": groups, "drop_groups": anything,
    }  # fmt: skip


def named(before: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The lists of `given` in place of its changes; `before` has the present `users`, `groups`.

    Raises OperationError: a list has too many names, or a name to drop is unknown.
    """
    for kind, what, find in (("users", "user", user_id), ("groups", "group", group_id)):
        listed = given.get(kind, getattr(before, kind, ()))
        added, dropped = given.pop(f"add_{kind}", ()), given.pop(f"drop_{kind}", ())
        if not (added or dropped):
            continue
        found = tuple(dict.fromkeys((*listed, *added)))
        numbers = {name: find(name) for name in dropped if name not in found}
        if unknown := [name for name, number in numbers.items() if number is None]:
            raise OperationError(messages.UNKNOWN_NAME(kind=what, name=unknown[0][:40]))
        gone = set(numbers.values())  # the list may have a number for a name
        given[kind] = tuple(
            name for name in found if name not in dropped and not (gone and find(name) in gone)
        )
        if len(given[kind]) > MAX_NAMES:
            raise OperationError(messages.MUST_BE_NAMES(limit=MAX_NAMES, kind=what))
    return given


def access(before: Any, after: Any) -> dict[str, list[str]]:
    """The users and @groups that gained and lost access."""
    was, now = (
        [*getattr(one, "users", ()), *(f"@{group}" for group in getattr(one, "groups", ()))]
        for one in (before, after)
    )
    return {
        "gained": [name for name in now if name not in was],
        "lost": [name for name in was if name not in now],
    }


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise OperationError("must be true or false")
    return value
