"""The glossary's words are in the code, the retired ones are not, one name is one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from client_plugin.verbs import UNDER_QUEUE
from nodemgr.cli.presentation.group import VERBS
from tests.sources import nodes

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("nodemgr", "client_plugin", "sitecustomize", "csrc")
TESTS = ("tests", "bench")
BUILT = {"_bin", "_sim", "_lib", "__pycache__"}

RETIRED = {
    "alike": "equivalence group",
    "allowance": "rate limiter",
    "allowances": "rate limiter",
    "deed": "history entry",
    "deeds": "history entry",
    "patience": "timeout",
    "purse": "rate limiter",
    "quarantine": "descriptor filter",
    "residue": "unreclaimed memory",
    "residues": "unreclaimed memory",
    "sleeper": "inadmissible",
    "sleepers": "inadmissible",
    "telling": "notify",
    "unbegun": "requeued before start",
    "verdict": "placement result",
    "verdicts": "placement result",
}
"""Nowhere part of an identifier, with the word that is used instead."""
RETIRED_IN_THE_PRODUCT = {
    "apart": "held or dependent",
    "asleep": "inadmissible",
    "board": "reservation table",
    "kept": "reserved",
    "look": "scheduling pass; reading (of the driver); check",
    "looking": "scheduling pass",
    "looks": "scheduling passes",
    "places": "launch hosts",
    "scan": "scheduling pass",
    "scans": "scheduling passes",
    "tell": "notify",
    "tells": "notify",
}
"""The names of tests are sentences, in which these may stand in their ordinary sense."""
ALLOWED = {
    "deeds": "the field of a job's row in the store, and of `nodemgr history --json`",
    "kept_bytes": "the field of the rows of tasks and grants in the store",
}
"""Identifiers that keep a retired word, with the reason."""
RETIRED_VERBS = {"free": "unhold"}
GLOSSARY = ROOT / "docs" / "glossary.md"
ENTRY = re.compile(r"- \*\*[^*]+\*\*[^`]*\(`(\w+)`\): .+\.")
C_NOISE = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[^\n]*', re.DOTALL | re.MULTILINE
)


def files(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    found = [
        path
        for folder in folders
        for suffix in suffixes
        for path in (ROOT / folder).rglob(f"*{suffix}")
    ]
    return sorted(path for path in found if not BUILT & set(path.parts))


def parts(identifier: str) -> list[str]:
    """The words of an identifier in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", identifier)]


@cache
def python_names(path: Path) -> frozenset[str]:
    """The identifiers that a file defines or uses."""
    found: set[str | None] = set()
    for node in nodes(path):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.keyword(arg=name)
            ):
                found.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found |= {*name.split("."), other}
            case ast.ImportFrom(module=name):
                found |= set((name or "").split("."))
    return frozenset(name for name in found if name)


@cache
def c_names(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\b[A-Za-z_]\w*", C_NOISE.sub(" ", path.read_text())))


def wrong_names(names: frozenset[str], retired: dict[str, str]) -> list[str]:
    return sorted(
        f"{name} ({retired[word]})"
        for name in names - ALLOWED.keys()
        for word in parts(name)
        if word in retired
    )


def test_the_glossary_has_at_most_fifty_words_each_of_which_stands_in_the_code() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    assert 0 < len(lines) <= 50
    known = {name for path in files(PRODUCT, ".py") for name in python_names(path)}
    known |= {name for path in files(("csrc",), ".c", ".h") for name in c_names(path)}
    for line in lines:
        found = ENTRY.fullmatch(line)
        assert found, f"not `- **word** (`name`): one sentence.`: {line}"
        assert found[1] in known, f"{found[1]} is not in the code: {line}"


def wrong_files(
    paths: list[Path], names: Callable[[Path], frozenset[str]], retired: dict[str, str]
) -> dict[str, list[str]]:
    wrong = {str(path.relative_to(ROOT)): wrong_names(names(path), retired) for path in paths}
    return {path: found for path, found in wrong.items() if found}


def test_no_retired_word_is_part_of_an_identifier() -> None:
    assert not wrong_files(files(PRODUCT, ".py"), python_names, RETIRED | RETIRED_IN_THE_PRODUCT)
    assert not wrong_files(
        [path for path in files(TESTS, ".py") if path != Path(__file__)], python_names, RETIRED
    )
    assert not wrong_files(files(("csrc",), ".c", ".h"), c_names, RETIRED)


def test_no_retired_word_is_part_of_a_file_name() -> None:
    def stem(path: Path) -> frozenset[str]:
        return frozenset([path.stem])

    assert not wrong_files(
        files(PRODUCT, ".py", ".c", ".h"), stem, RETIRED | RETIRED_IN_THE_PRODUCT
    )
    assert not wrong_files(files(TESTS, ".py", ".c", ".h"), stem, RETIRED)


def test_no_retired_word_is_a_verb() -> None:
    assert not {*VERBS, *UNDER_QUEUE} & {*RETIRED, *RETIRED_IN_THE_PRODUCT, *RETIRED_VERBS}


def defined(path: Path) -> Iterator[str]:
    """The classes of a file, and its names of types."""
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            name = node.targets[0].id
            if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name):
                yield name


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in files(PRODUCT, ".py"):
        for name in defined(path):
            found[name].add(str(path.relative_to(ROOT)))
    assert not {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def test_no_two_c_structs_have_one_name() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in files(("csrc",), ".c", ".h"):
        text = C_NOISE.sub(" ", path.read_text())
        for name in re.findall(r"^(?:typedef )?(?:struct|union|enum) (\w+) \{", text, re.MULTILINE):
            found[name].add(str(path.relative_to(ROOT)))
    assert not {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


@pytest.mark.parametrize(
    "folders", [("nodemgr", "client_plugin"), ("tests",), ("csrc",)], ids=" ".join
)
def test_no_two_modules_have_names_that_differ_by_an_s(folders: tuple[str, ...]) -> None:
    stems = {
        path.stem
        for path in files(folders, ".py", ".c")
        if not {"programs", "standins"} & set(path.parts)
    }
    assert not {stem for stem in stems if stem + "s" in stems}


RIDDLES = re.compile(r"\b(who|whom|whose|whoever|nobody|whatever|so long as|but for)\b", re.I)
MAX_RIDDLES_IN_1000 = 2


@pytest.mark.parametrize("folders", [PRODUCT, TESTS], ids=["product", "tests"])
@pytest.mark.parametrize("kind", ["docstrings", "comments"])
def test_prose_names_its_subject(kind: str, folders: tuple[str, ...]) -> None:
    """At most two of these words in 1 000: the prose names the request, the process, the user."""
    words, found = 0, []
    read = {"docstrings": _docstrings, "comments": _comments}[kind]
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if BUILT.isdisjoint(path.parts):
                for line, text in read(path):
                    words += len(text.split())
                    found += [
                        f"{path.relative_to(ROOT)}:{line}: {w}" for w in RIDDLES.findall(text)
                    ]
    assert 1_000 * len(found) <= MAX_RIDDLES_IN_1000 * words, "\n".join(found)


COMMENT = re.compile(r"(?:^|\s)# (.*)")


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each line with a comment."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := COMMENT.search(line):
            yield number, match[1]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that is a statement: docstrings, also those of attributes."""
    for node in nodes(path):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
