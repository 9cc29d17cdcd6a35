"""The remedy that installs nodemgr again names a folder; no text names it as a package."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_plugin.ways import installed

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "nodemgr", "client_plugin", "sitecustomize", "csrc", "docs", "examples", "jupyter", "deploy",
    "wheels", "README.md", "CONTRIBUTING.md",
)  # fmt: skip
KINDS = {".py", ".md", ".c", ".h", ".def", ".js", ".html", ".toml", ".sh", ".service", ".json"}


def command_of(noted: str | None, monkeypatch: pytest.MonkeyPatch, payload: Path) -> str:
    """The remedy of an installation of which pip noted this."""
    found = SimpleNamespace(read_text=lambda _name: noted)
    monkeypatch.setattr(installed.locations, "payload_dir", lambda: str(payload))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: found)
    return installed.command("faces")


def test_it_is_the_folder_that_pip_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "node manager"
    sources.mkdir()
    noted = f'{{"dir_info": {{}}, "url": "{sources.as_uri()}"}}'
    assert command_of(noted, monkeypatch, tmp_path / "site") == (
        f"cd '{sources}' && {sys.executable} -m pip install '.[faces]'"
    )


def test_a_checkout_in_use_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_of(None, monkeypatch, ROOT) == (
        f"cd {ROOT} && {sys.executable} -m pip install -e '.[faces]'"
    )


@pytest.mark.parametrize(
    "noted",
    [
        None,
        "{",
        "[]",
        '{"url": 5, "dir_info": {}}',
        '{"dir_info": {}, "url": "file:///no/such/folder"}',
        '{"archive_info": {}, "url": "file:///"}',
        '{"vcs_info": {}, "url": "https://example.org/"}',
    ],
)
def test_a_folder_that_is_not_known_is_not_named(
    noted: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert command_of(noted, monkeypatch, tmp_path) == (
        f"{sys.executable} -m pip install '.[faces]' in nodemgr's sources"
    )


def test_without_an_extra_it_is_the_package_alone() -> None:
    assert installed.command().endswith(" -m pip install -e .")


def test_no_text_names_a_package_that_anybody_may_register() -> None:
    wrong = re.compile(r"pip install\s+(?:-\S+\s+)*['\"]?nodemgr\b(?!_)|nodemgr\[\w")
    listed = (ROOT / name for name in TEXTS)
    files = (path for top in listed for path in ([top] if top.is_file() else top.rglob("*")))
    assert [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in files
        if path.suffix in KINDS
        for found in [wrong.search(path.read_text())]
        if found
    ] == []
