"""Each `nodemgr` command line of the documentation is valid: verbs, options and values exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import click
import pytest

from client_plugin import verbs
from client_plugin.verbs.arguments import parser
from client_plugin.verbs.arguments.parser import Verb
from nodemgr.cli.presentation.group import VERBS, nodemgr
from tests.cli.conftest import ROOT

DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
STARTERS = {"sudo", "exec", "time"}
ENDS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "(", ")"}


def words_of(line: str) -> list[list[str]]:
    """The commands of a shell line, each as its words, without variables before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    found = []
    for words in commands:
        while words and (words[0] in STARTERS or re.match(r"\w+=", words[0])):
            words.pop(0)
        found.append(words)
    return found


def in_blocks(text: str) -> Iterator[list[str]]:
    """Command lines of the blocks marked sh.

    Readers copy them, so their values must be right too.
    """
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            commands = words_of(line.replace("$(", "( "))
            yield from (words for words in commands if words[:1] == ["nodemgr"])


def in_sentences(text: str) -> Iterator[list[str]]:
    """Command lines between backticks: some have ENV or N in place of a value."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`([^`]+)`", text):
        if re.match(r"(sudo )?nodemgr [a-z]", line := " ".join(line.split())):
            yield from (words for words in words_of(line) if words[:1] == ["nodemgr"])


def user_verb(words: list[str]) -> Verb:
    verb = verbs.find(words[0])
    if len(words) > 1 and verb.find is not None and not words[1].startswith("-"):
        assert words[1] in verb.under, words
        return verb.find(words[1])
    return verb


def click_verb(words: list[str]) -> click.Command:
    command: click.Command | None = nodemgr
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        assert command is not None, words
    assert command is not None
    return command


def options_of(words: list[str]) -> set[str]:
    named: list[Sequence[str]]
    if words[0] in verbs.VERBS:
        named = [option.names for option in user_verb(words).options]
    else:
        named = [parameter.opts for parameter in click_verb(words).params]
    return {name for names in named for name in names} | {"--help", "-h"}


def check_options(words: list[str]) -> None:
    """The verb and each option before the command of `run` and `submit` exist."""
    assert words[0] in VERBS or words[0].startswith("-"), f"{words}: no such verb"
    if words[0].startswith("-"):
        return
    own = words[: words.index("--")] if "--" in words else words
    named = {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}
    assert named <= options_of(words), f"{words}: {named - options_of(words)}"


def check_whole(words: list[str]) -> None:
    """The verb takes these words; nothing is run.

    The pages invent users and groups: root stands for each of them. `kernel install --user` has no
    value.
    """
    pairs = zip(["", *words], words, strict=False)
    words = [
        "root" if before in ("--user", "--group") and not word.startswith("-") else word
        for before, word in pairs
    ]
    if words[0] in verbs.VERBS:
        parser.parse(verbs.find(words[0]), words[1:])
        return
    command, rest = click_verb(words), list(words[1:])
    if isinstance(click_verb(words[:1]), click.Group):
        rest = rest[1:]
    command.make_context(words[0], rest)


@pytest.mark.parametrize("page", PAGES)
def test_the_command_lines_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for words in in_blocks(text):
        check_options(words[1:])
        check_whole(words[1:])
    for words in in_sentences(text):
        check_options(words[1:])


def test_lines_are_found_and_wrong_ones_are_noticed() -> None:
    """The checks above can fail."""
    lines = "A=1 sudo nodemgr queue moove j1 low && ls\nnodemgr quota set alice --gpus two\n"
    page = f"Say `nodemgr quota sett alice`.\n```sh\n{lines}```\n"
    assert list(in_sentences(page)) == [["nodemgr", "quota", "sett", "alice"]]
    blocks = list(in_blocks(page))
    assert blocks[0] == ["nodemgr", "queue", "moove", "j1", "low"]
    assert blocks[1] == ["nodemgr", "quota", "set", "alice", "--gpus", "two"]
    with pytest.raises(AssertionError):
        check_options(["quota", "sett", "alice"])
    with pytest.raises(AssertionError):
        check_options(blocks[0][1:])
    with pytest.raises(click.UsageError):
        check_whole(blocks[1][1:])
    with pytest.raises(AssertionError):
        check_options(["status", "--ennv", "alice"])
