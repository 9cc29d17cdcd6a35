// All that the page knows: the token, the viewer, the view, and whether the manager is there.

import { Stream, get } from "./connection.js";
import { merge } from "./merge.js";
import { LastHour } from "./gpus.js";

const KEY = "nodemgr-token";
const SAMPLES_S = 3600;

export class State {
  view = null;
  session = null; // {scope, env, token, expires}
  away = null; // {kind, text, since_s}
  lastHour = new LastHour();
  #stream = null;
  #ahead_s = 0; // of the manager's clock before the browser's
  #expected = new Map();
  #isRefused = false; // e.g. too many pages are open

  // onChange(): something is to be drawn. onState(text): one line about manager or token, "" if all
  // is well.
  constructor(onChange, onState) {
    this.onChange = onChange;
    this.onState = onState;
  }

  get token() {
    return sessionStorage.getItem(KEY);
  }

  get scope() {
    return this.view?.scope ?? (this.token ? null : "public");
  }

  // The manager's time, in seconds.
  now = () => Date.now() / 1000 + this.#ahead_s;

  expected = (row) => this.#expected.get(row.request ?? row.id);

  // Follows as the viewer of this token; null: without one.
  follow(token) {
    if (token === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, token);
    this.#stream?.close();
    this.view = null;
    this.session = null;
    this.#expected.clear();
    this.lastHour.clear();
    this.#stream = new Stream(
      token,
      (name, data) => this.#take(name, data),
      (error) => this.#lost(error),
    );
    this.onChange();
  }

  #take(name, data) {
    if (name === "manager") {
      if (data.state === "away") this.#isAway("manager");
      return;
    }
    if (name === "token") {
      this.#tokenEnded(data.error);
      return;
    }
    if (name === "snapshot") {
      this.view = data;
      if (this.away !== null || this.#isRefused) this.onState("");
      this.away = null;
      this.#isRefused = false;
      if (this.session === null) this.#begin();
    } else if (name === "change" && this.view !== null) this.view = merge(this.view, data);
    this.#ahead_s = this.view.now - Date.now() / 1000;
    this.lastHour.add(this.view);
    this.onChange();
  }

  #begin() {
    this.session = { scope: this.view.scope, env: null, token: null, expires: null };
    if (this.token === null) return;
    this.ask("api/session").then((session) => {
      this.session = session;
      this.onChange();
    }, ignored);
    const since = Math.floor(this.now() - SAMPLES_S);
    this.ask("api/samples", { since }).then((samples) => {
      this.lastHour.fill(samples);
      this.onChange();
    }, ignored);
  }

  #lost(error) {
    if (error.code === "token") this.#tokenEnded(error.message);
    else if (error.code === "away") this.#isAway("manager");
    else if (error.code === "unreachable") this.#isAway("server");
    else {
      this.#isRefused = true;
      this.onState(error.message, true);
    }
  }

  #isAway(kind) {
    if (this.away?.kind === kind) return;
    this.away = { kind, since_s: this.away?.since_s ?? this.now() };
    this.onChange();
    this.onState(null);
  }

  #tokenEnded(text) {
    this.away = null;
    this.follow(null);
    this.onState(text, true);
  }

  // The answer to a question about the past or the queue. Raises Refused.
  async ask(path, query, signal) {
    return get(path, this.token, query, signal);
  }

  async refreshExpected() {
    const { queue, after } = await this.ask("api/queue", { limit: 200 });
    this.inCluster = String(after).startsWith("cluster:");
    this.#expected = new Map(queue.map((row) => [row.request ?? row.id, row]));
    this.onChange();
  }
}

// Where one of these fails, the stream fails too, and reports it.
function ignored() {}
