// What has ended: the history page by page, and one job's story.

import { AskingView } from "./asking_view.js";
import { Table } from "./table.js";
import { historyColumns, hostUse, jobName } from "./columns.js";
import { button, el, envName, setAttribute, setHidden, setText, told } from "./dom.js";
import { field } from "./dialogs.js";
import {
  askedGpus, clock, duration, expectedStart, gib, list, outcome, ran, reason, visible,
} from "./format.js";
import { format, whole } from "./routes.js";

const PAGE = 50;
const REFRESH_S = 30;
const ENDED = new Set(["done", "failed", "withdrawn"]);

export class HistoryView extends AskingView {
  title = "History";

  constructor(app) {
    super(app);
    this.env = el("select", { id: "history-env", name: "history-env" });
    this.env.addEventListener("change", () => this.#go({ env: this.env.value }));
    const chosen = field({ id: "history-env", label: "Environment", control: this.env });
    this.table = new Table(app, {
      id: "history",
      title: "Jobs that have ended",
      columns: historyColumns(app.state.now),
      keyOf: (row) => row.job,
      empty: "No job has ended in this time.",
      sortable: false,
      pageSize: PAGE,
    });
    this.older = el("a", { class: "button" }, "Older");
    this.newest = el("a", { class: "button" }, "Newest");
    const label = { class: "pager", "aria-label": "Pages of the history" };
    this.pager = el("nav", label, this.newest, this.older);
    const tools = el("div", { class: "tools" }, chosen);
    this.element = el("div", {}, tools, this.table.element, this.pager);
  }

  #go(query) {
    location.hash = format({ view: "history", query });
  }

  draw(route) {
    const { env = "", before = "" } = route.query;
    this.#envs(this.app.state.view, env);
    const first = whole(before, 0, Number.MAX_SAFE_INTEGER, null);
    const due_s = before ? Infinity : REFRESH_S;
    this.ask(`${env} ${before}`, due_s, (signal) => this.#load(env, first, signal));
  }

  #envs(view, env) {
    const names = [...new Set(["", ...view.envs.map((row) => row.name), env])];
    if (names.join("\n") !== this.env.names) {
      this.env.names = names.join("\n");
      const options = names.map((name) => el("option", { value: name }, visible(name) || "all"));
      this.env.replaceChildren(...options);
    }
    if (this.env.value !== env) this.env.value = env;
  }

  async #load(env, before, signal) {
    const page = await this.app.state.ask("api/history", { env, before, limit: PAGE }, signal);
    this.table.draw(page.history.reverse());
    setText(this.table.number, "");
    const query = env ? { env } : {};
    setHidden(this.older, page.before === null);
    setHidden(this.newest, before === null);
    const address = (more) => format({ view: "history", query: { ...query, ...more } });
    setAttribute(this.older, "href", address({ before: page.before }));
    setAttribute(this.newest, "href", address({}));
    setHidden(this.pager, this.older.hidden && this.newest.hidden);
  }
}

export class JobView extends AskingView {
  title = "Job";

  constructor(app) {
    super(app);
    this.body = el("div", { class: "stories" });
    this.element = el("div", {}, this.body);
  }

  leave() {
    super.leave();
    this.body.replaceChildren();
  }

  // Asked again when the job's row of the stream changes, and now and then.
  draw(route) {
    const { view } = this.app.state;
    const rows = [...view.queue, ...view.jobs].filter((row) => row.job === route.id);
    const live = JSON.stringify(rows.map((row) => [row.state, row.position, row.reason]));
    this.id = route.id;
    this.ask(`${route.id} ${live}`, REFRESH_S, (signal) => this.#load(route.id, signal));
  }

  failed(error) {
    const why = el("p", { class: "empty" }, visible(error.message));
    this.body.replaceChildren(el("h2", {}, `Job ${this.id}`), why);
  }

  async #load(id, signal) {
    const { jobs } = await this.app.state.ask(`api/jobs/${id}`, {}, signal);
    const shown = JSON.stringify(jobs);
    if (shown === this.shown && this.body.firstChild) return;
    this.shown = shown;
    this.body.replaceChildren(...jobs.slice(0, PAGE).map((job) => this.#story(job)));
    if (jobs.length > PAGE) {
      this.body.append(el("p", { class: "note" }, `The first ${PAGE} of ${jobs.length} jobs.`));
    }
  }

  #story(job) {
    const { now } = this.app.state;
    const heading = el("h2", {}, `Job ${jobName({ ...job, id: job.job })}`);
    const state = el("span", { class: `badge state-${job.state}` }, job.state);
    const head = el("div", { class: "section-head" }, heading, state);
    if (!ENDED.has(job.state)) {
      const row = { ...job, id: job.indices ? `${job.job}.*` : job.job, request: null };
      const act = () => this.app.withdraw(row);
      head.append(button("Withdraw", act, { class: "act" }));
    }
    const command = el("p", {}, told(job.command, { class: "command whole" }));
    const list = el("dl", { class: "facts" }, ...facts(job, now()).flatMap(fact));
    const parts = [head, command, list, ...this.#attempts(job), ...this.#entries(job)];
    return el("section", { class: "story", "aria-label": `Job ${job.job}` }, ...parts);
  }

  #attempts(job) {
    if (!job.attempts.length) return [];
    const columns = [
      ["Attempt", (row) => String(row.number)],
      ["Started", (row) => clock(row.started, this.app.state.now(), true)],
      ["Ran", (row) => ran(row, row.started, this.app.state.now())],
      ["GPUs", (row) => list(row.gpu_indices.map((index) => index ?? "lost"))],
      ...(job.attempts.some((row) => row.cpu_seconds != null)
        ? hostUse.map(({ label, text }) => [label, text])
        : []),
      ["Chosen", (row) => visible(row.chosen ?? "")],
      ["End", (row) => (row.ended === null && !row.why ? "runs" : outcome(row))],
      ["Why", (row) => visible(row.why ?? "")],
    ];
    const parts = [el("h3", {}, "Attempts"), plainTable("Attempts", columns, job.attempts)];
    for (const attempt of job.attempts) {
      const tail = [attempt.log_tail ?? []].flat().join("\n");
      if (!tail.trim()) continue;
      const lines = tail.split("\n").map(visible).join("\n");
      const pre = el("pre", { dir: "auto", tabindex: "0", role: "region" }, lines);
      pre.setAttribute("aria-label", `Last lines of attempt ${attempt.number}`);
      parts.push(el("h3", {}, `Last lines of attempt ${attempt.number}`), pre);
    }
    return parts;
  }

  #entries(job) {
    if (!job.deeds?.length) return [];
    const columns = [
      ["Time", (row) => clock(row.time, this.app.state.now(), true)],
      ["By", (row) => visible(row.who)],
      ["Action", (row) => visible(row.what)],
    ];
    return [el("h3", {}, "Actions"), plainTable("Actions", columns, job.deeds)];
  }
}

function plainTable(label, columns, rows) {
  const head = columns.map(([name]) => el("th", { scope: "col" }, name));
  const cell = (text) => el("td", {}, el("bdi", { dir: "auto" }, text));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, text]) => cell(text(row)))));
  const parts = [el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)];
  const table = el("table", { "aria-label": label }, ...parts);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

function fact([label, value]) {
  return [el("dt", {}, label), el("dd", {}, value)];
}

function facts(job, now) {
  const at = (time) => clock(time, now, true);
  const rows = [
    ["Name", job.name && told(job.name)],
    ["Environment", envName(job.env)],
    ["User", job.user && told(job.user)],
    ["Queue", job.priority],
    ["Place", job.position && String(job.position)],
    ["Why it waits", job.reason && told(reason(job, now))],
    ["Expected start", job.expected_start && expectedStart(job, now)],
    ["GPUs", askedGpus(job)],
    ["GPU memory", job.memory_named_bytes && gib(job.memory_named_bytes)],
    ["Time limit", job.time_limit_seconds && duration(job.time_limit_seconds)],
    ["After", job.after.length && list(job.after)],
    ["Submitted", at(job.submitted)],
    ["Started", job.started && at(job.started)],
    ["Ended", job.ended && at(job.ended)],
    ["Ran", job.started && ran(job, job.started, now)],
    ["End", ENDED.has(job.state) && outcome(job)],
    ["Why", job.why && told(job.why)],
    ["Restarts", job.restarts && `${job.restarts} of ${job.max_restarts}`],
    ["Directory", job.cwd && told(job.cwd, { class: "command whole" })],
  ];
  return rows.filter(([, value]) => value);
}
