"""Options and verbs as tables, and the command line parsed by them.

Knows: how options are written, help, the one line for a mistake. Must not know: any verb. (argparse
knows no option that stops the options at the first word of a command, and its import costs as much
as a whole answer of the manager.)
"""

from __future__ import annotations

import os
import re

from client_plugin.messages.form import SpokenError
from client_plugin.ways import locations
from client_plugin.ways.choice import Whom
from client_plugin.ways.faults import Exit, Fault
from client_plugin.ways.nearest import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple


HELP_WIDTH = 80
HELP_COLUMN = 26
NO_WAIT = "--no-wait"
NO_WAIT_HELP = "Fail at once if the manager is away (without it: wait up to 10 s for its restart)."
"""An option of every verb that has a run directory."""


class WrongValue(SpokenError, ValueError):
    """A word of the command line is not a valid value; the message shows the right form."""


class ValueKind:
    """The values that an option takes.

    `parse` raises WrongValue; `complete` returns the completions of a shell.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Any],
        complete: Optional[Callable[[Whom, str], Sequence[str]]] = None,
    ) -> None:
        self.name = name
        self.parse = parse
        self.complete = complete


class VerbOption:
    """One row of a verb's table. Without a dash before its name it is an argument by its place."""

    def __init__(
        self, *names: str, kind: Optional[ValueKind] = None, help: str = "",
        key: Optional[str] = None, metavar: Optional[str] = None,
        repeat: bool = False, required: bool = False, rest: bool = False, hidden: bool = False,
    ) -> None:  # fmt: skip
        """`kind` None: a flag, or a plain text for an argument.

        `repeat`: any number of values, as a list; `rest`: all words from here on are values,
        options too.
        """
        self.names = names
        self.kind = kind
        self.help = help
        self.key = key or max(names, key=len).lstrip("-").replace("-", "_")
        self.metavar = metavar
        self.repeat = repeat or rest
        self.required = required
        self.rest = rest
        self.hidden = hidden

    @property
    def is_argument(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def is_flag(self) -> bool:
        return self.kind is None and not self.is_argument

    def shown(self) -> str:
        """The form of its value in a usage line."""
        name = (
            self.metavar
            or (self.names[0] if self.is_argument else self.kind.name if self.kind else "").upper()
        )
        return name + ("..." if self.repeat and self.is_argument else "")


class Verb:
    """A row of the command line: `run` gets the parsed values and returns the exit code."""

    def __init__(
        self, name: str, help: str, run: Callable[[Said], int], options: Sequence[VerbOption] = (),
        text: str = "",
        under: Optional[Dict[str, str]] = None, find: Optional[Callable[[str], Verb]] = None,
    ) -> None:  # fmt: skip
        """`text`: its help below the first line.

        `under`: verbs that may follow it, with their help; `find` gives one.
        """
        self.name = name
        self.help = help
        self.run = run
        self.options = options
        self.text = text
        self.under = under or {}
        self.find = find

    def usage(self) -> str:
        words = [
            option.shown() if option.required else f"[{option.shown()}]"
            for option in self.options
            if option.is_argument
        ]
        return " ".join(
            ["nodemgr", self.name, "[OPTIONS]", *words, *(["VERB ..."] if self.under else [])]
        )


class Said:
    """The parsed command line: one attribute for each option; None, [] or False if absent."""

    def __init__(self, verb: Verb, inside: bool) -> None:
        self.verb = verb
        self.inside = inside
        """Whether the verb runs in a container."""
        self.run_dir: Optional[str] = None
        self.env: Optional[str] = None
        self.no_wait = False
        for option in verb.options:
            setattr(self, option.key, False if option.is_flag else [] if option.repeat else None)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def whom(self) -> Whom:
        return Whom(self.run_dir or locations.named_run_dir(), self.env, self.inside)


def mistake(verb: Verb, line: str) -> NoReturn:
    from client_plugin.messages import arguments as messages

    raise Fault(messages.SEE_HELP(line=line, path=f"nodemgr {verb.name}"), code=Exit.USAGE)


class HelpWanted(Exception):
    """The command line requests a verb's help."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(verb.name)
        self.verb = verb


def parse(
    verb: Verb, words: Sequence[str], inside: bool = False, before: Optional[Said] = None
) -> Said:
    """Raises Fault for a mistake, HelpWanted.

    `before`: the values of the verb above; they hold unless `words` replace them.
    """
    said = Said(verb, inside)
    if before is not None:
        said.run_dir, said.env, said.no_wait = before.run_dir, before.env, before.no_wait
    named = {
        name: option for option in verb.options if not option.is_argument for name in option.names
    }
    positional = [option for option in verb.options if option.is_argument]
    values: List[str] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if word == "--":
            values += reversed(queue)
            break
        if not word.startswith("-") or word == "-":
            values.append(word)
            if verb.under and word in verb.under:
                values += reversed(queue)
                break
            if positional and positional[0].rest:
                values += reversed(queue)
                break
            continue
        _option(verb, said, named, word, queue)
    if verb.under and values:
        assert verb.find is not None
        if values[0] not in verb.under or getattr(said, "as_json", False):
            _no_verb_under(verb, values[0])
        return parse(verb.find(values[0]), values[1:], inside, said)
    _arguments(verb, said, positional, values)
    for option in verb.options:
        if option.required and not option.is_argument and getattr(said, option.key) is None:
            mistake(verb, f"Missing option {option.names[0]!r}")
    return said


def _no_verb_under(verb: Verb, word: str) -> NoReturn:
    """`word` is no verb below `verb`, or has the --json of `verb` before it."""
    from client_plugin.messages import arguments as messages

    if word in verb.under:
        mistake(verb, "write --json behind the verb that it belongs to")
    known = messages.KNOWN_COMMANDS(known=", ".join(verb.under))
    meant = did_you_mean(word, verb.under) or known
    mistake(verb, messages.NO_SUCH_COMMAND(word=word, meant=meant))


def _option(
    verb: Verb, said: Said, named: Dict[str, VerbOption], word: str, queue: List[str]
) -> None:
    """Takes one option, and its value where it has one."""
    if word in ("-h", "--help"):
        raise HelpWanted(verb)
    if word == NO_WAIT and word not in named:
        said.no_wait = True
        return
    name, equals, value = word.partition("=")
    if not word.startswith("--") and word not in named:
        name, equals, value = word[:2], word[2:], word[2:]
    option = named.get(name)
    if option is None:
        if word[1:2].isdigit():
            name = word
        meant = did_you_mean(name, named) or _named(verb, said, word)
        mistake(verb, f"No such option {name!r}{meant}")
    if option.is_flag:
        if equals:
            mistake(verb, f"Option {name!r} does not take a value")
        setattr(said, option.key, True)
        return
    if not equals:
        if not queue:
            mistake(verb, f"Option {name!r} requires an argument")
        value = queue.pop()
    parsed = convert(verb, option, value)
    if option.repeat:
        getattr(said, option.key).append(parsed)
    else:
        setattr(said, option.key, parsed)


def _arguments(
    verb: Verb, said: Said, options: Sequence[VerbOption], values: Sequence[str]
) -> None:
    """Values by their places."""
    left = list(values)
    for option in options:
        if option.repeat:
            found, left = left, []
            setattr(said, option.key, [convert(verb, option, value) for value in found])
        elif left:
            setattr(said, option.key, convert(verb, option, left.pop(0)))
        if option.required and getattr(said, option.key) in (None, []):
            from client_plugin.messages import arguments as messages

            mistake(verb, messages.ARGUMENT_MISSING(shown=option.shown()))
    if left:
        from client_plugin.messages import arguments as messages

        if len(left) > 1:
            mistake(verb, f"Got unexpected extra arguments ({' '.join(left)})")
        mistake(verb, f"Got unexpected extra argument ({left[0]}){_named(verb, said, left[0])}")


def _named(verb: Verb, said: Said, word: str) -> str:
    """A remedy where a value stands without the name of its option, which is missing."""
    for option in verb.options:
        missing = option.required and not option.is_argument and getattr(said, option.key) is None
        if missing and re.fullmatch("-?[0-9].*", word):
            return f": write {option.names[0]} {word.lstrip('-')}"
    return ""


def convert(verb: Verb, option: VerbOption, value: str) -> Any:
    if option.kind is None:
        return value
    try:
        return option.kind.parse(value)
    except ValueError as wrong:  # WrongValue, and a UnitError of a unit's own parser
        name = option.shown() if option.is_argument else option.names[0]
        mistake(verb, f"Invalid value for '{name}': {wrong}")


# -- help --


def help_of(verb: Verb) -> str:
    from client_plugin.verbs.presentation.helps import EXAMPLES, default_of

    rows = []
    for option in verb.options:
        if not option.is_argument and not option.hidden:
            held = "" if option.is_flag else default_of(verb.name, max(option.names, key=len))
            rows.append((_written(option), with_default(option.help, option.required, held)))
    if all(name != NO_WAIT for name, _ in rows) and RUN_DIR in verb.options:
        rows.append((NO_WAIT, NO_WAIT_HELP))
    rows.append(("-h, --help", "Show this message and exit."))
    examples = EXAMPLES.get(verb.name, ())
    return help_text(
        verb.usage(), [verb.help, *verb.text.split("\n\n")], examples, rows, {"Verbs": verb.under}
    )


def with_default(text: str, is_required: bool, default: str) -> str:
    """An option's help, and what holds where the option is absent."""
    held = "[required]" if is_required else f"[default: {default}]" if default else ""
    return f"{text} {held}".rstrip()


def help_text(
    usage: str, paragraphs: Sequence[str], examples: Sequence[str],
    rows: Sequence[Tuple[str, str]], under: Dict[str, Dict[str, str]],
) -> str:  # fmt: skip
    """The help of a user's or an administrator's verb.

    `rows`: the options; `under`: the verbs that may follow, by the heading above them.
    """
    import textwrap

    lines = [f"Usage: {usage}", ""]
    for paragraph in filter(None, paragraphs):
        text = " ".join(paragraph.split())
        lines += [f"  {line}" for line in textwrap.wrap(text, HELP_WIDTH - 4)]
        lines.append("")
    if examples:
        lines += ["Examples:", *(f"  {example}" for example in examples), ""]
    lines += ["Options:", *_rows(rows, rows)]
    every = [row for verbs in under.values() for row in verbs.items()]
    for heading, verbs in under.items():
        lines += ["", f"{heading}:", *_rows(list(verbs.items()), every)] if verbs else []
    return "\n".join(lines)


def _written(option: VerbOption) -> str:
    names = ", ".join(sorted(option.names, key=len))
    return names if option.is_flag else f"{names} {option.shown()}"


def _rows(rows: Sequence[Tuple[str, str]], beside: Sequence[Tuple[str, str]]) -> List[str]:
    """`beside`: the rows whose texts stand below each other."""
    import textwrap

    column = min(HELP_COLUMN, max(len(left) for left, _ in beside) + 4)
    lines = []
    for left, right in rows:
        text = textwrap.wrap(right, HELP_WIDTH - column) or [""]
        if len(left) + 4 > column:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left}".ljust(column) + text.pop(0))
        lines += [" " * column + line for line in text]
    return [line.rstrip() for line in lines]


RUN_DIR = VerbOption(
    "--run-dir",
    kind=ValueKind("directory", os.fspath),
    help="The manager's run directory (NODEMGR_RUN_DIR).",
)
JSON = VerbOption("--json", key="as_json", help="JSON on stdout: bytes and seconds as integers.")
