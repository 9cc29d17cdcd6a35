"""The parameter type and the options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import NO_WAIT, NO_WAIT_HELP, RUN_DIR, ValueKind
from client_plugin.verbs.presentation.tables import json_text
from client_plugin.ways import choice, locations

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


class Parsed(ParamType):
    """A value as users' verbs parse it."""

    def __init__(self, kind: ValueKind) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._kind.parse(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # when a shell asks

        if self._kind.complete is None:
            return []
        names = self._kind.complete(choice.Whom(ctx.params.get("run_dir")), incomplete)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


ENV = Parsed(kinds.ENV)
DURATION = Parsed(kinds.DURATION)
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
