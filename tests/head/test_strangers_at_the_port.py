"""Strangers at a real head's port: garbage, silence, handshakes without a known key."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.head.handshakes import measure
from tests.session import TMP


def test_a_node_is_answered_in_one_session_while_strangers_come() -> None:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as path:
        found = measure(Path(path), handshakes=200, calm_s=0.2)
    assert found["strangers"] == 0
    assert found["sessions"] == 1, found
    assert found["meanwhile"]["orders"] > 0
    assert found["head_descriptors"] < 1_000
