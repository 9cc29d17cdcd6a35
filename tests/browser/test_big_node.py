"""A node of 16 GPUs, 800 tasks and 1000 waiting rows: the page touches what changes, and no more.

bench/web/page.py has the figures. A deep run (`python -m tests.deep --times 10 FILE`) has a history
of a million rows.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
from typing import Any

import pytest

from tests.browser.tab import free_port, stand_in, tab
from tests.support.examples import LONG_PAST
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import ROOT, Manager
from tests.support.web import Site

pytestmark = pytest.mark.slow

TURNS = 4
MOST_ELEMENTS = 4_000
NAIVE_MS = """view => {
    const began = performance.now();
    const body = document.createElement('tbody');
    for (const list of [view.tasks, view.queue]) for (const row of list) {
        const line = document.createElement('tr');
        for (const value of Object.values(row)) {
            const cell = document.createElement('td');
            cell.textContent = String(value);
            line.append(cell);
        }
        body.append(line);
    }
    return performance.now() - began;
}"""
"""The time that one table of all rows takes, built anew."""
TEXTS = "() => [...document.querySelectorAll('.gpu-use')].map((e) => e.textContent).join()"
SECOND_NS = 1_000_000_000


def script_s(session: Any) -> float:
    """The time that the page's scripts have taken."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(row["value"]) for row in metrics if row["name"] == "ScriptDuration")


def test_a_job_shows_its_use_of_the_host(chromium: Any) -> None:
    with (
        stand_in("--gpus", "1", "--tasks", "1", "--waiting", "1") as node,
        tab(chromium, node.site) as opened,
    ):
        opened.open("admin", "#/queue")
        for text in ("CPU time", "0:01:23", "Most host mem.", "3 GiB", "20 MiB", "0 GiB"):
            opened.expect(text)
        opened.go("#/jobs/j1")
        for text in ("Last lines of attempt 1", "0:01:23", "3 GiB"):
            opened.expect(text)


def test_what_does_not_change_is_not_touched(chromium: Any) -> None:
    with stand_in() as big, tab(chromium, big.site) as opened:
        opened.open("admin")
        page = opened.page
        page.wait_for_selector(".gpu")
        assert page.locator(".gpu").count() == 16
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        view = json.loads(big.site.ask("api/view", token="admin").body)
        assert (len(view["tasks"]), view["queue_length"]) == (800, 1_000)
        naive_s = sorted(page.evaluate(NAIVE_MS, view) for _ in range(5))[2] / 1_000
        page.evaluate("""() => {
            window.touched = { added: 0, texts: 0 };
            new MutationObserver((all) => all.forEach((one) => {
                touched.added += [...one.addedNodes].filter((n) => n.nodeType === 1).length;
                touched.texts += one.type === 'characterData' ? 1 : 0;
            })).observe(document.getElementById('main'),
                { subtree: true, childList: true, characterData: true });
        }""")
        turns_s = []
        for _ in range(TURNS):
            before_s = script_s(session)
            shown = page.evaluate(TEXTS)
            page.wait_for_function(f"shown => ({TEXTS})() !== shown", arg=shown)
            turns_s.append(script_s(session) - before_s)
        taken_s = statistics.median(turns_s)  # a turn beside a busy moment counts once
        touched = page.evaluate("touched")
        print(f"a turn: {taken_s * 1e3:.1f} ms of scripts; naive {naive_s * 1e3:.1f} ms; {touched}")
        assert touched["texts"] > 0
        assert touched["added"] == 0, "elements stay; their texts change"
        assert taken_s < naive_s
        for route in ("#/", "#/tasks", "#/queue"):
            opened.go(route)
            page.wait_for_selector("table:visible")
            assert page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS


def test_all_rows_of_the_queue_can_be_reached(chromium: Any) -> None:
    with stand_in() as big, tab(chromium, big.site) as opened:
        opened.open("admin", "#/queue")
        opened.expect("The first 200 of 1000")
        opened.page.get_by_role("button", name="Load all").click()
        opened.expect("1\N{EN DASH}50 of 998")  # an array of three jobs is one row
        pages = opened.page.get_by_role("navigation", name="Pages of Queue")
        pages.get_by_role("button", name="Next").click()
        opened.expect("51\N{EN DASH}100 of 998")
        assert "page=1" in opened.page.url
        opened.page.get_by_label("Find").fill("j5999")
        opened.page.get_by_role("link", name="j5999").wait_for()


def test_the_clusters_jobs_on_other_nodes_can_be_loaded(chromium: Any) -> None:
    given = ("--gpus", "1", "--tasks", "1", "--waiting", "2", "--elsewhere", "4")
    with stand_in(*given) as node, tab(chromium, node.site) as opened:
        opened.open("admin", "#/queue")
        opened.page.get_by_role("button", name="Load the cluster's").click()
        for text in ("c1 on gn2", "c3 on gn2", "c2", "c4"):
            opened.page.get_by_role("link", name=text, exact=True).wait_for()
        running = opened.page.get_by_role("table", name="Running jobs")
        assert running.get_by_role("link", name="c1 on gn2").count() == 1
        assert running.get_by_role("link", name="c2", exact=True).count() == 0


LINE_PX = 20
LINES = """() => [...document.querySelectorAll('.listing-queue tbody tr')].map((row) =>
    [row.className, row.innerText.trim(), row.offsetHeight])"""


def test_rows_of_the_queue_have_one_line_below_their_reason(chromium: Any) -> None:
    with (
        stand_in("--gpus", "1", "--tasks", "1", "--waiting", "12") as node,
        tab(chromium, node.site) as opened,
    ):
        opened.open("admin")
        for route in ("#/", "#/queue"):
            opened.go(route)
            opened.expect("j5001 (3 jobs)")
            lines = opened.page.evaluate(LINES)
            reasons = [text for kind, text, _ in lines if kind == "group"]
            assert [text[:11] for text in reasons] == ["needs 1 GPU", "needs 2 GPU"]
            assert max(height for kind, _, height in lines if kind != "group") < 2 * LINE_PX
            assert len(lines) == 12
        queue = opened.page.locator(".listing-queue")
        assert queue.get_by_role("button", name="Withdraw j5001 (3 jobs)").count() == 1
        queue.get_by_role("button", name="Unfold arrays").click()
        queue.get_by_role("button", name="Withdraw j5001.2").wait_for()
        queue.get_by_role("button", name="Fold arrays").click()
        opened.expect("j5001 (3 jobs)")
        opened.page.get_by_label("Find").fill("erin")
        opened.expect("10 of 12")


CLONED = """
WITH RECURSIVE numbers(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO history (job_id, env, ended_wall_ns, state, command, ran_ms, key, spec_id, size_bytes,
  value)
SELECT 'j' || n, env, ended_wall_ns, state, command, ran_ms, '', spec_id, size_bytes,
  replace(value, '"j1"', '"j' || n || '"') FROM history, numbers WHERE job_id = 'j1'
"""
"""So many ended jobs, all as the first."""


def test_a_long_history_of_jobs_comes_page_by_page(chromium: Any) -> None:
    manager = Manager("1x80GiB", options=["--web", f"127.0.0.1:{free_port()}"]).start()
    try:
        manager.quota("alice", 1)
        submit = [sys.executable, "-m", "nodemgr", "submit", "--env", "alice", "--hold", "--gpus",
                  "0", "--", "true"]  # fmt: skip
        environ = {**os.environ, "NODEMGR_RUN_DIR": str(manager.run_dir)}
        subprocess.run(submit, env=environ, cwd=ROOT, check=True, timeout=WAIT_LIMIT_S)
        token = manager.call("web_token", admin=True, for_ms=3_600_000)["token"]
        site = Site(f"http://{manager.options[-1]}/")
        assert site.post("api/withdraw", token, {"job": "j1"}).status == 200
        with sqlite3.connect(manager.state_dir / "state.db") as db:
            db.execute("PRAGMA cache_size = -500000")
            db.execute("PRAGMA synchronous = OFF")
            db.execute(CLONED, (LONG_PAST,))
        with tab(chromium, site) as opened:
            opened.open(token, "#/history")
            page = opened.page
            page.get_by_role("link", name=f"j{LONG_PAST}", exact=True).wait_for()
            page.get_by_role("link", name="Older").click()
            page.get_by_role("link", name=f"j{LONG_PAST - 50}", exact=True).wait_for()
            assert page.locator("tbody tr").count() == 50
            page.go_back()
            page.get_by_role("link", name=f"j{LONG_PAST}", exact=True).click()
            opened.expect(f"Job j{LONG_PAST}")
            opened.expect("withdrawn")
    finally:
        manager.close()


def test_a_timeline_of_a_long_history_is_bounded(chromium: Any) -> None:
    first_ns = 1_700_000_000 * SECOND_NS
    with LocalManager(web="127.0.0.1:0") as manager:
        manager.call("quota_set", env="alice", gpus=1)
        rows = (
            (number, "alice", first_ns + number * SECOND_NS, json.dumps({
                "record_id": number, "env": "alice", "task_id": f"t{number}", "command": "x.py",
                "gpus_new": ["GPU-00000000"], "gpus_reused": [], "grant_bytes": [1],
                "remaining_gpus": 0, "remaining_memory_bytes": None, "why": "ended",
                "asked_wall_ns": first_ns + number * SECOND_NS,
                "granted_wall_ns": first_ns + number * SECOND_NS,
                "ended_wall_ns": first_ns + (number + 2) * SECOND_NS,
                "asked_ns": number * SECOND_NS, "granted_ns": number * SECOND_NS,
                "ended_ns": (number + 2) * SECOND_NS,
            }))
            for number in range(1, LONG_PAST + 1)
        )  # fmt: skip
        with sqlite3.connect(manager.directory / "state" / "state.db") as db:
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
        token = manager.call("web_token", admin=True, for_ms=3_600_000)["token"]
        with tab(chromium, Site(str(manager.service._page.url))) as opened:
            until = 1_700_000_000 + LONG_PAST
            opened.open(token, f"#/timeline?hours=24&until={until}")
            opened.expect("The latest 5000 leases are shown")
            opened.expect("of 5000")
            assert opened.page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS
