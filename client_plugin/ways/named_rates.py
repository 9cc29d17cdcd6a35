"""A GPU model that a user names by its rates: `NAME:TFLOPS:GBPS:GIB`.

Pure. Knows: the form of the text. Must not know: the models that the manager knows.
"""

from __future__ import annotations

import re

FORM = re.compile(
    r"(?P<name>[^:]{1,64}):(?P<tflops>[0-9]{1,5}(?:\.[0-9]{1,3})?):(?P<gbps>[0-9]{1,6})"
    r":(?P<gib>[0-9]{1,5})",
    re.ASCII,
)
"""FP32 peak, bandwidth and memory. The manager reads it by the same form: a test compares them."""


def is_valid(text: str) -> bool:
    """Whether the text has the form, and each rate is above 0."""
    found = FORM.fullmatch(text)
    if found is None or not found["name"].isprintable():
        return False
    return all(float(found[rate]) > 0 for rate in ("tflops", "gbps", "gib"))
