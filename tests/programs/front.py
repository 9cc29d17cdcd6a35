"""`nodemgr` as pip installs it, for this checkout: the front in C, and the script behind it."""

from __future__ import annotations

import sys
from pathlib import Path

from csrc.build import build_front
from tests.support.manager import ROOT


def install_front(directory: Path, interpreter: str = sys.executable) -> Path:
    """Both in `directory`; the script's first line is as pip writes it."""
    script = (ROOT / "csrc" / "front" / "nodemgr-python").read_text()
    (directory / "nodemgr-python").write_text(f"#!{interpreter}\n{script.partition(chr(10))[2]}")
    return build_front(directory)
