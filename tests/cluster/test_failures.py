"""The table of failures of a cluster, each with a real head and real managers.

Elsewhere stand: frames that are lost (tests/edge/links), all of it together
(tests/cluster/storm.py).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from tests.cluster.site import ENV, PROGRAM, QUICK, USER, Head, Site, site, submitted_as
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import Manager
from tests.support.ordinary import UID, become_ordinary

CLONE_NEWNS = 0x20000
YESTERDAY = """
import runpy, sys, time
real = time.time_ns
time.time_ns = lambda: real() - 86_400 * 10**9
sys.argv[0] = "nodemgr"
runpy.run_module("nodemgr", run_name="__main__")
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def two() -> Iterator[Site]:
    with site(2, simulate="2x8GiB") as made:
        yield made


def test_a_killed_head_and_a_killed_node(two: Site) -> None:
    """Jobs go on under both, their ends are told later, and nothing begins a second time."""
    script, gate = two.gate("gate")
    jobs = two.submit(script, count=4)
    two.until_begun(4)
    two.head.kill()
    two.restart_node("gn1")
    gate.touch()
    two.head.start()
    rows = two.until_ended(*jobs)
    assert {row["state"] for row in rows.values()} == {"done"}
    assert set(two.begun().values()) == {1}
    two.settled()


def test_a_head_with_yesterdays_clock(two: Site) -> None:
    """Its own clock goes on: the order of the queue, pauses and words stay as they are."""
    script, gate = two.gate("gate")
    first = two.submit(script, count=4)
    two.until_begun(4)
    waiting = two.submit(count=2)
    two.head.kill()
    two.head.program = (sys.executable, "-c", YESTERDAY)
    two.head.start()
    two.until_up()
    later = two.submit(array=3)
    checks = {row["name"]: row for row in two.head.call("head_checks")["checks"]}
    assert "before the last change of its store" in checks["clock"]["detail"]
    gate.touch()
    rows = two.until_ended(*first, *waiting, *later)
    assert {row["state"] for row in rows.values()} == {"done"}
    assert set(two.begun().values()) == {1}
    two.head.program = PROGRAM
    two.restart_head()
    two.settled()


def test_a_node_that_is_cut_off_keeps_its_jobs_until_it_is_back(two: Site) -> None:
    script, gate = two.gate("gate")
    jobs = two.submit(script, count=4)
    two.until_begun(4)
    waiting = two.submit()
    with two.cut("gn1"):
        until(lambda: two.row("gn1")["state"] == "silent")
        gate.touch()
        until(lambda: {row["node"] for row in two.queue()} <= {"gn1"}, "gn2 ends the others")
        stays = [row for row in two.queue() if row["node"] == "gn1"]
        assert all("nodemgr node lost gn1" in row["reason"] for row in stays)
        assert len(stays) >= 2
    two.until_ended(*jobs, *waiting)
    assert set(two.begun().values()) == {1}
    two.settled()


def test_a_node_given_up_for_lost_hears_so_when_it_is_back(two: Site) -> None:
    """A person's word lets its jobs begin elsewhere; the node ends what it had."""
    script, gate = two.gate("gate")
    (job,) = two.submit(script, gpus=2)
    two.until_begun(1)
    (row,) = two.queue()
    lost = str(row["node"])
    with two.cut(lost):
        until(lambda: two.row(lost)["state"] == "silent")
        two.head.call("node_lost", node=lost)
        two.until_begun(1)
        until(lambda: two.begun()[1] == 2, "it begins on the other node")
        gate.touch()
        two.until_ended(job)
    two.until_up()
    until(lambda: two.row(lost)["given_up"] == [])
    assert two.history()[job]["node"] != lost
    two.settled()


def test_a_stopped_head_and_a_stopped_node(two: Site) -> None:
    with two.stopped(two.head.signal):
        until(lambda: not two.nodes["gn1"].call("doctor")["checks"][-1]["ok"], "gn1 hears nothing")
        assert two.nodes["gn1"].status()["gpus"]
    two.until_up()
    with two.stopped(two.stop_node("gn2")):
        until(lambda: two.row("gn2")["state"] == "silent")
        jobs = two.submit(name="gn1", count=3)
        two.until_ended(*jobs)
    two.until_up()
    assert {row["node"] for row in two.history().values()} == {"gn1"}
    two.settled()


def test_a_head_restored_from_a_copy(two: Site) -> None:
    """Jobs of the copy become its own again; those of later are listed, and none begins twice."""
    script, gate = two.gate("gate")
    jobs = two.submit(script, count=2)
    two.until_begun(2)
    copy = two.directory / "copy"
    two.head.says("copy", str(copy))
    late = two.submit(script, count=2)
    two.until_begun(4)
    two.head.kill()
    assert "generation 2" in two.head.says("restore", str(copy))
    two.head.start()
    until(lambda: not two.head.call("node_list")["restoring"])
    new = two.submit(count=1)
    assert int(new[0][1:]) > int(late[-1][1:]) + 5_000
    unknown = [key for name in two.nodes for key in two.row(name)["unknown"]]
    assert sorted(key.split("/")[2] for key in unknown) == late
    gate.touch()
    rows = two.until_ended(*jobs, *new)
    assert {rows[job]["state"] for job in (*jobs, *new)} == {"done"}
    assert set(two.begun().values()) == {1}
    two.settled()


def test_an_older_copy_that_is_started_without_restore_gives_no_job(two: Site) -> None:
    copy = two.directory / "copy"
    two.head.says("copy", str(copy))
    jobs = two.submit(count=2)
    two.until_ended(*jobs)
    two.head.kill()
    for end in ("", "-wal", "-shm"):
        Path(f"{two.head.directory}/state.db{end}").unlink(missing_ok=True)
    shutil.copyfile(copy, two.head.directory / "state.db")
    two.head.start()
    until(lambda: two.head.call("node_list")["copy"], "a node knows later numbers")
    (waits,) = two.submit()
    (row,) = two.queue()
    assert "nodemgr head restore" in row["reason"]
    two.head.kill()
    two.head.says("restore")
    two.head.start()
    two.until_ended(waits)
    assert set(two.begun().values()) == {1}


def test_two_heads_of_one_name(two: Site) -> None:
    """The other one has its own key and id: no node speaks with it, and keys differ."""
    other = Head(two.directory / "other")
    other.start()
    first, second = two.head, other
    assert first.call("node_list")["head"] != second.call("node_list")["head"]
    two.head = other  # each wire leads to it from now on
    try:
        for wire in two.wires.values():
            two.do(wire.cut)
        until(lambda: not two.nodes["gn1"].call("doctor")["checks"][-1]["ok"])
        assert second.call("node_list")["nodes"] == []
    finally:
        two.head = first
        other.kill()
    for wire in two.wires.values():
        two.do(wire.cut)
    two.until_up()
    jobs = two.submit(count=2)
    two.until_ended(*jobs)


def test_a_quota_below_what_is_assigned(two: Site) -> None:
    script, gate = two.gate("gate")
    jobs = two.submit(script, count=4)
    two.until_begun(4)
    said = two.head.call("env_set", env=ENV, gpus=1)
    assert "4 GPUs are in use" in said["warnings"][0]
    later = two.submit(count=2)
    gate.touch()
    two.until_ended(*jobs, *later)
    assert set(two.begun().values()) == {1}


def test_a_user_who_has_another_number_on_a_node(two: Site) -> None:
    """The node refuses for ever, and the job goes to another one.

    It knows the user's name, as the quota asks of it. (systemd's module for names knows root
    without a line in /etc/passwd.)
    """
    if os.geteuid() != 0:
        pytest.skip("only root makes a mount namespace")
    passwd = two.directory / "passwd"
    lines = Path("/etc/passwd").read_text().splitlines()
    lines = [line for line in lines if not line.startswith(f"{USER}:")]
    lines += ["someone:x:0:0::/root:/bin/sh", f"{USER}:x:54321:54321::/root:/bin/sh"]
    passwd.write_text("\n".join(lines) + "\n")
    libc = ctypes.CDLL(None, use_errno=True)

    def elsewhere() -> None:
        if libc.unshare(CLONE_NEWNS) == 0:
            libc.mount(b"none", b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
            libc.mount(str(passwd).encode(), b"/etc/passwd", None, 0x1000, None)  # MS_BIND

    node = two.nodes["gn3"] = Manager("8x8GiB", environment=QUICK, before_exec=elsewhere)
    node.start()
    two.join("gn3")
    if Path(f"/proc/{node.pid}/root/etc/passwd").read_text() != passwd.read_text():
        pytest.skip("this container lets nobody mount")
    jobs = two.submit(name="gn1", count=6)
    rows = two.until_ended(*jobs)
    assert {row["state"] for row in rows.values()} == {"done"}
    assert {row["node"] for row in rows.values()} <= {"gn1", "gn2"}
    (large,) = two.submit(name="gn1", gpus=8)
    assert "someone on this node" in two.until_ended(large)[large]["why"]


def test_a_node_where_the_jobs_of_two_users_fail_at_once(two: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root submits as two users")
    two.head.call("env_set", env=ENV, gpus=1_000, users=[USER, "nobody"])
    ill = two.nodes["gn1"].run_dir
    two.marks.touch()
    two.marks.chmod(0o666)
    script = f'case "$HERE" in {ill}*) exit 3;; esac'
    environ = ["PATH=/usr/bin:/bin", f"HERE={ill}/x"]
    number = 0
    while not two.row("gn1")["drained"]:
        number += 1
        assert number < 30
        if number % 2:
            jobs = two.submit(script, name="gn1", environ=environ)
        else:
            jobs = [submitted_as(UID, two.nodes["gn1"], number, script, environ)]
        two.until_ended(*jobs)
    assert "its last 3 jobs, of 2 users, failed" in two.row("gn1")["why"]
    later = two.submit(script, name="gn1", count=2, environ=environ)
    rows = two.until_ended(*later)
    assert {(rows[job]["node"], rows[job]["state"]) for job in later} == {("gn2", "done")}


def test_an_ordinary_users_own_manager(two: Site) -> None:
    """It is no administrator of the cluster, asks for its user, and runs that user's jobs alone."""
    if os.geteuid() != 0:
        pytest.skip("root becomes another user")
    two.head.call("env_set", env=ENV, gpus=1_000, users=[USER, "nobody"])
    two.marks.touch()
    two.marks.chmod(0o666)
    node = two.nodes["gn3"] = Manager("8x8GiB", environment=QUICK, before_exec=become_ordinary)
    os.chown(node.directory, UID, UID)
    node.start()
    two.join("gn3")
    assert two.row("gn3")["user"] == "nobody"
    with pytest.raises(Fault, match="node_drain is an order of administrators of the cluster"):
        node.call("node_drain", node="gn1")
    for name in ("gn1", "gn2"):
        two.head.call("node_drain", node=name)
    (others,) = two.submit(name="gn1")
    job = submitted_as(UID, two.nodes["gn1"], 1, "exit 0")
    assert two.until_ended(job)[job]["node"] == "gn3"
    assert [row["id"] for row in two.queue()] == [others]
    two.head.call("node_resume", node="gn1")
    two.until_ended(others)
    assert node.call("node_leave")["node"] == "gn3"
    del two.nodes["gn3"]
    node.close()
    assert two.nodes["gn2"].call("node_leave")["node"] == "gn2"
    assert [row["node"] for row in two.head.call("node_list")["nodes"]] == ["gn1"]
    with pytest.raises(Fault, match="the cluster has team too"):
        two.join("gn2")
    two.join("gn2", take_over=True)


def test_a_node_whose_store_is_lost_has_no_job_begun_again(two: Site) -> None:
    script, gate = two.gate("gate")
    (job,) = two.submit(script, gpus=2)
    two.until_begun(1)
    name = str(two.queue()[0]["node"])
    node = two.nodes[name]
    node.kill()
    shutil.rmtree(node.state_dir)
    gate.touch()
    node.start()
    word = two.head.call("node_word", node=name)["word"]
    node.call("node_join", address=two.wires[name].address, word=word, node=name)
    two.until_up(name)
    assert two.queue()[0]["node"] == name, "nobody says that it is over"
    two.head.call("node_lost", node=name)
    two.until_ended(job)


def test_a_member_that_sends_what_no_frame_may_be(two: Site) -> None:
    """tests/edge/links has the rest; here the head's process, its log and its memory stay small."""
    before = two.head.log
    address = two.head.address.rpartition(":")
    script = f"head -c 300000000 /dev/urandom > /dev/tcp/{address[0]}/{address[2]}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=False, timeout=WAIT_LIMIT_S
    )
    assert done.returncode in (0, 1)
    assert two.head.log == before
    jobs = two.submit(count=2)
    two.until_ended(*jobs)
    for name in two.nodes:
        assert two.row(name)["up"]


def test_orders_while_the_head_is_away(two: Site) -> None:
    """Each gets a line after its time, and what is the node's own is done at once."""
    two.head.kill()
    node = two.nodes["gn1"]
    with pytest.raises(Fault, match="the cluster's head does not answer"):
        node.call("node_list")
    assert node.call("queue")["queue"] == []
    two.head.start()
    two.until_up()
    assert two.nodes["gn2"].call("node_list")["nodes"]
