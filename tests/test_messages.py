"""Every line that a user can meet: one line, the event, the remedy; a row where it has uses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from string import Formatter

from client_plugin import verbs
from client_plugin.messages import form
from client_plugin.messages.form import Message, MessageLine, Notice, Part, relayed
from nodemgr.cli.presentation import generated_messages
from nodemgr.cli.presentation.group import VERBS
from tests.each import each
from tests.sources import nodes, parsed

ROOT = Path(__file__).resolve().parent.parent
TABLES = generated_messages.tables()
ROWS = {key: row for table in TABLES.values() for key, row in table.items()}
HOME = {key: module for module, table in TABLES.items() for key in table}

HELD = ("nodemgr", "client_plugin", "jupyter", "csrc")
"""Folders and files in which each message is a row of a table, or `stated` at its place."""
SPOKEN = {
    "Away", "Busy", "Fault", "GateUnavailable", "Lost", "ManagerAway", "NodeInUse",
    "NvmlUnavailable",
    "OperationError", "PageHostFault", "PastFault", "Refused", "RequestRefused", "RunDirError",
    "ServiceFault", "SettingsError", "SimulatorError", "StepFailed", "StoreFailed",
    "StoreUnusable", "UdpAddressError", "UnitError", "WrongValue",
    "BadParameter", "CheckResult", "NotSeen", "PlannedStep", "Status", "SystemExit", "UsageError",
    "_expect", "_fail", "answered", "fail", "narrate", "noted", "say",
}  # fmt: skip
"""Exceptions and functions whose text a user reads.

Others are contracts inside the program, which no user meets: ValueError, TypeError,
KeyError, OSError, EncodingError, WireError, PeerGone and their like.
"""
CODES = {
    "", "away", "busy", "forbidden", "host", "internal", "not_found", "quota", "refused", "store",
    "token", "unknown_env", "unreachable", "usage", "viewers",
}  # fmt: skip
NAMES = re.compile(
    r"(?:[A-Z0-9_]{2,}s?|NVIDIA|Debian|UNIX|NODEMGR_\w+|Python|[A-Z]\w*Error|OutOfMemoryError)\b"
)
"""Words in capitals with which a line may begin."""
CLICK = re.compile(r"(?:No such (?:command|option)|Missing|Option|Got|Invalid value) ")
"""Beginnings of the lines about a command line that click makes, too."""
FORMATS = re.compile(r"r|d|\.[0-9]+f?|")
"""The formats of a field that the operator % and C have, too."""
LONGEST = 220
FIELD_SAMPLE = 7


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("*.py"))
    )


def fields_of(row: Message) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(row.template) if name is not None}


def rendered(row: Message) -> MessageLine:
    return row(**dict.fromkeys(fields_of(row), FIELD_SAMPLE))


# -- the rows --


def test_no_key_stands_twice_and_no_two_rows_say_the_same() -> None:
    keys = Counter(key for table in TABLES.values() for key in table)
    assert not [key for key, count in keys.items() if count > 1]
    texts = Counter(row.template for row in ROWS.values() if " " in row.template)
    assert not [text for text, count in texts.items() if count > 1]
    for module, table in TABLES.items():
        path = ROOT / f"{module.replace('.', '/')}.py"
        assigned = [
            ast.unparse(node.targets[0])
            for node in parsed(path).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()
        ]
        assert len(assigned) == len(set(assigned)), f"{module} assigns a key twice"
        assert set(table) <= set(assigned), f"{module} has rows of another table"


@each(sorted(ROWS))
def test_a_row_makes_a_good_line(key: str) -> None:
    row = ROWS[key]
    line = rendered(row)
    assert line.code == row.code
    assert line.isprintable()
    assert "  " not in line
    assert "?" not in line, f"{key}: a field is not filled in: {line}"
    assert row.code in CODES, f"{key}: code {row.code!r}"
    assert not line.endswith((".", ";", ",", ":")), line
    is_named = NAMES.match(line) or CLICK.match(line)
    assert line[0].islower() or not line[0].isalpha() or is_named, line
    assert len(row.template) <= LONGEST, f"{key} has {len(row.template)} characters"
    for _, name, spec, conversion in Formatter().parse(row.template):
        assert name is None or name.isidentifier(), f"{key}: {{{name}}} is no plain name"
        assert name is None or FORMATS.fullmatch(conversion or spec or ""), f"{key}: {{{name}}}"


REMEDY_IN_FIELD = {"wrong", "why", "line", "fault"}
"""Fields that carry a line or a rule of another row, with its remedy, at the end of a line."""


@each(sorted(key for key, row in ROWS.items() if not isinstance(row, (Part, Notice))))
def test_a_line_says_what_to_do(key: str) -> None:
    row = ROWS[key]
    fields = [name for _, name, _, _ in Formatter().parse(row.what) if name is not None]
    ends_with_a_line = fields and fields[-1] in REMEDY_IN_FIELD and row.what.endswith("}")
    assert row.next or "must" in row.what.split() or ends_with_a_line, row.template


@each(sorted(ROWS))
def test_a_verb_in_a_line_exists(key: str) -> None:
    named = re.findall(r"`nodemgr ([a-z]+)(?: ([a-z]+))?", ROWS[key].template)
    for verb, order in named:
        assert verb in VERBS, ROWS[key].template
        under = verbs.find(verb).under if verb in verbs.VERBS else {}
        assert not under or not order or order in under, ROWS[key].template


def test_a_line_is_one_line_and_survives_every_field() -> None:
    row = Message("{name!r} has {count:d} jobs: {why}", "see {where}", "refused")
    assert row(name="a", count=3, why="full", where="x") == "'a' has 3 jobs: full; see x"
    assert row(name="a", count=3, why="a\nb\x1b[1m\u202e", where=1) == (
        "'a' has 3 jobs: a b?[1m?; see 1"
    )
    assert row() == "? has ? jobs: ?; see ?"
    assert row(name="a", count="many", why="", where="{}") == "a has many jobs: ; see {}"
    assert row(name="a", count=1, why="", where="").code == "refused"
    assert relayed("a\tb\0").code == ""
    assert relayed("a\tb\0") == "a b?"


def test_a_line_at_its_place_has_the_same_form() -> None:
    line = form.stated("no queue 'a{b}'", "`nodemgr queue list`", "not_found")
    assert line == "no queue 'a{b}': `nodemgr queue list`"
    assert line.code == "not_found"
    assert form.stated("it ended: early\x1b[1m", "again") == "it ended: early?[1m; again"
    assert form.sentence(form.stated("it ended", "again")) == "It ended: again."


class Unprintable:
    def __format__(self, spec: str) -> str:
        raise ValueError

    def __str__(self) -> str:
        raise ValueError


def test_a_field_without_a_text_is_a_question_mark() -> None:
    assert Message("{what} is ill")(what=Unprintable()) == "? is ill"


STATIC = ROOT / "nodemgr" / "edge" / "page" / "static"


NO_CLIENT = ROOT / "jupyter" / "nodemgr_jupyter" / "no_client.py"


def test_the_line_of_a_jupyter_server_without_a_client_is_made_from_its_table() -> None:
    """python -m nodemgr.cli.presentation.generated_messages > …/no_client.py"""
    assert NO_CLIENT.read_text() == generated_messages.no_client()
    made: dict[str, str] = {}
    exec(NO_CLIENT.read_text(), made)
    row = ROWS["NO_CLIENT"]
    assert made["NO_CLIENT"] % {"error": "100 %"} == row(error="100 %")


def test_a_refusal_of_the_web_page_is_a_sentence_with_a_remedy() -> None:
    said = [
        text
        for path in sorted(STATIC.glob("*.js"))
        for _, text in re.findall(r"new Error\(\s*([\"`])(.*?)\1", path.read_text())
    ]
    assert len(said) == 5
    for text in said:
        assert re.fullmatch(r"[A-Z$].*[:;] (write|give|paste) .*\.", text), text


# -- the sites --


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_of(path: Path) -> dict[str, str]:
    """Name in this file -> the table, or `TABLE.KEY`, that it stands for."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    found = {}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                target = f"{source}.{alias.name}"
                if target in TABLES or source in TABLES:
                    found[alias.asname or alias.name] = target
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in TABLES and alias.asname:
                    found[alias.asname] = alias.name
    return found


def key_of(node: ast.expr, names: dict[str, str]) -> str | None:
    """The key of the row that an expression names."""
    if isinstance(node, ast.Name) and node.id in names:
        table, _, key = names[node.id].rpartition(".")
        return key if table in TABLES else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if names.get(node.value.id) in TABLES else None
    return None


@cache
def uses(path: Path) -> list[tuple[str, ast.Call | None, int]]:
    """Each use of a row: its key, the call that makes a line of it, the line of the source."""
    names, found = names_of(path), nodes(path)
    made = {id(node.func): node for node in found if isinstance(node, ast.Call)}
    return [
        (key, made.get(id(node)), node.lineno)
        for node in found
        if isinstance(node, ast.expr) and (key := key_of(node, names)) is not None
    ]


SOURCES = [path for path in python_files(*HELD) if module_of(path) not in TABLES]


@each(SOURCES, module_of)
def test_a_site_names_the_fields_of_its_row(path: Path) -> None:
    for key, call, number in uses(path):
        assert key in ROWS, f"{path}:{number}: there is no row {key}"
        if call is not None:
            assert not call.args, f"{path}:{number}: {key} takes its fields by name"
            given = {word.arg for word in call.keywords}
            assert given == fields_of(ROWS[key]), f"{path}:{number}: {key} has {given}"


def test_every_row_is_used() -> None:
    used = {key for path in SOURCES for key, _, _ in uses(path)}
    in_c = {
        name.removeprefix("NM_")
        for path in (ROOT / "csrc").rglob("*.[ch]")
        if path.name != "messages.h"  # made of the tables
        for name in re.findall(r"\bNM_[A-Z0-9_]+\b", path.read_text())
    }
    in_jupyter = set(re.findall(r"^([A-Z_]+) = ", NO_CLIENT.read_text(), re.MULTILINE))
    assert not set(ROWS) - used - in_c - in_jupyter


def literals(node: ast.expr) -> bool:
    """Whether an expression makes a text by itself."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp():
            return literals(node.left) or literals(node.right)
        case ast.IfExp():
            return literals(node.body) or literals(node.orelse)
        case ast.Call(func=ast.Attribute(attr="join" | "format", value=value)):
            return literals(value)
        case ast.Call(func=ast.Name(id="relayed"), args=[text]):
            return literals(text)
        case _:
            return False


TEXT_AT = {"CheckResult": 1, "PlannedStep": 1, "Status": None, "_expect": 1, "noted": 3}
"""The argument with the text, where it is not the first; None: it has a name."""


def texts_of(call: ast.Call) -> list[ast.expr]:
    at = TEXT_AT.get(ast.unparse(call.func).rpartition(".")[2], 0)
    named = [word.value for word in call.keywords if word.arg in ("why", "detail")]
    return named if at is None else [*call.args[at : at + 1], *named]


def stated_at(call: ast.Call) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    """The event, the remedy and the code of a line that stands at its place."""
    named = {word.arg: word.value for word in call.keywords}
    given = [*call.args, None, None, None]
    return given[0], named.get("next", given[1]), named.get("code", given[2])


WITHOUT_REMEDY = {
    "BadParameter", "CheckResult", "GateUnavailable", "NotSeen", "PastFault", "PlannedStep",
    "Refused", "Status", "StoreFailed", "UnitError", "WrongValue", "_expect", "answered", "narrate",
    "noted", "notice", "say",
}  # fmt: skip
"""Calls whose text stands inside another line, or reports progress: no remedy is needed."""


def template(node: ast.expr) -> str:
    """A literal with a figure at each of its fields, which a line may begin or end with."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(template(v) if isinstance(v, ast.Constant) else "7" for v in values)
        case _:
            return "7"


def good(text: str) -> bool:
    """The same form as a row of a table."""
    is_named = NAMES.match(text) or CLICK.match(text)
    return (
        len(text) <= LONGEST
        and "  " not in text
        and not text.endswith((".", ";", ",", ":"))
        and (text[0].islower() or not text[0].isalpha() or is_named is not None)
    )


@each(python_files(*HELD), module_of)
def test_a_line_at_its_place_is_a_good_line(path: Path) -> None:
    for node in nodes(path):
        if not isinstance(node, ast.Call):
            continue
        name, at = ast.unparse(node.func).rpartition(".")[2], f"{path}:{node.lineno}"
        if name not in SPOKEN | {"stated", "notice"}:
            continue
        if name in WITHOUT_REMEDY:
            texts = [text for text in texts_of(node) if literals(text) and name != "answered"]
        else:
            what, remedy, code = stated_at(node)
            texts = [text for text in (what, remedy) if text is not None and literals(text)]
            if what is not None and literals(what) and remedy is None:
                ends = ast.unparse(what).rstrip("'\"").endswith("}")
                is_rule = "must" in template(what).split() or ": " in template(what)
                assert ends or is_rule, f"{at}: no remedy"
            if name == "stated":
                assert remedy is not None, f"{at}: no remedy"
                assert ast.unparse(remedy) not in ("''", '""'), f"{at}: no remedy"
            if isinstance(code, ast.Constant):
                assert code.value in CODES, f"{at}: code {code.value!r}"
        for text in texts:
            for verb, order in re.findall(r"`nodemgr ([a-z]+)(?: ([a-z]+))?", template(text)):
                assert verb in VERBS, at
                under = verbs.find(verb).under if verb in verbs.VERBS else {}
                assert not under or not order or order in under, at
            if isinstance(text, (ast.Constant, ast.JoinedStr)) and template(text)[:1] != "(":
                assert good(template(text)), f"{at}: {template(text)}"
