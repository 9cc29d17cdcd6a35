"""`nodemgr events`: what happened on the node, and with --follow what happens, one event a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from client_plugin import units
from client_plugin.messages.form import stated
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import ValueKind
from client_plugin.verbs.presentation import tables
from client_plugin.ways import locations, terminal
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.event_stream import EventStream
from client_plugin.ways.nearest import did_you_mean
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.helps import HelpedCommand
from nodemgr.core.model import event_names

ENVELOPE = {"schema_version", "sequence", "name", "time_ns", "monotonic_ns"}
"""The fields that every event has; the other fields are the event's own."""
BY_INDEX = {"gpus", "fresh_gpus"}
"""UUIDs that a person need not see where indices stand beside them."""
WARNING = {"warning"}
"""A sentence made of the other fields, where they name the user who gave the order."""
LAST = ("user", "queue", "chosen", "command")
"""Behind the other fields of an event, where the edge of a terminal may cut them off."""
DEFAULT_COUNT = 50
PAGE = 1_000


def _known_names(
    _ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for name in names:
        if not event_names.is_known(name):
            family = name.partition(".")[0]
            others = [
                one for one in event_names.EVENT_NAMES if one.startswith(family + ".")
            ] or event_names.FAMILIES
            meant = did_you_mean(name, (*event_names.EVENT_NAMES, *event_names.FAMILIES))
            raise click.BadParameter(
                stated(
                    f"there is no event {name!r}",
                    f"name one of {', '.join(others)}{meant}",
                    "usage",
                )
            )
    return names


def _since(text: str) -> tuple[int, int]:
    """(sequence, 0), or (0, a time in nanoseconds)."""
    if text.isascii() and text.isdecimal():
        return kinds.count(0).parse(text), 0
    return 0, kinds.MOMENT.parse(text)


SINCE = options.Parsed(ValueKind("time", _since))
COUNT = options.Parsed(kinds.count(0))


@click.command(
    cls=HelpedCommand, short_help="Show the node's past events, and with --follow new ones."
)
@click.option("--follow", "-f", is_flag=True, help="Go on with new events, until Ctrl-C.")
@click.option(
    "--since",
    type=SINCE,
    help="Events after this sequence number, or since a time: 1200, 2h, 2026-01-31T12:00.",
)
@click.option("--count", "-n", type=COUNT, help="At most this many past events.")
@click.option(
    "--name", "names", multiple=True, callback=_known_names, metavar="NAME",
    help=(
        "Only events of this name (task.granted) or family: "
        f"{', '.join(event_names.FAMILIES)} (repeatable)."
        ),
)  # fmt: skip
@click.option("--full", is_flag=True, help="Lines wider than the terminal as a whole.")
@options.run_dir_option
@options.json_option
def command(
    follow: bool,
    since: tuple[int, int] | None,
    count: int | None,
    names: tuple[str, ...],
    full: bool,
    run_dir: str | None,
    as_json: bool,
) -> None:
    """Show what happened on the node, oldest first (for admins). JSON is one object a line.

    On a terminal a line ends at its edge; a pipe gets it whole.
    """
    control = asking.control(run_dir)
    width = None if as_json or full or not sys.stdout.isatty() else terminal.columns()
    after = None if since is None else _sequence(control, *since)
    last = after or 0
    default = DEFAULT_COUNT if count is None and after is None else count
    for event in _past(control, after, default):
        last = event["sequence"]
        _print(event, names, as_json, width)
    if not follow:
        return
    if count == 0 and after is None:
        last = max((event["sequence"] for event in _past(control, None, 1)), default=0)
    with EventStream(run_dir or locations.find_run_dir(), last) as stream:
        for event in stream.follow():
            _print(event, names, as_json, width)


def _sequence(control: ControlConnection, sequence: int, time_ns: int) -> int:
    """The number before the first event since that time; of no time, the sequence itself."""
    if not time_ns:
        return sequence
    last = max((event["sequence"] for event in _past(control, None, 1)), default=0)
    while sequence < last:
        middle = (sequence + last) // 2
        after = control.call("events", since=middle, limit=1)["events"]
        if after and after[0]["time_ns"] < time_ns:
            sequence = after[0]["sequence"]
        else:
            last = middle
    return sequence


def _past(
    control: ControlConnection, since: int | None, count: int | None
) -> Iterator[tables.TableRow]:
    """Stored events, oldest first: the last `count`.

    With `since`: the first `count` after it (None: all).
    """
    left = count
    while left is None or left > 0:
        limit = PAGE if left is None else min(left, PAGE) if since is not None else left
        page = control.call("events", **({} if since is None else {"since": since}), limit=limit)[
            "events"
        ]
        yield from page
        if since is None or len(page) < limit:
            return
        since = page[-1]["sequence"]
        left = None if left is None else left - len(page)


def _print(
    event: tables.TableRow, names: tuple[str, ...], as_json: bool, width: int | None
) -> None:
    if names and not any(
        event["name"] == name or event["name"].startswith(name + ".") for name in names
    ):
        return
    if as_json:
        options.print_json_line(event)
    else:
        line = _line(event, tables.wall_time(time.time_ns()) if width is not None else None)
        click.echo(line if width is None or len(line) <= width else line[: width - 1] + "…")


def _line(event: tables.TableRow, now: str | None) -> str:
    """`now`: for a terminal, which has room for a shorter form: no date of today."""
    hidden = ENVELOPE | (BY_INDEX if "gpu_indices" in event else set())
    hidden |= WARNING if "by" in event else set()
    if "clauses" in event:
        event = {**event, "reason": tables.why(event), "clauses": None}
    own = {
        _name(key): _value(key, value)
        for key, value in event.items()
        if key not in hidden and value not in (None, "", [])
    }
    at, sequence, name = tables.wall_time(event["time_ns"]) or "", event["sequence"], event["name"]
    if now is None:
        told = "  ".join(f"{key}={value}" for key, value in own.items())
        return f"{at}  {sequence:>6}  {name:<17} {told}".rstrip()
    if at.partition(" ")[0] == now.partition(" ")[0]:
        at = at.partition(" ")[2]
    fields = sorted(own, key=lambda key: key in LAST)
    told = " ".join(f"{key}={own[key]}" for key in fields)
    return f"{at} {sequence:>4} {name:<13} {told}".rstrip()


def _name(key: str) -> str:
    """The field's name without its unit, which stands beside the figure."""
    return key.removesuffix("_bytes").removesuffix("_ns").removesuffix("_ms")


def _value(key: str, value: Any) -> str:
    """The value in the unit at the end of the field's name."""
    if isinstance(value, int) and key.endswith("_bytes"):
        return units.format_size(value)
    if isinstance(value, int) and key.endswith("_ns") and not key.endswith("wall_ns"):
        return units.format_duration(value // 1_000_000)
    if isinstance(value, int) and key.endswith("_ms"):
        return units.format_duration(value)
    if isinstance(value, list):
        return ",".join(_value(key, item) for item in value)
    return tables.printable(str(value))
