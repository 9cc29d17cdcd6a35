"""Limits of CPUs and host memory with the kernel's own controllers: jobs, commands, suspensions."""

from __future__ import annotations

from tests.vm.cases.lab import Lab, asked, ready, states, wait_for
from tests.vm.machine import Machine

SCOPE = "/sys/fs/cgroup/system.slice/nodemgr-jobs.scope"
MIB = 1 << 20
FILLS = "python3 -c \"import time; x = b'x' * (256 << 20); time.sleep(600)\""
LOGIN = "systemd-run --quiet --pipe --wait --collect --slice=user.slice --uid=alice"
FORKS = "for n in $(seq 100); do (setsid sleep 777 &); done; sleep 777"


def limits(lab: Lab) -> str:
    """OOM, many forks, `run`, a user's own cgroup, a scope that is gone: the limits hold."""
    with lab.node.machine() as machine:
        ready(machine)
        machine.run("nodemgr quota set alice --cpus 1 --host-memory 512MiB")
        ended = out_of_memory(machine)
        forks(machine)
        command(machine)
        delegated(machine)
        vanishing(machine)
        wait_for(machine, f'[ -z "$(ls -d {SCOPE}/alice/*/ 2>/dev/null)" ]')
        return ended


def submit(machine: Machine, command: str, options: str = "") -> str:
    machine.run(f"cat > /run/job.sh <<'EOF'\n{command}\nEOF")
    words = f"nodemgr submit --env alice --gpus 0 {options} -- sh /run/job.sh"
    return machine.run(f"{LOGIN} {words}").strip()


def out_of_memory(machine: Machine) -> str:
    """Its processes end together, no other job does; log, `wait` and `history` name the limit."""
    other = submit(machine, "sleep 999")
    wait_for(machine, f"[ -d {SCOPE}/alice/{other}.1 ]")
    job = submit(machine, f"sleep 777 & {FILLS}; sleep 777", "--host-memory 64MiB --cpus 1")
    said = machine.run(f"nodemgr wait {job} 2>&1; test $? != 0")
    logged = machine.run(f"nodemgr logs {job}").splitlines()[-1]
    (start,) = asked(machine, f"history {job}")["jobs"][0]["attempts"]
    reason = "host memory, 64 MiB of --host-memory"
    assert reason in logged, logged
    assert reason in start["why"], start
    assert reason in said, said
    assert start["host_peak_bytes"] >= 60 * MIB, start
    assert start["cpu_seconds"] > 0, start
    assert not machine.run("pgrep -f '[s]leep 777' || true")
    assert machine.run("pgrep -f '[s]leep 999' || true"), "it ends another job"
    machine.run(f"nodemgr queue withdraw {other}")
    return logged


def forks(machine: Machine) -> None:
    """Processes that left its session end with it."""
    job = submit(machine, FORKS)
    leaf = f"{SCOPE}/alice/{job}.1"
    wait_for(machine, f"[ $(grep -c . {leaf}/cgroup.procs) -gt 100 ]")
    shown = machine.run(f"cat {leaf}/pids.max {SCOPE}/alice/memory.max {SCOPE}/alice/cpu.max")
    assert shown.split() == ["32768", str(512 * MIB), "100000", "100000"], shown
    machine.run(f"nodemgr queue withdraw {job}")
    wait_for(machine, '! pgrep -f "[s]leep 777"')


def command(machine: Machine) -> None:
    """Of `run`: it ends at its limit alone, and what it leaves stays limited."""
    run = f"{LOGIN} nodemgr run --env alice --host-memory 64MiB"
    file = "/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"
    inside = machine.run(f"{run} -- sh -c 'cat {file}'")
    assert inside.split() == [str(64 * MIB)], inside
    machine.run(f"! {run} -- {FILLS}")


def delegated(machine: Machine) -> None:
    """A user with a delegated cgroup moves no process of a job there, and lifts no limit."""
    own = "/sys/fs/cgroup/system.slice/own.service"
    machine.run("systemd-run --quiet --unit=own --uid=alice -p Delegate=yes sleep 8888")
    tries = (
        f"echo $$ > {own}/cgroup.procs",
        f"echo max > {SCOPE}/alice/$NODEMGR_LEAF/memory.max",
        f"mkdir {SCOPE}/alice/$NODEMGR_LEAF/inner",
        f"echo $$ > {SCOPE}/cgroup.procs",
    )
    leaf = "NODEMGR_LEAF=$(basename $(cut -d: -f3 /proc/self/cgroup))"
    said = [f"({word}) 2>/dev/null && echo moved || echo refused" for word in tries]
    job = submit(machine, "\n".join((leaf, *said)), "--host-memory 64MiB")
    machine.run(f"nodemgr wait {job}")
    logged = machine.run(f"nodemgr logs {job}").split()
    assert logged == ["refused"] * len(tries), logged
    machine.run("systemctl stop own")


def vanishing(machine: Machine) -> None:
    """The scope is stopped: the next job's is made, with the job's limits."""
    machine.run("systemctl stop nodemgr-jobs.scope")
    shows = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"
    job = submit(machine, shows, "--host-memory 64MiB")
    machine.run(f"nodemgr wait {job}")
    logged = machine.run(f"nodemgr logs {job}").split()
    assert logged == [str(64 * MIB)], logged
    shown = machine.run(f"cat {SCOPE}/alice/memory.max").split()
    assert shown == [str(512 * MIB)], shown


def suspended(lab: Lab) -> str:
    """A limited job is suspended; its limits are higher by that, also for the next manager."""
    moved = 192 * MIB  # a restore leaves so much of the simulator's memory in the job's cgroup
    with lab.node.machine() as machine:
        ready(machine)
        program = "$(dirname $(readlink -f $(command -v nodemgr)))/../lib/python3*/site-packages"
        hold = f"tail -f /dev/null | {program}/nodemgr/_sim/hold -b {moved}"
        machine.run("nodemgr quota set alice --host-memory 400MiB")
        machine.run(f"echo '{hold}' > /run/hold.sh")
        machine.run("nodemgr submit --env alice --gpus 1 --host-memory 320MiB -- sh /run/hold.sh")
        wait_for(machine, 'nodemgr status --json | grep -q "\\"processes\\": 1"')
        (task,) = asked(machine, "status")["tasks"]
        plain = memory_limits(machine)
        assert plain == [320 * MIB, 400 * MIB], plain
        wait_for(machine, f"nodemgr suspend {task['id']}")
        raised = memory_limits(machine)
        more = raised[0] - plain[0]
        assert more >= moved, raised
        assert raised[1] - plain[1] == more, raised
        assert asked(machine, "status")["suspended_bytes"] == more
        machine.run("systemctl kill -s KILL nodemgr")
        ready(machine)
        assert memory_limits(machine) == raised
        assert set(states(machine).values()) == {"suspended"}, states(machine)
        machine.run(f"nodemgr resume {task['id']}")
        wait_for(machine, f"[ $(cat {SCOPE}/alice/memory.max) = {plain[1]} ]")
        wait_for(machine, f"[ $(cat {SCOPE}/alice/*/memory.max) = {plain[0]} ]")
        return f"limits of {[text >> 20 for text in plain]} MiB were higher by {more >> 20} MiB"


def memory_limits(machine: Machine) -> list[int]:
    """Of the only job, and of its environment."""
    names = f"{SCOPE}/alice/*/memory.max {SCOPE}/alice/memory.max"
    return [int(text) for text in machine.run(f"cat {names}").split()]
