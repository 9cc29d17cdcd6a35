"""The device gate of the node under the real systemd: logins, jobs, services."""

from __future__ import annotations

import json

from tests.vm.cases.lab import Lab, hold, ready, wait_for
from tests.vm.machine import Machine

OPENS = """\
import ctypes, errno, os, sys, time
if sys.argv[1:]:
    ctypes.CDLL("libcuda.so.1").cuInit(0)
for number in range(4):
    try:
        os.open(f"/dev/nvidia{number}", os.O_RDWR)
    except OSError as error:  # ENXIO: the kernel let it through to a driver, which is not there
        print(number if error.errno == errno.ENXIO else "-", end="")
print("", os.environ.get("CUDA_VISIBLE_DEVICES", ""), flush=True)
while sys.argv[2:] and not os.path.exists("/tmp/end"):
    time.sleep(0.2)
"""
PROGRAM = "/usr/local/bin/opens"
LOGIN = "systemd-run --quiet --pipe --wait --collect --slice=user.slice --uid"
SERVICE = "systemd-run --quiet --pipe --wait --collect --uid"


def gate(lab: Lab) -> str:
    """With gate_node logins and jobs open their tasks' GPUs alone; root and services open all."""
    with lab.node.machine() as machine:
        ready(machine)
        machine.run("for n in 0 1 2 3; do mknod -m 666 /dev/nvidia$n c 195 $n; done")
        machine.run(f"cat > {PROGRAM} <<'EOF'\n{OPENS}EOF")
        opens = f"python3 {PROGRAM}"
        assert machine.run(f"{LOGIN} alice {opens}").split() == ["0123"]
        switch(machine, "true")
        assert row(machine).startswith("on, by eBPF: logins (user.slice) and jobs"), row(machine)
        hold(machine, "bob")  # GPU 0
        for who, expected in (("alice", "----"), ("root", "0123")):
            found = machine.run(f"{LOGIN} {who} {opens}").split()
            assert found == [expected], (who, found)
        assert machine.run(f"{SERVICE} alice {opens}").split() == ["0123"]
        leased = machine.run(f"{LOGIN} alice nodemgr run --env alice --gpus 1 -- {opens} use")
        assert opened(leased) == 1, leased
        assert leased.split()[1].startswith("GPU-"), leased
        run = f"nodemgr run --env alice --gpus 1 -- {opens} use waits"
        beside = f"{run} | (read line; echo $line; {opens}; touch /tmp/end)"
        both = machine.run(f"{LOGIN} alice sh -c '{beside}'").splitlines()
        assert (opened(both[0]), both[1].split()) == (1, ["----"]), both
        assert machine.run(f"{LOGIN} alice {opens}").split() == ["----"]
        submit = "nodemgr submit --env alice --gpus 2 --visible index"
        job = machine.run(f"{LOGIN} alice {submit} -- {opens}").strip()
        machine.run(f"nodemgr wait {job}")
        said = machine.run(f"nodemgr logs {job}").splitlines()[0].split()
        assert (opened(said[0]), said[1]) == (2, "0,1"), said
        assert said[0] != "01--", said
        machine.run("systemctl kill -s KILL nodemgr")
        ready(machine)
        assert machine.run(f"{LOGIN} alice {opens}").split() == ["----"]
        left = machine.run("ls -d /sys/fs/cgroup/system.slice/nodemgr-jobs.scope/alice/*/ || true")
        assert "/alice/j" not in left, left
        switch(machine, "false")
        assert machine.run(f"{LOGIN} alice {opens}").split() == ["0123"]
        assert row(machine).startswith("off (gate_node)"), row(machine)
        return f"a login ---- and {leased.split()[0]} with a lease; a job {said[0]}, as {said[1]}"


def opened(text: str) -> int:
    return sum(letter.isdigit() for letter in text.split()[0])


def switch(machine: Machine, value: str) -> None:
    """Set gate_node and restart the manager."""
    machine.run("sed -i /gate_node/d /etc/nodemgr/config.toml")
    machine.run(f"echo 'gate_node = {value}' >> /etc/nodemgr/config.toml")
    machine.run("systemctl restart nodemgr || systemctl start nodemgr")


def row(machine: Machine) -> str:
    """Once the manager answers: a busy emulator may need several tries."""
    wait_for(machine, 'nodemgr doctor --json | grep -q "device gate of the node"')
    checks = json.loads(machine.run("nodemgr doctor --json || true"))["checks"]
    return next(str(row["detail"]) for row in checks if row["name"] == "device gate of the node")
