"""What people see of an answer: aligned lines. Knows: which fields matter to a container's users. Must not know: where they come from."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

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
    ("ID", lambda r: r["id"]),
    ("GPUS", lambda r: r["gpus"]),
    ("PLACE", lambda r: "-" if r["position"] is None else r["position"]),
    ("USER", lambda r: ",".join(r["users"]) or "-"),
    ("QUEUE", lambda r: r["priority"]),
    ("FOR", lambda r: duration(r.get("waited_seconds"))),
    ("STARTS ABOUT", lambda r: expected(r) or "-"),
    ("NAME", lambda r: r["name"] or r["command"][:20]),
    ("WHY", lambda r: r["reason"]),
)
RESIDUES: Columns = (
    ("GPU", lambda r: r["gpu_index"]),
    ("STILL HOLDS", lambda r: ("up to " if r["at_most"] else "") + size(r["memory_bytes"])),
    ("PID", lambda r: _pids({"places": r["places"], "pids": [r["pid"]]})),
    ("CONTAINER", _where),
    ("WHY", lambda r: "lives without a lease" if r["alive"] else "is dead: the driver has not let go of it"),
)
RUNNING: Columns = (
    ("ID", lambda r: r["id"]),
    ("STATE", lambda r: r["state"]),
    ("GPUS", lambda r: r["gpus"]),
    ("USER", lambda r: ",".join(r["users"]) or "-"),
    ("SINCE", lambda r: moment(r["since"])),
    ("LIMIT", lambda r: duration(r["time_limit_seconds"])),
    ("NAME", lambda r: r["name"]),
    ("COMMAND", lambda r: r["command"]),
)
HISTORY: Columns = (
    ("JOB", lambda j: j["job"]),
    ("STATE", lambda j: j["state"]),
    ("EXIT", lambda j: exit_word(j)),
    ("GPUS", lambda j: j["gpus"]),
    ("RAN", lambda j: between(j, "started", "ended")),
    ("ENDED", lambda j: moment(j["ended"])),
    ("NAME", lambda j: j["name"]),
    ("WHY", lambda j: j["why"] or "-"),
    ("COMMAND", lambda j: j["command"]),
)
ATTEMPTS: Columns = (
    ("START", lambda a: a["number"]),
    ("STARTED", lambda a: moment(a["started"])),
    ("RAN", lambda a: between(a, "started", "ended")),
    ("EXIT", lambda a: exit_word(a)),
    ("GPUS", lambda a: _numbers(a["gpu_indices"])),
    ("WHY", lambda a: a["why"] or "-"),
)
DEEDS: Columns = (
    ("WHEN", lambda d: moment(d["time"])),
    ("WHO", lambda d: d["who"]),
    ("WHAT", lambda d: d["what"]),
)
REPORT: Columns = (
    ("ENV", lambda e: e["env"]),
    ("GPU HOURS", lambda e: f"{e['gpu_seconds'] / 3_600:.2f}"),
    ("OF THE NODE", lambda e: f"{e['utilisation_ratio'] * 100:.1f} %"),
    ("WAIT: MEDIAN", lambda e: duration(e["wait_median_seconds"])),
    ("90 %", lambda e: duration(e["wait_p90_seconds"])),
    ("JOBS DONE", lambda e: e["jobs_done"]),
    ("FAILED", lambda e: e["jobs_failed"]),
    ("WITHDRAWN", lambda e: e["jobs_withdrawn"]),
)
RUNS = ("starting", "running", "stopping")


def moment(wall_s: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s)) if isinstance(wall_s, int) else "-"


def exit_word(row: Row) -> str:
    if row["signal"]:
        return f"signal {row['signal']}"
    return "-" if row["exit_code"] is None else str(row["exit_code"])


def between(row: Row, first: str, last: str) -> str:
    return "-" if row[first] is None or row[last] is None else duration(max(0, row[last] - row[first]))


def expected(row: Row) -> Optional[str]:
    """An estimate, and how far it may be wrong; None where nothing is known."""
    start, spread = row.get("expected_start"), row.get("expected_spread_seconds")
    if start is None:
        return None
    return f"~{time.strftime('%H:%M', time.localtime(start))}" + (f" +-{duration(spread)}" if spread else "")


def standing(row: Row) -> str:
    """Where a job stands, in a line."""
    state = row["state"]
    if state in ("queued", "waiting", "away", "held", "after"):
        about = expected(row)
        return str(row["reason"]) + (f" (starts about {about}, an estimate)" if about else "")
    if state in RUNS:
        return f"{state} since {moment(row['started'])}" if row["started"] else str(state)
    return f"{state} ({row['why']})" if row["why"] else str(state)


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
    return [*lines, *(printable(row["text"]) for row in answer.get("violations", ())), *failing(answer)]


def failing(answer: Row) -> List[str]:
    """What stands below a table of what waits while the manager's disk is full, say."""
    store = answer.get("store")
    if not store or store["state"] == "ok":
        return []
    return ["", printable(f"nothing new is granted or started, since the manager cannot store it: {store['error']}")]


def queue(answer: Row) -> List[str]:
    lines = table(QUEUE, answer["queue"]) if answer["queue"] else ["Nothing of this environment waits."]
    if answer["running"]:
        lines += ["", *table(RUNNING, answer["running"])]
    return lines + failing(answer)


def standings(answer: Row) -> List[str]:
    return [printable(f"{row.get('job') or row['id']}: {standing(row)}") for row in answer["jobs"]]


def outcomes(answer: Row) -> List[str]:
    """Of those that did not end well."""
    return [printable(f"{row['job']}: {row['state']}, {row['why']}") for row in answer["jobs"] if row["exit"] != 0]


def history(answer: Row) -> List[str]:
    rows = answer["history"] if "history" in answer else answer["jobs"]
    if not rows:
        return ["No job of this environment has ended."]
    lines = table(HISTORY, rows)
    if "history" in answer or len(rows) != 1:
        return lines
    (row,) = rows
    if row["attempts"]:
        lines += ["", *table(ATTEMPTS, row["attempts"])]
    lines += ["", *table(DEEDS, row["deeds"])]
    tail = row["attempts"][-1]["log_tail"] if row["attempts"] else ""
    return [*lines, "", *map(printable, tail.splitlines())] if tail else lines


def report(answer: Row) -> List[str]:
    return [*table(REPORT, answer["envs"]), "", f"{moment(answer['since'])} to {moment(answer['until'])}"]


def said(what: str) -> Callable[[Row], List[str]]:
    return lambda answer: [f"{answer['job']} {what}"]


def nothing(_answer: Row) -> List[str]:
    return []


def released(answer: Row) -> List[str]:
    return [f"{answer['task']} is released"]
