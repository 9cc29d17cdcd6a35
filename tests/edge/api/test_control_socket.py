"""The control plane checks each order before it acts; an answer is one line or an object."""

from __future__ import annotations

import grp
import itertools
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from client_plugin.ways.control import ControlConnection
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.event_stream import EventStream
from client_plugin.ways.faults import Away, Fault
from client_plugin.ways.refusals import TYPED
from nodemgr.edge.api import client_verbs
from nodemgr.edge.rpc import wire
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import GIB, LocalManager
from tests.support.packets import decode
from tests.support.udp_clients import FakeClient


@pytest.fixture
def manager() -> Iterator[LocalManager]:
    with LocalManager() as manager:
        yield manager


@pytest.fixture
def pair(manager: LocalManager) -> Iterator[tuple[FakeClient, FakeClient]]:
    """One of alice's that holds the four GPUs, and one of bob's that waits for them."""
    manager.call("quota_set", env="alice", gpus=4)
    manager.call("quota_set", env="bob", gpus=4)
    with (
        FakeClient(manager.env_dir("alice")) as holder,
        FakeClient(manager.env_dir("bob")) as waiter,
    ):
        holder.acquire()
        waiter.ask()
        waiter.receive()
        yield holder, waiter


def refusal(manager: LocalManager, verb: str, **arguments: object) -> tuple[str, str]:
    with pytest.raises(Fault) as refused:
        manager.call(verb, **arguments)
    assert "\n" not in str(refused.value)
    return refused.value.refusal, str(refused.value)


def typed(line: str) -> str:
    """A refusal as the client says it: with the option for an argument."""
    argument, colon, rest = line.partition(": ")
    return f"{TYPED.get(argument, argument)}{colon}{rest}"


def raw(manager: LocalManager, body: bytes) -> dict[str, Any]:
    """The socket's answer to these bytes."""
    with Conversation(manager.run_dir / "control.sock", WAIT_LIMIT_S) as talk:
        length = talk._write(body)
        with pytest.raises(Fault) as refused:
            talk.ask("order", f"[0,{length}]")
    return {"code": refused.value.refusal, "error": str(refused.value)}


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"garbage", b"[]", b"1", b"{}", b'{"verb": 5}', b'{"verb": "status", "args": []}',
        b'{"verb":"' + b"x" * 9_000 + b'"}',
     b"[" * 100_000, b'{"verb": "status", "args": {"colour": "red"}}',
     b'{"verb": "quota_set", "args": {}}', b"\xff\xfe{}"],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
def test_an_order_that_is_none_is_refused_in_one_line(manager: LocalManager, body: bytes) -> None:
    answer = raw(manager, body)
    assert answer["code"] == "usage"
    assert len(answer["error"]) < 1_000, "the names of the verbs, and not what was sent"
    assert "\n" not in answer["error"]
    assert manager.call("ping")["pid"] == os.getpid()


def test_a_malformed_packet_ends_no_other_conversation(manager: LocalManager) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(manager.run_dir / "control.sock"))
        for packet in (b"x" * 2_000, b"{}", b"NODEMGR/1 ASK\n"):
            stranger.send(packet)
        assert manager.call("ping")["abi"] == 1
    assert manager.call("ping")["state_dir"] == str(manager.directory / "state")


@pytest.mark.parametrize("sign", ["%", "\x7f", "é", "\n", '"'])
def test_an_order_of_signs_that_grow_in_a_packet_is_answered(
    manager: LocalManager, sign: str
) -> None:
    """In one packet, or on a sheet: one that is too long would be dropped without a word."""
    for length in (400, 470):
        assert refusal(manager, "web_revoke", token=sign * length)[0] == "usage"


def test_no_process_holds_gpus_over_the_control_socket(manager: LocalManager) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(manager.run_dir / "control.sock"))
        client.send(wire.encode("ACQUIRE", rid=1, task="a" * 16))
        denied = decode(client.recv(wire.PACKET_BYTES), wire.Direction.DOWN)
    assert (denied.verb, denied.text("code")) == ("DENY", "unknown_env")


def test_a_long_answer_comes_whole(manager: LocalManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_verbs, "LONG_PART_BYTES", 2_000)
    for number in range(12):
        manager.call("quota_set", env=f"env{number}", gpus=1)
    assert len(manager.call("quota_show")["quotas"]) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "alice"}, "there is no environment 'alice' yet: say how many GPUs it may have"),
        ({"gpus": 1}, "argument env is missing"),
        ({"env": "alice", "gpus": -1}, "gpus: must be a whole number from 0"),
        ({"env": "alice", "gpus": True}, "gpus: must be a whole number"),
        ({"env": "alice", "gpus": 1.5}, "gpus: must be a whole number"),
        ({"env": "alice", "gpus": "2"}, "gpus: must be a whole number"),
        ({"env": "alice", "gpus": 10**9}, "gpus: must be a whole number"),
        ({"env": "../alice", "gpus": 1}, "env: is no name of an environment"),
        ({"env": "", "gpus": 1}, "env: is no name of an environment"),
        ({"env": "a" * 64, "gpus": 1}, "env: is no name of an environment"),
        ({"env": 5, "gpus": 1}, "env: is no name of an environment"),
        ({"env": "alice", "gpus": 1, "memory_bytes": 0}, "memory_bytes: must be a whole number"),
        ({"env": "alice", "gpus": 1, "memory_bytes": 5}, "memory_bytes: must be a whole number"),
        (
            {"env": "alice", "gpus": 1, "memory_bytes": 2**60},
            "memory_bytes: must be a whole number",
        ),
        (
            {"env": "alice", "gpus": 0, "memory_bytes": GIB},
            "a quota of no GPU has no memory",
        ),
        ({"env": "alice", "gpus": 1, "default_gpus": 2}, "more than the quota's 1"),
        (
            {"env": "alice", "gpus": 1, "priority": "urgent"},
            "priority: must be one of high, normal, low",
        ),
        (
            {"env": "alice", "gpus": 1, "acquire": "never"},
            "acquire: must be one of import, first-use",
        ),
        ({"env": "alice", "gpus": 1, "no_gpu": ""}, "no_gpu: must be one of"),
        ({"env": "alice", "gpus": 1, "users": "root"}, "users: must be a list"),
        ({"env": "alice", "gpus": 1, "users": [5]}, "users: must be a list"),
        (
            {"env": "alice", "gpus": 1, "users": ["no-such-user"]},
            "users: this node knows no user 'no-such-user'",
        ),
        (
            {"env": "alice", "gpus": 1, "groups": ["no-such-group"]},
            "groups: this node knows no group",
        ),
        ({"env": "alice", "gpus": 1, "speed": 5}, "unknown argument 'speed'"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused_and_changes_nothing(
    manager: LocalManager, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(Fault, match=typed(message)) as refused:
        manager.call("quota_set", **arguments)
    assert refused.value.refusal == "usage"
    assert manager.call("quota_show")["quotas"] == []


def test_a_quota_is_set_changed_and_shown(manager: LocalManager) -> None:
    first = manager.call(
        "quota_set",
        env="alice",
        gpus=2,
        memory_bytes=16 * GIB,
        users=["root", "root"],
        acquire="import",
    )
    assert first["warnings"] == []
    assert first["quota"]["users"] == ["root"]
    assert first["quota"]["memory_per_gpu_bytes"] == 8 * GIB
    second = manager.call("quota_set", env="alice", gpus=4)["quota"]
    assert (second["gpus"], second["memory_bytes"], second["acquire"]) == (
        4,
        16 * GIB,
        "import",
    ), "what is not said stays"
    third = manager.call("quota_set", env="alice", memory_bytes=None)["quota"]
    assert third["memory_bytes"] is None
    assert manager.call("quota_show", env="alice")["quotas"] == [third]
    assert manager.call("quota_rm", env="alice") == {"env": "alice", "warnings": []}
    assert refusal(manager, "quota_show", env="alice")[0] == "unknown_env"


def test_the_event_of_a_quota_has_all_of_its_terms(manager: LocalManager) -> None:
    quota = manager.call(
        "quota_set", env="alice", gpus=2, no_gpu="cpu", no_manager="error", enforce="warn"
    )["quota"]
    event = [
        event for event in manager.call("events", since=0)["events"] if event["name"] == "quota.set"
    ][-1]
    assert {**quota, "gpus": event["quota_gpus"]} == {
        **{name: event[name] for name in quota if name != "gpus"},
        "gpus": 2,
    }


def test_a_quota_names_any_queue_that_there_is(manager: LocalManager) -> None:
    manager.call("queue_create", queue="night", rank=50)
    assert (
        manager.call("quota_set", env="alice", gpus=1, priority="night")["quota"]["priority"]
        == "night"
    )
    code, reason = refusal(manager, "queue_rm", queue="night")
    assert (code, reason) == (
        "refused",
        "queue night is the queue of alice: name another one first (nodemgr quota set --priority)",
    )
    manager.call("queue_create", queue="noon", rank=150)
    manager.call("quota_set", env="alice", priority="low", max_priority="noon")
    reason = (
        "queue noon is the highest that alice may ask for: name another one first (nodemgr quota"
        " set --max-priority)"
    )
    assert refusal(manager, "queue_rm", queue="noon") == ("refused", reason)
    manager.call("quota_set", env="alice", max_priority=None)
    manager.call("queue_rm", queue="noon")
    manager.call("queue_rm", queue="night")
    assert refusal(manager, "quota_set", env="alice", priority="night") == (
        "usage",
        "--priority: must be one of high, normal, low",
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"compute_percent": 0}, "compute_percent: must be"),
        ({"compute_percent": 101}, "compute_percent: must be"),
        ({"compute_percent": "40"}, "compute_percent: must be"),
        ({"task_class": "batch"}, "task_class: must be one of latency-sensitive, normal,"),
        ({"idle_ms": 10}, "idle_ms: must be"),
        ({"when_idle": "suspend"}, "--when-idle suspend needs the time after which a task is idle"),
    ],
)
def test_a_wrong_share_or_idle_policy_changes_nothing(
    manager: LocalManager, wrong: dict[str, object], words: str
) -> None:
    manager.call("quota_set", env="alice", gpus=1)
    before = manager.call("quota_show", env="alice")
    code, line = refusal(manager, "quota_set", env="alice", **wrong)
    assert (code, line.startswith(typed(words))) == ("usage", True), line
    assert manager.call("quota_show", env="alice") == before


def test_a_quota_has_a_class_a_share_and_an_idle_policy(manager: LocalManager) -> None:
    manager.call("quota_set", env="alice", gpus=1)
    said = {
        "compute_percent": 40,
        "task_class": "best-effort",
        "idle_ms": 1_800_000,
        "when_idle": "suspend",
        "max_keep_ms": 7_200_000,
    }
    quota = manager.call("quota_set", env="alice", **said)["quota"]
    assert {name: quota[name] for name in said} == said
    assert refusal(manager, "quota_set", env="alice", idle_ms=None)[0] == "usage"
    manager.call("quota_set", env="alice", idle_ms=None, when_idle="keep", compute_percent=None)
    (quota,) = manager.call("quota_show", env="alice")["quotas"]
    assert (quota["idle_ms"], quota["compute_percent"]) == (None, None)


def test_what_cannot_be_as_said_is_warned_of(manager: LocalManager) -> None:
    (more,) = manager.call("quota_set", env="alice", gpus=9)["warnings"]
    assert more == (
        "alice may have 9 GPUs, but the node has 4, and a request for more is refused: set --gpus"
        " 4, unless GPUs will be added"
    )
    (large,) = manager.call("quota_set", env="bob", gpus=1, memory_bytes=100 * GIB)["warnings"]
    assert "more than any GPU here has (80 GiB)" in large


def test_an_env_in_which_something_runs_or_waits_is_removed_by_force_alone(
    manager: LocalManager, pair: tuple[FakeClient, FakeClient]
) -> None:
    for env, held in (("alice", "1 running"), ("bob", "1 waiting")):
        refused = refusal(manager, "quota_rm", env=env)
        assert refused == (
            "refused",
            (
                f"{env} is not removed, since it is in use ({held}): --force takes its GPUs and"
                " ends its jobs"
            ),
        )
    assert len(manager.call("status")["tasks"]) == 1
    assert manager.call("quota_show", env="alice")["quotas"]


def test_removing_an_env_says_whom_it_hits(
    manager: LocalManager, pair: tuple[FakeClient, FakeClient]
) -> None:
    holder, waiter = pair
    assert (
        "1 waiting request(s) of bob"
        in manager.call("quota_rm", env="bob", force=True)["warnings"][0]
    )
    assert waiter.expect("DENY")["code"] == "unknown_env"
    assert (
        "1 running task(s) of alice"
        in manager.call("quota_rm", env="alice", force=True)["warnings"][0]
    )
    assert holder.expect("FENCE")["lease"] == holder.grant["lease"]
    assert not manager.env_dir("alice").exists()


def test_a_mistyped_env_or_queue_is_answered_with_the_one_that_was_meant(
    manager: LocalManager,
) -> None:
    manager.call("quota_set", env="alice", gpus=1)
    for verb in ("quota_show", "quota_rm", "env_show", "allocations"):
        code, text = refusal(manager, verb, env="alcie")
        assert code == "unknown_env"
        assert (
            text
            == "there is no environment 'alcie' here: `nodemgr quota set alcie --gpus N` makes it;"
            " did you mean 'alice'?"
        )
    assert refusal(manager, "quota_set", env="alice", priority="hihg")[1].endswith(
        "high, normal, low; did you mean 'high'?"
    )
    assert refusal(manager, "queue_rm", queue="nromal")[1].endswith("; did you mean 'normal'?")


def test_the_allocations_of_a_removed_env_can_be_seen(manager: LocalManager) -> None:
    manager.call("quota_set", env="alice", gpus=1)
    with FakeClient(manager.env_dir("alice")) as client:
        client.acquire()
        manager.call("quota_rm", env="alice", force=True)
    assert len(manager.call("allocations", env="alice")["allocations"]) == 1
    assert manager.call("allocations", env="alice", since_wall_ns=2**62)["allocations"] == []
    assert refusal(manager, "allocations", env="nosuch")[0] == "unknown_env"


@pytest.mark.parametrize(
    ("verb", "of", "expected"),
    [
        ("quota_show", {"env": "nobody"}, "unknown_env"),
        ("quota_rm", {"env": "nobody"}, "unknown_env"),
        ("release", {"task": "t99"}, "not_found"),
    ],
)
def test_what_is_not_there_is_not_found(
    manager: LocalManager, verb: str, of: dict[str, str], expected: str
) -> None:
    code, text = refusal(manager, verb, **of)
    assert code == expected
    assert "nodemgr" in text, "what to do"


def test_release_finds_a_request_by_the_name_of_its_lease_and_the_lease_by_that_of_its_request(
    manager: LocalManager, pair: tuple[FakeClient, FakeClient]
) -> None:
    holder, waiter = pair
    (request,) = manager.call("status")["queue"]
    lease = holder.grant["lease"]
    for said, found in (
        (request["id"].replace("r", "t"), request["id"]),
        (lease.replace("t", "r"), lease),
    ):
        assert said != found
        assert manager.call("release", task=said) == {"task": found}
    assert waiter.expect("DENY")["code"] == "released"
    assert holder.expect("FENCE")["lease"] == lease
    assert refusal(manager, "release", task="r1")[0] == "not_found"


def test_release_takes_a_task_and_a_waiting_request(
    manager: LocalManager, pair: tuple[FakeClient, FakeClient]
) -> None:
    holder, waiter = pair
    (request,) = manager.call("status")["queue"]
    assert manager.call("release", task=request["id"]) == {"task": request["id"]}
    assert waiter.expect("DENY")["code"] == "released"
    manager.call("release", task=holder.grant["lease"])
    assert "root" in holder.expect("FENCE")["reason"]
    (allocation,) = manager.call("allocations")["allocations"]
    assert allocation["env"] == "alice"
    assert allocation["gpus_new_index"] == [0, 1, 2, 3]
    assert allocation["ended_wall_ns"] is not None
    assert manager.call("allocations", env="bob")["allocations"] == []


def test_an_order_that_cannot_be_stored_is_refused_and_has_not_happened(
    manager: LocalManager,
) -> None:
    manager.store.fault = "database or disk is full"
    code, text = refusal(manager, "quota_set", env="alice", gpus=1)
    assert code == "store"
    assert "full" in text
    assert manager.call("quota_show")["quotas"] == []
    assert manager.call("status")["store"]["state"] == "failing"
    manager.store.fault = None
    manager.call("quota_set", env="alice", gpus=1)
    assert manager.call("status")["store"] == {"state": "ok", "error": None}


def test_the_status_has_what_scripts_read(manager: LocalManager) -> None:
    status = manager.call("status")
    assert status["schema_version"] == 1
    assert {"gpus", "envs", "tasks", "queue", "store", "counters", "manager"} <= status.keys()
    assert status["manager"]["simulated"] is False
    assert status["counters"]["packets_malformed"] == 0
    gpu = status["gpus"][0]
    assert (gpu["index"], gpu["memory_total_bytes"], gpu["memory_used_bytes"], gpu["state"]) == (
        0,
        80 * GIB,
        0,
        "healthy",
    )
    assert status["manager"]["since"] <= time.time() < status["manager"]["since"] + 3_600, "seconds"


def test_the_doctor_tells_what_is_ill_with_its_cure(manager: LocalManager) -> None:
    checks = {check["name"]: check for check in manager.call("doctor")["checks"]}
    assert checks["gpus"]["ok"]
    assert checks["store"]["ok"]
    manager.gpus.set_healthy(2, False)
    manager.store.fault = "disk I/O error"
    refusal(manager, "quota_set", env="alice", gpus=1)
    manager.do(lambda: manager.daemon.gpus.read_soon(lambda reading: None))
    manager.do(lambda: manager.daemon.journal.retry())
    read_soon = threading.Event()
    manager.do(lambda: manager.daemon.gpus.read_soon(lambda reading: read_soon.set()))
    assert read_soon.wait(WAIT_LIMIT_S)
    checks = {check["name"]: check for check in manager.call("doctor")["checks"]}
    assert not checks["gpus"]["ok"]
    assert "ill: GPU 2" in checks["gpus"]["detail"]
    assert not checks["store"]["ok"]
    assert all(check["cure"] for check in checks.values())
    manager.store.fault = None


def test_a_fault_of_our_own_is_answered_and_the_manager_goes_on(
    manager: LocalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodemgr.edge.api.views.snapshot.frame", lambda *_, **__: 1 / 0)
    code, text = refusal(manager, "status")
    assert (code, "ZeroDivisionError" in text) == ("internal", True)
    manager.call("quota_set", env="alice", gpus=1)
    with FakeClient(manager.env_dir("alice")) as client:
        client.send("ASK", rid=1, what="status")
        assert "internal fault" in client.expect("PART")["data"]
    monkeypatch.undo()
    manager.call("status")


@pytest.mark.parametrize(
    ("group", "mode", "owner"),
    [
        ("users", 0o660, grp.getgrnam("users").gr_gid),
        ("no-such-group", 0o600, os.getegid()),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to a group")
def test_only_root_and_the_group_may_order(group: str, mode: int, owner: int) -> None:
    """And where the group does not exist, root alone."""
    with LocalManager(group=group) as manager:
        for name in ("control.sock", "events.sock"):
            found = (manager.run_dir / name).stat()
            assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, owner)


def test_without_a_manager_the_answer_is_at_once(tmp_path: Any, manager: LocalManager) -> None:
    with pytest.raises(Away, match="start one with nodemgr serve"):
        ControlConnection(tmp_path).call("ping")
    with pytest.raises(Away, match="start one with nodemgr serve"):
        EventStream(tmp_path)
    manager.close()
    with pytest.raises(Away, match="start one with nodemgr serve"):
        ControlConnection(manager.run_dir).call("ping")


def test_the_stream_has_no_gap_between_past_and_present(manager: LocalManager) -> None:
    for number in range(5):
        manager.call("quota_set", env=f"before{number}", gpus=1)
    stream = EventStream(manager.run_dir, 0)
    for number in range(5):
        manager.call("quota_set", env=f"after{number}", gpus=1)
    names = []
    for event in stream.follow(WAIT_LIMIT_S):
        if "env" in event:  # not of the manager itself
            names.append(event["env"])
        if names[-1:] == ["after4"]:
            break
    stream.close()
    assert names == [f"before{n}" for n in range(5)] + [f"after{n}" for n in range(5)]


def test_programs_of_others_hear_each_event(manager: LocalManager) -> None:
    """As docs/admins/operation.md shows it."""
    with zmq.Context() as context, context.socket(zmq.SUB) as events:
        events.setsockopt(zmq.LINGER, 0)
        events.subscribe("quota.")
        with events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            events.connect(f"ipc://{manager.run_dir}/events.sock")
            assert monitor.poll(WAIT_LIMIT_S * 1_000)
        events.disable_monitor()
        gpus = itertools.cycle((1, 2))
        while not events.poll(10):  # until the subscription holds
            manager.call("quota_set", env="alice", gpus=next(gpus))
        name, text = events.recv_multipart()
    assert (name, json.loads(text)["env"]) == (b"quota.set", "alice")


def test_readers_wait_for_events_and_gone_ones_harm_nobody(manager: LocalManager) -> None:
    last = manager.call("events")["events"][-1]["sequence"]
    readers = [ControlConnection(manager.run_dir, WAIT_LIMIT_S) for _ in range(3)]
    for reader in readers:
        reader.ask("events", since=last, wait=True)
    operations = manager.service.daemon.admin_operations
    while manager.do(lambda: len(operations._waiting)) < 3:
        pass
    readers.pop().close()
    manager.call("quota_set", env="alice", gpus=1)
    for reader in readers:
        assert reader.answer()["events"][0]["env"] == "alice"
        reader.close()


def test_a_reader_of_the_future_hears_nothing_of_the_past(manager: LocalManager) -> None:
    manager.call("quota_set", env="old", gpus=1)
    with EventStream(manager.run_dir) as stream:
        manager.call("quota_set", env="new", gpus=1)
        event = next(stream.follow(WAIT_LIMIT_S))
        assert event["env"] == "new"


def test_past_events_come_in_pages(manager: LocalManager) -> None:
    for number in range(6):
        manager.call("quota_set", env=f"e{number}", gpus=1)
    first = manager.call("events", since=0, limit=3)["events"]
    assert [event["sequence"] for event in first] == [1, 2, 3]
    assert manager.call("events", limit=2)["events"][-1]["env"] == "e5"
    assert refusal(manager, "events", since=-1)[0] == "usage"
    assert refusal(manager, "events", limit=0)[0] == "usage"
