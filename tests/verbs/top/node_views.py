"""Views of a node as the manager answers them, for tests of `top`: always the same."""

from __future__ import annotations

from typing import Any

from client_plugin.verbs.picture.rows import NodeView

GIB = 2**30
NOW_S = 1_795_000_000.0
ENVS = ("alice", "bob", "ci", "dora", "erik")
COMMANDS = (
    "python train.py --model resnet50 --epochs 90",
    "torchrun --nproc-per-node 2 finetune.py --config llama.yaml",
    "python -m ipykernel_launcher -f kernel.json",
    "./simulate --steps 100000",
)


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3",
        "state": "healthy", "memory_total_bytes": 80 * GIB, "memory_granted_bytes": 0,
        "memory_used_bytes": 0, "tasks": 0, "envs": [], "utilization_percent": 0,
        "temperature_c": 31, "power_w": 68.0, **changes,
    }  # fmt: skip


def task(number: int, env: str, gpus: list[int], **changes: Any) -> dict[str, Any]:
    used = [(5 + 7 * number % 30) * GIB for _ in gpus]
    return {
        "id": f"t{number}", "job": None, "env": env, "state": "running",
        "gpus": [f"GPU-{index}" for index in gpus], "gpu_indices": gpus,
        "pids": [4000 + number], "command": COMMANDS[number % len(COMMANDS)],
        "duration_seconds": 40 * number**2 + 12, "users": [env],
        "memory_bytes": sum(used), "gpu_memory_bytes": used,
        "memory_limit_bytes": [40 * GIB for _ in gpus],
        "utilization_percent": 17 * number % 101, "idle_seconds": 0, "idle_source": "nvml",
        "host_cpu_percent": 23 * number % 400, "host_memory_bytes": (1 + number % 9) * GIB,
        "places": [{"pid": 4000 + number, "pid_inside": None, "user": env, "container": None,
                    "container_name": f"{env}-lab" if number % 2 else None}],
        **changes,
    }  # fmt: skip


def waiting(number: int, env: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"j{number}", "request": f"r{number}", "job": f"j{number}", "name": f"sweep-{number}",
        "env": env, "gpus": 2, "priority": "normal", "position": number, "state": "queued",
        "reason": "needs 2 GPUs, 1 free; alice/t1 holds GPU 0",
        "users": [env], "command": "python sweep.py", "waited_seconds": 100 * number,
        "expected_start": int(NOW_S) + 600 * number, "expected_spread_seconds": 60 * number,
        "place": None, **changes,
    }  # fmt: skip


def view(
    gpus: list[dict[str, Any]],
    tasks: list[dict[str, Any]],
    queue: list[dict[str, Any]],
    warnings: tuple[str, ...] = (),
    **changes: Any,
) -> NodeView:
    """The sums of the GPUs are made from the tasks."""
    by_uuid = {row["uuid"]: row for row in gpus}
    for row in tasks:
        for uuid, used in zip(row["gpus"], row["gpu_memory_bytes"], strict=True):
            held = by_uuid[uuid]
            held["tasks"] += 1
            held["memory_used_bytes"] += used or 0
            if row["env"] not in held["envs"]:
                held["envs"].append(row["env"])
                held["memory_granted_bytes"] += 40 * GIB
    status = {
        "schema_version": 1, "gpus": gpus, "envs": [{"name": name} for name in ENVS],
        "tasks": tasks, "queue": queue, "queue_length": len(queue), "jobs": [],
        "violations": [], "residues": [], **changes,
    }  # fmt: skip
    return NodeView(status, queue, warnings, NOW_S)


def empty_node() -> NodeView:
    return view([gpu(index) for index in range(2)], [], [])


def small_node() -> NodeView:
    """Four GPUs; of each kind of row one that stands out."""
    gpus = [
        gpu(0, utilization_percent=97, temperature_c=83, power_w=655.0),
        gpu(1, utilization_percent=64, temperature_c=71, power_w=511.0),
        gpu(2, utilization_percent=8, temperature_c=44, power_w=120.0),
        gpu(3, state="lost", utilization_percent=None, temperature_c=None, power_w=None,
            memory_used_bytes=None),
    ]  # fmt: skip
    tasks = [
        task(1, "alice", [0, 1], job="j7"),
        task(2, "bob", [1]),
        task(3, "ci", [2], idle_seconds=7_300, utilization_percent=0, state="stalled"),
        task(4, "bob", [2], utilization_percent=None, memory_bytes=None, gpu_memory_bytes=[None],
             idle_seconds=None, host_cpu_percent=None, host_memory_bytes=None),
    ]  # fmt: skip
    queue = [
        waiting(1, "dora"),
        waiting(2, "erik", job=None, id="r2", name=None, command="python ask.py", gpus=1,
                expected_start=None),
        waiting(3, "ci", id="j9.0", job="j9.0"),
        waiting(4, "ci", id="j9.1", job="j9.1"),
        waiting(5, "alice", position=None, state="held", expected_start=None,
                reason="held (nodemgr queue unhold j5)", waited_seconds=None),
    ]  # fmt: skip
    return view(gpus, tasks, queue)


def full_node(gpus: int = 16, tasks: int = 50, queue: int = 200) -> NodeView:
    rows = [
        gpu(index, utilization_percent=61 * index % 101, temperature_c=40 + 3 * index % 52,
            power_w=90.0 + 37 * index % 600)
        for index in range(gpus)
    ]  # fmt: skip
    return view(
        rows,
        [
            task(number, ENVS[number % len(ENVS)], [number % gpus], memory_bytes=9 * GIB,
                 gpu_memory_bytes=[9 * GIB])
            for number in range(1, tasks + 1)
        ],
        [waiting(number, ENVS[number % len(ENVS)]) for number in range(1, queue + 1)],
        queue_length=5 * queue,
    )  # fmt: skip
