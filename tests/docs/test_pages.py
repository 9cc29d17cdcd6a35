"""Each shell block of the documentation runs as it is printed, on a node with simulated GPUs.

A block that needs a GPU, systemd or a container engine is marked in the page's source (pages.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs import pages
from tests.support.limits import WAIT_LIMIT_S

READER = Path(__file__).parent / "reader.sh"
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
]
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
WITH_SHELL = [page for page in PAGES if "```sh\n" in (ROOT / page).read_text()]
WITH_SLOW = [page for page in PAGES if "<!-- slow:" in (ROOT / page).read_text()]


def unlike_a_root() -> str | None:
    """Why a page cannot be read here."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "only root makes the reader's mounts, by unshare"
    tried = subprocess.run(
        [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True
    )
    return f"the reader's mounts are refused: {tried.stderr.strip()}" if tried.returncode else None


def run(page: str, with_slow: bool) -> None:
    if (reason := unlike_a_root()) is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="nmp") as own:
        (Path(own) / "script").write_text(pages.script_of((ROOT / page).read_text(), with_slow))
        reading = subprocess.run(
            [*NAMESPACES, "bash", READER, page, ROOT, sys.prefix, own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_LIMIT_S,
        )
    assert reading.returncode == 0, reading.stdout


@pytest.mark.parametrize("page", WITH_SHELL)
def test_the_commands_of_a_page_run_as_printed(page: str) -> None:
    run(page, with_slow=False)


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SLOW)
def test_its_heavy_commands_run_too(page: str) -> None:
    run(page, with_slow=True)


@pytest.mark.parametrize("page", PAGES)
def test_each_shell_block_runs_or_its_mark_has_the_reason(page: str) -> None:
    for block in pages.blocks_of((ROOT / page).read_text()):
        if block.language == pages.SHELL:
            assert all(value.strip() for _, value in block.marks), block
            assert block.script().count("\n") == sum(
                [value.count("\n") + 1 for _, value in block.marks], 1 + block.body.count("\n")
            )


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```\nls\n```\n", "'no' is no language"),
        ("```bash\nls\n```\n", "'bash' is no language"),
        ("<!-- not run: because -->\n\n```sh\nls\n```\n", "stands before none"),
        ("<!-- nor run: because -->\n```sh\nls\n```\n", "no rule covers"),
        ("<!-- stays: lss -->\n```sh\nls\n```\n", "0 lines are 'lss'"),
        ("```sh\nls\n", "a fence has no end"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_is_noticed(page: str, fault: str) -> None:
    with pytest.raises(pages.PageError, match=fault):
        pages.script_of(page)


def test_a_script_has_the_lines_of_its_page() -> None:
    page = "# A\n\n<!-- first:\na\nb\n-->\n<!-- stays: c -->\n```sh\nc\nd\n```\n"
    page += "<!-- slow: long -->\n```sh\ne\n```\n<!-- not run: x -->\n```sh\nf\n```\n"
    lines = pages.script_of(page, with_slow=True).splitlines()
    assert {line: at for at, line in enumerate(lines, 1) if line} == {
        "a": 4,
        "b": 5,
        "stays c": 9,
        "d": 10,
        "e": 14,
    }
    assert "e" not in pages.script_of(page)
