"""The client and the core read rates that a user names by the same form."""

from __future__ import annotations

import pytest

from client_plugin.ways import named_rates
from nodemgr.core.forecast import gpu_models


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("own:19.5:1555:40", True),
        ("a b:0.001:1:1", True),
        ("own:0:1555:40", False),
        ("own:19.5:0:40", False),
        ("own:19.5:1555:0", False),
        ("own:nan:1:1", False),
        ("own:inf:1:1", False),
        ("own:-1:1:1", False),
        ("own:1e3:1:1", False),
        ("own:0.0004:1:1", False),
        ("own:1:1", False),
        (":1:1:1", False),
        ("o\nwn:1:1:1", False),
        ("\u0663:\u0663:1:1", False),
    ],
)
def test_client_and_core_agree(text: str, is_valid: bool) -> None:
    assert named_rates.is_valid(text) is is_valid
    assert (gpu_models.find(text) is not None) is is_valid
