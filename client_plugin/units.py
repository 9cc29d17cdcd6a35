"""Sizes and durations as people write them, to and from integers with units. Pure.

A size is a number with a unit, always: `8GiB` and `8Gi` are 8 * 2**30 bytes, `8GB` and `8G` are 8 *
10**9. A bare number is refused, since its unit is ambiguous.

It is loaded in users' processes too: imports are relative.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence


SIZE_UNITS = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip
DURATION_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

MIN_SIZE_BYTES = 2**20
"""Below a MiB no CUDA program can do anything: a unit was mistaken."""
MAX_SIZE_BYTES = 255 * 2**40
"""Below the 2**48 that a ledger word can hold (csrc/ledger/ledger.h)."""
MAX_DURATION_MS = 366 * 86_400_000
WHOLE_PERCENT = 100
NORMAL = "normal"
TASK_CLASSES = ("latency-sensitive", NORMAL, "best-effort")
"""The classes of tasks (nodemgr/core/model/entities.py), the one that is served first in front."""
MAX_SIMULATED_GPUS = 16
"""Rows of a ledger (csrc/ledger/ledger.h)."""

SIZE_FORM = "write a number with its unit, e.g. 8GiB (2^30) or 8GB (10^9)"
DURATION_FORM = "write a number with its unit, e.g. 500ms, 30s, 10min, 2h, 1d"
PERCENT_FORM = "write whole percent of a GPU with their sign, 1% to 100%, e.g. 40%"
NODE_FORM = "write COUNTxSIZE, e.g. 4x80GiB"

_NUMBER_AND_UNIT = r"([+-]?)([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)"


class UnitError(ValueError):
    """The text is no size, duration or node; the message shows the right form."""

    def __init__(self, line: str) -> None:
        super().__init__(line)


def _split(text: str, what: str, form: str) -> tuple[int, int, str]:
    """(numerator, denominator, unit): exact for any number of decimals."""
    match = re.fullmatch(_NUMBER_AND_UNIT, text.strip(), re.ASCII)
    if match is None:
        from .messages import arguments as messages

        raise UnitError(messages.NO_UNIT_VALUE(text=text, what=what, form=form))
    sign, number, unit = match.groups()
    if sign:
        from .messages import arguments as messages

        raise UnitError(f"{text!r}: a {what} has no sign: {form}")
    whole, _, decimals = number.partition(".")
    return int(whole + decimals), 10 ** len(decimals), unit


def _one_of(unit: str, units: dict[str, int], text: str, what: str, form: str) -> int:
    if not unit:
        from .messages import arguments as messages

        raise UnitError(messages.BARE_NUMBER(text=text, form=form))
    if unit not in units:
        from .messages import arguments as messages

        raise UnitError(f"{text!r}: {unit!r} is no unit of a {what}: {form}")
    return units[unit]


def parse_size(text: str) -> int:
    """Bytes of a size such as `8GiB`, `1.5GB`; fractions of a byte are cut off.

    Raises UnitError.
    """
    number, parts, unit = _split(text, "size", SIZE_FORM)
    size_bytes = number * _one_of(unit, SIZE_UNITS, text, "size", SIZE_FORM) // parts
    if not MIN_SIZE_BYTES <= size_bytes <= MAX_SIZE_BYTES:
        if size_bytes == 0:
            raise UnitError(f"{text!r}: a size of zero grants nothing: {SIZE_FORM}")
        if size_bytes < MIN_SIZE_BYTES:
            raise UnitError(
                f"{text!r} is less than 1MiB, too small for any GPU program: {SIZE_FORM}"
            )
        raise UnitError(f"{text!r} is more memory than any node has (at most 255TiB): {SIZE_FORM}")
    return size_bytes


def parse_duration_ms(text: str, limit_ms: int = MAX_DURATION_MS) -> int:
    """Milliseconds of a duration such as `30s`; `0` alone needs no unit. Raises UnitError."""
    number, parts, unit = _split(text, "duration", DURATION_FORM)
    if number == 0 and not unit:
        return 0
    duration_ms = (
        number * _one_of(unit, DURATION_UNITS_MS, text, "duration", DURATION_FORM) // parts
    )
    if duration_ms > limit_ms:
        raise UnitError(f"{text!r} is longer than a year: {DURATION_FORM}")
    return duration_ms


def parse_percent(text: str) -> int:
    """Percent of each GPU, `1%` to `100%`; a bare number is refused. Raises UnitError."""
    match = re.fullmatch(r"([0-9]{1,9})\s*(%?)", text.strip(), re.ASCII)
    if match is not None and match[2] and 1 <= int(match[1]) <= WHOLE_PERCENT:
        return int(match[1])
    from .messages import arguments as messages

    if match is None:
        raise UnitError(messages.NO_UNIT_VALUE(text=text, what="share", form=PERCENT_FORM))
    if not match[2]:
        raise UnitError(messages.BARE_NUMBER(text=text, form=PERCENT_FORM))
    if int(match[1]) == 0:
        raise UnitError(f"{text!r}: a share of zero gives no compute: {PERCENT_FORM}")
    raise UnitError(f"{text!r} is more than a whole GPU: {PERCENT_FORM}")


def parse_node(text: str) -> tuple[int, int]:
    """(GPUs, bytes per GPU) of a simulated node such as `4x80GiB`. Raises UnitError."""
    count, cross, size = text.strip().partition("x")
    if not cross or not re.fullmatch("[0-9]{1,4}", count, re.ASCII):
        from .messages import arguments as messages

        raise UnitError(messages.NO_UNIT_VALUE(text=text, what="node", form=NODE_FORM))
    if not 1 <= int(count) <= MAX_SIMULATED_GPUS:
        from .messages import arguments as messages

        limit = MAX_SIMULATED_GPUS
        raise UnitError(f"{text!r}: a node has 1 to {limit} GPUs: {NODE_FORM}")
    return int(count), parse_size(size)


def _short(number: float) -> str:
    """One digit behind the point, unless it is 0."""
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text


def format_size(size_bytes: int) -> str:
    """A size as people read it, in binary units: `80 GiB`, `1.5 GiB`, `0 B`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= SIZE_UNITS[unit]:
            return f"{_short(size_bytes / SIZE_UNITS[unit])} {unit}"
    return f"{size_bytes} B"


def format_sizes(sizes: Sequence[int]) -> List[str]:
    """The sizes of one column: one unit, GiB at most, and one number of digits behind the point."""
    most = max(sizes, default=0)
    name = next(
        (name for name in ("GiB", "MiB", "KiB") if most >= SIZE_UNITS[name] or not most), "B"
    )
    unit = SIZE_UNITS.get(name, 1)
    if not any(size_bytes % unit for size_bytes in sizes):
        return [f"{size_bytes // unit} {name}" for size_bytes in sizes]
    return [
        f"<0.1 {name}" if 0 < 20 * size_bytes < unit else f"{size_bytes / unit:.1f} {name}"
        for size_bytes in sizes
    ]


def format_span(seconds: int) -> str:
    """A measured time span, as a clock: `0:01:15`, `26 d 02:00:05`; see docs/users.md."""
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {rest // 3_600:02}:{clock}" if days else f"{rest // 3_600}:{clock}"


def format_duration(duration_ms: int) -> str:
    """A duration in a sentence or a setting: `340 ms`, `4.2 s`, `3 min 5 s`, `2 d 1 h`."""
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < 10_000:
        return f"{_short(duration_ms / 1_000)} s"
    seconds = duration_ms // 1_000
    for large, small, large_name, small_name in (
        (86_400, 3_600, "d", "h"),
        (3_600, 60, "h", "min"),
        (60, 1, "min", "s"),
    ):
        if seconds >= large:
            rest = seconds % large // small
            return f"{seconds // large} {large_name}" + (f" {rest} {small_name}" if rest else "")
    return f"{seconds} s"
