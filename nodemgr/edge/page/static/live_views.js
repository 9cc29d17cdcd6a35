// What is now: GPUs, tasks and the queue; without a token, totals and lengths.

import { Table } from "./table.js";
import { GpuGrid } from "./gpus.js";
import { Keyed, button, copyOf, el, setAttribute, setHidden, setStyle, setText } from "./dom.js";
import { NONE, gib, gibNumber, percent, reason, visible, watts } from "./format.js";
import { UNRECLAIMED, VIOLATIONS, hostUse, jobName, queueColumns, taskColumns } from "./columns.js";
import { foldArrays, keyOf, totalsOf, unreclaimedKey } from "./merge.js";
import { format } from "./routes.js";

const FEW = 10; // rows of a list on the first view
const MANY = 50;
const EXPECTED_MS = 15000;

// The numbers at the top.
class Totals {
  constructor() {
    this.element = el("dl", { class: "totals" });
    this.keyed = new Keyed(this.element, ([label]) => tile(label), fillTile);
  }

  draw(view) {
    const totals = totalsOf(view);
    const memory = totals.memory_total_bytes || 1;
    const lost = totals.gpus - totals.gpus_healthy;
    const isPart = view.scope === "env"; // it has the rows of one environment
    const { gpus_held: held, utilization_percent: use } = totals;
    const { memory_used_bytes: used, memory_granted_bytes: granted } = totals;
    const ofTotal = `${gibNumber(used)} of ${gib(totals.memory_total_bytes)}`;
    const tiles = [
      ["GPUs held", `${held} of ${totals.gpus}${lost ? `, ${lost} lost` : ""}`, held / (totals.gpus || 1)],
      ["Mean use", percent(use), (use ?? 0) / 100],
      ["Memory used", ofTotal, (used ?? 0) / memory],
      ["Memory granted", gib(granted), (granted ?? 0) / memory],
      ["Power", watts(totals.power_w)],
      [isPart ? "Own tasks" : "Tasks", String(totals.tasks)],
      [isPart ? "Own waiting" : "Waiting", String(totals.waiting)],
    ];
    this.keyed.draw(tiles, ([label]) => label);
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

function fillTile(element, [, text, share]) {
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
    empty: "No task holds a GPU.",
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
    empty: "No request waits.",
    group: (row) => reason(row, app.state.now()),
    fold: foldArrays,
    actions: (row) => withdrawal(app, row),
    ...options,
  });
}

function withdrawal(app, row) {
  return [{ label: "Withdraw", name: `Withdraw ${row.folded ? jobName(row) : row.id}`, act: app.withdraw }];
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
    if (order || this.app.state.inCluster === undefined) this.app.state.refreshExpected().catch(() => {});
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
    const faults = (id, title, columns, keyOf) =>
      new Table(app, { id, title, columns, keyOf, empty: "", sortable: false });
    const pidOf = (row) => `${row.pid} ${row.gpu_index}`;
    this.violations = faults("violations", "Beyond their quota", VIOLATIONS, pidOf);
    const title = "Memory of tasks that are lost or have ended";
    this.unreclaimed = faults("unreclaimed", title, UNRECLAIMED, unreclaimedKey);
    this.lists = el("div", { class: "lists" }, this.tasks.element, this.queue.element);
    const tables = [this.lists, this.violations.element, this.unreclaimed.element];
    this.element = el("div", {}, this.totals.element, this.notices, this.gpus.element, ...tables);
    this.faults = new Keyed(this.notices, () => el("li"), setText);
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
    const lines = table.options.fold?.(rows) ?? rows;
    table.draw(lines.slice(0, FEW), {}, total);
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
      columns: [
        ...queueColumns(app.state.now, () => null).filter((each) => !NOT_RUNNING.has(each.id)),
        ...hostUse,
      ],
      keyOf: (row) => row.id,
      empty: "No job runs.",
      actions: (row) => withdrawal(app, row),
      sortable: false,
    });
    this.note = el("p", { class: "note" });
    this.load = button("Load all", () => this.#load());
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
    const { inCluster } = this.app.state;
    const rest = isWhole && !inCluster
      ? []
      : this.#rest.filter((row) => !live.has(keyOf("queue", row)) && !running.has(row.id));
    const waiting = rest.filter((row) => !runs(row));
    const length = Math.max(view.queue_length, view.queue.length + waiting.length);
    this.table.draw([...view.queue, ...waiting], route.query, length);
    setHidden(this.noteLine, isWhole && !inCluster);
    const shown = rest.length ? "The first 200 are live, the others as they were loaded." : "";
    const here = isWhole ? "This node's jobs are here." : firstOf(view);
    setText(this.note, shown || here);
    setText(this.load, rest.length ? "Load again" : inCluster ? "Load the cluster's" : "Load all");
    this.jobs.draw([...view.jobs, ...rest.filter(runs)]);
    this.expected.draw(view);
  }
}

// Of the cluster's rows, those that another node has begun.
function runs(row) {
  return row.state === "running" || row.state === "stopping";
}

function firstOf(view) {
  return `The first ${view.queue.length} of ${view.queue_length} are here.`;
}

const NOT_RUNNING = new Set(["position", "start"]);

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

// In place of a view that needs a token.
export class NeedsToken {
  title = "A token is needed";

  constructor(app) {
    this.element = howToEnter(app);
  }

  draw() {}
}

// How to get a token: a template of index.html.
function howToEnter(app) {
  const made = copyOf("enter");
  made.querySelector("button").addEventListener("click", app.enterToken);
  return made;
}
