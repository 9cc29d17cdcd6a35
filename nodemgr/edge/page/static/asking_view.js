// A view that asks for what it shows. Knows: when it asks again. Must not know: what it shows.

import { Refused } from "./connection.js";

export class AskingView {
  #asked = null; // {name, at_s} of the last question
  #abort = null;

  constructor(app) {
    this.app = app;
  }

  leave() {
    this.#abort?.abort();
    this.#asked = null;
  }

  // `load(signal)` where another `name` is asked for, or the last answer is `due_s` old.
  ask(name, due_s, load) {
    const now_s = this.app.state.now();
    if (this.#asked?.name === name && now_s - this.#asked.at_s < due_s) return;
    this.#asked = { name, at_s: now_s };
    this.#abort?.abort();
    const { signal } = (this.#abort = new AbortController());
    load(signal).catch((error) => {
      if (signal.aborted || error.code === "away") return;
      if (!(error instanceof Refused)) throw error; // a fault of the page itself
      this.failed(error);
    });
  }

  failed(error) {
    this.app.announce(error.message);
  }
}
