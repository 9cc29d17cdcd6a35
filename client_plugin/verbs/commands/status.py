"""`nodemgr status`: GPUs, environments, tasks and the queue, as tables or as one JSON object."""

from __future__ import annotations

from client_plugin import units
from client_plugin.messages.form import notice
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, SizeColumn, TableRow
from client_plugin.verbs.reading import cluster_reading, status_warnings
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence

MOST_WAITING = 10
"""The lines of the queue that it shows; an array is one of them."""


def no_quota_yet() -> str:
    """The line in place of an empty table of environments."""
    from client_plugin.messages import status as messages  # most nodes have one
    from client_plugin.messages.form import sentence

    return sentence(messages.NO_QUOTA_YET())


def no_gpu() -> str:
    from client_plugin.messages import status as messages
    from client_plugin.messages.form import sentence

    return sentence(messages.NO_GPU())


def _held_to(task: TableRow) -> str:
    """How its memory is limited: shared with its environment's tasks, or its own.

    Over UDP there is no ledger, only a fixed cap for each process.
    """
    ways = [
        word
        for transport, word in (("unix", "shared"), ("udp", "fixed cap (udp)"))
        if transport in task.get("transports", ())
    ]
    held_to = " + ".join(ways) or "shared"
    within = cells.memory_range(task)
    if within is None and task.get("memory_named_bytes") and "unix" in task.get("transports", ()):
        return f"its own, {task['memory_named_bytes'] / 2**30:.4g} GiB"
    return held_to if within is None else f"{held_to}, {within}"


def granted_share(gpu: TableRow) -> Optional[str]:
    """The compute that its tasks have, where shares say so: a plain task has all of it."""
    percent = gpu.get("compute_granted_percent") or 0
    return f"{percent} %" if 0 < percent < units.WHOLE_PERCENT else None


def gpu_columns() -> Sequence[Column]:
    return (
        Column("GPU", lambda g: g["index"], right=True),
        Column("NAME", lambda g: g["name"], spare=4),
        Column("STATE", cells.gpu_state),
        SizeColumn("MEMORY", lambda g: g["memory_total_bytes"]),
        SizeColumn("GRANTED", lambda g: g["memory_granted_bytes"]),
        SizeColumn("USED", lambda g: g["memory_used_bytes"]),
        Column("UTIL", lambda g: cells.figure(g, "utilization_percent", "%"), right=True),
        Column("TEMP", lambda g: cells.figure(g, "temperature_c", "C"), right=True, spare=2),
        Column("POWER", lambda g: cells.figure(g, "power_w", "W"), right=True, spare=3),
        Column("SHARES", granted_share, right=True, spare=6, optional=True),
        Column("TASKS", lambda g: g["tasks"], right=True, spare=1),
        Column("FAILURES", cells.failures, right=True, spare=2, optional=True),
        Column("IN 1000 H", cells.failure_rate, right=True, spare=3, optional=True),
        Column("UUID", lambda g: g["uuid"], spare=5),
    )


def env_columns() -> Sequence[Column]:
    return (
        Column("ENV", lambda e: e["name"]),
        Column("GPUS", lambda e: f"{len(e['gpus'])}/{e['quota']['gpus']}", right=True),
        SizeColumn("MEMORY QUOTA", lambda e: e["quota"]["memory_bytes"] or "whole GPUs"),
        SizeColumn("AVAILABLE", lambda e: e["memory_remaining_bytes"]),
        SizeColumn(
            "STILL TO COME", lambda e: e.get("memory_pending_bytes") or None, spare=2, optional=True
        ),
        SizeColumn(
            "FIXED CAPS", lambda e: e.get("memory_capped_bytes") or None, spare=3, optional=True
        ),
        Column("QUEUE", lambda e: e["quota"]["priority"], spare=1),
    )


def task_columns(index_of: Dict[str, Any], *, jobs: bool, inside: bool = False) -> Sequence[Column]:
    """`jobs`: some of the tasks are batch jobs."""
    job = (Column("JOB", lambda t: t.get("job"), spare=6),) if jobs else ()
    return (
        Column("TASK", lambda t: t["id"]),
        *job,
        Column("ENV", lambda t: t["env"]),
        Column("STATE", cells.task_state),
        Column("CLASS", cells.task_class, spare=4, optional=True),
        Column("SHARE", cells.share, right=True, spare=3, optional=True),
        Column("DONE", cells.progress, right=True, spare=4, optional=True),
        Column("MEMORY", _held_to, spare=4),
        Column(
            "GPUS",
            lambda t: cells.gpus(
                {**t, "gpu_indices": [index_of.get(gpu, gpu) for gpu in t["gpus"]]}
            ),
        ),
        SizeColumn("USED", lambda t: t.get("memory_bytes")),
        Column("UTIL", lambda t: cells.figure(t, "utilization_percent", "%"), right=True),
        Column("IDLE", cells.idle, right=True),
        Column("FOR", lambda t: tables.seconds(t["duration_seconds"]), right=True, spare=1),
        Column("PREDICTED", cells.predicted, right=True, spare=4, optional=True),
        Column(
            "LAST SEEN", lambda t: tables.seconds(t["last_beat_age_seconds"]), right=True, spare=5
        ),
        Column("CPU", lambda t: cells.figure(t, "host_cpu_percent", "%"), right=True, spare=7),
        SizeColumn("HOST", lambda t: t.get("host_memory_bytes"), spare=8),
        Column("PIDS", lambda t: cells.pids(t, inside), spare=3),
        Column("WHO", cells.who, spare=2),
        Column("COMMAND", lambda t: t["command"], rest=True),
    )


def queue_columns() -> Sequence[Column]:
    return (
        Column("PLACE", cells.place, right=True),
        Column("WHAT", lambda r: r["id"]),
        Column("ENV", lambda r: r["env"]),
        Column("GPUS", cells.asked_gpus, right=True),
        Column("CLASS", cells.task_class, spare=2, optional=True),
        Column("SHARE", cells.share, right=True, spare=2, optional=True),
        Column("QUEUE", lambda r: r["priority"], spare=1),
        Column("WHO", cells.who, spare=1),
        Column("WHY", tables.why, rest=True, below=True),
    )


def why_unreclaimed(row: TableRow) -> str:
    if row.get("exported"):
        return "exported by processes that have ended: another has it open"
    return "lives without a lease" if row["alive"] else "is dead: the driver has not let go of it"


def unreclaimed_columns() -> Sequence[Column]:
    return (
        Column("GPU", lambda r: r["gpu_index"], right=True),
        Column(
            "STILL HOLDS",
            lambda r: f"{'up to ' if r['at_most'] else ''}{tables.size(r['memory_bytes'])}",
            right=True,
        ),
        Column("PID", lambda r: "-" if r["pid"] is None else r["pid"], right=True),
        Column("ENV", lambda r: r["env"]),
        Column("WHO", cells.who, spare=1),
        Column("WHY", why_unreclaimed),
    )


OFFENCES = {
    "no_lease": "no lease",
    "over_quota": "beyond its quota",
    "over_share": "beyond its share",
    "garbled_gate": "garbles the gate",
}
"""The audit's offences in words."""
OF_COMPUTE = ("over_share", "garbled_gate")


def _used(violation: TableRow, memory: str, compute: str) -> Optional[str]:
    """Memory, or compute where the offence is one of compute."""
    if violation["offence"] in OF_COMPUTE:
        return f"{violation[compute]}%"
    return tables.size(violation[memory])


def violation_columns() -> Sequence[Column]:
    return (
        Column("PID", lambda v: v["pid"], right=True),
        Column("ENV", lambda v: v["env"]),
        Column("GPU", lambda v: v["gpu_index"], right=True),
        Column("USES", lambda v: _used(v, "memory_bytes", "used_percent"), right=True),
        Column("MAY USE", lambda v: _used(v, "allowed_bytes", "allowed_percent"), right=True),
        Column("WHAT", lambda v: OFFENCES.get(v["offence"], v["offence"])),
        Column("FOR", lambda v: tables.seconds(v["duration_seconds"]), right=True),
        Column("ENFORCE", lambda v: v["enforce"], spare=1),
        Column("COMMAND", lambda v: v["command"], rest=True),
    )


def run(said: Said) -> int:
    way = choice.node_or_env(said.whom())
    if said.cluster:
        told = way.ask("cluster_status")
        if said.as_json:
            tables.print_json(told)
        else:
            show_cluster(told)
        return 0
    status = way.status()
    if said.as_json:
        tables.print_json(status)
    else:
        show(status, said.inside)
        for line in status_warnings.of_status(status):
            say(line)
    return 0


def node_columns() -> Sequence[Column]:
    return (
        Column("NODE", lambda n: n["node"]),
        Column("STATE", lambda n: n["state"]),
        Column("GPUS", lambda n: n["gpus"], right=True),
        Column("JOBS", lambda n: n["gpus_of_jobs"], right=True),
        Column("OTHERS", lambda n: n["gpus_of_others"], right=True),
        Column("SILENT", lambda n: tables.seconds(n["silent_seconds"]), right=True),
        Column("WHY", lambda n: n["why"] or None, rest=True, below=True),
    )


def cluster_env_columns() -> Sequence[Column]:
    return (
        Column("ENV", lambda e: e["env"]),
        Column("GPUS", lambda e: f"{e['gpus_used']}/{e['gpus']}", right=True),
        Column("PER NODE", lambda e: e["per_node"], right=True),
    )


def show_cluster(told: TableRow) -> None:
    """The nodes, the cluster's environments, GPUs and tasks: a user's own ones, or all."""
    tables.show(node_columns(), told["nodes"], empty="No node has joined.")
    gpus, tasks = cluster_reading.merged(told)
    index_of = {gpu["uuid"]: gpu["index"] for gpu in gpus}
    if told["envs"]:
        print()
        tables.show(cluster_env_columns(), told["envs"])
    if gpus:
        print()
        tables.show(gpu_columns(), gpus)
    if tasks:
        print()
        jobs = any(task.get("job") for task in tasks)
        tables.show(task_columns(index_of, jobs=jobs), tasks)
    if told["waiting"]:
        print()
        print(f"{told['waiting']} jobs wait (nodemgr queue)")


def show(status: TableRow, inside: bool = False) -> None:
    index_of = {gpu["uuid"]: gpu["index"] for gpu in status["gpus"]}
    tables.show(gpu_columns(), status["gpus"], empty="" if status["gpus"] else no_gpu())
    if status["gpus"]:
        from client_plugin.messages import status as messages

        order = status["placement"]
        setting = ": ".join(dict.fromkeys((order["setting"], order["in_force"])))
        print(notice(f"order of free GPUs: {order['meaning']} (placement = {setting})"))
    print()
    tables.show(
        env_columns(),
        status["envs"],
        empty="" if status["envs"] else no_quota_yet(),
    )
    if status["tasks"]:
        print()
        jobs = any(task.get("job") for task in status["tasks"])
        tables.show(task_columns(index_of, jobs=jobs, inside=inside), status["tasks"])
    if status["queue"]:
        print()
        rows = cells.folded(status["queue"])[:MOST_WAITING]
        tables.show(queue_columns(), rows)
        shown = sum(row.get("jobs", 1) for row in rows)
        whole = max(status.get("queue_length", 0), len(status["queue"]))  # it counts none held
        if (more := whole - shown) > 0:
            from client_plugin.messages import status as messages

            print(messages.MORE_WAIT(more=more))
    if status.get("residues"):
        print()
        tables.show(unreclaimed_columns(), status["residues"])
    if status.get("violations"):
        print()
        tables.show(violation_columns(), status["violations"])


VERB = Verb(
    "status", VERBS["status"], run,
    (VerbOption("--env", kind=kinds.ENV, help="Only this environment, asked as one of its users."),
     VerbOption("--cluster", help="All nodes of the cluster, as its head knows them."),
     RUN_DIR, JSON),
    text="An admin sees the node, a user the environment's part of it. nodemgr top shows it live.",
)  # fmt: skip
