"""The words of an order that the command line offers.

They stand apart from the model, because the model's import takes longer than a whole verb.

Knows: the words. Must not know: their meaning.
"""

from __future__ import annotations

ENFORCE = ("warn", "fence", "kill")
"""The actions on processes that the audit finds, the mildest first (lifecycle/audit.py)."""
PLACEMENTS = ("auto", "reliable", "spread", "pack", "index", "learned")
"""The orders of fresh GPUs (core/placement/policies.py).

`auto` is `reliable` once failures are recorded, and `spread` until then.
"""
WHEN_IDLE = ("keep", "suspend", "release")
"""The actions on an idle task that another one waits for."""
MIN_IDLE_MS = 1_000
"""The shortest time after which a task is idle."""
