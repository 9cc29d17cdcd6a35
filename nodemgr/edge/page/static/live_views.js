// What is now: GPUs, tasks and the queue; without a token, totals and lengths.

import * as messages from "./messages.js";
import { Table } from "./table.js";
import { GpuGrid } from "./gpus.js";
import { Keyed, el, setAttribute, setHidden, setStyle, setText } from "./dom.js";
import { NONE, gib, gibNumber, percent, visible, watts } from "./format.js";
import { UNRECLAIMED, VIOLATIONS, queueColumns, taskColumns } from "./columns.js";
import { keyOf, totalsOf, unreclaimedKey } from "./merge.js";
import { format } from "./routes.js";

const FEW = 10; // rows of a list on the first view
const MANY = 50;
const EXPECTED_MS = 15000;

// The numbers at the top.
class Totals {
  constructor() {
    this.element = el("dl", { class: "totals" });
    this.keyed = new Keyed(this.element, ({ label }) => tile(label), fillTile);
  }

  draw(view) {
    const totals = totalsOf(view);
    const memory = totals.memory_total_bytes || 1;
    const lost = totals.gpus - totals.gpus_healthy;
    const isPart = view.scope === "env"; // it has the rows of one environment
    this.keyed.draw(
      [
        {
          label: "GPUs held",
          text: `${totals.gpus_held} of ${totals.gpus}${lost ? `, ${lost} lost` : ""}`,
          share: totals.gpus_held / (totals.gpus || 1),
        },
        {
          label: "Mean use",
          text: percent(totals.utilization_percent),
          share: (totals.utilization_percent ?? 0) / 100,
        },
        {
          label: "Memory used",
          text: `${gibNumber(totals.memory_used_bytes)} of ${gib(totals.memory_total_bytes)}`,
          share: (totals.memory_used_bytes ?? 0) / memory,
        },
        {
          label: "Memory granted",
          text: gib(totals.memory_granted_bytes),
          share: (totals.memory_granted_bytes ?? 0) / memory,
        },
        { label: "Power", text: watts(totals.power_w) },
        { label: isPart ? "Own tasks" : "Tasks", text: String(totals.tasks) },
        { label: isPart ? "Own waiting" : "Waiting", text: String(totals.waiting) },
      ],
      ({ label }) => label,
    );
  }
}

function tile(label) {
  const text = el("dd");
  const fill = el("span", { class: "meter-fill" });
  const bar = el("span", { class: "meter", "aria-hidden": "true" }, fill);
  const made = el("div", { class: "tile" }, el("dt", {}, label), text);
  Object.assign(made, { text, fill, bar });
  return made;
}

function fillTile(element, { text, share }) {
  setText(element.text, text);
  if (share === undefined) return;
  if (!element.bar.isConnected) element.append(el("dd", { class: "bar-of-tile" }, element.bar));
  setStyle(element.fill, "width", `${Math.round(100 * Math.min(1, share))}%`);
}

export function tasksTable(app, options) {
  return new Table(app, {
    id: "tasks",
    title: "Tasks",
    columns: taskColumns(app.state.now),
    keyOf: (row) => row.id,
    empty: messages.pageNoTask(),
    actions: (row) => [{ label: "Release", name: `Release task ${row.id}`, act: app.release }],
    ...options,
  });
}

export function queueTable(app, options) {
  return new Table(app, {
    id: "queue",
    title: "Queue",
    columns: queueColumns(app.state.now, app.state.expected),
    keyOf: (row) => keyOf("queue", row),
    empty: messages.pageNothingWaits(),
    actions: (row) => [{ label: "Withdraw", name: `Withdraw ${row.id}`, act: app.withdraw }],
    ...options,
  });
}

// The expected starts come with the queue's own rows, not with the stream.
class Expected {
  #timer = null;
  #asked = null;

  constructor(app) {
    this.app = app;
  }

  draw(view) {
    const order = view.queue.map((row) => keyOf("queue", row)).join(" ");
    if (order === this.#asked || this.#timer !== null) return;
    this.#asked = order;
    if (order) this.app.state.refreshExpected().catch(() => {});
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#asked = null;
    }, EXPECTED_MS);
  }
}

export class NowView {
  title = "Now";

  constructor(app) {
    this.app = app;
    this.totals = new Totals();
    this.notices = el("ul", { class: "notices", "aria-label": "Faults" });
    this.gpus = new GpuGrid(app.state.lastHour);
    this.tasks = tasksTable(app, { pageSize: FEW, sortable: false });
    this.queue = queueTable(app, { pageSize: FEW, sortable: false });
    this.violations = new Table(app, {
      id: "violations",
      title: "Beyond their quota",
      columns: VIOLATIONS,
      keyOf: (row) => `${row.pid} ${row.gpu_index}`,
      empty: "",
      sortable: false,
    });
    this.unreclaimed = new Table(app, {
      id: "unreclaimed",
      title: "Memory of tasks that are lost or have ended",
      columns: UNRECLAIMED,
      keyOf: unreclaimedKey,
      empty: "",
      sortable: false,
    });
    this.lists = el("div", { class: "lists" }, this.tasks.element, this.queue.element);
    this.element = el(
      "div",
      {},
      this.totals.element,
      this.notices,
      this.gpus.element,
      this.lists,
      this.violations.element,
      this.unreclaimed.element,
    );
    this.faults = new Keyed(
      this.notices,
      () => el("li"),
      (line, text) => setText(line, text),
    );
    this.expected = new Expected(app);
  }

  draw() {
    const { view } = this.app.state;
    this.totals.draw(view);
    const faults = faultsOf(view);
    this.faults.draw(faults, (text) => text);
    setHidden(this.notices, faults.length === 0);
    this.gpus.draw(view);
    this.#few(this.tasks, view.tasks, view.tasks.length, "tasks");
    this.#few(this.queue, view.queue, view.queue_length, "queue");
    for (const [table, rows] of [
      [this.violations, view.violations ?? []],
      [this.unreclaimed, view.residues ?? []],
    ]) {
      setHidden(table.element, rows.length === 0);
      if (rows.length) table.draw(rows);
    }
    this.expected.draw(view);
  }

  // The first rows, and a link to all of them.
  #few(table, rows, total, view) {
    table.draw(rows.slice(0, FEW), {}, total);
    const isMore = total > FEW;
    if (isMore && !table.more.firstChild) {
      table.more.append(el("a", { href: format({ view }) }));
    }
    setHidden(table.more, !isMore);
    setHidden(table.number, isMore);
    if (isMore) setText(table.more.firstChild, `all ${total}`);
  }
}

function faultsOf(view) {
  const parts = [
    ["The store", view.store],
    ["The launcher of jobs", view.launcher],
  ];
  const faults = parts
    .filter(([, part]) => part && part.state !== "ok")
    .map(([name, part]) => `${name}: ${visible(part.error ?? part.state)}`);
  const lost = view.gpus.filter((gpu) => gpu.state !== "healthy");
  if (lost.length) faults.push(`Lost: ${lost.map((gpu) => `GPU ${gpu.index}`).join(", ")}`);
  return faults;
}

export class TasksView {
  title = "Tasks";

  constructor(app) {
    this.app = app;
    this.table = tasksTable(app, { pageSize: MANY, find: true });
    this.element = this.table.element;
  }

  draw(route) {
    this.table.draw(this.app.state.view.tasks, route.query);
  }
}

export class QueueView {
  title = "Queue";
  #rest = []; // the rows behind those of the stream, as they were when they were asked for

  constructor(app) {
    this.app = app;
    this.table = queueTable(app, { pageSize: MANY, find: true });
    this.jobs = new Table(app, {
      id: "jobs",
      title: "Running jobs",
      columns: queueColumns(app.state.now, () => null).filter(
        (column) => !NOT_RUNNING.has(column.id),
      ),
      keyOf: (row) => row.id,
      empty: messages.pageNoJobRuns(),
      actions: (row) => [{ label: "Withdraw", name: `Withdraw ${row.id}`, act: app.withdraw }],
      sortable: false,
    });
    this.note = el("p", { class: "note" });
    this.load = el("button", { type: "button", onclick: () => this.#load() }, "Load all");
    this.noteLine = el("div", { class: "note-line" }, this.note, this.load);
    this.element = el("div", {}, this.table.element, this.noteLine, this.jobs.element);
    this.expected = new Expected(app);
  }

  leave() {
    this.#rest = [];
  }

  async #load() {
    if (this.load.getAttribute("aria-disabled") === "true") return;
    setAttribute(this.load, "aria-disabled", "true");
    const rows = [];
    try {
      let after = null;
      do {
        const page = await this.app.state.ask("api/queue", { limit: 200, after });
        rows.push(...page.queue);
        after = page.after;
      } while (after !== null && rows.length < 20000);
      this.#rest = rows;
    } catch (error) {
      this.app.announce(error.message);
    }
    setAttribute(this.load, "aria-disabled", false);
    this.app.redraw();
  }

  draw(route) {
    const { view } = this.app.state;
    const live = new Set(view.queue.map((row) => keyOf("queue", row)));
    const running = new Set(view.jobs.map((row) => row.id));
    const isWhole = view.queue.length >= view.queue_length;
    const rest = isWhole
      ? []
      : this.#rest.filter((row) => !live.has(keyOf("queue", row)) && !running.has(row.id));
    this.table.draw([...view.queue, ...rest], route.query, view.queue_length);
    setHidden(this.noteLine, isWhole);
    const shown = rest.length ? "The first 200 are live, the others as they were loaded." : "";
    setText(this.note, shown || `The first ${view.queue.length} of ${view.queue_length} are here.`);
    setText(this.load, rest.length ? "Load again" : "Load all");
    this.jobs.draw(view.jobs);
    this.expected.draw(view);
  }
}

const NOT_RUNNING = new Set(["position", "start", "reason"]);

export class PublicView {
  title = "Now";

  constructor(app) {
    this.app = app;
    this.totals = new Totals();
    this.queues = new Table(app, {
      id: "queues",
      title: "Queues",
      columns: [
        { id: "name", label: "Queue", text: (row) => row.name },
        { id: "length", label: "Waiting", numeric: true, text: (row) => String(row.length) },
      ],
      keyOf: (row) => row.name,
      empty: NONE,
      sortable: false,
    });
    const parts = el("div", { class: "halves" }, howToEnter(app), this.queues.element);
    this.element = el("div", {}, this.totals.element, parts);
  }

  draw() {
    const { view } = this.app.state;
    this.totals.draw(view);
    this.queues.draw(view.queues, {}, view.totals.waiting);
  }
}

// Where a view needs a token, and how to get one.
export function howToEnter(app) {
  return el(
    "section",
    { class: "enter", "aria-labelledby": "enter-title" },
    el("h2", { id: "enter-title" }, "See tasks, users and jobs"),
    el(
      "p",
      {},
      "Tasks, users, commands, jobs and the timeline need a token. Make one on the node:",
    ),
    el(
      "dl",
      { class: "recipes" },
      el("dt", {}, "for an environment that you may enter"),
      el("dd", {}, el("code", {}, "nodemgr web token --env ENV --for 8h")),
      el("dt", {}, "for the whole node, as an administrator"),
      el("dd", {}, el("code", {}, "nodemgr web token --admin --for 8h")),
    ),
    el(
      "p",
      {},
      el("button", { type: "button", class: "main", onclick: app.enterToken }, "Enter the token"),
    ),
    el("p", { class: "hint" }, "The token stays in this tab. It is in no address that you share."),
  );
}
