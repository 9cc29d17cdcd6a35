"""The size of an installation: what pip downloads for it, and for the extra `faces`.

Asks the package index that pip is configured for; skipped where there is none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_BYTES = 12_000_000
pytestmark = pytest.mark.slow


def name_of(text: str) -> str:
    """The normal form of a requirement's or a wheel's name."""
    return re.split(r"[^\w.]", text.replace("_", "-").replace("-", "_"))[0].lower()


def downloads(requirements: list[str], directory: Path) -> dict[str, int]:
    """Bytes of each file that pip would install, by the name of its package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(directory)]
    done = subprocess.run(
        [*command, *requirements], capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )
    if "No matching distribution found" in done.stderr:
        pytest.skip("pip reaches no package index here")
    assert done.returncode == 0, done.stderr
    return {name_of(path.name.split("-")[0]): path.stat().st_size for path in directory.iterdir()}


def test_the_base_brings_little_beside_the_declared_packages(tmp_path: Path) -> None:
    declared = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    found = downloads(PROJECT["dependencies"], tmp_path)
    assert declared <= found.keys()
    beside = {name: size for name, size in found.items() if name not in declared}
    assert sum(beside.values()) <= MOST_BYTES, beside


def test_the_faces_are_small(tmp_path: Path) -> None:
    wanted = PROJECT["optional-dependencies"]["faces"]
    found = downloads(wanted, tmp_path)
    assert {name_of(requirement) for requirement in wanted} <= found.keys()
    assert sum(found.values()) <= MOST_BYTES, found
