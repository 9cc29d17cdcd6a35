// The addresses within the page: #/view/id?query. Pure. A token is in none of them.

export const VIEWS = ["now", "tasks", "queue", "timeline", "history", "quotas", "jobs"];
const QUERY = {
  now: ["find", "sort"],
  tasks: ["find", "sort", "page"],
  queue: ["find", "sort", "page"],
  timeline: ["hours", "until", "env"],
  history: ["env", "before"],
  quotas: ["sort"],
  jobs: [],
};
const ID = /^[A-Za-z0-9.]{1,64}$/;
const MAX_LENGTH = 200;

export const START = Object.freeze({ view: "now", id: null, query: Object.freeze({}) });

// The route of a fragment; the start for one that is unknown.
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split("?", 2);
  const [view = "now", id = null, ...rest] = path.split("/").filter(Boolean);
  const isKnown = VIEWS.includes(view) && rest.length === 0;
  if (!isKnown || (view === "jobs") !== (id !== null) || (id !== null && !ID.test(id))) {
    return START;
  }
  const given = new URLSearchParams(query);
  const kept = QUERY[view].filter((name) => given.get(name)?.trim());
  const pairs = kept.map((name) => [name, given.get(name).slice(0, MAX_LENGTH)]);
  return { view, id, query: Object.fromEntries(pairs) };
}

export function format({ view, id = null, query = {} }) {
  const named = (QUERY[view] ?? [])
    .filter((name) => ![undefined, null, ""].includes(query[name]))
    .map((name) => `${name}=${encodeURIComponent(query[name])}`);
  const path = view === "now" ? "" : id === null ? view : `${view}/${id}`;
  return `#/${path}${named.length ? `?${named.join("&")}` : ""}`;
}

// A whole number of a query within its bounds, else the one that is meant without it.
export function whole(text, least, most, otherwise) {
  const number = /^[0-9]{1,12}$/.test(text ?? "") ? Number(text) : otherwise;
  return number === null ? null : Math.min(most, Math.max(least, number));
}

// The token of a fragment like #token=nmw-w1-…, else null.
export function tokenOf(fragment) {
  return /^#?token=/.test(fragment)
    ? new URLSearchParams(fragment.replace(/^#/, "")).get("token")
    : null;
}
