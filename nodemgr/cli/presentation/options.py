"""Parameter types and options that several verbs share: sizes, durations, envs, run directory."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from client_plugin import units
from client_plugin.messages import arguments as messages
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import NO_WAIT, NO_WAIT_HELP, RUN_DIR
from client_plugin.verbs.presentation.tables import json_text
from client_plugin.ways import choice, locations

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])
NS_PER_MS = 1_000_000
MAX_DIGITS = 19


class Unit(ParamType):
    """A size or duration: converted by `parse`, refused with the right form shown."""

    def __init__(self, name: str, parse: Callable[[str], int], none_is: str | None = None) -> None:
        self.name = name
        self._parse = parse
        self._none_is = none_is

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or (self._none_is and value == self._none_is):
            return value
        try:
            return self._parse(value)
        except units.UnitError as wrong:
            self.fail(str(wrong), param, ctx)


class Count(ParamType):
    """A whole number within limits; no `high`: as many as one likes."""

    name = "n"

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if (
            isinstance(value, str)
            and value.isascii()
            and value.isdecimal()
            and len(value) < MAX_DIGITS
        ):
            value = int(value)
        if (
            not isinstance(value, int)
            or value < self._low
            or (self._high is not None and value > self._high)
        ):
            text, low, high = str(value), self._low, self._high
            wrong = (
                messages.NO_WHOLE_NUMBER_ABOVE(text=text, low=low)
                if high is None
                else messages.NO_WHOLE_NUMBER_BETWEEN(text=text, low=low, high=high)
            )
            self.fail(wrong, param, ctx)
        return value


class EnvName(ParamType):
    name = "env"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not locations.is_env_name(value):
            form = locations.ENV_NAME_FORM
            wrong = messages.NO_NAME(text=value, what="an environment", form=form)
            self.fail(wrong, param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # when a shell asks

        run_dir = ctx.params.get("run_dir") or locations.find_run_dir()
        try:
            names = sorted(os.listdir(os.path.join(run_dir, "envs")))
        except OSError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Moment(ParamType):
    """A time in the past, as nanoseconds since the epoch.

    The form is an age (`2h`) or a date (`2026-01-31T12:00`).
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            moment = int(datetime.datetime.fromisoformat(value).timestamp()) * 1_000 * NS_PER_MS
        except ValueError:
            pass
        else:
            if moment > time.time_ns():
                self.fail(messages.FUTURE_MOMENT(text=value), param, ctx)
            return moment
        try:
            return time.time_ns() - units.parse_duration_ms(value) * NS_PER_MS
        except units.UnitError:
            self.fail(messages.NO_MOMENT(text=value), param, ctx)


class Queue(ParamType):
    """A queue's name."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(kinds.QUEUE.parse(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # when a shell asks

        names = kinds.queues(choice.Whom(ctx.params.get("run_dir")), incomplete)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


SIZE = Unit("size", units.parse_size)
SIZE_OR_NONE = Unit("size", units.parse_size, none_is="none")
PERCENT_OR_NONE = Unit("percent", units.parse_percent, none_is="none")
DURATION = Unit("duration", units.parse_duration_ms)
ENV = EnvName()
QUEUE = Queue()
MOMENT = Moment()
DIRECTORY = click.Path(file_okay=False, readable=False)
"""A directory that the user may be unable to read; the verb reports that later in better words.

The value is a string: the import of pathlib takes an eighth of a verb's time.
"""


def _unless_around_us(
    ctx: click.Context, parameter: click.Parameter, directory: str | None
) -> str | None:
    """The value of the variable, unless it names the manager of the surrounding environment.

    Such a variable does not lead out of the environment; the flag does.
    """
    named_by = ctx.get_parameter_source(parameter.name or "")
    return (
        None
        if named_by is ParameterSource.ENVIRONMENT and locations.named_run_dir() is None
        else directory
    )


def run_dir_option(function: F) -> F:
    """`--run-dir`; None if it is absent: an environment around the process comes first then.

    See client_plugin/ways/choice.py.
    """
    function = click.option(NO_WAIT, is_flag=True, expose_value=False, help=NO_WAIT_HELP)(function)
    return click.option(
        "--run-dir",
        type=DIRECTORY,
        envvar="NODEMGR_RUN_DIR",
        callback=_unless_around_us,
        help=RUN_DIR.help,
    )(function)


def json_option(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="JSON on stdout: bytes and seconds as integers."
    )(function)


def print_json_line(value: object) -> None:
    click.echo(json_text(value, separators=(",", ":")))
