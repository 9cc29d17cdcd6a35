"""The lines for the kernel's files of a cgroup."""

from __future__ import annotations

from nodemgr.core.model.entities import Quota, RunSpec
from nodemgr.edge.executor import leaf_limits


def test_a_job_that_names_nothing_is_limited_in_its_processes_alone() -> None:
    assert leaf_limits.of_run(RunSpec("true", 0, None, None)) == ("pids.max 32768",)


def test_named_cpus_and_memory_are_the_kernels_limits() -> None:
    run = RunSpec("true", 0, None, None, cpus=3, host_memory_bytes=2**30)
    assert leaf_limits.of_run(run)[1:] == (
        "cpu.max 300000 100000",
        "memory.max 1073741824",
        "memory.swap.max 0",
        "memory.oom.group 1",
    )


def test_a_quota_that_has_no_limit_any_more_takes_it_off() -> None:
    assert leaf_limits.of_env(Quota(1)) == ("cpu.max max", "memory.max max")
    quota = Quota(1, cpus=2, host_memory_bytes=2**20)
    assert leaf_limits.of_env(quota) == ("cpu.max 200000 100000", "memory.max 1048576")


def test_the_name_of_a_commands_cgroup_has_its_limit() -> None:
    run = RunSpec("", 0, None, None, host_memory_bytes=2**30)
    name = leaf_limits.command_name("17", "99", leaf_limits.of_run(run))
    assert name == "run-17.99.1073741824"
    assert leaf_limits.memory_of_command(name) == 2**30
    unlimited = leaf_limits.command_name("17", "99", ("pids.max 5",))
    assert (unlimited, leaf_limits.memory_of_command(unlimited)) == ("run-17.99", None)
    assert leaf_limits.of_env(Quota(1, host_memory_bytes=2**20), 2**20)[1] == "memory.max 2097152"
    assert leaf_limits.of_env(Quota(1), 2**20)[1] == "memory.max max"
