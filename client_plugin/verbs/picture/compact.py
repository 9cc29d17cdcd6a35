"""The GPUs of a node in few lines: several GPUs beside one another.

Knows: the row of a GPU. Must not know: the other panels.
"""

from __future__ import annotations

from client_plugin.verbs.picture import bars
from client_plugin.verbs.picture.panel import TITLES
from client_plugin.verbs.picture.spans import filled, fitted
from client_plugin.verbs.presentation import cells, tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

    from client_plugin.verbs.picture.rows import PictureRow
    from client_plugin.verbs.picture.spans import PictureLine

LEAST_CELLS = 37
"""The narrowest cell of a GPU: index, utilisation, temperature, bar, use."""
GAP = " │ "
POWER_CELLS = 60
"""A cell that is so wide has the power, too."""


def beside(count: int, cells: int, most_lines: int) -> int:
    """How many GPUs stand beside one another, so that the lines suffice as far as possible."""
    most = max(1, (cells + len(GAP)) // (LEAST_CELLS + len(GAP)))
    for number in range(1, most + 1):
        if -(-count // number) <= most_lines:
            return number
    return most


def lines(gpus: Sequence[PictureRow], cells: int, number: int) -> List[PictureLine]:
    """The GPUs go down the first column, then down the second."""
    rows = -(-len(gpus) // number)
    each = (cells - len(GAP) * (number - 1)) // number
    found = []
    for at in range(rows):
        line: PictureLine = []
        for gpu in gpus[at::rows]:
            if line:
                line.append((GAP, "dim"))
            line += fitted(_cell(gpu, each), each)
        found.append(fitted(line, cells))
    return found


def title(cells: int, number: int) -> PictureLine:
    each = (cells - len(GAP) * (number - 1)) // number
    power = "  POWER" if each >= POWER_CELLS else ""
    one = filled(f"GPU   UTIL  TEMP{power}  MEMORY", each)
    return [(filled(GAP.join([one] * number), cells), TITLES)]


def _cell(gpu: PictureRow, each: int) -> PictureLine:
    if gpu["state"] != "healthy":
        return [(f"{gpu['index']:>3}  ", ""), (tables.printable(gpu["state"]), "red")]
    use = cells.figure(gpu, "utilization_percent", "%") or "-"
    heat = cells.figure(gpu, "temperature_c", "C") or "-"
    power = f"  {cells.figure(gpu, 'power_w', 'W') or '-':>5}" if each >= POWER_CELLS else ""
    head = f"{gpu['index']:>3}  {use:>5}  {heat:>4}{power}  "
    used_bytes = gpu["memory_used_bytes"]
    used = "-" if used_bytes is None else f"{used_bytes / 2**30:.0f}"
    tail = f" {used:>3}/{gpu['memory_total_bytes'] / 2**30:.0f} GiB"
    room = max(4, each - len(head) - len(tail))
    return [
        (head, ""),
        *bars.memory_bar(gpu["parts"], gpu["memory_total_bytes"], room),
        (tail, ""),
    ]
