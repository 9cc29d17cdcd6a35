"""The whole page: a manager, its page process, HTTP; and what strangers try."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodemgr.core.views.gpu_minutes import MAX_STEPS, GpuMinute
from nodemgr.edge.host.clock import RealClock
from nodemgr.edge.kernel import processes
from nodemgr.edge.page.viewers import MAX_OF_TOKEN, MAX_VIEWERS
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.local import LocalManager
from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient
from tests.support.web import Site

HOUR_MS = 3_600_000


class ShiftedClock(RealClock):
    """The system's clocks, of which the wall clock can be put forward."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def wall_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.ahead_ns


class Node:
    """A manager in this process with two environments, and its page."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ShiftedClock()
        self.manager = LocalManager(clock=self.clock, web="127.0.0.1:0", **settings)
        self.site = Site(str(self.manager.service._page.url))
        for env in ("alice", "bob"):
            self.manager.call("quota_set", env=env, gpus=2)

    def token(self, env: str | None, for_ms: int = HOUR_MS) -> str:
        whose = {"admin": True} if env is None else {"env": env}
        return str(self.manager.call("web_token", for_ms=for_ms, **whose)["token"])


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node()
    with node.manager:
        yield node


# -- the page and its headers --


def test_the_page_is_there_with_strict_headers(node: Node) -> None:
    for path in ("", "static/page.js", "static/page.css", "api/view", "nosuch"):
        answer = node.site.ask(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in answer.headers
        assert "Set-Cookie" not in answer.headers
    page = node.site.ask("")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(rb"(?:src|href)=\"(?:/|[a-z]+:)", page.body), "no foreign address"
    assert node.site.ask("", If_None_Match=page.headers["Etag"]).status == 304


def test_what_is_not_there_is_one_line(node: Node) -> None:
    for path in ("nosuch", "api/nosuch", "static/../server.py", "static/%2e%2e/server.py", "//x"):
        assert node.site.ask(path).status == 404
    assert node.site.ask("api/view", "DELETE").refusal == (405, "method")
    assert node.site.post("events", None, {}).refusal == (405, "method")


# -- names of the page --


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost:9999", "LOCALHOST.:1"])
def test_its_own_names_are_answered(node: Node, host: str) -> None:
    assert node.site.ask("api/view", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]",
     "a" * 300],
)  # fmt: skip
def test_a_forged_host_is_refused_everywhere(node: Node, host: str) -> None:
    for path in ("", "static/page.js", "api/view", "events", "healthz", "nosuch"):
        assert node.site.ask(path, Host=host).refusal == (421, "host")
    good = node.token("alice")
    refused = node.site.post("api/release", good, {"task": "t1"}, Host=host)
    assert refused.refusal == (421, "host")


def test_names_that_the_settings_give_are_answered_below_the_base() -> None:
    node = Node(web_hosts="gpus.example.org", web_base="/gpus")
    with node.manager:
        assert node.site.base == "/gpus/"
        named = {"Host": "gpus.example.org"}
        assert node.site.ask("api/view", **named).status == 200
        assert node.site.ask("/gpus", **named).headers["Location"] == "/gpus/"
        assert node.site.ask("/api/view", **named).status == 404
        assert node.site.ask("", **named).status == 200


# -- tokens --


def test_without_a_token_nothing_is_named(node: Node) -> None:
    with FakeClient(node.manager.env_dir("alice")) as client:
        client.acquire()
        until(lambda: node.site.ask("api/view").json()["totals"]["tasks"] >= 1)
        view = node.site.ask("api/view").json()
        told = json.dumps(view)
        assert view["scope"] == "public"
        assert not any(word in told for word in ("alice", "bob", "GPU-", "root", "command"))
    for path in ("queue", "history", "report", "timeline", "samples", "quotas", "jobs/j1"):
        assert node.site.ask(f"api/{path}").refusal == (401, "token")


def test_an_envs_token_shows_that_env_alone(node: Node) -> None:
    token = node.token("alice")
    assert node.site.ask("api/session", token=token).json()["env"] == "alice"
    view = node.site.ask("api/view", token=token).json()
    assert view["scope"] == "env"
    assert [env["name"] for env in view["envs"]] == ["alice"]
    quotas = node.site.ask("api/quotas", token=token).json()["quotas"]
    assert [quota["env"] for quota in quotas] == ["alice"]
    for path in ("queue", "history", "report", "timeline"):
        assert node.site.ask(f"api/{path}", token=token).status == 200
        assert node.site.ask(f"api/{path}?env=alice", token=token).status == 200
        foreign = node.site.ask(f"api/{path}?env=bob", token=token)
        assert foreign.refusal == (403, "forbidden")
    admin = node.token(None)
    view = node.site.ask("api/view", token=admin).json()
    assert {"alice", "bob"} <= {env["name"] for env in view["envs"]}
    assert node.site.ask("api/queue?env=bob", token=admin).status == 200


def test_bad_tokens_are_refused_with_one_line(node: Node) -> None:
    expired = node.token("alice", 60_000)
    revoked = node.token("alice")
    node.manager.call("web_revoke", token=revoked.split("-")[1])
    node.clock.ahead_ns += 60_001 * 1_000_000
    for bad in (expired, revoked, "nmw-w1-" + "A" * 43, "x", "", "x" * 9_000, "é"):
        for path in ("api/view", "api/session", "api/queue", "events"):
            answer = node.site.ask(path, token=bad.encode().decode("latin-1"))
            assert answer.refusal == (401, "token"), bad
            assert bad == "" or bad not in answer.json()["error"] or len(bad) < 3
        refused = node.site.post("api/release", bad.encode().decode("latin-1"), {"task": "t1"})
        assert refused.refusal == (401, "token")


def test_a_stream_ends_with_its_token(node: Node) -> None:
    token = node.token("alice", 60_000)
    with node.site.events(token) as stream:
        assert stream.next()[0] == "snapshot"
        node.clock.ahead_ns += 60_001 * 1_000_000
        assert stream.until("token")["code"] == "token"
        with pytest.raises(EOFError):
            stream.until("snapshot")


# -- actions --


def hold(node: Node, env: str) -> tuple[FakeClient, str]:
    client = FakeClient(node.manager.env_dir(env))
    client.acquire()
    rows = node.manager.call("status")["tasks"]
    return client, next(row["id"] for row in rows if row["env"] == env)


def test_a_token_releases_in_its_own_env_alone(node: Node) -> None:
    client, task = hold(node, "bob")
    with client:
        for body in ({"task": task}, {"task": "t999999"}, {"task": "r1"}):
            refused = node.site.post("api/release", node.token("alice"), body)
            assert refused.refusal == (403, "forbidden")
        assert any(row["id"] == task for row in node.manager.call("status")["tasks"])
        done = node.site.post("api/release", node.token("bob"), {"task": task})
        assert (done.status, done.json()) == (200, {"task": task})
        assert not any(row["id"] == task for row in node.manager.call("status")["tasks"])
    by = node.manager.events("task.fenced")[-1]["by"]
    assert re.fullmatch(r"web token w\d+ of bob", by)


def test_quotas_are_an_administrators(node: Node) -> None:
    order = {"env": "alice", "gpus": 1}
    refused = node.site.post("api/quota", node.token("alice"), order)
    assert refused.refusal == (403, "forbidden")
    admin = node.token(None)
    done = node.site.post("api/quota", admin, order).json()
    assert done["quota"]["gpus"] == 1
    for bad in ({"env": "alice", "gpus": "x"}, {"env": "no name"}, {"gpus": 1}, {"by": "eve"}):
        assert node.site.post("api/quota", admin, bad).refusal == (400, "usage")
    node.site.post("api/quota", admin, {**order, "gpus": 2})


def test_orders_longer_than_a_packet_are_carried_out_whole_and_side_by_side(node: Node) -> None:
    """Each is on the one sheet of the page's connection when the manager reads it."""
    admin = node.token(None)

    def quota(env: str, gpus: int) -> None:
        order = {"env": env, "gpus": gpus, "users": ["root"] * 200}
        for _ in range(5):
            told = node.site.post("api/quota", admin, order).json()["quota"]
            assert (told["env"], told["gpus"], told["users"]) == (env, gpus, ["root"])

    with ThreadPoolExecutor() as threads:
        list(threads.map(quota, ("alice", "bob"), (1, 2)))
    for sign in ("%", "\x7f", "é"):
        refused = node.site.post("api/quota", admin, {"env": sign * 10_000})
        assert refused.refusal == (400, "usage")
    for env in ("alice", "bob"):
        node.site.post("api/quota", admin, {"env": env, "gpus": 2, "users": []})


def test_withdraw_reaches_no_other_env(node: Node) -> None:
    for job in ("j1", "j999", "r1", "r999999"):
        refused = node.site.post("api/withdraw", node.token("alice"), {"job": job})
        assert refused.refusal == (403, "forbidden")
    for bad in ({"job": ""}, {"job": 5}, {"job": "j1; rm"}, {}, {"job": "j1", "x": 1}):
        assert node.site.post("api/withdraw", node.token("alice"), bad).refusal == (400, "usage")


def test_another_sites_page_can_do_nothing(node: Node) -> None:
    admin, order = node.token(None), {"env": "alice", "gpus": 2}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        named = {name.replace("-", "_"): value for name, value in headers.items()}
        assert node.site.post("api/quota", admin, order, **named).refusal == (403, "forbidden")
    plain = node.site.post("api/quota", admin, order, Content_Type="text/plain")
    assert plain.refusal == (400, "usage")
    form = node.site.post(
        "api/quota", admin, b"env=alice", Content_Type="application/x-www-form-urlencoded"
    )
    assert form.refusal == (400, "usage")
    cookie = node.site.post("api/quota", None, order, Cookie=f"token={admin}; nodemgr={admin}")
    assert cookie.refusal == (401, "token"), "no cookie is a token"
    own = node.site.post("api/quota", admin, order, Origin=f"http://{node.site.host}")
    assert own.status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 60_000, b"null"])
def test_a_malformed_action_is_refused(node: Node, body: bytes) -> None:
    token = node.token("alice")
    assert node.site.post("api/release", token, body).refusal == (400, "usage")


def test_no_body_parts_the_page_from_its_manager(node: Node) -> None:
    """The manager ends the connection of a page process whose line it cannot parse."""
    with node.site.events(node.token(None)) as stream:
        stream.until("snapshot")
        for depth in range(900, 1_000):
            body = b'{"task":' + b"[" * depth + b"]" * depth + b"}"
            assert node.site.post("api/release", "anyone", body).refusal == (400, "usage"), depth
        long = ('{"task":"' + "é" * 32_000 + '"}').encode()
        assert node.site.post("api/release", "é" * 15_000, long).refusal == (401, "token")
        node.manager.call("quota_set", env="carol", gpus=1)
        assert stream.next()[0] == "change"


def test_parameters_are_checked(node: Node) -> None:
    token = node.token("alice")
    for query in (
        "queue?after=x", "queue?limit=0", "queue?limit=999999", "queue?limit=-1",
        "queue?colour=red",
        "history?since=now", "history?since=99999999999999", "history?before=x", "view?x=1",
        "queue?limit=1&limit=2", "timeline?limit=1001", "samples?since=NaN", "samples?since=-1",
        "samples?until=1e9", "samples?since=", "samples?until=9999999999999999999999",
        "samples?since=8589934593", "samples?since=2&until=1", "samples?limit=1",
        "samples?since=1&since=2", "samples?env=alice", "samples?since=%31%30x",
        "queue?env=%00", "queue?env=..%2f",
    ):  # fmt: skip
        assert node.site.ask(f"api/{query}", token=token).status in (400, 403), query
    assert node.site.ask("api/jobs/x", token=token).refusal == (400, "usage")


# -- the past --


def test_leases_of_the_past_name_user_and_job(node: Node) -> None:
    client, task = hold(node, "alice")
    with client:
        (lease,) = (
            row
            for row in node.site.ask("api/timeline", token=node.token("alice")).json()["leases"]
            if row["task"] == task
        )
    assert lease["user"] == pwd.getpwuid(os.getuid()).pw_name or "uid" in lease["user"]
    assert lease["job"] is None


def test_the_use_of_the_gpus_is_shown_in_steps(node: Node) -> None:
    gpus = [gpu.uuid for gpu in node.manager.gpus.gpus]
    minute = 28_000_000
    journal = node.manager.daemon.journal
    rows = [GpuMinute(minute, gpus[0], 12.5, 7), GpuMinute(minute + 2, "GPU-of-before", None, 8)]
    node.manager.do(lambda: journal.save_gpu_minutes(rows))
    span = f"since={minute * 60}&until={minute * 60 + 180}"
    for token in (node.token("alice"), node.token(None)):
        told = node.site.ask(f"api/samples?{span}", token=token).json()
        assert (told["step_s"], told["since"]) == (60, minute * 60)
        assert list(told["gpus"]) == [*gpus, "GPU-of-before"]
        nothing = {"utilization_percent": [None] * 3, "memory_used_bytes": [None] * 3}
        assert [told["gpus"][uuid] for uuid in gpus[1:]] == [nothing] * 3
        assert told["gpus"][gpus[0]] == {
            "utilization_percent": [12.5, None, None],
            "memory_used_bytes": [7, None, None],
        }
        assert told["gpus"]["GPU-of-before"]["memory_used_bytes"] == [None, None, 8]


@pytest.mark.parametrize(
    "span",
    ["", "since=0", "until=0", "since=1", "since=8589934592&until=8589934592",
     "since=8000000000&until=8000000001", "until=8000000000", "since=1680000000&until=1680000000"],
)  # fmt: skip
def test_any_span_of_use_is_answered_in_bounds(node: Node, span: str) -> None:
    asked_ns = node.clock.wall_ns()
    told = node.site.ask(f"api/samples?{span}", token=node.token("alice")).json()
    (length,) = {len(row) for gpu in told["gpus"].values() for row in gpu.values()}
    assert length <= MAX_STEPS
    assert told["step_s"] % 60 == told["since"] % told["step_s"] == 0
    if not span:
        assert 1_440 <= length <= 1_442
        assert told["since"] + length * told["step_s"] >= asked_ns // 1_000_000_000


# -- what is written down --


def test_no_token_gets_into_a_log() -> None:
    manager = Manager("2x16GiB", options=["--web", "127.0.0.1:0"]).start()
    try:
        site = site_of(manager)
        manager.quota("alice", 1)
        token = manager.call("web_token", env="alice", for_ms=HOUR_MS)["token"]
        for path in ("", "static/page.js", "healthz", "api/view", "events"):
            answer = site.ask(f"{path}?token={token}")
            assert answer.refusal == (400, "usage")
            assert "does not belong into an address" in answer.json()["error"]
            assert token not in answer.body.decode()
        site.ask(f"nosuch/{token}?x={token}")
        site.ask("api/view", token=token, Host=f"{token}.example")
        site.post(f"api/release?x={token}", token, {"task": token})
        site.raw(f"GET /?{token} HTTP/1.1\r\nHost: {token} {token}\r\n\r\n".encode()).close()
        site.raw(f"{token}\r\n\r\n".encode()).close()
        site.ask("api/view", token=token)
        secret = token.split("-", 2)[2]
        events = json.dumps(manager.call("events", since=0))
        manager.stop()
        assert secret not in manager.log
        assert secret not in events
        for path in manager.state_dir.rglob("*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes()
    finally:
        manager.close()


# -- viewers --


def test_a_viewer_gets_a_snapshot_and_then_changes(node: Node) -> None:
    with node.site.events(node.token("alice")) as stream:
        assert stream.answer.headers["Content-Type"] == "text/event-stream"
        name, view = stream.next()
        assert name == "snapshot"
        assert view["tasks"] == []
        client, task = hold(node, "alice")
        with client:
            change = stream.until("change")
            while "tasks" not in change.get("rows", {}):
                change = stream.until("change")
            assert change["rows"]["tasks"][task]["env"] == "alice"
            assert change["order"]["tasks"] == [task]
            node.site.post("api/release", node.token("alice"), {"task": task})
            while "tasks" not in change.get("gone", {}):
                change = stream.until("change")
            assert change["gone"]["tasks"] == [task]


def test_the_page_serves_so_many_viewers_and_refuses_the_next(node: Node) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(node.site.events()) for _ in range(MAX_VIEWERS)]
        assert all(stream.answer.status == 200 for stream in streams)
        refused = node.site.ask("events")
        assert refused.refusal == (503, "viewers")
        assert int(refused.headers["Retry-After"]) > 0
        assert node.site.ask("api/view").status == 200
        assert [stream.next()[0] for stream in streams] == ["snapshot"] * MAX_VIEWERS
        assert node.site.ask("events", token="nmw-w1-" + "A" * 43).refusal == (401, "token")
        with node.site.events(node.token("alice")) as stream:
            assert stream.next()[0] == "snapshot"
            assert node.site.ask("events").refusal == (503, "viewers")
        until(lambda: status_of_events(node.site) == 200)  # in the place of the oldest without
        streams.append(stack.enter_context(node.site.events()))
        streams.pop().close()
        until(lambda: status_of_events(node.site) == 200)


def status_of_events(site: Site) -> int:
    with site.events() as stream:
        return stream.answer.status


# -- names that people choose --

NASTY = "<script>alert(1)</script>\"'&\u202eevil\u2066 \u0007\x1b[31m"


def on_the_wire(text: str) -> str:
    """Control characters are escaped."""
    return "".join(f"%{ord(each):02x}" if ord(each) < 32 else each for each in text)


def test_nasty_names_are_data(node: Node) -> None:
    """They pass as JSON; the page sets them by textContent alone."""
    with FakeClient(node.manager.env_dir("alice")) as client:
        client.acquire(command=on_the_wire(NASTY))
        token, commands = node.token("alice"), []

        def is_shown() -> bool:  # a view is up to half a second old
            rows = node.site.ask("api/view", token=token).json()["tasks"]
            commands[:] = [row["command"] for row in rows if "script" in row["command"]]
            return bool(commands)

        until(is_shown)
        assert "<script>alert(1)</script>" in commands[0]
        assert "\x1b" not in commands[0]
        with node.site.events(node.token("alice")) as stream:
            assert "<script>" in json.dumps(stream.until("snapshot"))
    answer = node.site.ask("api/view")
    assert answer.headers["Content-Type"] == "application/json"
    script = node.site.ask("static/page.js").body.decode()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in script


# -- the manager and its page process come and go --


def site_of(manager: Manager) -> Site:
    found = re.findall(r"web page at (http://\S+)", manager.log)
    return Site(found[-1])


def page_pid(manager: Manager) -> int:
    key = (manager.run_dir / "web" / "page").read_text().splitlines()[0]
    assert processes.is_alive(key)
    return int(processes.pid_of(key) or 0)


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager("2x16GiB", options=["--web", f"127.0.0.1:{free_port()}"]).start()
    yield manager
    manager.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_the_page_outlives_a_killed_manager_and_follows_the_next(manager: Manager) -> None:
    manager.quota("alice", 1)
    site = site_of(manager)
    token = manager.call("web_token", env="alice", for_ms=HOUR_MS)["token"]
    with site.events(token) as stream:
        assert stream.next()[0] == "snapshot"
        manager.kill()
        assert stream.until("manager") == {"state": "away"}
        assert site.ask("healthz").json() == {"manager": "away"}
        assert site.ask("").status == 200
        assert site.ask("api/view", token=token).refusal == (503, "away")
        with site.events(token) as late:
            assert late.answer.status == 503
    manager.start()
    with site.events(token) as stream:
        assert stream.until("snapshot")["scope"] == "env", "the token is in the store"
    assert manager.stop() == 0
    until(lambda: is_refused(site))  # the manager waits 5 s at most for its page's end


def end(pid: int) -> None:
    """Kills the process, and returns when it accepts no connection any more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ending = psutil.Process(pid)
        ending.kill()
        ending.wait(WAIT_LIMIT_S)


def test_a_killed_page_is_reported_and_can_be_started_by_hand(manager: Manager) -> None:
    """By its name in the manager's line.

    The next manager goes on with it. One that serves another address ends it, and begins its own.
    """
    site, killed = site_of(manager), page_pid(manager)
    uid = (manager.run_dir / "web" / "views").stat().st_uid
    end(killed)
    until(lambda: "the web page's process has ended (SIGKILL); no task" in manager.log)
    assert "start it again: nodemgr web page" in manager.log
    assert manager.call("ping")["pid"] == manager.pid
    until(lambda: is_refused(site))
    words = ["nodemgr", "web", "page", "--run-dir", str(manager.run_dir)]
    with subprocess.Popen([sys.executable, "-m", *words], cwd="/") as by_hand:
        try:
            until(lambda: by_hand.poll() is None and not is_refused(site))
            until(lambda: site.ask("healthz").json() == {"manager": "here"})
            assert page_pid(manager) == by_hand.pid
            assert Path(f"/proc/{by_hand.pid}").stat().st_uid in (0, uid)
            assert psutil.Process(by_hand.pid).uids().real == uid
            manager.kill()
            until(lambda: site.ask("healthz").json() == {"manager": "away"})
            manager.start()
            assert site_of(manager).url == site.url
            until(lambda: site.ask("healthz").json() == {"manager": "here"})
            assert manager.stop() == 0
            until(lambda: site.ask("healthz").json() == {"manager": "away"})
            assert by_hand.poll() is None
            assert page_pid(manager) == by_hand.pid
            manager.options[-1] = f"127.0.0.1:{free_port()}"
            manager.start()
            assert by_hand.wait(WAIT_LIMIT_S) == 0
        finally:
            by_hand.kill()
    until(lambda: site_of(manager).ask("healthz").json() == {"manager": "here"})
    assert page_pid(manager) != by_hand.pid
    assert manager.stop() == 0
    until(lambda: is_refused(site))


def is_refused(site: Site) -> bool:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, http.client.HTTPException):
        try:
            site.ask("")
        except ConnectionRefusedError:
            return True
    return False


def test_the_page_process_has_no_rights(manager: Manager) -> None:
    until(lambda: site_of(manager).ask("healthz").json() == {"manager": "here"})
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{page_pid(manager)}/status").read_text().splitlines()
    )
    assert status["NoNewPrivs"] == "1"
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    uid = (manager.run_dir / "web" / "views").stat().st_uid
    assert set(status["Uid"].split()) == {str(uid)}
    assert set(status["Gid"].split()) == {str(uid)}
    assert status["Groups"].strip() == ""
    assert os.geteuid() != 0 or uid not in (0, 65_534)
    assert (manager.run_dir / "web" / "views").stat().st_mode & 0o777 == 0o600


def test_viewers_that_come_at_once_are_bounded_and_those_that_leave_are_no_fault(
    manager: Manager,
) -> None:
    """The manager stands still while they come: all wait for the judgement of their tokens."""
    manager.quota("alice", 1)
    site = site_of(manager)
    token = manager.call("web_token", env="alice", for_ms=HOUR_MS)["token"]
    request = (
        f"GET {site.base}events HTTP/1.1\r\nHost: {site.host}\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()
    os.kill(manager.pid, signal.SIGSTOP)
    try:
        gone = [site.raw(request) for _ in range(20)]
        here = [site.raw(request) for _ in range(MAX_VIEWERS + 20)]
        site.ask("healthz")
        for sock in gone:
            sock.close()
        site.ask("healthz")
    finally:
        os.kill(manager.pid, signal.SIGCONT)
    codes = [sock.recv(12) for sock in here]
    assert codes.count(b"HTTP/1.1 200") == MAX_OF_TOKEN
    assert codes.count(b"HTTP/1.1 503") == MAX_VIEWERS + 20 - MAX_OF_TOKEN
    for sock in here:
        sock.close()
    manager.stop()
    assert "fault" not in manager.log


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        manager = Manager("2x16GiB", options=["--web", f"127.0.0.1:{port}"]).start(wait=False)
        assert manager.wait() == 1
        manager.close()
        assert f"cannot listen on 127.0.0.1:{port} (Address already in use): name" in manager.log


def test_a_manager_without_a_page_makes_no_token() -> None:
    with LocalManager() as manager:
        manager.call("quota_set", env="alice", gpus=1)
        with pytest.raises(Exception, match="serves no web page: start it with --web"):
            manager.call("web_token", env="alice", for_ms=HOUR_MS)
        assert manager.call("web_tokens")["tokens"] == []
        assert not (manager.run_dir / "web" / "views").exists()
