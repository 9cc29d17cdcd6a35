"""promtool, where it is installed: it judges our text, rules and their tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not installed (Debian: apt-get download prometheus, dpkg -x, PATH)",
)


def promtool(*arguments: str | Path, text: bytes = b"") -> str:
    """Its output; fails with it where promtool finds a fault."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output
