"""The figures of a task, from readings: each unknown part is None, never zero and never a guess."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.entities import Process
from nodemgr.core.views import figures, snapshot
from nodemgr.core.views.figures import (
    CgroupUse,
    GateUse,
    GpuSensors,
    GpuUse,
    HostUse,
    Readings,
    TaskFigures,
)
from tests.core.world import GIB, Node, S, gpu, key


def node_of_one_task(gpus: int = 2, **more: Any) -> Node:
    """Process 10 of alice holds all GPUs of 80 GiB."""
    node = Node(gpus)
    node.quota("alice", gpus)
    node.asks("alice", 10, gpus, **more)
    return node


def readings(node: Node, **more: Any) -> Readings:
    """Process 10 has 3 GiB on the first GPU and 1 GiB on the second, and has used the first now."""
    now_ns = node.now_ns
    given: dict[str, Any] = {
        "at_ns": now_ns,
        "memory": {"GPU-0": {10: 3 * GIB, 99: GIB}, "GPU-1": {10: GIB}},
        "use": {
            "GPU-0": GpuUse(now_ns - 60 * S, {10: 70, 99: 20}, {10: now_ns}),
            "GPU-1": GpuUse(now_ns - 60 * S, {}, {}),
        },
        "hosts": {10: HostUse(250, 5 * GIB)},
    }
    return Readings(**{**given, **more})


def task(node: Node, given: Readings) -> TaskFigures:
    return figures.of_task(node.state, next(iter(node.state.tasks.values())), given)


def test_a_task_of_two_gpus() -> None:
    node = node_of_one_task()
    found = task(node, readings(node))
    assert (found.memory_bytes, found.gpu_memory_bytes) == (4 * GIB, [3 * GIB, GIB])
    assert (found.utilization_percent, found.gpu_utilization_percent) == (35, [70, 0])
    assert (found.idle_seconds, found.idle_source) == (0, "nvml")
    assert (found.host_cpu_percent, found.host_memory_bytes) == (250, 5 * GIB)


def test_without_readings_nothing_is_known() -> None:
    unknown = TaskFigures(None, [None, None], None, [None, None], None, None, None, None, None)
    assert task(node_of_one_task(), Readings()) == unknown


def test_two_processes_of_a_task_are_summed_and_stay_within_the_gpu() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10, 1, token="t")
    node.asks("alice", 11, 1, token="t")
    given = readings(
        node,
        memory={"GPU-0": {10: 50 * GIB, 11: 50 * GIB}},
        use={"GPU-0": GpuUse(node.now_ns, {10: 80, 11: 60}, {})},
        hosts={10: HostUse(100, GIB), 11: HostUse(None, GIB)},
    )
    found = task(node, given)
    assert found.memory_bytes == 80 * GIB
    assert found.utilization_percent == 100
    assert (found.host_cpu_percent, found.host_memory_bytes) == (None, 2 * GIB)


def test_a_gpu_that_was_not_read_makes_the_sum_unknown() -> None:
    node = node_of_one_task()
    found = task(node, readings(node, memory={"GPU-0": {10: 3 * GIB}}))
    assert (found.memory_bytes, found.gpu_memory_bytes) == (None, [3 * GIB, None])
    assert found.gpu_utilization_percent == [70, None]
    assert found.utilization_percent is None
    assert (found.idle_seconds, found.idle_source) == (0, "nvml"), "it was used just now"


@pytest.mark.parametrize("size", [-1, 81 * GIB])
def test_an_absurd_memory_is_unknown(size: int) -> None:
    node = node_of_one_task(1)
    assert task(node, readings(node, memory={"GPU-0": {10: size}})).memory_bytes is None


def test_a_process_without_a_figure_of_the_driver_is_unknown() -> None:
    node = node_of_one_task(1)
    given = readings(node, memory={"GPU-0": {10: 0}}, unmeasured=frozenset({("GPU-0", 10)}))
    assert task(node, given).memory_bytes is None


def test_a_process_that_the_driver_does_not_list_has_nothing() -> None:
    node = node_of_one_task(1)
    found = task(node, readings(node, memory={"GPU-0": {}}))
    assert (found.memory_bytes, found.utilization_percent) == (0, 70)


def test_a_process_that_the_driver_hides_is_unknown() -> None:
    """The ledger has memory of it: its PID is one of another namespace."""
    node = node_of_one_task(1)

    def charged(process: Process, uuid: str) -> int:
        assert (process.pid, uuid) == (10, "GPU-0")
        return GIB

    use = {"GPU-0": GpuUse(node.now_ns, {}, {})}
    found = task(node, readings(node, memory={"GPU-0": {}}, charged=charged, use=use))
    assert (found.memory_bytes, found.utilization_percent) == (None, None)
    assert (found.idle_seconds, found.idle_source) == (None, None)


def test_a_client_over_udp_is_unknown() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10, udp=True, gib=10, used_gib={0: 0})
    found = task(node, readings(node))
    assert found == TaskFigures(None, [None], None, [None], None, None, None, None, None)


def test_idle_since_the_last_use() -> None:
    node = node_of_one_task()
    now_ns = node.now_ns
    use = {
        "GPU-0": GpuUse(now_ns - 60 * S, {}, {10: now_ns - 30 * S, 99: now_ns}),
        "GPU-1": GpuUse(now_ns - 60 * S, {}, {10: now_ns - 12 * S}),
    }
    found = task(node, readings(node, use=use))
    assert (found.idle_seconds, found.idle_source) == (12, "nvml")


def test_idle_for_at_least_the_time_of_the_readings() -> None:
    node = node_of_one_task()
    node.now_ns += 600 * S
    now_ns = node.now_ns
    use = {"GPU-0": GpuUse(now_ns - 60 * S, {}, {}), "GPU-1": GpuUse(now_ns - 20 * S, {}, {})}
    found = task(node, readings(node, use=use))
    assert (found.idle_seconds, found.idle_source) == (20, "nvml_at_least")


def test_a_task_is_never_idle_for_longer_than_it_exists() -> None:
    node = node_of_one_task(1)
    node.now_ns += 5 * S
    use = {"GPU-0": GpuUse(0, {}, {})}
    found = task(node, readings(node, use=use))
    assert (found.idle_seconds, found.idle_source) == (5, "nvml_at_least")


def test_the_use_of_a_task_that_is_younger_than_the_samples_is_unknown() -> None:
    node = node_of_one_task(1)
    given = readings(node, at_ns=node.now_ns - 1, memory={"GPU-0": {10: GIB}}, hosts={})
    found = task(node, given)
    assert (found.memory_bytes, found.utilization_percent) == (GIB, None)
    assert (found.idle_seconds, found.idle_source) == (None, None)


def test_idle_is_unknown_while_one_gpu_has_no_samples() -> None:
    node = node_of_one_task()
    now_ns = node.now_ns
    use = {"GPU-0": GpuUse(now_ns - 60 * S, {}, {10: now_ns - 30 * S})}
    assert task(node, readings(node, use=use)).idle_seconds is None
    use = {"GPU-0": GpuUse(now_ns - 60 * S, {10: 5}, {10: now_ns})}
    assert task(node, readings(node, use=use)).idle_seconds == 0


def test_a_lost_gpu_has_no_sensors() -> None:
    node = Node(0)
    node.gpus_are([gpu(0, healthy=False), gpu(1)])
    given = readings(node, sensors=dict.fromkeys(("GPU-0", "GPU-1"), GpuSensors(90, 61, 322.5)))
    first, second = figures.frame(node.state, given, {})["gpus"]
    assert (first["utilization_percent"], first["temperature_c"], first["power_w"]) == (
        None,
        None,
        None,
    )
    assert second["power_w"] == 322.5


def test_the_status_has_the_figures() -> None:
    node = node_of_one_task()
    given = readings(node, sensors={"GPU-0": GpuSensors(90, 61, 322.5)})
    shown = snapshot.status(
        node.state, node.now_ns, used_bytes={"GPU-0": GIB}, last_beat_ns={}, readings=given
    )
    live = figures.frame(node.state, given, {"GPU-0": GIB})
    assert live["schema_version"] == 1
    for row, figure in zip(shown["gpus"], live["gpus"], strict=True):
        assert row | figure == row
    first, second = live["gpus"]
    assert first == {
        "index": 0,
        "uuid": "GPU-0",
        "memory_used_bytes": GIB,
        "utilization_percent": 90,
        "temperature_c": 61,
        "power_w": 322.5,
    }
    assert second == {**dict.fromkeys(first), "index": 1, "uuid": "GPU-1"}
    (row,) = shown["tasks"]
    assert row | task(node, given)._asdict() == row


def test_an_env_has_the_figures_of_its_jobs_alone() -> None:
    node = node_of_one_task()
    node.quota("bob", 1)
    own, other = (node.submits(env, gpus=0) or "" for env in ("alice", "bob"))
    use = CgroupUse(1_500, 3, 4, 5, 6)
    given = readings(node, jobs={own: use, other: use, "j99": use})
    row = {"cpu_seconds": 1.5, "host_memory_bytes": 3, "host_peak_bytes": 4,
           "read_bytes": 5, "written_bytes": 6}  # fmt: skip
    assert figures.frame(node.state, given, {}, "alice")["jobs"] == [{"job": own, **row}]
    assert [job["job"] for job in figures.frame(node.state, given, {})["jobs"]] == [own, other]


# -- launch gates --


def test_gated_processes_tell_use_and_idle_time_themselves() -> None:
    node = node_of_one_task()
    gates = {
        (key(10), "GPU-0"): GateUse(30, node.now_ns - 7 * S),
        (key(10), "GPU-1"): GateUse(11, node.now_ns - 9 * S),
    }
    unused = {uuid: GpuUse(node.now_ns - 60 * S, {}, {}) for uuid in ("GPU-0", "GPU-1")}
    found = task(node, readings(node, gates=gates, use=unused))
    assert (found.compute_used_percent, found.idle_seconds) == (20, 7)
    assert found.idle_source == "launches"


def forged(node: Node) -> dict[Any, GateUse]:
    """A neighbour has written that the task launched nothing for ten minutes."""
    return {(key(10), uuid): GateUse(0, node.now_ns - 600 * S) for uuid in ("GPU-0", "GPU-1")}


def test_a_use_that_the_driver_shows_ends_an_idle_time_of_the_gates() -> None:
    node = node_of_one_task()
    found = task(node, readings(node, gates=forged(node)))
    assert (found.idle_seconds, found.idle_source) == (0, "nvml")


@pytest.mark.parametrize(("percent", "idle"), [(90, 0), (0, 600), (None, None)])
def test_where_the_driver_samples_no_process_a_use_of_the_gpu_counts(
    percent: int | None, idle: int | None
) -> None:
    node = node_of_one_task()
    sensors = {"GPU-0": GpuSensors(0), "GPU-1": GpuSensors(percent)}
    found = task(node, readings(node, gates=forged(node), use={}, sensors=sensors))
    assert found.idle_seconds == idle


def test_of_a_process_that_is_gated_on_one_gpu_alone_the_driver_tells() -> None:
    node = node_of_one_task()
    found = task(node, readings(node, gates={(key(10), "GPU-0"): GateUse(30, 1)}))
    assert (found.compute_used_percent, found.idle_source) == (None, "nvml")
