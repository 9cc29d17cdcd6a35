"""The help of every command has a valid example, and shows the default of each option."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from client_plugin import verbs
from client_plugin.verbs.arguments import parser
from client_plugin.verbs.commands import history
from client_plugin.verbs.presentation import helps
from nodemgr.cli.admins import events
from nodemgr.cli.presentation import group
from nodemgr.cli.presentation import helps as admins_helps
from nodemgr.cli.presentation.group import VERBS
from nodemgr.core.model.entities import Quota


def users_verbs() -> Iterator[parser.Verb]:
    for name in dict.fromkeys([*verbs.VERBS, *verbs.INSIDE]):
        verb = verbs.find(name)
        yield verb
        for below in verb.under:
            assert verb.find is not None
            yield verb.find(below)


def admins_commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group.nodemgr, info_name="nodemgr")
    for name in sorted(VERBS.keys() - verbs.VERBS.keys()):
        command = group.nodemgr.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                assert found is not None
                yield f"{name} {below}", found


USERS = {verb.name: verb for verb in users_verbs()}
ADMINS = dict(admins_commands())


def words_of(example: str, path: str) -> list[str]:
    """The words that the shell would hand to the verb."""
    command = re.split(r" && | > ", example.removeprefix('eval "$(').removesuffix(')"'))[0]
    words = shlex.split(command)
    assert words[: 1 + len(path.split())] == ["nodemgr", *path.split()], example
    return words[1 + len(path.split()) :]


@pytest.mark.parametrize("name", USERS)
def test_a_users_verb_has_examples_that_can_be_typed_so(name: str) -> None:
    examples = helps.EXAMPLES[name]
    assert 1 <= len(examples) <= 2
    text = parser.help_of(USERS[name])
    for example in examples:
        assert f"\n  {example}\n" in text
        parser.parse(USERS[name], words_of(example, name))


@pytest.mark.parametrize("words", [*USERS, *ADMINS, ""])
def test_each_help_fits_a_terminal_of_80_columns(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words in USERS:
        text = parser.help_of(USERS[words])
    else:
        group.main([*words.split(), "--help"])
        text = capsys.readouterr().out
    assert text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", USERS)
def test_a_users_verb_shows_every_default(name: str) -> None:
    text = " ".join(parser.help_of(USERS[name]).split())
    for option in USERS[name].options:
        if option.is_argument or option.is_flag or option.hidden:
            continue
        if option.required:
            assert f"{option.help} [required]" in text
        else:
            default = helps.default_of(name, max(option.names, key=len))
            assert default, (
                f"{name} {option.names}: what holds where it is not said?"
                " (client_plugin/verbs/presentation/helps.py)"
            )
            assert f"{option.help} [default: {default}]" in text


@pytest.mark.parametrize("path", ADMINS)
def test_an_admins_command_has_examples_that_can_be_typed_so(path: str) -> None:
    examples, command = admins_helps.EXAMPLES[path], ADMINS[path]
    assert 1 <= len(examples) <= 2
    text = command.get_help(click.Context(command, info_name=f"nodemgr {path}"))
    for example in examples:
        assert f"  {example}\n" in text + "\n"
        if not isinstance(command, click.Group):
            command.make_context(path, words_of(example, path))


@pytest.mark.parametrize("path", ADMINS)
def test_an_admins_command_shows_every_default(path: str) -> None:
    command = ADMINS[path]
    text = " ".join(command.get_help(click.Context(command, info_name=f"nodemgr {path}")).split())
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        if option.required:
            assert f"{option.help} [required]" in text
        else:
            shown = admins_helps.default_of(path, option)
            assert re.match("[a-z0-9/~]", shown), (
                f"{path} {option.opts}: what holds where it is not said?"
                " (nodemgr/cli/presentation/helps.py)"
            )
            assert f"{option.help} [default: {shown}]" in text


@pytest.mark.parametrize("words", [*USERS, *ADMINS, ""])
def test_all_helps_have_one_form(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Users' and administrators' verbs: the same headings in one order, one column of options."""
    assert group.main([*words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    headings = [line.partition(":")[0] for line in text.splitlines() if re.match(r"\S", line)]
    assert headings == [
        heading
        for heading in ("Usage", "Examples", "Options", "Verbs", *group.HEADINGS)
        if heading in ("Usage", "Options") or f"\n{heading}:\n" in text
    ]
    options = text.partition("\nOptions:\n")[2].partition("\n\n")[0].splitlines()
    assert max(len(line) - len(line.lstrip()) for line in options) <= parser.HELP_COLUMN
    assert "[default: (" not in text
    assert "COMMAND [ARGS]" not in text


@pytest.mark.parametrize("name", USERS)
def test_the_default_of_env_is_what_the_verb_does(name: str) -> None:
    """`status` and `top` of a user show one environment, and never all that the user may see."""
    module = inspect.getmodule(USERS[name].run)
    assert module is not None
    way = inspect.getsource(module)
    if any("--env" in option.names for option in USERS[name].options):
        default = helps.default_of(name, "--env")
        assert (default == helps.OF_NODE) is ("choice.node_or_env(said.whom())" in way), (
            "the whole node, or the one environment"
        )


def test_the_defaults_that_are_figures_are_those_of_the_code() -> None:
    assert f"the last {history.DEFAULT_COUNT}," in helps.DEFAULTS["--count"]
    assert f"the last {events.DEFAULT_COUNT}," in admins_helps.DEFAULTS["events --count"]


@pytest.mark.parametrize("name", ["priority", "acquire", "no_gpu", "no_manager"])
def test_the_defaults_of_a_quota_are_those_of_the_core(name: str) -> None:
    assert admins_helps.QUOTA_DEFAULTS[f"--{name.replace('_', '-')}"] == getattr(Quota(1), name)
