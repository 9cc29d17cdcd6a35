"""Rows of the picture: the manager's views, put together, with the derived values of each row.

Knows: the fields of the views. Must not know: columns, keys.
"""

from __future__ import annotations

from client_plugin.verbs.picture.bars import MemoryPart, unattributed
from client_plugin.verbs.presentation import cells, tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence

    PictureRow = Dict[str, Any]
else:
    PictureRow = dict

ENV_COLOURS = (
    "cyan", "green", "magenta", "bright_blue", "yellow", "bright_cyan", "bright_green",
    "bright_magenta",
)  # fmt: skip
"""In the order in which environments are first seen. Red is for faults."""
OF_JOBS = ("cpu_seconds", "host_peak_bytes", "read_bytes", "written_bytes")
"""Figures of a job, which its task's row has too."""


class NodeView:
    """The last answers of the manager: a status, and the queue with its start estimates."""

    def __init__(
        self,
        status: PictureRow,
        queue: Sequence[PictureRow],
        warnings: Sequence[str] = (),
        at_s: float = 0.0,
    ) -> None:
        """`at_s`: when, in seconds since the epoch."""
        self.status = status
        self.queue = queue
        self.warnings = warnings
        self.at_s = at_s
        self._task_ids = [row["id"] for row in status["tasks"]]

    def has_tasks_of(self, figures: PictureRow) -> bool:
        """Whether the figures are of the same tasks as the status."""
        return [row["id"] for row in figures["tasks"]] == self._task_ids


class EnvColours:
    """One colour for each environment, the same as long as the picture lasts."""

    def __init__(self) -> None:
        self._found: Dict[str, str] = {}

    def of(self, env: str) -> str:
        return self._found.setdefault(env, ENV_COLOURS[len(self._found) % len(ENV_COLOURS)])


def task_rows(view: NodeView, colours: EnvColours) -> List[PictureRow]:
    """The tasks, and behind them the jobs that run without one: they use no GPU.

    `began_s`: the moment from which the age of a row is counted.
    """
    index_of = {gpu["uuid"]: gpu["index"] for gpu in view.status["gpus"]}
    under_way = {job["id"]: job for job in view.status.get("jobs", ())}
    tasks = [
        {
            "gpu_indices": [index_of.get(uuid, "?") for uuid in task["gpus"]],
            **_of_job(under_way.get(task.get("job"), {})),
            **task,
            "began_s": view.at_s - task["duration_seconds"],
            "env_style": colours.of(task["env"]),
        }
        for task in view.status["tasks"]
    ]
    jobs_of_tasks = {task.get("job") for task in tasks}
    jobs = [
        {
            **job,
            "gpus": [],
            "gpu_indices": [],
            "began_s": job["since"],
            "env_style": colours.of(job["env"]),
        }
        for job in under_way.values()
        if job["id"] not in jobs_of_tasks
    ]
    return tasks + jobs


def _of_job(job: PictureRow) -> PictureRow:
    return {key: job[key] for key in OF_JOBS if job.get(key) is not None}


def queue_rows(view: NodeView, colours: EnvColours, is_expanded: bool) -> List[PictureRow]:
    """All that waits; an array is one row, unless the rows are expanded."""
    rows = (cells.unfolded if is_expanded else cells.folded)(view.queue)
    return [
        {
            **row,
            "began_s": None
            if row.get("waited_seconds") is None
            else view.at_s - row["waited_seconds"],
            "starts": cells.expected(row, view.at_s),
            "env_style": colours.of(row["env"]),
        }
        for row in rows
    ]


def gpu_rows(view: NodeView) -> List[PictureRow]:
    """`parts` is the memory of each env (EnvParts)."""
    return [{**gpu, "parts": []} for gpu in view.status["gpus"]]


def update(rows: Sequence[PictureRow], figures: Sequence[PictureRow], id_key: str) -> None:
    """Puts the figures of a later moment into the rows."""
    by_id = {figure[id_key]: figure for figure in figures}
    for row in rows:
        row.update(by_id.get(row.get(id_key), ()))


class EnvParts:
    """The parts of each GPU's memory, by env: grants of a view, and use that changes."""

    def __init__(self, tasks: Sequence[PictureRow], colours: EnvColours) -> None:
        self._colours = colours
        self._by_gpu: Dict[str, Dict[str, List[int]]] = {}
        """GPU -> env -> [bytes that its tasks use, bytes of its grant]."""
        self._of_tasks = [(task, self._of_task(task)) for task in tasks]

    def _of_task(self, task: PictureRow) -> List[List[int]]:
        """The part of its env on each of its GPUs; there the grant is the highest limit."""
        found = []
        limits = task.get("memory_limit_bytes") or [0] * len(task["gpus"])
        for uuid, limit_bytes in zip(task["gpus"], limits):
            part = self._by_gpu.setdefault(uuid, {}).setdefault(task["env"], [0, 0])
            if not task.get("suspended"):
                part[1] = max(part[1], limit_bytes)
            found.append(part)
        return found

    def share_out(self, gpus: Sequence[PictureRow]) -> None:
        """Sets the parts of each GPU by the present figures of the tasks."""
        for parts in self._by_gpu.values():
            for part in parts.values():
                part[0] = 0
        for task, of_task in self._of_tasks:
            for part, used_bytes in zip(of_task, task.get("gpu_memory_bytes") or ()):
                part[0] += used_bytes or 0
        for gpu in gpus:
            of_envs = [
                MemoryPart(used, granted, self._colours.of(env))
                for env, (used, granted) in sorted(self._by_gpu.get(gpu["uuid"], {}).items())
            ]
            gpu["parts"] = unattributed(
                of_envs, gpu["memory_used_bytes"] or 0, gpu["memory_granted_bytes"] or 0
            )


SEARCHED = ("id", "job", "env", "command", "name", "state", "priority", "reason")


def matching(rows: Sequence[PictureRow], text: str) -> List[PictureRow]:
    """The rows that have all words of the text in a field, in any case of letters."""
    words = text.lower().split()
    if not words:
        return list(rows)
    return [row for row in rows if _has(row, words)]


def _has(row: PictureRow, words: Sequence[str]) -> bool:
    texts = [str(row.get(key) or "") for key in SEARCHED]
    whole = tables.printable("\n".join([*texts, cells.who(row)]).lower())
    return all(word in whole for word in words)


def totals(gpus: Sequence[PictureRow], tasks: int, waiting: int) -> List[str]:
    """The node in a few words, the most important first."""
    held = sum(gpu["tasks"] > 0 for gpu in gpus)
    lost = sum(gpu["state"] != "healthy" for gpu in gpus)
    found = [f"{held} of {_counted(len(gpus), 'GPU')} held"]
    if lost:
        found.append(f"{lost} lost")
    if drained := sum(cells.gpu_state(gpu) == "drained" for gpu in gpus):
        found.append(f"{drained} drained")
    found += [_counted(tasks, "task"), f"{waiting} waiting"]
    watts = [gpu.get("power_w") for gpu in gpus]
    if gpus and None not in watts:
        total_w = sum(watt for watt in watts if watt is not None)
        found.append(f"{total_w / 1_000:.1f} kW" if total_w >= 1_000 else f"{total_w:.0f} W")
    return found


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
