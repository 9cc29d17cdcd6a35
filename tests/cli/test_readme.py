"""The README and the pages beside it cannot drift from what they describe."""

from __future__ import annotations

import re
import subprocess

import pytest

from nodemgr.cli.presentation.group import VERBS
from tests.cli.conftest import ROOT

README = (ROOT / "README.md").read_text()
DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
MAX_LINES = 210


def test_the_readme_is_short() -> None:
    shown = re.sub(r"^<!--.*?-->\n", "", README, flags=re.MULTILINE | re.DOTALL)
    assert len(shown.splitlines()) <= MAX_LINES


def test_no_page_puts_a_manager_where_files_are_cleaned_away() -> None:
    for page in PAGES:
        words = (ROOT / page).read_text()
        assert not re.findall(r"--(?:run|state)-dir[= ]/tmp\S*", words), page


def test_the_users_page_has_the_command_line_s_table_of_verbs() -> None:
    page = (ROOT / "docs" / "users.md").read_text().split("## All verbs")[1].split("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", page, re.MULTILINE)
    assert dict(table) == VERBS


@pytest.mark.parametrize(
    "command",
    [
        "apt-get install git gcc libc6-dev python3-dev python3-venv",
        "python3 -m venv .venv && . .venv/bin/activate && pip install . && nodemgr demo",
        "pip install -e '.[test]' && pytest",
    ],
)
def test_its_commands_stand_on_a_line_of_their_own_once(command: str) -> None:
    assert README.splitlines().count(command) == 1


def test_ci_takes_the_commands_from_it() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    scripts = script + (ROOT / ".ci" / "fresh-debian").read_text()
    patterns = set(re.findall(r'^\w+=\$\(grep -x "(.+)" README\.md\)$', scripts, re.MULTILINE))
    assert len(patterns) == 3
    for pattern in patterns:
        found = subprocess.run(
            ["grep", "-x", pattern, "README.md"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert len(found.stdout.splitlines()) == 1
    for program in (ROOT / ".ci").iterdir():
        subprocess.run(["bash", "-n", str(program)], check=True)
    assert re.findall(r"(?<!&& )\bpytest.*?(?=\")", script) == ["pytest -m 'slow or frameworks'"], (
        "beside the README's command, the tests that it leaves out, each once"
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_name_that_a_page_places_in_a_file_stands_there(page: str) -> None:
    text = (ROOT / page).read_text()
    placed = re.findall(r"`(\w+)`\s+(?:in|of|to)\s+`((?:[\w.-]+/)+[\w.]+)`", text)
    assert [(name, path) for name, path in placed if name not in (ROOT / path).read_text()] == [], (
        "a recipe names what has moved"
    )


@pytest.mark.parametrize("page", PAGES)
def test_whatever_a_page_names_or_links_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(
        r"(?<![\w/.-])((?:bench|client_plugin|csrc|docs|examples|nodemgr|sitecustomize|"
        r"tests)/[\w./-]*\w)",
        text,
    )
    linked = [
        (ROOT / page).parent / target
        for target in re.findall(r"\]\(([^)#]+)\)", text)
        if "://" not in target
    ]
    assert [path for path in (*(ROOT / name for name in named), *linked) if not path.exists()] == []
