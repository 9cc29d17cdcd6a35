"""The pictures of the documentation: their table, files and references agree.

Each is small and asks no other host for anything.
"""

from __future__ import annotations

import importlib
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT
from tests.support.limits import WAIT_LIMIT_S

PICTURES = ROOT / "docs" / "pictures"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_IN_README = 3
LEAST_ALTERNATIVE = 20
SVG_NAME = "http://www.w3.org/2000/svg"
"""The name of the format, not an address that a viewer opens."""
MADE_BY_BENCHES = {"placement-policies.png", "placement-curve.png", "elastic-day.png"}
"""bench/placement/page.py, bench/trace/day.py."""
SHORT = "memory"
"""The picture that is made here."""


@pytest.fixture(scope="module")
def make() -> Iterator[Any]:
    """docs/pictures/make.py as a module."""
    sys.path.insert(0, str(PICTURES))
    try:
        yield importlib.import_module("make")
    finally:
        sys.path.remove(str(PICTURES))


def references(page: Path) -> list[tuple[str, Path]]:
    """Alternative text and file of each picture of a page."""
    found = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
    return [(text, (page.parent / target).resolve()) for text, target in found]


def faults(picture: bytes) -> list[str]:
    """The reasons why an SVG is no picture for the documentation."""
    text = picture.decode().replace(f'xmlns="{SVG_NAME}"', "")
    found = re.findall(r"https?:[^\s\"')]*|@font-face|@import|<script|<image|href", text)
    return [*found, *(["too large"] if len(picture) > 200_000 else [])]


def test_the_table_is_the_list_of_the_files(make: Any) -> None:
    kept = {path.name for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")}
    assert kept == {make.file_name(name) for name in make.PICTURES} | MADE_BY_BENCHES


def test_each_picture_is_on_a_page_and_each_reference_has_one() -> None:
    shown = {path for page in PAGES for _, path in references(page)}
    assert shown == {path for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_reader_without_pictures_has_their_text(page: Path) -> None:
    for text, path in references(page):
        assert len(" ".join(text.split())) >= LEAST_ALTERNATIVE, path.name


def test_the_readme_is_short() -> None:
    assert len(references(ROOT / "README.md")) <= MOST_IN_README


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_small_and_names_no_host(path: Path) -> None:
    assert faults(path.read_bytes()) == []


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.png")), ids=lambda path: path.name)
def test_a_screenshot_is_small_and_has_a_size(path: Path) -> None:
    content = path.read_bytes()
    assert len(content) <= 200_000
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width >= 300
    assert height >= 200


def test_a_foreign_host_and_a_large_picture_are_noticed() -> None:
    """The checks above can fail."""
    font = b"<style>@font-face { src: url(https://fonts.example/a.woff) }</style>"
    assert faults(b'<svg xmlns="http://www.w3.org/2000/svg"/>') == []
    assert faults(font) == ["@font-face", "https://fonts.example/a.woff"]
    assert faults(b" " * 200_001) == ["too large"]


def test_a_picture_is_made_from_a_real_command(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the extra faces is not installed")
    made = subprocess.run(
        [sys.executable, str(PICTURES / "make.py"), "--into", str(tmp_path), SHORT],
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, cwd=ROOT,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    drawn = (tmp_path / f"{SHORT}.svg").read_bytes()
    assert faults(drawn) == []
    text = drawn.decode().replace("&#160;", " ")
    assert "GPU 1 (your 1st)" in text
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text


def test_an_unknown_name_is_one_line_with_the_names(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, str(PICTURES / "make.py"), "--into", str(tmp_path), "sunset"],
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, cwd=ROOT,
    )  # fmt: skip
    assert made.returncode == 2
    assert "sunset" in made.stderr.splitlines()[-1]
    assert "status" in made.stderr.splitlines()[-1]
