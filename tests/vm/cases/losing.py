"""A node that goes down: cleanly in the middle of jobs, and by a power cut."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from tests.vm.cases.lab import Lab, asked, hold, ready, states, tasks, wait_for
from tests.vm.images import GUEST
from tests.vm.machine import Machine

JOBS, ON_GPUS = 20, 4
SAVING = """\
save() {
    read bus < /run/bus.pid
    [ -e /ckpt/mounted ] && [ -d /proc/$bus ] && echo saved > /ckpt/$NODEMGR_JOB
    exit 0
}
trap save TERM
touch /run/began-$NODEMGR_JOB
while :; do sleep infinity & wait; done
"""
WARNED = """\
trap "echo USR1 >> /var/order" USR1
trap "echo TERM >> /var/order; exit 0" TERM
touch /run/began
while :; do sleep infinity & wait $!; done
"""
SUBMISSIONS, CUTS, LEAST_LINES = 200, 5, 20


def reboot(lab: Lab) -> str:
    """A clean reboot in the middle of 20 jobs: each saves its state, and keeps its place."""
    with lab.node.machine(GUEST / "load.py") as machine:
        ready(machine)
        # the shell's own words alone: the emulator is slow, and the grace is 30 s
        machine.run("mkdir -p /ckpt /var/ckpt && touch /var/ckpt/mounted")
        machine.run("mount --bind /var/ckpt /ckpt && pidof dbus-daemon > /run/bus.pid")
        machine.run(f"cat > /usr/local/bin/saving <<'EOF'\n{SAVING}EOF")
        submit = "nodemgr submit --env bob"
        machine.run(f"{submit} --gpus 0 --array 1-{JOBS - ON_GPUS} -- sh /usr/local/bin/saving")
        machine.run(f"{submit} --gpus 1 --array 1-{ON_GPUS} -- sh /usr/local/bin/saving")
        running = JOBS - ON_GPUS + 2  # bob's quota
        wait_for(machine, f"[ $(ls /run/began-* | wc -l) = {running} ]")
        before = states(machine)
        assert len(before) == JOBS, before
        machine.reboot()
        ready(machine)
        saved = machine.run("cd /var/ckpt && ls j*").split()
        assert len(saved) == running, f"{len(saved)} of {running} saved their state: {saved}"
        wait_for(machine, f"[ $(ls /run/began-* | wc -l) = {running} ]")
        after = states(machine)
        assert set(after) == set(before), (before, after)
        assert "paused" not in after.values(), after
        ran = [name.partition(":")[0] for name in saved[:2]]
        causes = {attempts_of(machine, job)[0]["cause"] for job in ran}
        assert causes == {"node_down"}, causes
        restarts = {row["restarts"] for row in asked(machine, "queue")["running"]}
        assert restarts == {0}, restarts
        return f"{len(saved)} of {running} jobs saved; {len(after)} in place, none paused; {causes}"


def warning(lab: Lab) -> str:
    """At a shutdown a job gets its early signal, and TERM when the signal's time is over."""
    with lab.node.machine() as machine:
        ready(machine)
        limit = machine.run("systemctl show nodemgr-jobs -p TimeoutStopUSec --value").strip()
        assert limit == "12min", limit
        machine.run(f"cat > /usr/local/bin/warned <<'EOF'\n{WARNED}EOF")
        submit = "nodemgr submit --env bob --gpus 1 --signal USR1@10s"
        job = machine.run(f"{submit} -- sh /usr/local/bin/warned").strip()
        wait_for(machine, "test -e /run/began")
        machine.reboot()
        ready(machine)
        order = machine.run("cat /var/order").split()
        assert order == ["USR1", "TERM"], order
        assert attempts_of(machine, job)[0]["cause"] == "node_down", attempts_of(machine, job)
        return f"{' then '.join(order)}; the service has {limit} for it"


def attempts_of(machine: Machine, job: str) -> list[dict[str, Any]]:
    """The attempts of a job."""
    (row,) = asked(machine, f"history {job}")["jobs"]
    attempts: list[dict[str, Any]] = row["attempts"]
    return attempts


def power_cut(lab: Lab) -> str:
    """The power is cut in the middle of 200 submissions, five times: all acknowledged is there."""
    said: dict[str, list[str]] = defaultdict(list)
    dice = random.Random(20261127)
    with lab.node.machine(GUEST / "load.py") as machine:
        ready(machine)
        machine.run("cp /mnt/load.py /root")
        hold(machine, "alice")
        for number in range(CUTS):
            left = dice.randint(LEAST_LINES, SUBMISSIONS - LEAST_LINES)
            command = f"/opt/nodemgr/bin/python /root/load.py {number} {SUBMISSIONS}"
            for line in machine.lines(command):
                kind, _, what = line.partition(" ")
                said[kind].append(what)
                left -= 1
                if left == 0:
                    break
            machine.cut()
            machine.boot()
            ready(machine)  # without help: it waits for the unit, which boots by itself
            check(machine, said)
            total = sum(len(found) for found in said.values())
            print(f"      cut {number + 1} of {CUTS}: {total} orders, all there", flush=True)
        counts = ", ".join(f"{len(found)} {kind}" for kind, found in said.items())
        return f"{CUTS} cuts; acknowledged: {counts}; missing: none; no lease of before"


def check(machine: Machine, said: dict[str, list[str]]) -> None:
    """All acknowledged orders are there; no lease of an earlier boot is."""
    found = states(machine)
    ended = {row["job"] for row in asked(machine, "history --since 30d")["history"]}
    jobs = said["waits"] + said["held"] + said["ends"]
    assert not (missing := [job for job in jobs if job not in found and job not in ended]), missing
    assert not [job for job in said["held"] if found[job] != "held"], found
    assert not [job for job in said["waits"] if job in ended], "a job that never ends has ended"
    waiting = [int(job[1:]) for job, state in found.items() if state == "queued"]
    assert waiting == sorted(waiting), waiting
    quotas = {row["env"]: row["gpus"] for row in asked(machine, "quota show")["quotas"]}
    wanted = dict(words.split() for words in said["quota"])
    assert {env: str(quotas[env]) for env in wanted} == wanted
    first = attempts_of(machine, said["waits"][0])[0]
    assert first["cause"] == "node_down", first
    assert "alice" not in [env for env, _ in tasks(machine).values()], "a lease of before the cut"
