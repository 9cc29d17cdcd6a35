"""Pictures of a textual application as SVG, the same on every machine.

The letters are drawn by the viewer's own fonts: the font server's address that rich writes is left
out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parent / "pictures"
AGAIN = "NODEMGR_TEST_PICTURES"
"""Set to `write`: each picture is written anew in place of a comparison."""


def svg_of(app: Any) -> str:
    """The screen of a running application."""
    text = app.export_screenshot(title="nodemgr top")
    text = re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)
    text = re.sub(r"terminal-[0-9]+", "top", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def assert_same(name: str, svg: str) -> None:
    """As the committed picture; a new one lies beside it in the test's output."""
    path = PICTURES / f"{name}.svg"
    if os.environ.get(AGAIN) == "write":
        PICTURES.mkdir(exist_ok=True)
        path.write_text(svg)
    assert path.read_text() == svg, (
        f"{path.name} differs: see what changed with {AGAIN}=write and git diff"
    )
