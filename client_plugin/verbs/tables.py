"""What people see of an answer: aligned lines. Knows: which fields matter to a container's users. Must not know: where they come from."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

Row = Dict[str, Any]
Columns = Sequence[Tuple[str, Callable[[Row], object]]]
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """On one line, without anything that steers a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def size(value: Any) -> str:
    if not isinstance(value, int):
        return "-"
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.2f}".rstrip("0").rstrip(".") + " " + UNITS[unit]


def duration(value: Any) -> str:
    if not isinstance(value, int):
        return "-"
    hours, minutes, seconds = value // 3600, value // 60 % 60, value % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _pids(row: Row) -> str:
    """As this container numbers them, where they have a number here."""
    places = row.get("places") or [{"pid": pid} for pid in row["pids"]]
    found = [str(place.get("pid_inside") or place.get("pid") or "-") for place in places]
    return ",".join(found[:4]) + (f"+{len(found) - 4}" if len(found) > 4 else "")


def _where(row: Row) -> str:
    names = {place.get("container_name") or place.get("container") or "the node" for place in row.get("places", ())}
    return ",".join(sorted(names)) or "-"


def _numbers(values: Any) -> str:
    return ",".join(map(str, values)) or "-"


ENV: Columns = (
    ("ENV", lambda e: e["name"]),
    ("GPUS", lambda e: f"{len(e['gpus'])} of {e['quota']['gpus']}"),
    ("MEMORY QUOTA", lambda e: size(e["quota"]["memory_bytes"]) if e["quota"]["memory_bytes"] is not None else "whole GPUs"),
    ("REMAINING", lambda e: size(e["memory_remaining_bytes"])),
)
GPUS: Columns = (
    ("GPU", lambda g: g["index"]),
    ("NAME", lambda g: g["name"]),
    ("STATE", lambda g: g["state"]),
    ("MEMORY", lambda g: size(g["memory_total_bytes"])),
    ("GRANTED", lambda g: size(g["memory_granted_bytes"])),
    ("USED", lambda g: size(g["memory_used_bytes"])),
    ("TASKS", lambda g: g["tasks"]),
)
TASKS: Columns = (
    ("TASK", lambda t: t["id"]),
    ("STATE", lambda t: t["state"]),
    ("GPUS", lambda t: _numbers(t["gpu_indices"])),
    ("FOR", lambda t: duration(t["duration_seconds"])),
    ("PIDS", _pids),
    ("USER", lambda t: ",".join(t.get("users", ())) or "-"),
    ("CONTAINER", _where),
    ("COMMAND", lambda t: t["command"]),
)
QUEUE: Columns = (
    ("REQUEST", lambda r: r["id"]),
    ("GPUS", lambda r: r["gpus"]),
    ("PLACE", lambda r: r["position"]),
    ("PIDS", _pids),
    ("CONTAINER", _where),
    ("QUEUE", lambda r: r["priority"]),
    ("FOR", lambda r: duration(r.get("waited_seconds"))),
    ("WHY", lambda r: r["reason"]),
)


RESIDUES: Columns = (
    ("GPU", lambda r: r["gpu_index"]),
    ("STILL HOLDS", lambda r: ("up to " if r["at_most"] else "") + size(r["memory_bytes"])),
    ("PID", lambda r: _pids({"places": r["places"], "pids": [r["pid"]]})),
    ("CONTAINER", _where),
    ("WHY", lambda r: "lives without a lease" if r["alive"] else "is dead: the driver has not let go of it"),
)


def table(columns: Columns, rows: Sequence[Row]) -> List[str]:
    cells = [[title for title, _ in columns]] + [[printable(str(cell(row))) for _, cell in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in cells]


def status(answer: Row) -> List[str]:
    lines = [*table(ENV, answer["envs"]), "", *table(GPUS, answer["gpus"])]
    if answer["tasks"]:
        lines += ["", *table(TASKS, answer["tasks"])]
    if answer["queue"]:
        lines += ["", *table(QUEUE, answer["queue"])]
    if answer.get("residues"):
        lines += ["", *table(RESIDUES, answer["residues"])]
    return lines + [printable(row["text"]) for row in answer.get("violations", ())]


def queue(answer: Row) -> List[str]:
    return table(QUEUE, answer["queue"]) if answer["queue"] else ["Nothing of this environment waits."]


def released(answer: Row) -> List[str]:
    return [f"{answer['task']} is released"]
