"""Strangers' words about jobs: on a client socket and on the control plane.

They are checked before any action.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.views.job_rows import Cursor
from nodemgr.edge.api import job_arguments, job_operations
from nodemgr.edge.kernel.processes import user_name
from nodemgr.edge.rpc import wire
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.shared_buffers import MAX_SHEETS, SHEET_BYTES, Sheets
from nodemgr.paths import container_dir
from tests.support import ordinary
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import Manager
from tests.support.packets import decode
from tests.support.queue_pages import queue_rows

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def manager() -> Iterator[LocalManager]:
    with LocalManager(factory=None) as manager:
        for env in ("alice", "bob"):
            manager.call("quota_set", env=env, gpus=2)
        yield manager


@pytest.fixture
def talk(manager: LocalManager) -> Iterator[Conversation]:
    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        yield talk


def submission(**changes: Any) -> dict[str, Any]:
    given = {
        "argv": ["true"],
        "cwd": "/",
        "environ": ["A=b"],
        "key": os.urandom(16).hex(),
        "hold": True,
        **changes,
    }
    return {name: value for name, value in given.items() if value is not ...}


def order(talk: Conversation, verb: str, **arguments: Any) -> Any:
    """On a sheet where it is too long for a packet."""
    text = json.dumps({"verb": verb, "args": arguments})
    return talk.ask("order", text)[0] if len(text) < 500 else written(talk, text.encode())


def written(talk: Conversation, text: bytes) -> Any:
    _, (sheet,) = talk.ask("sheet")
    os.pwrite(sheet, text, 0)
    os.close(sheet)
    return talk.ask("order")[0]


def refusal(talk: Conversation, verb: str, **arguments: Any) -> str:
    with pytest.raises(Fault) as refused:
        order(talk, verb, **arguments)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500
    return refused.value.message


def jobs(manager: LocalManager) -> list[str]:
    return [row["id"] for row in queue_rows(manager.call)]


GARBAGE = [
    b"", b"garbage", b"[]", b"5", b"{}", b'{"verb":5}', b'{"verb":"queue","args":[]}',
    b"[" * 100_000, b"\xff\xfe{}", b'{"verb":"nix"}',
    b'{"verb":"queue","args":{"colour":"red"}}', b'{"verb":"job_submit"}',
    b'{"verb":"job_submit","args":{}}', b"x" * SHEET_BYTES,
    b'{"verb":"' + b"x" * 9_000 + b'"}', b'{"verb":"job_hold","args":{"job":"j1\\u0000"}}',
    b'{"verb":"job_hold","args":{"job":["j1"]}}',
    b'{"verb":"job_wait","args":{"jobs":"j1"}}', b'{"verb":"queue","args":{"limit":100000}}',
    b'{"verb":"queue","args":{"after":-1}}',
    b'{"verb":"queue","args":{"after":"queued:normal"}}',
    b'{"verb":"queue","args":{"after":"queued:no queue:5"}}',
    b'{"verb":"queue","args":{"after":"apart:5"}}',
    b'{"verb":"queue","args":{"after":"ended:5.0"}}',
    b'{"verb":"queue","args":{"after":"queued:normal:5\\u0665"}}',
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: repr(text[:30]))
def test_an_order_that_is_none_is_refused_in_one_line(
    manager: LocalManager, talk: Conversation, text: bytes
) -> None:
    before = jobs(manager)
    with pytest.raises(Fault) as refused:
        written(talk, text)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500
    assert jobs(manager) == before
    assert talk.ask("order", '{"verb":"queue"}')[0]["schema_version"] == 1, (
        "the connection is as good as before"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"argv": ...}, "argument argv is missing"),
        ({"argv": []}, "COMMAND: names no command"),
        ({"argv": [""]}, "COMMAND: names no command"),
        ({"argv": "true"}, "COMMAND: must be a list"),
        ({"argv": ["true", 5]}, "COMMAND: must be texts"),
        ({"argv": ["a\0b"]}, "COMMAND: must be texts without NUL"),
        ({"argv": ["\ud800"]}, "COMMAND: has characters that this system"),
        ({"argv": ["x"] * 10_001}, "COMMAND: must be a list of at most 10000"),
        ({"argv": ["x" * 2**17]}, "COMMAND: holds one of 131072 bytes"),
        ({"umask": 0o1000}, "umask: must be a whole number from 0 to 511"),
        ({"umask": "022"}, "umask: must be a whole number from 0 to 511"),
        ({"environ": ["A"]}, "environ: must be a list of NAME=value"),
        ({"environ": ["=A"]}, "environ: must be a list of NAME=value"),
        ({"environ": ["A=\0"]}, "environ: must be texts without NUL"),
        ({"environ": {"A": "b"}}, "environ: must be a list"),
        ({"cwd": "tmp"}, "cwd: must be an absolute path"),
        ({"cwd": "/" + "x" * 4_095}, "cwd: must be an absolute path"),
        ({"cwd": None}, "cwd: must be texts"),
        ({"key": "nix"}, "key: must be 16 to 64"),
        ({"gpus": -1}, "gpus: must be a whole number"),
        ({"gpus": True}, "gpus: must be a whole number"),
        ({"gpus": 3}, "3 GPUs asked, but the quota of alice is 2"),
        ({"memory_bytes": 5}, "--memory: must be a whole number"),
        ({"priority": "a b"}, "priority: is no name of a queue"),
        ({"after": ["j99"]}, "alice has no job j99"),
        ({"after": ["99"]}, "after: is no job"),
        ({"after": ["j1"] * 1_001}, "after: must be a list of at most 1000"),
        ({"array": list(range(10_001))}, "array: must be a list of at most 10000"),
        ({"array": [-1]}, "array: must be a whole number"),
        ({"array": [2**31]}, "array: must be a whole number"),
        ({"array": "0-9"}, "array: must be a list"),
        ({"time_limit_ms": 0}, "--time: must be from 1 ms to 366 d, in whole milliseconds"),
        ({"signal": "USR1@60s"}, "--signal: must be a signal (USR1, "),
        ({"signal": ["KILL", 60_000]}, "--signal: must be a signal (USR1, "),
        ({"signal": [["USR1"], 60_000]}, "--signal: must be a signal (USR1, "),
        ({"signal": ["USR1", 60_000, 1]}, "--signal: must be a signal (USR1, "),
        ({"signal": ["USR1", True]}, "--signal: must be from 1 s to 10 min"),
        ({"signal": ["USR1", 600_001]}, "--signal: must be from 1 s to 10 min"),
        ({"signal": None}, "--signal: must be a signal (USR1, "),
        ({"max_restarts": 10**6}, "--max-restarts: must be a whole number"),
        ({"name": "a\x1b[31m"}, "name: must be a text"),
        ({"hold": 1}, "hold: must be true or false"),
        ({"uid": 0}, "unknown argument 'uid'"),
        ({"user": "root"}, "unknown argument 'user'"),
        ({"by": "root"}, "unknown argument 'by'"),
        ({"env": "bob"}, "unknown argument 'env'"),
    ],
)
def test_a_submission_that_cannot_be_is_refused(
    manager: LocalManager, talk: Conversation, changes: dict[str, Any], said: str
) -> None:
    before = jobs(manager)
    assert said in refusal(talk, "job_submit", **submission(**changes))
    assert jobs(manager) == before


def test_bytes_that_are_no_text_arrive_as_they_were(
    manager: LocalManager, talk: Conversation
) -> None:
    odd = os.fsdecode(b"\xff\n\x01 x")
    job = order(talk, "job_submit", **submission(argv=["true", odd], environ=[f"A={odd}"]))["job"]
    state = manager.daemon.state
    payload = manager.do(lambda: manager.daemon.journal.payload(state.jobs[job].spec_id))
    assert (payload.argv[1], payload.environ) == (odd, (f"A={odd}",))
    (row,) = manager.call("job_show", job=job)["jobs"]
    assert row["command"].isprintable()


def test_the_same_submission_again_is_the_same_job(talk: Conversation) -> None:
    given = submission(key=KEY)
    first = order(talk, "job_submit", **given)
    assert order(talk, "job_submit", **given) == first


def test_a_key_of_another_command_is_another_submission(talk: Conversation) -> None:
    """Each user of the environment may see the keys of its jobs."""
    given = submission(key=KEY[::-1])
    first = order(talk, "job_submit", **given)
    assert order(talk, "job_submit", **{**given, "argv": ["false"]}) != first
    assert job_operations._own_key(KEY, 1, ["a"]) != job_operations._own_key(KEY, 2, ["a"])


def test_a_way_speaks_for_its_own_environment(manager: LocalManager, talk: Conversation) -> None:
    with Conversation(manager.env_dir("bob") / "socket", WAIT_LIMIT_S) as bobs:
        foreign = order(bobs, "job_submit", **submission())["job"]
    for verb in ("queue", "history", "report"):
        assert "speaks for alice alone" in refusal(talk, verb, env="bob")
    for verb in ("job_show", "job_withdraw", "job_hold", "job_free", "job_requeue", "job_log_read"):
        assert refusal(talk, verb, job=foreign).startswith(f"alice has no job '{foreign}'")
    assert "alice has no job" in refusal(talk, "job_wait", jobs=[foreign])
    assert "alice has no job" in refusal(talk, "job_move", job=foreign, queue="high")
    assert f"alice has no job {foreign}" in refusal(
        talk, "job_submit", **submission(after=[foreign])
    )
    assert foreign not in [row["id"] for row in order(talk, "queue")["queue"]]


def test_what_administrators_order_is_refused_to_users(talk: Conversation) -> None:
    job = order(talk, "job_submit", **submission())["job"]
    for verb, arguments in (
        ("queue_create", {"queue": "x", "rank": 5}),
        ("queue_rm", {"queue": "low"}),
        ("quota_set", {"env": "alice", "gpus": 9}),
    ):
        assert "is for administrators" in refusal(talk, verb, **arguments)
    assert "is for administrators" in refusal(talk, "job_move", job=job, first=True)


def test_nothing_is_submitted_on_the_control_plane(manager: LocalManager) -> None:
    """The owner would be unknown."""
    with pytest.raises(Fault, match="unknown verb 'job_submit'"):
        manager.call("job_submit", **submission())


def test_the_containers_way_is_for_containers(manager: LocalManager) -> None:
    """For a process of the node itself, the env of its job would be unknown."""
    with Conversation(container_dir(manager.run_dir, "alice") / "socket", WAIT_LIMIT_S) as inside:
        assert "this socket is for containers" in refusal(inside, "job_submit", **submission())
        assert order(inside, "queue")["schema_version"] == 1


OUTSIDER = """
import json, os, sys
from pathlib import Path
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
with Conversation(Path(sys.argv[1]), 300.0) as talk:
    _, (sheet,) = talk.ask("sheet")
    os.pwrite(sheet, sys.argv[2].encode(), 0)
    try:
        print(talk.ask("order")[0]["job"])
    except Fault as fault:
        print(fault.message)
"""


@pytest.mark.parametrize("namespace", ["--mount", "--pid", "--user", None])
def test_only_who_lives_on_the_node_can_submit(
    manager: LocalManager, namespace: str | None
) -> None:
    """Also by the node's own socket, which some container may be shown."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    around = (
        []
        if namespace is None
        else ["unshare", namespace, *(["--fork"] if namespace == "--pid" else [])]
    )
    text = json.dumps({"verb": "job_submit", "args": submission()})
    said = subprocess.run(
        [*around, sys.executable, "-c", OUTSIDER, str(manager.env_dir("alice") / "socket"), text],
        capture_output=True, text=True,
        timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    if "unshare" in said.stderr:
        pytest.skip(said.stderr)
    expected = (
        "j"
        if namespace is None
        else "a job of this sandbox would run outside of it: submit on the node itself"
    )
    assert said.stdout.startswith(expected), said.stderr


def test_an_ordinary_user_s_manager_names_its_user_to_another_user(
    make_manager: Callable[..., Manager],
) -> None:
    """It sees no namespaces of another user's process, which is in no sandbox for all that."""
    if os.geteuid() != 0:
        pytest.skip("only root can start another user's manager")
    made = make_manager(simulate="1x16GiB", before_exec=ordinary.become_ordinary, start=False)
    os.chown(made.directory, ordinary.UID, ordinary.UID)
    made.start()
    made.quota("alice", 1)
    with Conversation(made.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        said = refusal(talk, "job_submit", **submission())
    assert f"this manager runs as {user_name(ordinary.UID)} and can run that user's" in said


def test_a_job_of_a_user_whose_name_does_not_come_is_refused(
    manager: LocalManager, talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the user's number the launcher would find neither the account nor its groups."""

    def late(uid: int) -> str:
        raise TimeoutError

    monkeypatch.setattr(job_operations, "known_user_name", late)
    said = refusal(talk, "job_submit", **submission())
    assert said == (
        f"the user database of the node does not name uid {os.geteuid()} in time: submit the job"
        " again in a moment"
    )


# -- sheets --


def test_a_sheet_is_of_one_size_and_used_once(talk: Conversation) -> None:
    told, (sheet,) = talk.ask("sheet")
    assert told == {"sheet_bytes": SHEET_BYTES}
    for size in (0, 2 * SHEET_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(sheet, size)
    os.pwrite(sheet, b'{"verb":"queue"}', 0)
    assert talk.ask("order")[0]["schema_version"] == 1
    with pytest.raises(Fault, match="ask for a sheet first"):
        talk.ask("order")
    os.close(sheet)


def test_who_keeps_his_sheet_says_where_each_order_stands(talk: Conversation) -> None:
    """The next one is written beside it, before this one is answered."""
    _, (sheet,) = talk.ask("sheet")
    for start in (0, 4_096, SHEET_BYTES - 1_000):
        text = json.dumps({"verb": "job_submit", "args": submission()}).encode()
        os.pwrite(sheet, text + b" and what stood there before", start)
        assert talk.ask("order", f"[{start},{len(text)}]")[0]["job"].startswith("j")
    os.close(sheet)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("[0,0]", "no order of 0 at 0"), (f"[1,{SHEET_BYTES}]", "no order"),
        (f"[{SHEET_BYTES},1]", "no order"),
        ("[99999999,2]", "no order"), ("[0,16]", "one JSON object"),
        ("[-1,5]", "one JSON object"), ("[0,5,5]", "one JSON object"),
        ("[0, 5]", "one JSON object"),
    ],
)  # fmt: skip
def test_a_place_on_a_sheet_where_no_order_stands_is_refused(
    talk: Conversation, place: str, said: str
) -> None:
    _, (sheet,) = talk.ask("sheet")
    with pytest.raises(Fault, match=said):
        talk.ask("order", place)
    os.close(sheet)


def test_a_place_on_a_sheet_that_nobody_has_is_refused(talk: Conversation) -> None:
    with pytest.raises(Fault, match="ask for a sheet first"):
        talk.ask("order", "[0,16]")


def test_sheets_are_lent_within_bounds_and_come_back_with_their_client() -> None:
    sheets = Sheets()
    for connection in range(MAX_SHEETS):
        sheets.lend(connection, "alice")
    assert sheets.lend(0, "alice") == sheets.lend(0, "alice"), "one each"
    with pytest.raises(Exception, match="too many long orders"):
        sheets.lend(MAX_SHEETS, "alice")
    sheets.lend(MAX_SHEETS, "bob")
    for connection in range(MAX_SHEETS + 1):
        sheets.forget(connection)
    assert len(sheets) == 0


def test_descriptors_that_a_client_sends_are_not_taken(manager: LocalManager) -> None:
    """By the kernel where it can refuse them; else they are let go, and the order is as without."""
    foreign = os.memfd_create("foreign")
    os.write(foreign, b'{"verb":"queue"}')
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(manager.env_dir("alice") / "socket"))
        client.settimeout(WAIT_LIMIT_S)
        packet = wire.encode("ASK", rid=1, what="order")
        try:
            socket.send_fds(client, [packet], [foreign])
        except PermissionError:
            client.send(packet)
        answer = decode(client.recv(wire.PACKET_BYTES), wire.Direction.DOWN)
        assert "ask for a sheet first" in (answer.text("data") or "")
    os.close(foreign)


def test_who_waits_and_goes_is_forgotten(manager: LocalManager) -> None:
    waits = manager.service.daemon.job_orders.waits

    def until(count: int) -> None:
        deadline = time.monotonic() + WAIT_LIMIT_S
        while manager.do(lambda: len(waits)) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        job = order(talk, "job_submit", **submission())["job"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(manager.env_dir("alice") / "socket"))
        for rid in (1, 2, 3):  # each takes the place of the last
            client.send(
                wire.encode(
                    "ASK",
                    rid=rid,
                    what="order",
                    argument=json.dumps({"verb": "job_wait", "args": {"jobs": [job]}}),
                )
            )
        until(1)
    until(0)


def test_a_client_that_goes_while_its_jobs_are_looked_for_leaves_no_wait(
    manager: LocalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager would keep it to the end of the job."""
    orders, turns = manager.service.daemon.job_orders, iter(range(40))
    monkeypatch.setattr(orders, "_find_all", lambda *_: (None for _ in turns))
    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        job = order(talk, "job_submit", **submission())["job"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(manager.env_dir("alice") / "socket"))
        argument = json.dumps({"verb": "job_wait", "args": {"jobs": [job]}})
        client.send(wire.encode("ASK", rid=1, what="order", argument=argument))
    while manager.do(lambda: next(turns, None)) is not None:
        pass  # each is a turn of the loop, too
    assert manager.do(lambda: len(orders.waits)) == 0


def test_a_log_comes_in_pieces_and_an_administrator_s_scope_is_his_choice(
    manager: LocalManager,
) -> None:
    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        job = order(
            talk,
            "job_submit",
            **submission(hold=False, gpus=0, argv=["/bin/echo", "hello"], environ=["PATH=/bin"]),
        )["job"]
    (outcome,) = manager.call("job_wait", jobs=[job])["jobs"]
    assert (outcome["state"], outcome["exit"]) == ("done", 0), outcome["why"]
    told = manager.call("job_log_read", job=job, offset=2)
    assert base64.b64decode(told["data"]) == b"llo\n"
    assert [row["job"] for row in manager.call("history", env="alice")["history"]] == [job]
    assert manager.call("history", env="bob")["history"] == []


def test_a_submission_that_cannot_be_stored_is_refused_and_has_not_happened(
    manager: LocalManager, talk: Conversation
) -> None:
    before = jobs(manager)
    manager.store.fault = "database or disk is full"
    assert "cannot store a job now" in refusal(talk, "job_submit", **submission())
    manager.store.fault = None
    assert jobs(manager) == before
    order(talk, "job_submit", **submission())
    assert len(jobs(manager)) == len(before) + 1


@pytest.mark.parametrize("line", ["normal", "high+0", "night.jobs+2"])
def test_a_page_of_the_list_goes_on_in_the_line_of_a_class(line: str) -> None:
    text = job_arguments.written(Cursor("queued", line, 7))
    assert job_arguments.cursor_at(text) == Cursor("queued", line, 7)


@pytest.mark.parametrize("line", ["+0", "high+1", "high+3", "high+", "high+0+0", "Big Job+0"])
def test_no_other_line_is_taken(line: str) -> None:
    with pytest.raises(OperationError):
        job_arguments.cursor_at(f"queued:{line}:7")
