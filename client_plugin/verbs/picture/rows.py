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

    def with_figures(self, figures: PictureRow) -> NodeView:
        """The same with the figures of a later moment; ages pass with time by themselves."""
        gpus = {row["uuid"]: row for row in figures["gpus"]}
        tasks = {row["id"]: row for row in figures["tasks"]}
        status = {
            **self.status,
            "gpus": [{**row, **gpus.get(row["uuid"], {})} for row in self.status["gpus"]],
            "tasks": [{**row, **tasks.get(row["id"], {})} for row in self.status["tasks"]],
        }
        return NodeView(status, self.queue, self.warnings, self.at_s)

    def has_tasks_of(self, figures: PictureRow) -> bool:
        """Whether the figures are of the same tasks as the status."""
        return {row["id"] for row in figures["tasks"]} == {
            row["id"] for row in self.status["tasks"]
        }


class EnvColours:
    """One colour for each environment, the same as long as the picture lasts."""

    def __init__(self) -> None:
        self._found: Dict[str, str] = {}

    def of(self, env: str) -> str:
        return self._found.setdefault(env, ENV_COLOURS[len(self._found) % len(ENV_COLOURS)])


def gpu_rows(view: NodeView, colours: EnvColours) -> List[PictureRow]:
    parts = _parts(view.status["tasks"])
    found = []
    for gpu in view.status["gpus"]:
        of_envs = [
            MemoryPart(used, granted, colours.of(env))
            for env, (used, granted) in sorted(parts.get(gpu["uuid"], {}).items())
        ]
        known = unattributed(
            of_envs, gpu["memory_used_bytes"] or 0, gpu["memory_granted_bytes"] or 0
        )
        found.append({**gpu, "parts": known})
    return found


def _parts(tasks: Sequence[PictureRow]) -> Dict[str, Dict[str, List[int]]]:
    """GPU -> env -> [bytes that its tasks use, bytes of its grant]."""
    found: Dict[str, Dict[str, List[int]]] = {}
    for task in tasks:
        used = task.get("gpu_memory_bytes") or []
        limits = task.get("memory_limit_bytes") or []
        for at, uuid in enumerate(task["gpus"]):
            part = found.setdefault(uuid, {}).setdefault(task["env"], [0, 0])
            part[0] += (used[at] if at < len(used) else 0) or 0
            part[1] = max(part[1], limits[at] if at < len(limits) else 0)
    return found


def task_rows(view: NodeView, colours: EnvColours, now_s: float) -> List[PictureRow]:
    """The tasks, and behind them the jobs that run without one: they use no GPU."""
    passed_s = max(0, int(now_s - view.at_s))
    index_of = {gpu["uuid"]: gpu["index"] for gpu in view.status["gpus"]}
    found = []
    for task in view.status["tasks"]:
        found.append(
            {
                "gpu_indices": [index_of.get(uuid, "?") for uuid in task["gpus"]],
                **task,
                "age": int(task["duration_seconds"]) + passed_s,
                "env_style": colours.of(task["env"]),
            }
        )
    jobs_of_tasks = {task.get("job") for task in view.status["tasks"]}
    for job in view.status.get("jobs", ()):
        if job["id"] not in jobs_of_tasks:
            found.append(
                {
                    **job,
                    "gpu_indices": [],
                    "age": max(0, int(now_s - job["since"])),
                    "env_style": colours.of(job["env"]),
                }
            )
    return found


def queue_rows(
    view: NodeView, colours: EnvColours, now_s: float, is_expanded: bool
) -> List[PictureRow]:
    """All that waits; an array is one row, unless the rows are expanded."""
    passed_s = max(0, int(now_s - view.at_s))
    rows = view.queue if is_expanded else cells.folded(view.queue)
    return [
        {
            **row,
            "age": None if row.get("waited_seconds") is None else row["waited_seconds"] + passed_s,
            "starts": cells.expected(row, now_s),
            "env_style": colours.of(row["env"]),
        }
        for row in rows
    ]


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


def totals(view: NodeView) -> List[str]:
    """The node in a few words, the most important first."""
    gpus = view.status["gpus"]
    held = sum(gpu["tasks"] > 0 for gpu in gpus)
    lost = sum(gpu["state"] != "healthy" for gpu in gpus)
    waiting = max(view.status.get("queue_length", 0), 0)
    found = [f"{held} of {_counted(len(gpus), 'GPU')} held"]
    if lost:
        found.append(f"{lost} lost")
    found.append(_counted(len(view.status["tasks"]), "task"))
    found.append(f"{waiting} waiting")
    watts = [gpu.get("power_w") for gpu in gpus]
    if gpus and None not in watts:
        total_w = sum(watts)
        found.append(f"{total_w / 1_000:.1f} kW" if total_w >= 1_000 else f"{total_w:.0f} W")
    return found


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
