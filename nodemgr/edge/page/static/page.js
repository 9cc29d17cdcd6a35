// The page: its frame, the view of the present address, and the actions of viewers.

import { jobName } from "./columns.js";
import { get, post } from "./connection.js";
import { ask, field } from "./dialogs.js";
import { el, setAttribute, setHidden, setText, told } from "./dom.js";
import { RUNS, clock, list } from "./format.js";
import { NeedsToken, NowView, PublicView, QueueView, TasksView } from "./live_views.js";
import { HistoryView, JobView } from "./past_views.js";
import { QuotasView } from "./quotas.js";
import { totalsOf } from "./merge.js";
import { format, parse, tokenOf } from "./routes.js";
import { State } from "./state.js";
import { TimelineView } from "./timeline.js";

const TICK_MS = 5000; // ages grow even if nothing changes
const SHOWN_MS = 6000;
const MADE = {
  public: PublicView,
  enter: NeedsToken,
  now: NowView,
  tasks: TasksView,
  queue: QueueView,
  timeline: TimelineView,
  history: HistoryView,
  quotas: QuotasView,
  jobs: JobView,
};

const at = (id) => document.getElementById(id);

class App {
  #views = new Map();
  #shown = null;
  #frame = null;
  #line = null;
  #drawn_ms = 0;

  constructor() {
    this.state = new State(
      () => this.redraw(),
      (text, isLasting) => this.#tell(text, isLasting),
    );
    this.route = parse(location.hash);
  }

  start() {
    const given = tokenOf(location.hash);
    if (given !== null) history.replaceState(null, "", format(this.route));
    addEventListener("hashchange", () => this.#moved());
    at("session").addEventListener("click", () => this.#session());
    at("skip").addEventListener("click", (event) => {
      event.preventDefault();
      at("main").focus();
    });
    setInterval(() => performance.now() - this.#drawn_ms > TICK_MS - 100 && this.redraw(), TICK_MS);
    this.state.follow(given?.trim() || this.state.token);
  }

  // -- addresses --

  #moved() {
    const given = tokenOf(location.hash);
    if (given !== null) {
      history.replaceState(null, "", format(this.route));
      this.state.follow(given.trim());
      return;
    }
    const before = this.route;
    this.route = parse(location.hash);
    if (before.view !== this.route.view || before.id !== this.route.id) {
      scrollTo(0, 0);
      at("main").focus({ preventScroll: true });
    }
    this.redraw();
  }

  // Changes parts of the query of this view, without an entry in the browser's history.
  amend = (query) => {
    this.route = { ...this.route, query: { ...this.route.query, ...query } };
    history.replaceState(null, "", format(this.route));
    this.redraw();
  };

  // -- drawing --

  redraw = () => {
    this.#title();
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#drawn_ms = performance.now();
      this.#draw();
    });
  };

  #title() {
    const { view } = this.state;
    if (view === null) return;
    const { gpus_held: held, gpus, waiting } = totalsOf(view);
    const title = `${held}/${gpus} GPUs${waiting ? `, ${waiting} waiting` : ""} – nodemgr`;
    if (document.title !== title) document.title = title;
  }

  #draw() {
    this.#header();
    const { view, scope } = this.state;
    if (view === null) return;
    const kind =
      scope !== "public" ? this.route.view : this.route.view === "now" ? "public" : "enter";
    const shown = this.#view(`${scope} ${kind}`, kind);
    if (shown !== this.#shown) {
      this.#shown?.leave?.();
      at("main").replaceChildren(shown.element);
      setAttribute(at("main"), "aria-label", shown.title);
      this.#shown = shown;
    }
    shown.draw(this.route);
  }

  #view(key, kind) {
    if (!this.#views.has(key)) this.#views.set(key, new MADE[kind](this));
    return this.#views.get(key);
  }

  #header() {
    const { session, scope, away, view } = this.state;
    for (const link of document.querySelectorAll("#nav a")) {
      const isHere = link.dataset.view === this.route.view;
      setAttribute(link, "aria-current", isHere && "page");
    }
    setHidden(at("nav"), scope === "public");
    setText(at("session"), scope === "public" ? "Enter token" : "Leave");
    const until = session?.expires ? ` until ${clock(session.expires, this.state.now())}` : "";
    const name = { admin: "admin", env: session?.env ?? "" }[scope] ?? "";
    setText(at("viewer"), name + until);
    const pulse = view === null && away === null ? "connecting" : away ? "away" : "live";
    setAttribute(at("pulse"), "class", `pulse ${pulse}`);
    setText(at("pulse-text"), pulse);
  }

  // -- the line about the manager --

  // null: the manager or the server is away. "": it is back.
  #tell(text, isLasting = false) {
    clearTimeout(this.#line);
    const { away } = this.state;
    const line = text ?? awayLine(away, this.state.now());
    setText(at("state"), line || "The page is live again.");
    setHidden(at("state"), false);
    setAttribute(at("state"), "class", line ? "state" : "state good");
    if (!line) this.#line = setTimeout(() => this.#clear(), SHOWN_MS);
    else if (text !== null && !isLasting) this.#line = setTimeout(() => this.#clear(), SHOWN_MS);
  }

  #clear() {
    setText(at("state"), "");
    setHidden(at("state"), true);
  }

  announce = (text) => this.#tell(text);

  // -- actions --

  #session() {
    if (this.state.scope === "public") this.enterToken();
    else {
      this.#clear();
      this.state.follow(null);
    }
  }

  enterToken = () => {
    const input = { id: "token", label: "Token", type: "password", spellcheck: "false" };
    ask({
      title: "Enter a token",
      body: [field({ ...input, hint: "nodemgr web token prints one. It is kept in this tab alone." })],
      action: "Enter",
      perform: async (form) => {
        const token = form.elements.token.value.trim();
        if (!token) {
          throw new Error("The field for the token is empty: paste the token that nodemgr web token has printed.");
        }
        await this.check(token);
        this.#clear();
        this.state.follow(token);
      },
    });
  };

  async check(token) {
    if (!/^[\x21-\x7e]+$/.test(token)) {
      throw new Error("This is no token: paste one of the form nmw-…, as nodemgr web token prints it.");
    }
    await get("api/session", token);
  }

  release = (row) => {
    const gpus = list(row.gpu_indices.map((index) => `GPU ${index}`));
    const what = `It holds ${gpus}. Its program goes on, but its next allocation there fails.`;
    const orders = ["api/release", [{ task: row.id }]];
    this.#act("Release", `task ${row.id}`, row, what, orders, `Task ${row.id} is released.`);
  };

  // Of a folded array the jobs of its row: others of the array may run.
  withdraw = (row) => {
    const id = row.folded ? jobName(row) : row.id;
    const isRunning = row.position === null && row.request === null && RUNS.has(row.state);
    const ended = "The running job is ended, for good.";
    const leaves = row.folded
      ? `${row.jobs} jobs leave the queue for good and lose their places.`
      : "It leaves the queue for good and loses its place.";
    const orders = (row.folded ?? [row.id]).map((job) => ({ job }));
    const what = isRunning ? ended : leaves;
    this.#act("Withdraw", id, row, what, ["api/withdraw", orders], `${id} is withdrawn.`);
  };

  // One order after the other; a second try goes on behind those that were carried out.
  async #act(action, name, row, what, [path, orders], done) {
    const isDone = await ask({
      title: `${action} ${name} of ${row.env}?`,
      body: [el("p", {}, told(row.command, { class: "command" })), el("p", {}, what)],
      action,
      isDanger: true,
      perform: async () => {
        for (; orders.length; orders.shift()) await post(path, this.state.token, orders[0]);
      },
    });
    if (isDone) this.announce(done);
  }
}

function awayLine(away, now) {
  const since = clock(away.since_s, now, true);
  return away.kind === "manager"
    ? `The manager is away since ${since}; running tasks go on: this page follows when it is back.`
    : `The page's server is away since ${since}: it is tried again every second.`;
}

new App().start();
