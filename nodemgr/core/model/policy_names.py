"""The words of an order that the command line offers.

They stand apart from the model, because the model's import takes longer than a whole verb.

Knows: the words. Must not know: their meaning.
"""

from __future__ import annotations

ENFORCE = ("warn", "fence", "kill")
"""The actions on processes that the audit finds, the mildest first (lifecycle/audit.py)."""
WHEN_IDLE = ("keep", "suspend", "release")
"""The actions on an idle task that another one waits for."""
MIN_IDLE_MS = 1_000
"""The shortest time after which a task is idle."""
