"""The page's pure JavaScript: formats, addresses, merge of changes, layout. Run by node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodemgr.edge.page.server import STATIC_DIR
from tests.support.limits import WAIT_LIMIT_S

NODE = shutil.which("node")
TESTS = Path(__file__).with_name("pure_functions.mjs")


@pytest.mark.skipif(NODE is None, reason="there is no node on this system")
def test_the_pure_modules(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for source in (*STATIC_DIR.glob("*.js"), TESTS):
        shutil.copy(source, tmp_path)
    done = subprocess.run(
        [str(NODE), "--test", TESTS.name],
        env={**os.environ, "TZ": "UTC"}, cwd=tmp_path, capture_output=True, text=True,
        timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr
    assert "# pass 0" not in done.stdout
