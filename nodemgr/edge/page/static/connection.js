// Requests to the page's server. Knows: HTTP, the token's header. Must not know: what is shown.

import { EventParser } from "./event_parser.js";

const RETRY_MS = 1000;
const BUSY_RETRY_MS = 10000;
const SILENT_MS = 40000; // the server sends a comment every 15 s

export class Refused extends Error {
  constructor(text, code) {
    super(text);
    this.code = code;
  }
}

async function refusal(answer) {
  try {
    const { error, code } = await answer.json();
    return new Refused(error, code);
  } catch {
    return new Refused(`the server answers with status ${answer.status}`, "internal");
  }
}

function headersOf(token) {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function checked(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the page's server does not answer; try again", "unreachable");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

export async function get(path, token, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => ![null, undefined, ""].includes(value));
  const text = new URLSearchParams(given).toString();
  const whole = text ? `${path}?${text}` : path;
  return (await checked(whole, { headers: headersOf(token), signal })).json();
}

export async function post(path, token, body) {
  const headers = { ...headersOf(token), "Content-Type": "application/json" };
  return (await checked(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

// Follows the events of one viewer until `close`.
export class Stream {
  #abort = new AbortController();

  // onEvent(name, data); onAway(error): the stream is lost and tried again.
  constructor(token, onEvent, onAway) {
    this.#follow(token, onEvent, onAway);
  }

  close() {
    this.#abort.abort();
  }

  async #follow(token, onEvent, onAway) {
    while (!this.#abort.signal.aborted) {
      let wait_ms = RETRY_MS;
      try {
        await this.#read(token, onEvent);
        if (!this.#abort.signal.aborted) {
          onAway(new Refused("the page's server has ended the stream", "unreachable"));
        }
      } catch (error) {
        if (this.#abort.signal.aborted) return;
        const isRefused = error instanceof Refused;
        onAway(isRefused ? error : new Refused("the stream is lost", "unreachable"));
        if (isRefused && ["viewers", "busy"].includes(error.code)) wait_ms = BUSY_RETRY_MS;
      }
      await new Promise((done) => setTimeout(done, wait_ms * (1 + Math.random() / 4)));
    }
  }

  async #read(token, onEvent) {
    const lost = new AbortController();
    const stop = () => lost.abort();
    this.#abort.signal.addEventListener("abort", stop);
    let silent = setTimeout(stop, SILENT_MS);
    try {
      const answer = await checked("events", { headers: headersOf(token), signal: lost.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || this.#abort.signal.aborted) return;
        clearTimeout(silent);
        silent = setTimeout(stop, SILENT_MS);
        for (const { name, data } of parser.push(value)) {
          if (!this.#abort.signal.aborted) onEvent(name, data);
        }
      }
    } finally {
      clearTimeout(silent);
      this.#abort.signal.removeEventListener("abort", stop);
    }
  }
}
