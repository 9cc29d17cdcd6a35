"""The facts of a joined node, as its store keeps them.

Knows: their form. Must not know: who changes them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nodemgr.core.model.values import value

META = "cluster"
"""The store's key."""


@value
class Joined:
    """A node's place in a cluster."""

    address: str
    """HOST:PORT of the head."""
    head: str
    """NAME-6HEX: two heads of one name differ."""
    head_key: str
    head_generation: int
    """The latest that was seen: an earlier one is an old copy."""
    node: str
    generation: str
    """Names this store: another one knows none of its keys."""
    envs: tuple[str, ...] = ()
    """The environments of the cluster, which are set at the head."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Joined:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "envs": tuple(fields["envs"])})
