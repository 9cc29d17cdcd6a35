"""A user's verb (client_plugin/verbs) as a command of click, for listing, help and completion.

Knows: both tables of options. Must not know: any verb. A verb that is called by its name does not
come here (nodemgr/cli).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from client_plugin import verbs
from client_plugin.verbs.arguments import parser
from client_plugin.ways import locations
from client_plugin.ways.choice import Whom

if TYPE_CHECKING:
    BridgedType = click.ParamType[Any]
else:
    BridgedType = click.ParamType


class _Kind(BridgedType):
    def __init__(self, kind: parser.ValueKind) -> None:
        self.name = kind.name
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self._kind.complete is None:
            return []
        whom = Whom(ctx.params.get("run_dir") or locations.named_run_dir(), ctx.params.get("env"))
        return [
            CompletionItem(word)
            for word in self._kind.complete(whom, incomplete)
            if word.startswith(incomplete)
        ]


class _Command(click.Command):
    """Run and helped as everywhere, by the verb's own table."""

    verb: parser.Verb

    def get_help(self, ctx: click.Context) -> str:
        return parser.help_of(self.verb)

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        raise SystemExit(verbs.main([*self.verb.name.split(), *(args or ())]))


class _Group(_Command, click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verb.under)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        assert self.verb.find is not None
        return command_of(self.verb.find(cmd_name)) if cmd_name in self.verb.under else None


def command_of(verb: parser.Verb) -> click.Command:
    kind = _Group if verb.under else _Command
    command = kind(
        verb.name.split()[-1],
        params=[_parameter(option) for option in verb.options],
        short_help=verb.help,
    )
    command.verb = verb
    return command


def _parameter(option: parser.VerbOption) -> click.Parameter:
    type_ = None if option.kind is None else _Kind(option.kind)
    if option.is_argument:
        return click.Argument(
            [option.key], type=type_, nargs=-1 if option.repeat else 1, required=False
        )
    return click.Option(
        [*option.names, option.key], type=type_, is_flag=option.is_flag, multiple=option.repeat
    )
