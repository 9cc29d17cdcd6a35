// The page's pure modules, run by `node --test` on copies beside this file.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "./format.js";
import * as merge from "./merge.js";
import * as routes from "./routes.js";
import * as layout from "./timeline_layout.js";
import { EventParser } from "./event_parser.js";

const GIB = format.GIB;

test("a text of a user is one visible line", () => {
  assert.equal(format.visible("a\u202eb\u0007\n<b>"), "a\\u202eb\\u0007\\u000a<b>");
  assert.equal(format.visible("\u200f\u2066\ufeff"), "\\u200f\\u2066\\ufeff");
  assert.equal(format.visible("déjà 模型 نص"), "déjà 模型 نص");
  assert.equal(format.visible(null), "");
});

test("a task's state has the class and the share where it has one", () => {
  const row = { state: "running", class: "normal", compute_percent: null, suspended: false };
  assert.equal(format.taskState(row), "running");
  assert.equal(format.taskState({ state: "running" }), "running");
  assert.equal(format.taskState({ state: "suspended", suspended: true }), "suspended");
  assert.match(format.taskState({ state: "running", gate_reason: "paused" }), /^paused: it used more/);
  const shared = { ...row, class: "best-effort", compute_percent: 40 };
  assert.equal(format.taskState(shared), "running, best-effort 40 %");
  const more = { ...shared, compute_granted_percent: 60 };
  assert.equal(format.taskState(more), "running, best-effort 60 %");
  assert.equal(
    format.taskState({ ...shared, compute_granted_percent: 0 }),
    "running, best-effort 0 of 40 %",
  );
});

test("GPUs stand with the range that was asked for", () => {
  const range = { gpus: 1, gpus_min: 1, gpus_max: 4 };
  assert.equal(format.askedGpus(range), "1-4");
  assert.equal(format.askedGpus({ ...range, gpus_max: null }), "1");
  const held = { gpu_indices: [0, 2], ...range };
  assert.equal(format.heldGpus({ ...held, borrowed: 0 }), "0, 2 (2 of 1-4)");
  assert.equal(format.heldGpus({ ...held, borrowed: 1 }), "0, 2 (2 of 1-4, 1 borrowed)");
  assert.equal(format.heldGpus({ gpu_indices: [] }), "–");
});

test("exported memory of two environments on one GPU has two rows", () => {
  const row = { pid: null, gpu_index: 0 };
  const keys = ["alice", "bob"].map((env) => merge.unreclaimedKey({ ...row, env }));
  assert.notEqual(keys[0], keys[1]);
});

test("figures that are not known are a dash, never a zero", () => {
  const forms = ["gib", "gibNumber", "percent", "celsius", "watts", "duration"];
  for (const form of forms) {
    assert.equal(format[form](null), "–");
    assert.equal(format[form](undefined), "–");
    assert.notEqual(format[form](0), "–");
  }
  assert.equal(format.clock(null, 0), "–");
});

test("sizes, durations and powers", () => {
  assert.equal(format.gib(12.34 * GIB), "12.3 GiB");
  assert.equal(format.gib(80 * GIB), "80 GiB");
  assert.equal(format.gib(30 * 2 ** 20), "30 MiB");
  assert.equal(format.gib(1), "1 MiB");
  assert.equal(format.gib(0), "0 GiB");
  // the cases of test_measured_time_spans_have_one_form in tests/cli/users/test_tables.py
  const spans = [0, 59, 119, 3600, 86399, 86400, 1000000];
  assert.deepEqual(
    spans.map((seconds) => format.duration(seconds)),
    ["0:00:00", "0:00:59", "0:01:59", "1:00:00", "23:59:59", "1 d 00:00:00", "11 d 13:46:40"],
  );
  assert.equal(format.duration(-5), "0:00:00");
  assert.equal(format.watts(999), "999 W");
  assert.equal(format.watts(2345), "2.35 kW");
  assert.equal(format.outcome({ exit_code: 0, signal: null }), "exit 0");
  assert.equal(format.outcome({ exit_code: null, signal: 9 }), "signal 9");
});

test("the clock has the date of another day", () => {
  const now = new Date(2026, 10, 22, 14, 0, 0).getTime() / 1000;
  assert.equal(format.clock(now, now), "14:00 UTC");
  assert.equal(format.clock(now, now, true), "14:00:00 UTC");
  assert.equal(format.clock(now - 86400, now), "11-21 14:00 UTC");
  assert.equal(format.clock(now - 366 * 86400, now), "2025-11-21 14:00 UTC");
});

test("the colour of an environment is always the same and in range", () => {
  assert.equal(format.colourOf("alice"), format.colourOf("alice"));
  for (let number = 0; number < 5000; number += 1) {
    const colour = format.colourOf(`env-${number}`);
    assert.ok(Number.isInteger(colour) && colour >= 0 && colour < 12, String(colour));
  }
  const few = new Set(["alice", "bob", "carol", "dana"].map(format.colourOf));
  assert.equal(few.size, 4);
});

test("a change touches its rows alone", () => {
  const view = {
    now: 1,
    queue_length: 0,
    gpus: [
      { uuid: "a", use: 1 },
      { uuid: "b", use: 2 },
    ],
    tasks: [{ id: "t1", env: "x" }],
    queue: [],
  };
  const next = merge.merge(view, {
    now: 2,
    set: { queue_length: 1 },
    rows: {
      gpus: { b: { use: 9 } },
      queue: { r1: { request: "r1", id: "j1" } },
      tasks: { t2: { id: "t2" } },
    },
    gone: { tasks: ["t1"] },
    order: { tasks: ["t2"], queue: ["r1"] },
  });
  assert.equal(next.gpus[0], view.gpus[0]);
  assert.deepEqual(next.gpus[1], { uuid: "b", use: 9 });
  assert.deepEqual(next.tasks, [{ id: "t2" }]);
  assert.deepEqual(next.queue, [{ request: "r1", id: "j1" }]);
  assert.equal(next.queue_length, 1);
  assert.equal(view.now, 1);
});

test("a row that comes, goes and comes again is the new one", () => {
  const rows = (fields) => ({ now: 1, rows: { tasks: fields }, order: { tasks: ["a", "b"] } });
  let view = { tasks: [{ id: "a", use: 1 }] };
  view = merge.merge(view, rows({ b: { id: "b", use: 2 } }));
  view = merge.merge(view, { now: 2, rows: { tasks: { b: { use: 3 } } } });
  view = merge.merge(view, { now: 3, gone: { tasks: ["a"] }, order: { tasks: ["b"] } });
  view = merge.merge(view, { ...rows({ a: { id: "a", use: 9 } }), now: 4 });
  assert.deepEqual(view.tasks, [
    { id: "a", use: 9 },
    { id: "b", use: 3 },
  ]);
});

test("the order of a list is the one that the change has", () => {
  const view = { tasks: [{ id: "a" }, { id: "b" }, { id: "c" }] };
  const next = merge.merge(view, { now: 1, order: { tasks: ["c", "a"] }, gone: { tasks: ["b"] } });
  assert.deepEqual(
    next.tasks.map((row) => row.id),
    ["c", "a"],
  );
});

test("memory by environment, and what belongs to others", () => {
  const gpu = { uuid: "g", memory_granted_bytes: 30, memory_used_bytes: 12 };
  const task = (env, limit, used) => ({
    env,
    gpus: ["other", "g"],
    memory_limit_bytes: [9, limit],
    gpu_memory_bytes: [1, used],
  });
  const parts = merge.memoryParts(gpu, [task("b", 10, 4), task("a", 5, 1), task("b", 10, 2)]);
  assert.deepEqual(parts, [
    { env: "a", granted: 5, used: 1 },
    { env: "b", granted: 10, used: 6 },
    { env: null, granted: 15, used: 5 },
  ]);
  const away = { ...task("b", 10, 0), suspended: true };
  assert.deepEqual(merge.memoryParts({ ...gpu, memory_granted_bytes: 0 }, [away]), [
    { env: "b", granted: 0, used: 0 },
  ]);
  const [unknown] = merge.memoryParts({ ...gpu, memory_granted_bytes: 10 }, [task("b", 10, null)]);
  assert.equal(unknown.used, null);
  assert.deepEqual(merge.memoryParts({ ...gpu, memory_granted_bytes: 0 }, []), []);
});

test("rows are found and sorted; unknown values come last both ways", () => {
  const columns = [
    { id: "name", text: (row) => row.name },
    { id: "use", text: (row) => String(row.use), value: (row) => row.use },
  ];
  const rows = [
    { name: "t10", use: null },
    { name: "t2", use: 3 },
    { name: "T1", use: 7 },
  ];
  const names = (query) => merge.arrange(rows, columns, query).map((row) => row.name);
  assert.deepEqual(names({}), ["t10", "t2", "T1"]);
  assert.deepEqual(names({ sort: "use" }), ["t2", "T1", "t10"]);
  assert.deepEqual(names({ sort: "-use" }), ["T1", "t2", "t10"]);
  assert.deepEqual(names({ sort: "name" }), ["T1", "t2", "t10"]);
  assert.deepEqual(names({ sort: "none" }), ["t10", "t2", "T1"]);
  assert.deepEqual(names({ find: "t1 7" }), ["T1"]);
  assert.deepEqual(names({ find: "(" }), []);
});

test("an address is read as it is written", () => {
  for (const fragment of [
    "#/",
    "#/tasks?find=a%20%26%20b&sort=-use&page=3",
    "#/timeline?hours=6&until=1700000000",
    "#/jobs/j12.3",
    "#/history?env=alice&before=44",
  ]) {
    assert.equal(routes.format(routes.parse(fragment)), fragment);
  }
});

test("a bad address is the start, and nothing of it is kept", () => {
  for (const fragment of [
    "",
    "#",
    "#/nosuch",
    "#/jobs",
    "#/tasks/3",
    "#/jobs/..%2F",
    "#/jobs/a/b",
    "#/jobs/<b>",
    `#/jobs/${"j".repeat(65)}`,
  ]) {
    assert.equal(routes.format(routes.parse(fragment)), "#/");
  }
  const { query } = routes.parse("#/tasks?find=x&token=nmw-w1-secret&constructor=1");
  assert.deepEqual(query, { find: "x" });
  assert.equal(routes.whole("12", 1, 10, 5), 10);
  assert.equal(routes.whole("-1", 1, 10, 5), 5);
  assert.equal(routes.whole("1e3", 1, 10, null), null);
});

test("the token of a fragment", () => {
  assert.equal(routes.tokenOf("#token=nmw-w1-abc_-"), "nmw-w1-abc_-");
  assert.equal(routes.tokenOf("#/tasks?token=x"), null);
  assert.equal(routes.tokenOf(""), null);
});

test("events in any pieces", () => {
  const text = 'retry: 1000\n\nevent: a\ndata: {"x":": "}\n\n:\n\nevent: b\ndata: 2\n\n';
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size)
      found.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(found, [
      { name: "a", data: { x: ": " } },
      { name: "b", data: 2 },
    ]);
  }
});

const lease = (record, env, began, ended) => ({ record, env, began, ended });

test("leases at the same time stand in lanes of their own", () => {
  const found = layout.lanes(
    [lease(1, "a", 0, 50), lease(2, "b", 25, 75), lease(3, "a", 50, null)],
    0,
    100,
  );
  assert.deepEqual(
    found.map((lane) => lane.map((bar) => [bar.env, bar.from, bar.to])),
    [
      [
        ["a", 0, 0.5],
        ["a", 0.5, 1],
      ],
      [["b", 0.25, 0.75]],
    ],
  );
});

test("rows of one text stand below it, at the place of the first", () => {
  const rows = [{ n: 1, why: "a" }, { n: 2, why: "b" }, { n: 3, why: "a" }];
  const found = merge.grouped(rows, (row) => row.why);
  assert.deepEqual(found, [{ heading: "a" }, rows[0], rows[2], { heading: "b" }, rows[1]]);
  assert.deepEqual(merge.grouped([], () => ""), []);
});

test("jobs of one array and state are one row; others stay as they are", () => {
  const job = (id, state = "queued", more = {}) => ({ id, job: id, state, ...more });
  const rows = [job("j1"), job("j2.0"), job("j2.1"), job("j2.5", "held"), job("j3", "queued", { indices: "0-9", jobs: 10 })];
  const found = merge.foldArrays([...rows, job("j2.7", "queued", { indices: "7-9", jobs: 3 })]);
  assert.deepEqual(
    found.map((row) => [row.job, row.jobs ?? 1, row.folded ?? null]),
    [["j1", 1, null], ["j2", 5, ["j2.0", "j2.1", "j2.7"]], ["j2.5", 1, null], ["j3", 10, null]],
  );
  assert.equal(found[0], rows[0]);
  assert.equal(found[3], rows[4]);
});

test("a reason has the times of the browser, and the array in place of its job", () => {
  const now = Date.UTC(2026, 10, 22, 14, 0, 0) / 1000;
  const clauses = [
    ["paused until {until_second}", { until_second: now }],
    ["{task} holds it since {since_minute} (unhold {entry})", { task: "{entry}", since_minute: now, entry: "j1.0" }],
  ];
  const row = { id: "j1.0", state: "paused", reason: "as sent", clauses };
  const told = (entry) => `paused until 14:00:00 UTC; {entry} holds it since 14:00 UTC (unhold ${entry})`;
  assert.equal(format.reason(row, now), told("j1.0"));
  const [together] = merge.foldArrays([row, { ...row, id: "j1.1" }]);
  assert.equal(format.reason(together, now), told("j1"));
  assert.equal(format.reason({ reason: "as sent", clauses: null }, now), "as sent");
});

test("two tasks of one environment stand in two lanes at any scale", () => {
  for (const until of [100, 1e4, 1e6]) {
    const two = [lease(1, "a", 10, 20), lease(2, "a", 12, 22)];
    assert.deepEqual(layout.lanes(two, 0, until).map((lane) => lane.length), [1, 1]);
  }
});

test("a storm of short leases is few bars, and all of them are counted", () => {
  const storm = Array.from({ length: 5000 }, (_, at) => lease(at, "a", at, at + 1));
  const found = layout.lanes(storm, 0, 5000).flat();
  assert.ok(found.length < 1500, String(found.length));
  assert.equal(
    found.reduce((sum, bar) => sum + bar.count, 0),
    5000,
  );
});

test("many leases at a time share the last lane", () => {
  const many = Array.from({ length: 50 }, (_, at) => lease(at, `e${at}`, 0, 100));
  assert.equal(layout.lanes(many, 0, 100).length, 8);
});

test("the held share counts a time once", () => {
  assert.equal(
    layout.heldShare(
      [lease(1, "a", 0, 50), lease(2, "b", 25, 60), lease(3, "a", 80, null)],
      0,
      100,
    ),
    0.8,
  );
  assert.equal(layout.heldShare([lease(1, "a", -50, 200)], 0, 100), 1);
  assert.equal(layout.heldShare([], 0, 100), 0);
});

test("the timeline opens on the least time that has all leases", () => {
  const fitting = (...began) =>
    layout.fittingHours(
      began.map((at, record) => lease(record, "a", at, null)),
      100000,
      [1, 6, 24],
    );
  assert.equal(fitting(), 1);
  assert.equal(fitting(96400, 99999), 1);
  assert.equal(fitting(96399, 99999), 6);
  assert.equal(fitting(100000 - 6 * 3600 - 1), 24);
  assert.equal(fitting(0), 24);
});

test("the use has a gap where nothing was read", () => {
  const samples = { since: 0, step_s: 10, gpus: { g: { utilization_percent: [50, null, 100] } } };
  const path = layout.usePath(samples, "g", 0, 30, 300, 20);
  assert.equal(path, "M0.0 20V10.0H100.0V20ZM200.0 20V0.0H300.0V20Z");
  assert.equal(layout.meanUse(samples, "g"), 75);
  assert.equal(layout.usePath(null, "g", 0, 30, 300, 20), "");
  assert.equal(layout.meanUse(samples, "x"), null);
});

test("the marks of the axis are round times of the zone", () => {
  assert.deepEqual(layout.ticks(100, 4000, 8, 0), [600, 1200, 1800, 2400, 3000, 3600]);
  assert.deepEqual(
    layout.ticks(0, 86400, 8, 3600),
    [7200, 18000, 28800, 39600, 50400, 61200, 72000, 82800],
  );
});
