"""Jobs with shares of GPUs, with a real head and real managers on simulated GPUs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from client_plugin.ways.faults import Fault
from tests.cluster.site import ENV, Site, site, until

pytestmark = pytest.mark.slow
HALF = {"compute_percent": 50, "memory_bytes": 3 << 30, "task_class": "normal"}


def used(made: Site) -> int:
    (env,) = made.head.call("env_list")["envs"]
    return int(env["gpus_used"])


def place(made: Site, job: str) -> Any:
    return next((row["node"] for row in made.queue() if row["id"] == job), None)


def test_halves_of_gpus_stand_together_on_two_nodes_also_after_the_head_was_killed() -> None:
    with site(2, simulate="1x8GiB") as made:
        made.head.call("env_set", env=ENV, task_class="latency-sensitive")
        with pytest.raises(Fault, match="of a GPU asked, but team can have at most 8"):
            made.submit(memory_bytes=9 << 30)
        with pytest.raises(Fault, match="2 GPUs are more than any node has"):
            made.submit(gpus=2, compute_percent=50)
        script, gate = made.gate("gate")
        jobs = made.submit(script, count=4, **HALF)
        made.until_begun(4)
        assert Counter(row["node"] for row in made.queue()) == {"gn1": 2, "gn2": 2}
        until(lambda: used(made) == 2, "each GPU counts once")
        made.restart_head()
        made.until_up()
        until(lambda: used(made) == 2)
        later = made.submit(script, **HALF)
        gate.touch()
        rows = made.until_ended(*jobs, *later)
        assert {row["state"] for row in rows.values()} == {"done"}
        assert set(made.begun().values()) == {1}
        made.settled()


def test_a_latency_sensitive_job_goes_where_the_most_is_left_on_one_gpu() -> None:
    with site(2, simulate="1x8GiB") as made:
        made.head.call("env_set", env=ENV, task_class="latency-sensitive")
        script, gate = made.gate("gate")
        made.head.call("node_drain", node="gn2")
        (busy,) = made.submit(script, **HALF | {"compute_percent": 30})
        made.until_begun(1)
        made.head.call("node_resume", node="gn2")
        first = HALF | {"compute_percent": 20, "task_class": "latency-sensitive"}
        (most,) = made.submit(script, **first)
        made.until_begun(2)
        (least,) = made.submit(script, **HALF | {"compute_percent": 20})
        made.until_begun(3)
        assert [place(made, job) for job in (busy, most, least)] == ["gn1", "gn2", "gn1"]
        gate.touch()
        made.until_ended(busy, most, least)


def test_a_job_above_a_quota_that_was_lowered_waits_until_it_is_raised() -> None:
    with site(1, simulate="1x8GiB") as made:
        made.head.call("env_set", env=ENV, task_class="latency-sensitive")
        made.head.call("node_drain", node="gn1")
        (job,) = made.submit(**HALF)
        made.head.call("env_set", env=ENV, compute_percent=20)
        made.head.call("node_resume", node="gn1")
        (beside,) = made.submit()
        assert made.until_ended(beside)[beside]["state"] == "done"
        (row,) = made.queue()
        assert (row["id"], row["state"], row["attempt"]) == (job, "queued", 0)
        assert "needs 50% of each GPU, but team may have at most 20% now" in row["reason"]
        made.head.call("env_set", env=ENV, compute_percent=50)
        assert made.until_ended(job)[job]["state"] == "done"
