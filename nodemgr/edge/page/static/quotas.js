// Quotas: what each environment may hold, holds, and has used in a week; admins change them.

import { AskingView } from "./asking_view.js";
import { Table } from "./table.js";
import { post } from "./connection.js";
import { ask, options } from "./dialogs.js";
import { button, copyOf, setHidden } from "./dom.js";
import { GIB, NONE, duration, gib, gibNumber, list } from "./format.js";
import { column, env, figure, number } from "./columns.js";

const WEEK_S = 7 * 86400;
const REFRESH_S = 300;

function columns(report) {
  const used = (row) => report(row.name)?.gpu_seconds ?? null;
  const median = (row) => report(row.name)?.wait_median_seconds;
  const ofMemory = (quota) => (quota === null ? ", whole GPUs" : ` of ${gib(quota)}`);
  const users = ({ quota }) => [...quota.users, ...quota.groups.map((group) => `@${group}`)];
  return [
    {
      ...env,
      text: (row) => row.name,
      draw: (cell, row) => env.draw(cell, { env: row.name }),
    },
    number(
      "gpus",
      "GPUs",
      (row) => `${row.gpus.length} of ${row.quota.gpus}`,
      (row) => row.quota.gpus,
    ),
    number(
      "memory",
      "Memory granted",
      (row) => gibNumber(row.memory_granted_bytes) + ofMemory(row.quota.memory_bytes),
      (row) => row.quota.memory_bytes,
    ),
    number("default", "By default", (row) => String(row.quota.default_gpus ?? row.quota.gpus),
      undefined, { minor: 2 }),
    figure("tasks", "Tasks", String, "tasks"),
    figure("waiting", "Waiting", String, "waiting"),
    column("priority", "Queue", (row) => row.quota.priority, { minor: 1 }),
    column("users", "Users and groups", (row) => list(users(row).map(String)),
      { wide: true, minor: 1 }),
    number(
      "hours",
      "GPU hours, 7 days",
      (row) => (used(row) === null ? NONE : (used(row) / 3600).toFixed(1)),
      used,
    ),
    number("wait", "Median wait", (row) => duration(median(row)), (row) => median(row) ?? null,
      { minor: 2 }),
  ];
}

export class QuotasView extends AskingView {
  title = "Quotas";
  #report = new Map();

  constructor(app) {
    super(app);
    const isAdmin = app.state.scope === "admin";
    const act = (row) => this.#change(row);
    this.table = new Table(app, {
      id: "quotas",
      title: "Quotas",
      columns: columns((name) => this.#report.get(name)),
      keyOf: (row) => row.name,
      empty: "There is no environment yet.",
      pageSize: 50,
      actions: isAdmin ? (row) => [{ label: "Change", name: `Change the quota of ${row.name}`, act }] : null,
    });
    this.add = button("New environment", () => this.#change(null));
    setHidden(this.add, !isAdmin);
    this.table.more.append(this.add);
    this.element = this.table.element;
  }

  draw(route) {
    const { state } = this.app;
    this.table.draw(state.view.envs, route.query);
    this.ask("report", REFRESH_S, async (signal) => {
      const since = Math.floor(state.now() - WEEK_S);
      const { envs } = await state.ask("api/report", { since }, signal);
      this.#report = new Map(envs.map((row) => [row.env, row]));
      this.app.redraw();
    });
  }

  async #change(row) {
    const none = { memory_bytes: null, default_gpus: null, max_priority: null };
    const quota = row?.quota ?? { gpus: 1, ...none };
    const queues = await this.#queues(quota);
    const body = copyOf("quota");
    const control = (name) => body.querySelector(`[name=${name}]`);
    if (row !== null) control("env").parentElement.remove();
    control("gpus").value = quota.gpus;
    control("memory").value = quota.memory_bytes === null ? "" : quota.memory_bytes / GIB;
    control("default_gpus").value = quota.default_gpus ?? "";
    control("priority").append(...options(queues, quota.priority));
    const highest = options([["", "the same"], ...queues], quota.max_priority ?? "");
    control("max_priority").append(...highest);
    await ask({
      title: row === null ? "New environment" : `Quota of ${row.name}`,
      body: [...body.children],
      action: row === null ? "Make" : "Change",
      perform: (form) => this.#send(form, row, quota),
    });
  }

  async #queues(quota) {
    try {
      const { queues } = await this.app.state.ask("api/queue", { limit: 1 });
      return queues.map(({ name }) => [name, name]);
    } catch {
      return [[quota.priority ?? "normal", quota.priority ?? "normal"]];
    }
  }

  // Only the fields that differ are sent.
  async #send(form, row, quota) {
    const value = (name) => form.elements[name].value.trim();
    const memory = amount(value("memory"), "Memory", false);
    const given = {
      gpus: amount(value("gpus"), "GPUs", true),
      memory_bytes: memory === null ? null : Math.round(memory * GIB),
      default_gpus: amount(value("default_gpus"), "The number of a request", true),
      priority: value("priority"),
      max_priority: value("max_priority") || null,
    };
    if (given.gpus === null) {
      throw new Error("The number of GPUs is empty: write how many the environment may hold (0 is none).");
    }
    const name = row?.name ?? value("env");
    if (!name) throw new Error("The name is empty: give the environment a name.");
    const changed = Object.entries(given).filter(
      ([key, one]) => row === null || quota[key] !== one,
    );
    if (changed.length === 0) return;
    const { warnings } = await post("api/quota", this.app.state.token, {
      env: name,
      ...Object.fromEntries(changed),
    });
    this.app.announce([`The quota of ${name} is set.`, ...warnings].join(" "));
  }
}

function amount(text, what, isWhole) {
  if (text === "") return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0 || (isWhole && !Number.isInteger(value))) {
    const [kind, such] = isWhole ? ["whole number", "2"] : ["number", "2.5"];
    throw new Error(`${what}: ${text} is not a ${kind} of at least 0; write one such as ${such}.`);
  }
  return value;
}
