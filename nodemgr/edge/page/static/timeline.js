// The last hours of each GPU: which env held it, when, and how busy it was.

import { AskingView } from "./asking_view.js";
import { Table } from "./table.js";
import { jobLink, leaseColumns } from "./columns.js";
import { copyOf, el, envClass, partsOf, setAttribute, setHidden, setText, svg } from "./dom.js";
import { clock, count, list, percent, ran, timeOfDay, visible } from "./format.js";
import { whole } from "./routes.js";
import { fittingHours, heldShare, lanes, meanUse, ticks, usePath } from "./timeline_layout.js";

const HOUR_S = 3600;
const OPENS_WITH = [1, 6, 24]; // hours: the least that has all that there is; more in index.html
const HOURS = OPENS_WITH.at(-1);
const MAX_HOURS = 168;
const PAGE = 1000;
const MAX_LEASES = 5000;
const REFRESH_S = 60;
const SOON_S = 3; // after a task began or ended
const WIDTH = 1000;
const HEIGHT = 20;
const LEAST_WIDTH = "3px"; // of a bar: its border in page.css

const PARTS = {
  hours: "#hours", earlier: "[name=earlier]", later: "[name=later]", latest: "[name=latest]",
  range: ".range", axis: ".axis", rows: ".rows", detail: ".detail", note: ".note",
};

export class TimelineView extends AskingView {
  title = "Timeline";
  #leases = [];
  #samples = null;
  #tasks = "";
  #fitting = HOURS;

  constructor(app) {
    super(app);
    const section = copyOf("timeline");
    Object.assign(this, partsOf(section, PARTS));
    this.hours.addEventListener("change", () => app.amend({ hours: this.hours.value }));
    this.earlier.addEventListener("click", () => this.#move(-1));
    this.later.addEventListener("click", () => this.#move(1));
    this.latest.addEventListener("click", () => app.amend({ until: null }));
    this.rows.addEventListener("keydown", (event) => this.#key(event));
    this.rows.addEventListener("click", (event) => this.#chosen(event.target.closest(".lease")));
    this.rows.addEventListener("focusin", (event) => this.#chosen(event.target.closest(".lease")));
    this.table = new Table(app, {
      id: "leases",
      title: "Leases in this time",
      columns: leaseColumns(app.state.now),
      keyOf: (row) => String(row.record),
      empty: "No lease in this time.",
      sortable: false,
      pageSize: 20,
    });
    this.tablePage = 0;
    this.element = el("div", {}, section, this.table.element);
    this.table.app = { amend: ({ page }) => this.#turn(page) };
  }

  #turn(page) {
    this.tablePage = page ?? 0;
    this.#drawTable();
  }

  // The time that is shown: [since, until], and whether it ends now.
  #span(route) {
    const hours = whole(route.query.hours, 1, MAX_HOURS, this.#fitting);
    const now = this.app.state.now();
    const until = whole(route.query.until, 0, 2 ** 33, null);
    const isNow = until === null || until >= now;
    const end = isNow ? now : until;
    return { since: end - hours * HOUR_S, until: end, hours, isNow };
  }

  #move(direction) {
    const { until, hours, isNow } = this.#span(this.app.route);
    if (isNow && direction > 0) return;
    const next = Math.round(until + (direction * hours * HOUR_S) / 2);
    this.app.amend({ hours, until: next >= this.app.state.now() ? null : next });
  }

  draw(route) {
    const span = this.#span(route);
    const name = `${route.query.hours ?? "all"} ${span.isNow ? "now" : span.until} ${route.query.env ?? ""}`;
    const tasks = this.app.state.view.tasks.map((task) => task.id).join(" ");
    const due_s = !span.isNow ? Infinity : this.#tasks === tasks ? REFRESH_S : SOON_S;
    this.ask(name, due_s, (signal) => {
      this.#tasks = tasks;
      return this.#load(span, route.query, signal);
    });
    this.#drawHours(span);
    setAttribute(this.later, "aria-disabled", span.isNow && "true");
    setAttribute(this.latest, "aria-disabled", span.isNow && "true");
  }

  #drawHours({ hours }) {
    if (this.hours.value !== String(hours)) this.hours.value = String(hours);
  }

  // Without hours in the address it shows the least that has all leases of a day.
  async #load({ until, since }, { env, hours }, signal) {
    const { state } = this.app;
    const begin = hours ? since : until - HOURS * HOUR_S;
    const times = { since: Math.floor(begin), until: Math.ceil(until) };
    const leases = [];
    let before = null;
    do {
      const query = { ...times, env, limit: PAGE, before };
      const page = await state.ask("api/timeline", query, signal);
      leases.push(...page.leases);
      before = page.before;
    } while (before !== null && leases.length < MAX_LEASES);
    if (!hours) this.#fitting = fittingHours(leases, until, OPENS_WITH);
    times.since = Math.floor(this.#span(this.app.route).since);
    this.#samples = await state.ask("api/samples", times, signal).catch(() => null);
    if (signal.aborted) return;
    this.#leases = leases;
    const span = this.#span(this.app.route);
    this.#drawHours(span);
    this.#drawAll(span, before !== null);
  }

  #drawAll(span, isCut) {
    const { view, now } = this.app.state;
    const ends = span.isNow ? "now" : clock(span.until, now());
    setText(this.range, `${clock(span.since, now())} to ${ends}`);
    this.#drawAxis(span);
    const focused = document.activeElement?.dataset?.lease;
    this.rows.replaceChildren(...view.gpus.map((gpu) => this.#row(gpu, span)));
    if (focused) this.rows.querySelector(`[data-lease="${focused}"]`)?.focus();
    const parts = [];
    if (view.scope === "env") parts.push("Only leases of your environment are shown.");
    if (isCut) parts.push(`The latest ${MAX_LEASES} leases are shown; choose a shorter time.`);
    if (this.#samples === null) parts.push("The use of the past is not recorded here.");
    setText(this.note, parts.join(" "));
    setHidden(this.note, parts.length === 0);
    this.#drawTable();
  }

  #drawTable() {
    this.table.draw(this.#leases, { page: this.tablePage });
  }

  #drawAxis({ since, until }) {
    const zone_s = -60 * new Date(since * 1000).getTimezoneOffset();
    const isInside = (time) => (until - time) / (until - since) > 0.04; // its text has room
    const marks = ticks(since, until, 8, zone_s)
      .filter(isInside)
      .map((time) => {
        const mark = el("span", { class: "tick" }, timeOfDay(time));
        mark.style.left = `${((100 * (time - since)) / (until - since)).toFixed(2)}%`;
        return mark;
      });
    this.axis.replaceChildren(...marks);
  }

  #row(gpu, span) {
    const own = this.#leases.filter((lease) => lease.gpus.includes(gpu.uuid));
    const held = heldShare(own, span.since, span.until);
    const use = meanUse(this.#samples, gpu.uuid);
    const isBusyKnown = use !== null;
    const title = el("h3", { id: `gpu-${gpu.index}-row` }, `GPU ${gpu.index}`);
    const busy = isBusyKnown ? el("span", {}, `use ${percent(use)}`) : null;
    const share = el("span", {}, `held ${percent(100 * held)}`);
    const label = el("div", { class: "row-name" }, title, share, busy);
    const track = el("div", { class: "track" });
    let isFirst = true;
    for (const lane of lanes(own, span.since, span.until)) {
      const made = el("div", { class: "lane" });
      for (const bar of lane) {
        made.append(this.#bar(bar, isFirst));
        isFirst = false;
      }
      track.append(made);
    }
    if (isFirst) track.append(el("p", { class: "idle" }, "held by no task"));
    if (isBusyKnown) track.append(this.#use(gpu, span));
    const attributes = { class: "row", role: "group", "aria-labelledby": `gpu-${gpu.index}-row` };
    return el("div", attributes, label, track);
  }

  #use(gpu, { since, until }) {
    const d = usePath(this.#samples, gpu.uuid, since, until, WIDTH, HEIGHT);
    const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
    const box = { class: "use-area", viewBox, preserveAspectRatio: "none" };
    return svg("svg", { ...box, "aria-hidden": "true" }, svg("path", { d }));
  }

  #bar(bar, isFirst) {
    const label = this.#words(bar.first, bar.count);
    const made = el("button", {
      type: "button",
      class: `lease ${envClass(bar.env)}`,
      tabindex: isFirst ? "0" : "-1",
      title: label,
      "aria-label": label,
      "data-lease": bar.first.record,
    });
    made.from = bar.from;
    made.style.left = `min(${(100 * bar.from).toFixed(3)}%, 100% - ${LEAST_WIDTH})`;
    made.style.width = `${(100 * (bar.to - bar.from)).toFixed(3)}%`;
    if (bar.to - bar.from > 0.05) made.append(el("bdi", { dir: "auto" }, visible(bar.env)));
    return made;
  }

  #words(lease, number) {
    const { now } = this.app.state;
    const ended = lease.ended === null ? "holds" : clock(lease.ended, now());
    const span = ran(lease, lease.began, now());
    const who = lease.user ? ` (${visible(lease.user)})` : "";
    const more = number > 1 ? ` and ${count(number - 1, "more lease")}` : "";
    const times = `${clock(lease.began, now())} to ${ended}, ${span}`;
    const command = visible(lease.command ?? "").slice(0, 200);
    return `${visible(lease.env)}${who}, ${lease.task}${more}: ${times}; ${command}`;
  }

  // Left and right go along the leases of a GPU.
  #key(event) {
    const lease = event.target.closest(".lease");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!lease || !step) return;
    event.preventDefault();
    const all = [...lease.closest(".row").querySelectorAll(".lease")];
    all.sort((a, b) => a.from - b.from);
    const next = all[all.indexOf(lease) + step];
    if (!next) return;
    lease.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #chosen(button) {
    if (!button) return;
    const lease = this.#leases.find((one) => String(one.record) === button.dataset.lease);
    if (!lease) return;
    this.rows.querySelector(".lease.chosen")?.classList.remove("chosen");
    button.classList.add("chosen");
    const gpus = list(lease.gpu_indices.map((index) => `GPU ${index ?? "lost"}`));
    const job = lease.job ? [jobLink(lease.job)] : [];
    this.detail.replaceChildren(`${gpus} – ${this.#words(lease, 1)} `, ...job);
  }
}
