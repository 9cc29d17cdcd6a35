"""The client over the UNIX socket: each answer of the manager, and what it makes of it."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from nodemgr.edge.ledger.native_ledger import SlotState
from nodemgr.edge.rpc import wire
from tests.client_c.conftest import Child, Spawn
from tests.client_c.manager import AFTER_LOSS, GPUS, Books, Connection, Manager
from tests.support.packets import Packet


def asked(child: Child, manager: Manager, *begin: object) -> tuple[Connection, Packet]:
    """A child that has sent its request and polls."""
    assert child.ask("begin", *begin) == "WAITING"
    client = manager.accept()
    child.start("until", "HELD")
    return client, client.expect("ACQUIRE")


def held(child: Child, manager: Manager, books: Books, **changes: wire.Value) -> Connection:
    client, request = asked(child, manager)
    client.grant(request, books, **changes)
    assert child.answer() == ["HELD", ""]
    return client


def test_a_request_is_granted(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    assert child.ask("managed") == 1
    client, request = asked(child, manager, 2, 3 << 30, 4_000, "python train.py")
    assert re.fullmatch("[0-9a-f]{32}", request.text("task") or "")
    assert (
        request.number(
            "rid",
        )
        is not None
    )
    assert {key: value for key, value in request.fields.items() if key not in ("rid", "task")} == {
        "gpus": 2, "memory": 3 << 30, "wait_ms": 4_000, "command": "python train.py",
    }  # fmt: skip
    client.grant(request, Books(), gpus=2)
    assert child.answer() == ["HELD", ""]
    assert child.ask("lease") == {
        "lease": "t1", "task": request.text("task"), "env": "alice", "gpus": ",".join(GPUS[:2]),
        "visible": ",".join(GPUS[:2]),
        "rows": "0,1", "limits": f"{10 << 30},{10 << 30}", "enforced": "1",
    }  # fmt: skip
    for name, value in {
        "CUDA_VISIBLE_DEVICES": ",".join(GPUS[:2]), "NODEMGR_VISIBLE": ",".join(GPUS[:2]),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NODEMGR_TASK": request.text("task"),
    }.items():  # fmt: skip
        assert child.ask("getenv", name) == value
    assert child.rest() == []


def test_it_beats_in_the_ledger_and_sends_nothing_while_it_holds(
    manager: Manager, spawn: Spawn
) -> None:
    """Its end is the kernel's to report, too."""
    child, books = spawn(), Books()
    client = held(child, manager, books)
    books.await_beats(3)
    assert child.finish() == 0
    assert client.closes() == []


def test_progress_goes_out_with_a_beat_where_it_has_changed(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    child.ask("progress", 1, 10)
    client, request = asked(child, manager)
    client.grant(request, books, beat_ms=50)
    assert child.answer() == ["HELD", ""]
    task = request.text("task")
    assert client.expect("PROGRESS").fields == {"task": task, "done": 1, "total": 10}
    child.ask("progress", 2, 10)
    assert client.expect("PROGRESS").fields == {"task": task, "done": 2, "total": 10}
    books.await_beats(3)
    child.ask("progress", 3, 0)
    assert client.expect("PROGRESS").fields == {"task": task, "done": 3}, "none between them"
    assert child.finish() == 0


def test_a_beat_names_the_generation_of_its_slot_whatever_stands_there(
    manager: Manager, spawn: Spawn
) -> None:
    child, books = spawn(), Books()
    books.ledger.set_slot(3, 7, SlotState.LIVE)
    held(child, manager, books, slot=3, generation=7)
    books.await_beats(2, slot=3)
    assert books.beats(3) >> 48 == 7
    usage = books.ledger.fds[1]
    for garbage in (0, 2**64 - 1, 8 << 48):
        os.pwrite(usage, garbage.to_bytes(8, "little"), os.fstat(usage).st_size - 8 * (1024 - 3))
        books.await_beats(2, slot=3)
        assert books.beats(3) >> 48 == 7


def test_it_beats_while_the_manager_is_away(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    client = held(child, manager, books)
    manager.close()
    client.close()
    books.await_beats(3)


def test_the_request_takes_what_the_environment_says(manager: Manager, spawn: Spawn) -> None:
    child = spawn(
        NODEMGR_TASK="0123456789abcdef" * 2,
        NODEMGR_GPUS="3",
        NODEMGR_MEMORY="1073741824",
        NODEMGR_WAIT="90",
        LOCAL_WORLD_SIZE="4",
    )
    _, request = asked(child, manager)
    assert request.text("task") == "0123456789abcdef" * 2
    assert [request.number(key) for key in ("gpus", "memory", "wait_ms", "world")] == [
        3,
        1 << 30,
        90_000,
        4,
    ]
    assert "child.py" in (request.text("command") or "")


def test_bad_variables_are_told_of_and_not_heeded(manager: Manager, spawn: Spawn) -> None:
    child = spawn(
        NODEMGR_TASK="no token",
        NODEMGR_GPUS="two",
        NODEMGR_MEMORY="8GiB",
        NODEMGR_WAIT="-1",
        LOCAL_WORLD_SIZE="many",
    )
    _, request = asked(child, manager)
    assert not {"gpus", "memory", "wait_ms", "world"} & set(request.fields)
    assert len(request.text("task") or "") == 32
    assert [child.line().split()[1] for _ in range(3)] == [
        "NODEMGR_GPUS",
        "NODEMGR_MEMORY",
        "NODEMGR_WAIT",
    ]


def test_numbers_that_cannot_be_meant_are_told_of_and_not_heeded(
    manager: Manager, spawn: Spawn
) -> None:
    child = spawn(NODEMGR_GPUS="9" * 30, NODEMGR_MEMORY=str(1 << 48), NODEMGR_WAIT="9" * 18)
    _, request = asked(child, manager)
    assert not {"gpus", "memory", "wait_ms"} & set(request.fields)
    assert [child.line().split()[1] for _ in range(3)] == [
        "NODEMGR_GPUS",
        "NODEMGR_MEMORY",
        "NODEMGR_WAIT",
    ]


def test_no_wish_no_number(manager: Manager, spawn: Spawn) -> None:
    _, request = asked(spawn(), manager)
    assert set(request.fields) == {"rid", "task", "command"}


@pytest.mark.parametrize(
    ("visible", "asks", "shown"), [("0,1", 2, f"{GPUS[0]},{GPUS[1]}"), ("3", 1, GPUS[0])]
)
def test_the_users_list_is_a_wish(
    manager: Manager, spawn: Spawn, visible: str, asks: int, shown: str
) -> None:
    child = spawn(CUDA_VISIBLE_DEVICES=visible)
    client, request = asked(child, manager)
    assert request.number("gpus") == asks
    client.grant(request, Books(), gpus=asks)
    child.answer()
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == shown


def test_a_rank_sees_its_own_gpu_of_the_tasks_lease(manager: Manager, spawn: Spawn) -> None:
    child = spawn(CUDA_VISIBLE_DEVICES="2", LOCAL_WORLD_SIZE="4")
    client, request = asked(child, manager)
    assert request.number("gpus") == 4
    client.grant(request, Books(), gpus=4)
    child.answer()
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == GPUS[2]


def test_indices_where_the_manager_says_so(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    held(child, manager, Books(), gpus=2, visible=("2", "5"))
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == "2,5"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_no_visible_device_is_cpu_and_no_request(
    manager: Manager, spawn: Spawn, visible: str
) -> None:
    child = spawn(CUDA_VISIBLE_DEVICES=visible)
    assert child.ask("begin") == "CPU"
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == visible
    manager.listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.listener.accept()


def test_no_gpus_wished_hides_them(manager: Manager, spawn: Spawn) -> None:
    child = spawn(NODEMGR_GPUS="0")
    assert child.ask("begin") == "CPU"
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == ""


def test_the_wait_is_shown_as_it_changes_and_waiters_beat(manager: Manager, spawn: Spawn) -> None:
    manager.env.write(beat_ms="50")
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    child.start("until", "WAITING", "2nd")
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=2, reason="2nd; bob holds both GPUs")
    assert child.answer() == ["WAITING", "2nd; bob holds both GPUs"]
    child.start("until", "WAITING", "1st")
    beat = client.expect("BEAT")
    assert beat.fields == {"task": request.text("task"), "rid": request.number("rid")}
    client.send(
        "WAIT",
        rid=request.number("rid"),
        position=1,
        reason="1st; bob\x1b[2J holds\none \xc2\x9b31m",
    )
    assert child.answer()[1].startswith("1st; bob?[2J holds?one "), (
        "a terminal's control bytes are no part of a reason"
    )
    child.start("until", "HELD")
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]


def test_all_waiting_threads_hear_the_answer(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    child.start("poll_in_threads", 4)
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    client.grant(request, Books())
    assert child.answer() == [["HELD", ""]] * 4


def test_answers_to_other_requests_are_none(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client, request = asked(child, manager)
    other = Packet("ACQUIRE", {**request.fields, "rid": (request.number("rid") or 0) + 1})
    client.send("DENY", rid=other.number("rid"), code="over_quota", reason="not yours")
    client.grant(other, Books())
    client.send("FENCE", lease="t1", reason="not yours")
    client.send("ACK", rid=other.number("rid"))
    client.send("PART", rid=other.number("rid"), index=0, count=1, data="{}")
    client.send("EPOCH", rid=other.number("rid"), epoch=4)
    client.grant(request, Books(), gpus=2)
    assert child.answer() == ["HELD", ""]
    assert child.ask("lease")["rows"] == "0,1"


def test_a_denial_is_an_answer(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client, request = asked(child, manager, 9)
    client.send(
        "DENY",
        rid=request.number("rid"),
        code="over_quota",
        reason="9 GPUs asked for, alice's quota is 2",
    )
    assert child.answer() == ["DENIED", "9 GPUs asked for, alice's quota is 2"]
    assert client.closes() == []
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") is None
    again, second = asked(child, manager, 1)
    assert second.number("rid") != request.number("rid")
    again.grant(second, Books())
    assert child.answer() == ["HELD", ""]


@pytest.mark.parametrize(("policy", "code", "state", "visible"), [
    ("cpu", "no_gpu", "CPU", ""), ("error", "no_gpu", "DENIED", None),
    ("cpu", "over_quota", "CPU", ""),
    ("cpu", "wait_timeout", "CPU", ""), ("error", "wait_timeout", "DENIED", None),
])  # fmt: skip
def test_what_a_refusal_leads_to(
    manager: Manager, spawn: Spawn, policy: str, code: str, state: str, visible: str | None
) -> None:
    manager.env.write(no_gpu=policy)
    child = spawn()
    client, request = asked(child, manager)
    client.send("DENY", rid=request.number("rid"), code=code, reason="alice has no GPUs")
    goes_on = "; the program continues on the CPU (no_gpu=cpu)" if state == "CPU" else ""
    assert child.answer() == [state, f"alice has no GPUs{goes_on}"]
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == visible


def test_after_cpu_by_policy_a_new_request_may_fare_better(manager: Manager, spawn: Spawn) -> None:
    """The empty CUDA_VISIBLE_DEVICES is ours: no wish of the user's for CPU."""
    manager.env.write(no_gpu="cpu")
    child = spawn(CUDA_VISIBLE_DEVICES="0,1")
    client, request = asked(child, manager)
    client.send("DENY", rid=request.number("rid"), code="no_gpu", reason="no GPUs")
    child.answer()
    client, request = asked(child, manager)
    assert request.number("gpus") == 2
    client.grant(request, Books(), gpus=2)
    assert child.answer() == ["HELD", ""]
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == ",".join(GPUS[:2])


def test_after_a_wait_in_vain_on_the_cpu_requests_do_not_wait_again(
    manager: Manager, spawn: Spawn
) -> None:
    manager.env.write(no_gpu="cpu")
    child = spawn(NODEMGR_WAIT="1")
    client, request = asked(child, manager)
    assert request.number("wait_ms") == 1000
    client.send("DENY", rid=request.number("rid"), code="wait_timeout", reason="waited 1 s")
    assert child.answer() == ["CPU", "waited 1 s; the program continues on the CPU (no_gpu=cpu)"]
    client, request = asked(child, manager)
    assert request.number("wait_ms") == 0
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]


def test_a_request_is_made_once(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client, request = asked(child, manager)
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    client.grant(request, Books())
    child.answer()
    assert child.ask("begin", 3) == "HELD"
    assert child.finish() == 0
    assert set(client.closes()) <= {"BEAT"}, "of its wait"


def test_cancel(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    child.start("until", "WAITING", "wait")
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    child.answer()
    child.start("cancel")
    cancel = client.expect("CANCEL")
    assert cancel.number("rid") == request.number("rid")
    client.reply("DENY", rid=request.number("rid"), code="cancelled", reason="cancelled")
    assert child.answer() == "NONE"
    assert client.closes() == []
    assert child.ask("state") == ["NONE", ""]
    assert child.ask("cancel") == "NONE"


def test_a_grant_that_crosses_a_cancel_goes_back(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    child.start("poll", 100)
    request = client.expect("ACQUIRE")
    child.answer()
    client.grant(request, Books())  # the client reads it when it waits for the answer
    assert child.ask("cancel") == "NONE"
    assert client.closes() == ["CANCEL", "RELEASE"]
    assert child.ask("lease") is None
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") is None


def test_a_cancel_before_the_manager_was_there(env, spawn: Spawn) -> None:
    env.write(address="unix:socket")
    child = spawn()
    child.ask("begin")
    child.ask("poll", 10)
    assert child.ask("cancel") == "NONE"


def test_release_and_ask_again_with_the_first_wish(manager: Manager, spawn: Spawn) -> None:
    child = spawn(CUDA_VISIBLE_DEVICES="4,5")
    client, request = asked(child, manager)
    client.grant(request, Books(), gpus=2)
    child.answer()
    child.start("release")
    release = client.expect("RELEASE")
    client.reply("ACK", rid=release.number("rid"))
    assert child.answer() == "NONE"
    assert client.closes() == []
    assert child.ask("lease") is None
    again, second = asked(child, manager)
    assert second.number("gpus") == 2
    again.grant(second, Books(), gpus=2, lease="t2")
    assert child.answer() == ["HELD", ""]
    assert child.ask("lease")["lease"] == "t2"


def test_a_release_waits_for_its_answer_and_not_for_ever(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client = held(child, manager, Books())
    assert child.ask("release") == "NONE"
    assert "RELEASE" in client.closes()


def test_fenced_in_one_line_and_asked_anew(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client = held(child, manager, Books())
    client.send("FENCE", lease="t9", reason="another's")
    client.send("FENCE", lease="t1", reason="the lease t1 was taken back: silent for 9 s")
    assert child.ask("become", "LOST") == ["LOST", "the lease t1 was taken back: silent for 9 s"]
    assert client.closes() == []
    assert child.line() == f"nodemgr: the lease t1 was taken back: silent for 9 s{AFTER_LOSS}"
    assert child.ask("lease") is None
    held(child, manager, Books(), lease="t2")


def test_notes_are_lines(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client = held(child, manager, Books())
    client.send("NOTE", text="GPU 1 has fallen off the bus\x07")
    client.send("FENCE", lease="t1", reason="gone")
    child.ask("become", "LOST")
    assert child.rest() == ["nodemgr: GPU 1 has fallen off the bus?", f"nodemgr: gone{AFTER_LOSS}"]


def test_settings_are_read_from_the_file_as_it_is_now(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    manager.env.write(acquire="import", gpus="2")
    assert child.ask("setting", "acquire") == "import"
    manager.env.write(acquire="first-use")
    assert child.ask("setting", "acquire") == "first-use"
    assert child.ask("setting", "gpus") == "2"
    assert child.ask("setting", "memory_per_gpu") is None


def test_a_question_is_answered_in_pages(manager: Manager, spawn: Spawn) -> None:
    child, answer = spawn(), json.dumps({"tasks": ["täsk"] * 300, "line": "a\nb%c"})
    child.start("ask", "status")
    client = manager.accept()
    question = client.expect("ASK")
    assert question.fields == {"rid": question.number("rid"), "what": "status"}
    pages = [answer[at : at + 500] for at in range(0, len(answer), 500)]
    for index, page in enumerate(pages):
        client.send("PART", rid=question.number("rid"), index=index, count=len(pages), data=page)
    length, text = child.answer()
    assert text == answer
    assert length == len(answer.encode())
    assert client.closes() == []
    assert child.ask("state") == ["NONE", ""]


def test_a_question_while_holding_goes_over_the_same_connection(
    manager: Manager, spawn: Spawn
) -> None:
    child, books = spawn(), Books()
    client = held(child, manager, books)
    child.start("ask", "release", "t1")
    question = client.expect("ASK")
    assert question.text("argument") == "t1"
    client.send("DENY", rid=question.number("rid"), code="forbidden_user", reason="t1 is not yours")
    assert child.answer() == [-1, "t1 is not yours"]
    books.await_beats()


@pytest.mark.parametrize(
    ("argument", "answer", "is_reported"),
    [("t1", "{}", False), ("t9", "{}", True), ("t1", '{"error":"no"}', True)],
)
def test_a_lease_that_the_process_gave_back_is_not_reported_as_lost(
    manager: Manager, spawn: Spawn, argument: str, answer: str, is_reported: bool
) -> None:
    child = spawn()
    client = held(child, manager, Books())
    child.start("ask", "release", argument)
    rid = client.expect("ASK").number("rid")
    client.send("PART", rid=rid, index=0, count=1, data=answer)
    assert child.answer() == [len(answer), answer]
    client.send("FENCE", lease="t1", reason="gone")
    assert child.ask("become", "LOST") == ["LOST", "gone"]
    assert child.rest() == [f"nodemgr: gone{AFTER_LOSS}"] * is_reported


def test_a_question_without_time_is_asked(manager: Manager, spawn: Spawn) -> None:
    """A suspended process asks so for its memory, and waits elsewhere for the answer."""
    child = spawn()
    client = held(child, manager, Books())
    assert child.ask("ask", "resume", "t1", 100, 0)[0] == -1
    assert client.expect("ASK").text("what") == "resume"


def test_a_question_with_little_room_or_time(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    child.start("ask", "status", None, 10)
    client = manager.accept()
    question = client.expect("ASK")
    client.send("PART", rid=question.number("rid"), index=0, count=1, data="0123456789")
    assert child.answer()[0] == -1
    child.start("ask", "status", None, 100, 50)
    assert child.answer() == [-1, "no answer from the manager: see `nodemgr doctor`"]


BAD_GRANTS: list[dict[str, Any]] = [
    {"rows": (99,)},
    {"limits": (1, 2)},
    {"slot": 1024},
    {"generation": 70_000},
]


@pytest.mark.parametrize("bad", BAD_GRANTS, ids=lambda bad: str(*bad))
def test_a_grant_that_cannot_be_read_is_asked_for_again(
    manager: Manager, spawn: Spawn, bad: dict[str, Any]
) -> None:
    """On the same connection: the process may be unable to open another one."""
    child = spawn()
    client, request = asked(child, manager)
    client.grant(request, Books(), **bad)
    assert client.expect("ACQUIRE").number("rid") == request.number("rid")
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]


def test_a_grant_goes_back_after_three_tries(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client, request = asked(child, manager)
    client.grant(request, Books(), **BAD_GRANTS[0])
    client.expect("ACQUIRE")
    client.grant(request, Books(), **BAD_GRANTS[1])
    client.expect("ACQUIRE")
    client.send("GRANT", **request_grant(request))
    client.expect("RELEASE")
    state, line = child.answer()
    assert state == "DENIED"
    assert line.startswith("GPUs are granted, but this process cannot take them: ")


def request_grant(request: Packet) -> dict[str, wire.Value]:
    """A grant with a ledger that got lost on the way."""
    from tests.client_c.manager import grant_fields

    return grant_fields(request)


def test_variables_name_the_class_and_the_share(manager: Manager, spawn: Spawn) -> None:
    child = spawn(NODEMGR_CLASS="best-effort", NODEMGR_COMPUTE="30%", NODEMGR_DEADLINE="60")
    _, request = asked(child, manager)
    named = {key: request.fields.get(key) for key in ("class", "compute", "deadline_ms")}
    assert named == {"class": "best-effort", "compute": 30, "deadline_ms": 60_000}


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("NODEMGR_CLASS", "urgent", "NODEMGR_CLASS is no class of tasks and is ignored"),
        ("NODEMGR_CLASS", "", "NODEMGR_CLASS is no class of tasks and is ignored"),
        ("NODEMGR_COMPUTE", "0", "NODEMGR_COMPUTE is no share of a GPU and is ignored"),
        ("NODEMGR_COMPUTE", "500%", "ignored: set a percentage from 1% to 100%, such as 30%, or"),
        ("NODEMGR_COMPUTE", "40", "NODEMGR_COMPUTE is no share of a GPU and is ignored"),
        ("NODEMGR_COMPUTE", "%", "NODEMGR_COMPUTE is no share of a GPU and is ignored"),
        ("NODEMGR_COMPUTE", "half", "NODEMGR_COMPUTE is no share of a GPU and is ignored"),
        ("NODEMGR_DEADLINE", "soon", "NODEMGR_DEADLINE is not a valid whole number"),
        ("NODEMGR_DEADLINE", "0", "NODEMGR_DEADLINE is not a valid whole number"),
        ("NODEMGR_DEADLINE", str(2**62), "NODEMGR_DEADLINE is not a valid whole number"),
    ],
)
def test_a_bad_variable_of_a_share_is_named_and_ignored(
    manager: Manager, spawn: Spawn, variable: str, value: str, line: str
) -> None:
    child = spawn(**{variable: value})
    _, request = asked(child, manager)
    assert not {"class", "compute", "deadline_ms"} & set(request.fields)
    assert line in child.line()
