"""Cells of rows of the manager's views, for the tables of `status` and `queue` and for `top`.

Knows: the fields of a row. Must not know: the table in which a cell stands.
"""

from __future__ import annotations

from client_plugin.messages import form
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import TableRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Set, Tuple

MAX_PIDS_SHOWN = 4
RUNS = frozenset({"starting", "running", "stopping", "suspending", "suspended", "resuming"})
"""The states of jobs that have left their queue and not ended."""
AT_LEAST = "nvml_at_least"
"""The `idle_source` of a time that may be longer."""


WAITS_FOR_OWN = frozenset(
    {"own_gpus", "quota_memory", "ledger", "behind_own", "above_quota", "cpu_jobs"}
)
"""Causes of a wait that entries of other environments have no part in."""


def place(row: TableRow) -> Optional[int]:
    """The place in its queue; none where its own environment alone is in its way."""
    return None if row.get("cause") in WAITS_FOR_OWN else row["position"]


def duration(row: TableRow, name: str) -> Optional[str]:
    """A measured time; across a reboot of the node only its measured parts are known."""
    value = tables.seconds(row[f"{name}_seconds"])
    return f"at least {value}" if row[f"{name}_at_least"] else value


def pids(task: TableRow, inside: bool) -> str:
    """The PIDs: the node's own on the node, those of the container in a container, if any."""
    locations = task.get("places") if inside else None
    found = (
        task["pids"]
        if not locations
        else [place["pid_inside"] or place["pid"] for place in locations]
    )
    more = f"+{len(found) - MAX_PIDS_SHOWN}" if len(found) > MAX_PIDS_SHOWN else ""
    return ",".join(map(str, found[:MAX_PIDS_SHOWN])) + more or "-"


def who(row: TableRow) -> str:
    """root@web-1, or the user alone where there is no container."""
    found = (f"{user}@{place}" if place else user for user, place in _users(row))
    return ",".join(sorted(found)) or "-"


def users(row: TableRow) -> str:
    return ",".join(sorted({user for user, _ in _users(row)})) or "-"


def containers(row: TableRow) -> str:
    """The names of its containers; empty: its processes are in none."""
    return ",".join(sorted({place for _, place in _users(row) if place}))


def _users(row: TableRow) -> Set[Tuple[str, str]]:
    """(user, container or an empty text)."""
    found = {
        (place["user"], place["container_name"] or place["container"] or "")
        for place in row.get("places", ())
    }
    if found:
        return found
    # a job's user, where no process of it has come; its place is ENV/UID/CONTAINER
    place = (row.get("place") or "").split("/", 2)[-1]
    return {(user, place) for user in row.get("users", ())}


def figure(row: TableRow, key: str, unit: str) -> Optional[str]:
    """A rounded figure; None: it is not known."""
    value = row.get(key)
    return None if value is None else f"{value:.0f} {unit}"


def failures(gpu: TableRow) -> Optional[int]:
    """The recorded failures of a GPU that count; None: there is none."""
    return gpu.get("failures") or None


def failure_rate(gpu: TableRow) -> Optional[str]:
    """Its estimated failures in 1000 hours, with the interval that contains 90 % of the belief."""
    rate = gpu.get("failures_per_1000_hours")
    if rate is None:
        return None
    low, high = gpu["failures_per_1000_hours_low"], gpu["failures_per_1000_hours_high"]
    return f"{_rounded(rate, 2)} ({_rounded(low, 1)} to {_rounded(high, 1)})"


def _rounded(value: float, digits: int) -> str:
    """So many significant digits, without an exponent for 10 and more."""
    return f"{float(f'{value:.{digits}g}'):g}"


def idle(task: TableRow) -> Optional[str]:
    """`>` where the task may be idle for longer."""
    seconds = task.get("idle_seconds")
    if seconds is None:
        return None
    return f"{'>' if task.get('idle_source') == AT_LEAST else ''}{tables.seconds(seconds)}"


def gpu_state(gpu: TableRow) -> str:
    """`drained`: it is healthy and gets no new task."""
    return "drained" if gpu.get("drained") and gpu["state"] == "healthy" else str(gpu["state"])


def task_state(task: TableRow) -> str:
    """`paused`: its launches wait, since it used more than its share."""
    is_paused = task.get("gate_reason") == "paused" and task["state"] == "running"
    return "paused" if is_paused else str(task["state"])


def task_class(row: TableRow) -> Optional[str]:
    """None: a plain task, request or job, which has no share."""
    found: str = row.get("class", "")
    return None if row.get("compute_percent") is None else found


def gpus(row: TableRow) -> str:
    """Its GPUs; `0,1,2 (3 of 1-4, 1 borrowed)`: of an elastic task, with its range."""
    listed, most = tables.gpu_list(row["gpu_indices"]), row.get("gpus_max")
    if most is None:
        return listed
    borrowed = f", {row['borrowed']} borrowed" if row.get("borrowed") else ""
    return f"{listed} ({len(row['gpu_indices'])} of {row['gpus_min']}-{most}{borrowed})"


def memory_range(task: TableRow) -> Optional[str]:
    """`12 of 8-24 GiB`: the least of its present limits, and its range.

    `8-24 GiB`: none of its processes has memory yet. None: it has no range.
    """
    if task.get("memory_max_bytes") is None:
        return None
    sizes = (task["memory_min_bytes"], task["memory_max_bytes"])
    least, most = (f"{size_bytes / 2**30:.4g}" for size_bytes in sizes)
    limit_bytes = min(*(task.get("memory_limit_bytes") or (0,)), task["memory_max_bytes"])
    present = f"{limit_bytes / 2**30:.4g} of " if limit_bytes else ""
    return f"{present}{least}-{most} GiB"


def asked_gpus(row: TableRow) -> object:
    """The number of GPUs that a request or a job asks for, or the range of it: `1-4`."""
    most = row.get("gpus_max")
    return row["gpus"] if most is None else f"{row['gpus_min']}-{most}"


def share(row: TableRow) -> Optional[str]:
    """The percent of each GPU that it asked for, or has beyond that; `10 of 40 %`: it has less."""
    asked = row.get("compute_percent")
    if asked is None:
        return None
    granted = row.get("compute_granted_percent")
    if granted is None or granted >= asked:
        return f"{granted or asked} %"
    return f"{granted} of {asked} %"


def progress(row: TableRow) -> Optional[str]:
    """In percent; the parts that are done, where their number is not known."""
    found = row.get("progress")
    if found is None:
        return None
    done, total = found["done"], found["total"]
    return f"{done}" if total is None else f"{100 * done // total} %"


def predicted(row: TableRow) -> Optional[str]:
    """Memory, utilisation and run time that were predicted, as far as they were.

    Of a job a figure of each model of the node: the least and the most of them.
    """
    found = row.get("predicted") or ()
    rows = [found] if isinstance(found, dict) else found
    parts = [
        _from_to([tables.size(size) for size in _known(rows, "memory_bytes")]),
        _from_to([f"{percent} %" for percent in _known(rows, "utilization_percent")]),
        _from_to([tables.seconds(run_s) for run_s in _known(rows, "run_seconds")]),
    ]
    return ", ".join([part for part in parts if part]) or None


def peak(row: TableRow) -> Optional[str]:
    """The most memory that a job had on one GPU."""
    return tables.size(row.get("peak_bytes"))


def cpu_time(row: TableRow) -> Optional[str]:
    """The processor time of an attempt."""
    seconds = row.get("cpu_seconds")
    return None if seconds is None else tables.seconds(round(seconds))


def host_peak(row: TableRow) -> Optional[str]:
    """The most host memory that an attempt had."""
    return tables.size(row.get("host_peak_bytes"))


def _known(rows: Sequence[TableRow], key: str) -> List[int]:
    return sorted(row[key] for row in rows if row.get(key) is not None)


def _from_to(texts: Sequence[Optional[str]]) -> Optional[str]:
    """The first and the last, if they differ."""
    if not texts:
        return None
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def expected(row: TableRow, now_s: Optional[float] = None) -> Optional[str]:
    """An estimate, and how far it may be wrong; None where nothing is known."""
    start = row.get("expected_start")
    if start is None:
        return None
    spread = row.get("expected_spread_seconds") or 0
    return f"~{tables.clock_time(start, now_s)}" + (f" ±{tables.seconds(spread)}" if spread else "")


def line_of(row: TableRow, id_key: str) -> Tuple[str, ...]:
    """The key that rows of one line share: the array and the state.

    A job outside any array has a line of its own.
    """
    array, point, _ = row[id_key].partition(".")
    return (array, row["state"]) if point or row.get("indices") else (array,)


def by_array(rows: Sequence[TableRow], id_key: str) -> List[List[TableRow]]:
    """Groups of rows: the rows of one array and state, at the place of the first of them.

    Each other row is a group of its own.
    """
    found: Dict[Tuple[str, ...], List[TableRow]] = {}
    for row in rows:
        found.setdefault(line_of(row, id_key), []).append(row)
    return list(found.values())


def folded(rows: Sequence[TableRow]) -> List[TableRow]:
    """Arrays as one row each, which counts their jobs."""
    return [group[0] if is_one(group) else _array(group) for group in by_array(rows, "id")]


def unfolded(rows: Sequence[TableRow]) -> List[TableRow]:
    """Each job as a row; those of an array that wait together are one, with their indices."""
    return [
        {**row, "id": f"{row['job']}.[{row['indices']}]"} if row.get("indices") else row
        for row in rows
    ]


def is_one(group: Sequence[TableRow]) -> bool:
    """Whether the row of this group stands for one job alone."""
    return len(group) == 1 and not group[0].get("indices")


def together(group: Sequence[TableRow], id_key: str) -> str:
    """The name of the jobs of one array."""
    array, count = group[0][id_key].partition(".")[0], sum(row.get("jobs", 1) for row in group)
    return f"{array} ({count} jobs)" if count > 1 else f"{array}.{group[0]['indices']}"


def nodes(group: Sequence[TableRow]) -> Optional[str]:
    """The node of a cluster's jobs, or the number of their nodes."""
    found = {row["node"] for row in group if row.get("node")}
    return f"{len(found)} nodes" if len(found) > 1 else next(iter(found), None)


def _array(group: Sequence[TableRow]) -> TableRow:
    """The first row, with the array's name in place of the job's, and the greatest peak."""
    first = group[0]
    entry = first["id"].partition(".")[0]
    clauses = [(text, {**fields, "entry": entry}) for text, fields in first.get("clauses") or ()]
    peak_bytes = max([row.get("peak_bytes") or 0 for row in group]) or None
    return {
        **first, "id": together(group, "id"), "clauses": clauses,
        "jobs": sum(row.get("jobs", 1) for row in group), "node": nodes(group),
        "peak_bytes": peak_bytes, "utilization_percent": None,
    }  # fmt: skip


def placed(row: TableRow) -> str:
    """The place in its queue, and why it waits."""
    why = tables.why(row) or "its turn comes next"
    if row["position"] is None:  # a job of a cluster
        return why
    return form.placed(row["priority"], row["position"], row.get("ahead") or 0, why)


def standing(row: TableRow) -> str:
    """The place of a job, in a line."""
    state = row["state"]
    if state in ("queued", "waiting", "away"):
        start = expected(row)
        about = f" (starts about {start}, an estimate)" if start else ""
        return f"{placed(row)}{about}"
    if state in ("held", "paused", "after"):
        return tables.why(row)
    if state in RUNS:
        since = tables.wall_time(row["started"] * 10**9 if row["started"] else None)
        return f"{state} since {since}" if since else str(state)
    return f"{state} ({row['why']})" if row["why"] else str(state)
