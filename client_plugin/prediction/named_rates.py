"""A GPU model that a user names by its rates: `NAME:TFLOPS:GBPS:GIB`.

Pure. Knows: the form of the text. Must not know: the models that the manager knows.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

FORM = re.compile(
    r"(?P<name>[^:]{1,64}):(?P<tflops>[0-9]{1,5}(?:\.[0-9]{1,3})?):(?P<gbps>[0-9]{1,6})"
    r":(?P<gib>[0-9]{1,5})",
    re.ASCII,
)


class NamedRates(NamedTuple):
    """FP32 peak, bandwidth and memory; each is above 0."""

    name: str
    gflops: int
    bandwidth_gb_per_s: int
    memory_gib: int


def parse(text: str) -> Optional[NamedRates]:
    """None: the text has another form, or a rate of 0."""
    found = FORM.fullmatch(text)
    if found is None or not found["name"].isprintable():
        return None
    gflops, gbps, gib = round(float(found["tflops"]) * 1000), int(found["gbps"]), int(found["gib"])
    return NamedRates(found["name"], gflops, gbps, gib) if gflops and gbps and gib else None
