"""The columns of the picture: GPUs, tasks, queue; which of them go first in a narrow terminal.

Knows: the fields of the rows, to which the panel adds `age`. Must not know: the layout of a table.
"""

from __future__ import annotations

from client_plugin.verbs.picture import bars
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, TableRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Sequence, Set

    from client_plugin.verbs.picture.spans import PictureLine

BUSY_C, HOT_C = 80, 90
"""From these temperatures on a figure is yellow, then red."""
LONG_IDLE_S = 600
"""A task that is idle for longer is yellow: its GPU may be of use to others."""


class PictureColumn(Column):
    """A column of the picture."""

    __slots__ = ("bar", "falls", "key", "least", "most", "style")

    def __init__(
        self,
        title: str,
        cell: Callable[[TableRow], object],
        right: bool = False,
        rest: bool = False,
        spare: int = 0,
        *,
        key: Optional[Callable[[TableRow], Any]] = None,
        falls: bool = False,
        style: Optional[Callable[[TableRow], str]] = None,
        bar: Optional[Callable[[TableRow, int], PictureLine]] = None,
        least: int = 0,
        most: int = 0,
    ) -> None:
        """`key`: rows can be sorted by it; `falls`: the greatest first.

        `bar`: the cell is drawn by it, in `least` to `most` cells. `least` of a rest: it is cut
        so far before another column goes.
        """
        super().__init__(title, cell, right, rest, spare)
        self.key = key
        self.falls = falls
        self.style = style
        self.bar = bar
        self.least = least
        self.most = most


def _nothing(_row: TableRow) -> str:
    return ""


def _heat(gpu: TableRow) -> str:
    heat = gpu.get("temperature_c") or 0
    return "red" if heat >= HOT_C else "yellow" if heat >= BUSY_C else ""


def _gpu_state(gpu: TableRow) -> str:
    return tables.COLOURS.get(cells.gpu_state(gpu), "")


def _task_state(task: TableRow) -> str:
    return tables.COLOURS.get(cells.task_state(task), "")


def _idleness(task: TableRow) -> str:
    return "yellow" if (task.get("idle_seconds") or 0) >= LONG_IDLE_S else ""


def _waited(row: TableRow) -> Optional[float]:
    began_s: Optional[float] = row["began_s"]
    return None if began_s is None else -began_s


def _env(row: TableRow) -> str:
    style: str = row["env_style"]
    return style


GPUS: Sequence[PictureColumn] = (
    PictureColumn("GPU", lambda g: g["index"], right=True),
    PictureColumn("STATE", cells.gpu_state, spare=3, style=_gpu_state),
    PictureColumn(
        "UTIL", lambda g: cells.figure(g, "utilization_percent", "%"), right=True, spare=1
    ),
    PictureColumn(
        "", _nothing, spare=7, least=6, most=10,
        bar=lambda g, width: bars.use_bar(g.get("utilization_percent"), width),
    ),
    PictureColumn(
        "TEMP", lambda g: cells.figure(g, "temperature_c", "C"), right=True, spare=5, style=_heat
    ),
    PictureColumn("POWER", lambda g: cells.figure(g, "power_w", "W"), right=True, spare=6),
    PictureColumn(
        "MEMORY", _nothing, spare=2, least=16, most=40,
        bar=lambda g, width: bars.memory_bar(g["parts"], g["memory_total_bytes"], width),
    ),
    PictureColumn("USED", lambda g: tables.size(g["memory_used_bytes"]), right=True, spare=4),
    PictureColumn("GRANTED", lambda g: tables.size(g["memory_granted_bytes"]), right=True, spare=8),
    PictureColumn("TOTAL", lambda g: tables.size(g["memory_total_bytes"]), right=True, spare=9),
    PictureColumn("TASKS", lambda g: g["tasks"], right=True, spare=10),
    PictureColumn("ENVS", lambda g: " ".join(g.get("envs", ())), rest=True, spare=11),
)  # fmt: skip
TASKS: Sequence[PictureColumn] = (
    PictureColumn("TASK", lambda t: t["id"]),
    PictureColumn("JOB", lambda t: t.get("job"), spare=8),
    PictureColumn("ENV", lambda t: t["env"], spare=1, key=lambda t: t["env"], style=_env),
    PictureColumn("STATE", cells.task_state, spare=6, style=_task_state),
    PictureColumn("CLASS", cells.task_class, spare=7),
    PictureColumn("SHARE", cells.share, right=True, spare=6),
    PictureColumn("DONE", cells.progress, right=True, spare=6),
    PictureColumn("USER", cells.users, spare=4, key=cells.users),
    PictureColumn("CONTAINER", cells.containers, spare=7, key=cells.containers),
    PictureColumn("GPUS", cells.gpus, spare=5),
    PictureColumn(
        "MEM", lambda t: tables.size(t.get("memory_bytes")), right=True, spare=2,
        key=lambda t: t.get("memory_bytes"), falls=True,
    ),
    PictureColumn("LIMIT", cells.memory_range, right=True, spare=8),
    PictureColumn(
        "UTIL", lambda t: cells.figure(t, "utilization_percent", "%"), right=True,
        key=lambda t: t.get("utilization_percent"), falls=True,
    ),
    PictureColumn(
        "IDLE", cells.idle, right=True, spare=3, style=_idleness,
        key=lambda t: t.get("idle_seconds"), falls=True,
    ),
    PictureColumn(
        "AGE", lambda t: tables.seconds(t["age"]), right=True, spare=5,
        key=lambda t: -t["began_s"], falls=True,
    ),
    PictureColumn(
        "CPU", lambda t: cells.figure(t, "host_cpu_percent", "%"), right=True, spare=9,
        key=lambda t: t.get("host_cpu_percent"), falls=True,
    ),
    PictureColumn(
        "HOST", lambda t: tables.size(t.get("host_memory_bytes")), right=True, spare=10,
        key=lambda t: t.get("host_memory_bytes"), falls=True,
    ),
    PictureColumn("CPU TIME", cells.cpu_time, right=True, spare=11),
    PictureColumn("MOST HOST", cells.host_peak, right=True, spare=12),
    PictureColumn("READ", lambda t: tables.size(t.get("read_bytes")), right=True, spare=13),
    PictureColumn("WRITTEN", lambda t: tables.size(t.get("written_bytes")), right=True, spare=13),
    PictureColumn(
        "COMMAND", lambda t: t["command"], rest=True, least=16, key=lambda t: t["command"]
    ),
)  # fmt: skip
QUEUE: Sequence[PictureColumn] = (
    PictureColumn("PLACE", cells.place, right=True),
    PictureColumn("ID", lambda r: r["id"]),
    PictureColumn("ENV", lambda r: r["env"], spare=1, key=lambda r: r["env"], style=_env),
    PictureColumn("USER", cells.users, spare=5, key=cells.users),
    PictureColumn("GPUS", cells.asked_gpus, right=True, spare=3, key=lambda r: r["gpus"]),
    PictureColumn("CLASS", cells.task_class, spare=7),
    PictureColumn("SHARE", cells.share, right=True, spare=6),
    PictureColumn("QUEUE", lambda r: r["priority"], spare=6, key=lambda r: r["priority"]),
    PictureColumn(
        "STARTS ABOUT", lambda r: r["starts"], spare=2, key=lambda r: r.get("expected_start")
    ),
    PictureColumn(
        "WAITED", lambda r: tables.seconds(r["age"]),
        right=True, spare=4, key=_waited, falls=True,
    ),
    PictureColumn("NAME", lambda r: r["name"] or r["command"], spare=7),
    PictureColumn("WHY", tables.why, rest=True),
)  # fmt: skip
ALWAYS_SEEN: Dict[str, Set[object]] = {
    "STATE": {"healthy", "running"},
    "JOB": {None},
    "CONTAINER": {""},
    "CLASS": {None},
    "SHARE": {None},
    "DONE": {None},
    "LIMIT": {None},
    "STARTS ABOUT": {None},
    "CPU TIME": {None},
    "MOST HOST": {None},
    "READ": {None},
    "WRITTEN": {None},
}
"""Title -> cells that say nothing: a column that has only these is left out."""


def worth(columns: Sequence[PictureColumn], rows: Sequence[TableRow]) -> Sequence[PictureColumn]:
    """The columns that say something about these rows."""
    return [
        column
        for column in columns
        if column.title not in ALWAYS_SEEN
        or any(column.cell(row) not in ALWAYS_SEEN[column.title] for row in rows)
    ]
