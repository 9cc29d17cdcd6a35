// Quotas: what each environment may hold, holds, and has used in a week; admins change them.

import * as messages from "./messages.js";
import { Table } from "./table.js";
import { post } from "./connection.js";
import { ask, choice, field } from "./dialogs.js";
import { setHidden, el } from "./dom.js";
import { GIB, NONE, duration, gib, gibNumber, list } from "./format.js";
import { env } from "./columns.js";

const WEEK_S = 7 * 86400;
const REFRESH_S = 300;

function columns(report) {
  const used = (row) => report(row.name)?.gpu_seconds ?? null;
  return [
    {
      ...env,
      text: (row) => row.name,
      draw: (cell, row) => env.draw(cell, { env: row.name }),
    },
    {
      id: "gpus",
      label: "GPUs",
      numeric: true,
      text: (row) => `${row.gpus.length} of ${row.quota.gpus}`,
      value: (row) => row.quota.gpus,
    },
    {
      id: "memory",
      label: "Memory granted",
      numeric: true,
      text: (row) =>
        row.quota.memory_bytes === null
          ? `${gibNumber(row.memory_granted_bytes)}, whole GPUs`
          : `${gibNumber(row.memory_granted_bytes)} of ${gib(row.quota.memory_bytes)}`,
      value: (row) => row.quota.memory_bytes,
    },
    {
      id: "default",
      label: "By default",
      numeric: true,
      minor: 2,
      text: (row) => String(row.quota.default_gpus ?? row.quota.gpus),
    },
    {
      id: "tasks",
      label: "Tasks",
      numeric: true,
      text: (row) => String(row.tasks),
      value: (row) => row.tasks,
    },
    {
      id: "waiting",
      label: "Waiting",
      numeric: true,
      text: (row) => String(row.waiting),
      value: (row) => row.waiting,
    },
    { id: "priority", label: "Queue", minor: 1, text: (row) => row.quota.priority },
    {
      id: "users",
      label: "Users and groups",
      wide: true,
      minor: 1,
      text: (row) =>
        list([...row.quota.users, ...row.quota.groups.map((group) => `@${group}`)].map(String)),
    },
    {
      id: "hours",
      label: "GPU hours, 7 days",
      numeric: true,
      text: (row) => (used(row) === null ? NONE : (used(row) / 3600).toFixed(1)),
      value: used,
    },
    {
      id: "wait",
      label: "Median wait",
      numeric: true,
      minor: 2,
      text: (row) => duration(report(row.name)?.wait_median_seconds),
      value: (row) => report(row.name)?.wait_median_seconds ?? null,
    },
  ];
}

export class QuotasView {
  title = "Quotas";
  #report = new Map();
  #asked_s = 0;

  constructor(app) {
    this.app = app;
    const isAdmin = app.state.scope === "admin";
    this.table = new Table(app, {
      id: "quotas",
      title: "Quotas",
      columns: columns((name) => this.#report.get(name)),
      keyOf: (row) => row.name,
      empty: messages.pageNoEnv(),
      pageSize: 50,
      actions: isAdmin
        ? (row) => [
            {
              label: "Change",
              name: `Change the quota of ${row.name}`,
              act: (one) => this.#change(one),
            },
          ]
        : null,
    });
    this.add = el(
      "button",
      { type: "button", onclick: () => this.#change(null) },
      "New environment",
    );
    setHidden(this.add, !isAdmin);
    this.table.more.append(this.add);
    this.element = this.table.element;
  }

  draw(route) {
    const { state } = this.app;
    this.table.draw(state.view.envs, route.query);
    if (state.now() - this.#asked_s < REFRESH_S) return;
    this.#asked_s = state.now();
    state.ask("api/report", { since: Math.floor(state.now() - WEEK_S) }).then(
      ({ envs }) => {
        this.#report = new Map(envs.map((row) => [row.env, row]));
        this.app.redraw();
      },
      () => {},
    );
  }

  async #change(row) {
    const quota = row?.quota ?? {
      gpus: 1,
      memory_bytes: null,
      default_gpus: null,
      max_priority: null,
    };
    const queues = await this.#queues(quota);
    const number = { type: "number", min: "0", inputmode: "numeric" };
    const size = quota.memory_bytes === null ? "" : String(quota.memory_bytes / GIB);
    const highest = choice("max_priority", [["", "the same"], ...queues], quota.max_priority ?? "");
    const body = [
      row === null
        ? field({ id: "env", label: "Name", required: true, spellcheck: "false" })
        : null,
      field({ id: "gpus", label: "GPUs", ...number, value: String(quota.gpus) }),
      field({
        id: "memory",
        label: "Memory in GiB",
        ...number,
        step: "any",
        inputmode: "decimal",
        value: size,
        hint: "Of all its GPUs together. Empty: whole GPUs.",
      }),
      field({
        id: "default_gpus",
        label: "GPUs of a request that names no number",
        ...number,
        value: String(quota.default_gpus ?? ""),
        hint: "Empty: all of its GPUs.",
      }),
      field({
        id: "priority",
        label: "Queue",
        control: choice("priority", queues, quota.priority),
      }),
      field({ id: "max_priority", label: "Highest queue", control: highest }),
    ].filter((part) => part !== null);
    await ask({
      title: row === null ? "New environment" : `Quota of ${row.name}`,
      body,
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
    const memory = number(value("memory"), "Memory", false);
    const given = {
      gpus: number(value("gpus"), "GPUs", true),
      memory_bytes: memory === null ? null : Math.round(memory * GIB),
      default_gpus: number(value("default_gpus"), "The number of a request", true),
      priority: value("priority"),
      max_priority: value("max_priority") || null,
    };
    if (given.gpus === null) throw new Error(messages.pageGpusMissing());
    const name = row?.name ?? value("env");
    if (!name) throw new Error(messages.pageEnvMissing());
    const changed = Object.entries(given).filter(
      ([key, one]) => row === null || quota[key] !== one,
    );
    if (changed.length === 0) return;
    const { warnings } = await post("api/quota", this.app.state.token, {
      env: name,
      ...Object.fromEntries(changed),
    });
    this.app.announce([messages.pageQuotaSet({ env: name }), ...warnings].join(" "));
  }
}

function number(text, what, isWhole) {
  if (text === "") return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0 || (isWhole && !Number.isInteger(value))) {
    const wrong = isWhole ? messages.pageNoWholeNumber : messages.pageNoNumber;
    throw new Error(wrong({ field: what, text }));
  }
  return value;
}
