"""The words of an order that the command line offers: apart from the model, whose import takes
longer than a whole verb.

Knows: the words. Must not know: what they mean.
"""

from __future__ import annotations

ENFORCE = ("warn", "fence", "kill")
"""What is done about processes that the audit finds, the mildest first (lifecycle/audit.py)."""
