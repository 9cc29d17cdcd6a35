"""The view of a kernel: texts and rows for the status bar and its panel, from the status.

Knows: the fields of the status. Must not know: HTTP, the page. Texts are plain: the page escapes
them.
"""

from __future__ import annotations

from typing import Any

from client_plugin.messages.form import notice
from nodemgr_jupyter.client import choice, faults, summary
from nodemgr_jupyter.kernels import Place
from nodemgr_jupyter.no_client import CELL_WITHOUT_CLIENT, NO_CLIENT

SCHEMA_VERSION = 1
MAX_ROWS = 50
Json = dict[str, Any]


def outside() -> Json:
    lines = summary()
    from client_plugin.messages import jupyter as messages  # the client is found by now

    return _plain("outside", lines.NONE, messages.KERNEL_OUTSIDE())


def without_client(error: Exception) -> Json:
    return _plain("error", CELL_WITHOUT_CLIENT, NO_CLIENT % {"error": error})


def failed(fault: Any) -> Json:
    """The manager's refusal, or its absence."""
    away = fault.code == faults().Exit.UNREACHABLE

    text = "GPU: no manager" if away else summary().NONE
    return _plain("no_manager" if away else "error", text, fault.message)


def asked(place: Place) -> Json:
    """Two questions at most, each of some milliseconds. Raises Fault."""
    way = choice().UserWay(place.directory)
    if way.socket is None:
        raise faults().Fault(
            "this environment is reached over UDP", "nodemgr status shows its GPUs"
        )
    status = way.status()
    request = _mine(status["queue"], place)
    queues = way.ask("queue", limit=1)["queues"] if request is not None else []
    return shown(status, place, queues)


def shown(status: Json, place: Place, queues: list[Json]) -> Json:
    lines = summary()

    task, request = _mine(status["tasks"], place), _mine(status["queue"], place)
    if task is not None:
        state, text, title = (
            "held",
            lines.held(task, status),
            notice(f"{task['id']}: the GPUs of this kernel"),
        )
    elif request is not None:
        length = next((row["length"] for row in queues if row["name"] == request["priority"]), None)
        state, text, title = "waiting", lines.waiting(request, length), lines.reason(request)
    else:
        state, text = "idle", lines.NONE
        title = notice("this kernel holds no GPU; it asks for GPUs when it first uses CUDA")
    return {
        **_plain(state, text, title),
        "env": next((env["name"] for env in status["envs"]), None),
        "gpus": [_gpu(row, task) for row in status["gpus"]],
        "tasks": [_task(row, status, row is task) for row in status["tasks"][:MAX_ROWS]],
        "queue": [_request(row, row is request) for row in status["queue"][:MAX_ROWS]],
    }


def _plain(state: str, text: str, title: str) -> Json:
    return {
        "schema_version": SCHEMA_VERSION, "state": state, "text": text, "title": title,
        "env": None, "gpus": [], "tasks": [], "queue": [],
    }  # fmt: skip


def _mine(rows: list[Json], place: Place) -> Json | None:
    found: Json | None = (
        None if place.pid is None else summary().row_of(rows, place.pid, place.inside)
    )
    return found


def _gpu(row: Json, task: Json | None) -> Json:
    used, total = row["memory_used_bytes"], row["memory_total_bytes"]
    percent = row.get("utilization_percent")
    return {
        "name": f"GPU {row['index']}",
        "memory": f"{summary().gib(used)}/{summary().gib(total)} GiB",
        "utilization": "" if percent is None else f"{round(percent)} %",
        "holders": _holders(row),
        "warning": row.get("warning") or "",
        "mine": task is not None and row["uuid"] in task["gpus"],
    }


def _holders(row: Json) -> str:
    """Its environments; of a GPU that is lost or drained its state as well."""
    state = row["state"] if row["state"] != "healthy" else "drained" if row.get("drained") else ""
    envs = ", ".join(row.get("envs") or ())
    if envs:
        return f"{envs} ({state})" if state else envs
    return state or "free"


def _task(row: Json, status: Json, mine: bool) -> Json:
    return {
        "id": row["id"],
        "text": summary().held(row, status),
        "command": row["command"],
        "mine": mine,
    }


def _request(row: Json, mine: bool) -> Json:
    return {
        "id": row["id"],
        "text": "" if row["position"] is None else f"place {row['position']}",
        "reason": summary().reason(row),
        "mine": mine,
        "job": row.get("job") is not None,
    }
