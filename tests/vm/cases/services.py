"""The services of a node that stays up: boot, death, watchdog, sandbox."""

from __future__ import annotations

import re

from tests.vm.cases.lab import UNITS, Lab, asked, hold, ready, shown, tasks, wait_for
from tests.vm.machine import Machine

CONFINED = ("/etc", "/usr", "/root", "/var", "/run", "/sys")


def boot(lab: Lab) -> str:
    """The units are active after a boot, the system is not degraded, GPUs are granted."""
    with lab.node.machine() as machine:
        ready(machine)
        state = machine.run("systemctl is-system-running --wait || true")
        assert state == "running", machine.run("systemctl --failed --no-legend") or state
        for unit in UNITS:
            assert shown(machine, unit, "ActiveState") == "active", unit
        command = 'import ctypes; assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0'
        machine.run(f"nodemgr run --env alice --gpus 1 -- python3 -c '{command}'")
        granted = asked(machine, "allocations")["allocations"]
        assert granted, "no grant"
        memory = sum(int(shown(machine, unit, "MemoryCurrent")) for unit in UNITS) >> 20
        return f"{state}; {len(granted)} grant; {memory} MiB in the cgroups of the services"


def restart(lab: Lab) -> str:
    """Task and job go on while both services die and restart; systemd keeps the ledgers."""
    with lab.node.machine() as machine:
        ready(machine)
        hold(machine, "alice")
        script = "until test -e /run/go; do sleep 0.2; done; exit 5"
        job = machine.run(f"nodemgr submit --env bob --gpus 0 -- sh -c '{script}'").strip()
        kept = shown(machine, "nodemgr", "NFileDescriptorStore")
        assert int(kept) >= 2, kept
        for how in ("systemctl kill -s KILL {}", "systemctl restart {}"):
            for unit in UNITS:
                replaced(machine, unit, how.format(unit))
            ready(machine)
            assert list(tasks(machine).values()) == [("alice", "running")], how
            assert shown(machine, "nodemgr", "NFileDescriptorStore") == kept, how
        machine.run("touch /run/go")
        machine.run(f"nodemgr wait {job}; test $? = 5")
        machine.run("systemctl stop hold")
        return f"{kept} descriptors kept over 2 kills and 2 restarts; {job} ended with its own 5"


def replaced(machine: Machine, unit: str, command: str) -> None:
    """Returns when the unit has another main process."""
    before = shown(machine, unit, "MainPID")
    machine.run(command)
    other = f'n=$(systemctl show {unit} -p MainPID --value); [ "$n" != 0 ] && [ "$n" != {before} ]'
    wait_for(machine, other)


def watchdog(lab: Lab) -> str:
    """A manager that hangs is replaced by systemd; its task goes on."""
    with lab.node.machine() as machine:
        ready(machine)
        hold(machine, "alice")
        limit = shown(machine, "nodemgr", "WatchdogUSec")
        replaced(machine, "nodemgr", "systemctl kill --kill-whom=main -s STOP nodemgr")
        ready(machine)
        said = machine.run("journalctl -u nodemgr --no-pager | grep -i watchdog | tail -1")
        assert list(tasks(machine).values()) == [("alice", "running")]
        return f"after {limit}: {said.rpartition('nodemgr.service: ')[2]}"


def hardening(lab: Lab) -> str:
    """The manager can write nothing but its own directories, and gains no rights."""
    with lab.node.machine() as machine:
        ready(machine)
        pid = shown(machine, "nodemgr", "MainPID")
        status = machine.run(f"cat /proc/{pid}/status")
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE), status
        assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE), status
        inside = f"nsenter --target {pid} --mount --root touch"
        for place in CONFINED:
            said = machine.run(f"{inside} {place}/nodemgr-test 2>&1 || true")
            assert "Read-only file system" in said, f"{place}: {said}"
        scores = machine.run("systemd-analyze security --no-pager | grep nodemgr | tr -s ' '")
        capabilities = re.findall(r"^CapEff:\t(.+)$", status, re.MULTILINE)
        return f"CapEff {capabilities[0]}; systemd-analyze: {'; '.join(scores.splitlines())}"
