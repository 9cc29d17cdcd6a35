"""The command line that all benches share: each has a short form, which the tests run.

Standard library only. Must not know: the measurement of any bench.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any


def parse(parser: argparse.ArgumentParser, **short: Any) -> argparse.Namespace:
    """The arguments.

    `short`: by option, the values that --short gives to options that are not named.
    """
    parser.add_argument(
        "--short",
        action="store_true",
        help=(
            "a run of seconds: it shows that the program works; its figures say nothing, no target"
            " is held"
        ),
    )
    signal.signal(signal.SIGTERM, _end)  # else what the bench has started would outlive it
    if "--short" in sys.argv[1:]:
        parser.set_defaults(**short)
    return parser.parse_args()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
