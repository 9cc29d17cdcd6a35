"""docs/features.md: each feature has its reason, its evidence and its state."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "features.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| feature ")
]


def test_each_feature_has_its_evidence_and_its_state() -> None:
    assert len(ROWS) > 20
    for feature, reason, evidence, state in ROWS:
        assert reason, feature
        assert state.startswith(("stable", "experimental")), feature
        named = re.findall(r"`((?:bench|tests)/[^`]*)`", evidence)
        assert named or "tests" in evidence, feature
        for path in named:
            assert (ROOT / path).exists(), f"{feature}: {path}"
