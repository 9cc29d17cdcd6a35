// The page: follows the events of one scope and shows them. All texts are set by textContent.
"use strict";

const KEY = "nodemgr-token";
const ROW_KEYS = { gpus: ["uuid"], tasks: ["id"], envs: ["name"], queue: ["request", "id"], jobs: ["id"] };
const GIB = 2 ** 30;
const RETRY_MS = 1000;
let view = null;
let reading = null; // of the stream that is open

function token() {
  return sessionStorage.getItem(KEY);
}

function headers() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

// -- the stream --

async function follow() {
  const mine = new AbortController();
  reading?.abort();
  reading = mine;
  while (!mine.signal.aborted) {
    try {
      const answer = await fetch("events", { headers: headers(), signal: mine.signal, cache: "no-store" });
      if (answer.ok) {
        await read(answer.body, mine);
      } else {
        refused(await answer.json());
      }
    } catch {
      if (!mine.signal.aborted) say("the page's server is away; it is tried again");
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

async function read(body, mine) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || mine.signal.aborted) return;
    const parts = (unread + value).split("\n\n");
    unread = parts.pop();
    parts.forEach(take);
  }
}

function take(part) {
  const fields = Object.fromEntries(
    part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
  if (!fields.event) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "snapshot") {
    view = data;
    say("");
  } else if (fields.event === "change") {
    merge(data);
  } else if (fields.event === "manager") {
    say(data.state === "away" ? "manager away: running tasks go on" : "");
    return;
  } else if (fields.event === "token") {
    refused(data);
    return;
  }
  show();
}

function refused(data) {
  say(data.error);
  if (data.code === "token") leave();
}

function keyOf(name, row) {
  return String(row[ROW_KEYS[name].find((key) => row[key] != null)]);
}

function merge(change) {
  view.now = change.now;
  Object.assign(view, change.set);
  const names = new Set([change.rows, change.gone, change.order].flatMap((part) => Object.keys(part ?? {})));
  for (const name of names) {
    const rows = new Map(view[name].map((row) => [keyOf(name, row), row]));
    for (const key of change.gone?.[name] ?? []) rows.delete(key);
    for (const [key, fields] of Object.entries(change.rows?.[name] ?? {}))
      rows.set(key, { ...rows.get(key), ...fields });
    view[name] = (change.order?.[name] ?? [...rows.keys()]).map((key) => rows.get(key));
  }
}

// -- the token --

function enter(text) {
  sessionStorage.setItem(KEY, text);
  view = null;
  follow();
}

function leave() {
  sessionStorage.removeItem(KEY);
  view = null;
  follow();
}

// -- what is shown --

function say(text) {
  document.getElementById("state").textContent = text;
}

function gib(bytes) {
  return bytes == null ? "" : `${(bytes / GIB).toFixed(1)} GiB`;
}

function age(seconds) {
  if (seconds == null) return "";
  const since = Math.max(0, Math.round(view.now - seconds));
  return since < 120 ? `${since} s` : since < 7200 ? `${Math.floor(since / 60)} min` : `${Math.floor(since / 3600)} h`;
}

const COLUMNS = {
  GPUs: ["gpus", {
    GPU: (gpu) => gpu.index, Name: (gpu) => gpu.name, Used: (gpu) => gib(gpu.memory_used_bytes),
    Granted: (gpu) => gib(gpu.memory_granted_bytes), Memory: (gpu) => gib(gpu.memory_total_bytes),
    Use: (gpu) => (gpu.utilization_percent == null ? "" : `${gpu.utilization_percent} %`),
    Tasks: (gpu) => gpu.tasks, Environments: (gpu) => gpu.envs.join(", "), State: (gpu) => gpu.state }],
  Tasks: ["tasks", {
    Task: (task) => task.id, Environment: (task) => task.env, Users: (task) => task.users.join(", "),
    GPUs: (task) => task.gpu_indices.join(", "), Since: (task) => age(task.since), State: (task) => task.state,
    Command: (task) => task.command }],
  Queue: ["queue", {
    Id: (row) => row.id, Environment: (row) => row.env, GPUs: (row) => row.gpus, Queue: (row) => row.priority,
    Place: (row) => row.position ?? "", Since: (row) => age(row.since), Why: (row) => row.reason,
    Command: (row) => row.command }],
  Queues: ["queues", { Queue: (row) => row.name, Waiting: (row) => row.length }],
};

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function table(title, rows, columns) {
  const head = element("tr", ...Object.keys(columns).map((name) => {
    const cell = element("th", name);
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map((row) => element("tr", ...Object.values(columns).map((of) => {
    const cell = document.createElement("td");
    cell.className = "text";
    cell.dir = "auto";
    cell.textContent = String(of(row) ?? "");
    return cell;
  })));
  const scroll = element("div", element("table", element("thead", head), element("tbody", ...body)));
  scroll.className = "scroll";
  return element("section", element("h2", title), scroll);
}

function totals(told) {
  const line = `${told.gpus_held} of ${told.gpus} GPUs held, ${told.gpus - told.gpus_healthy} ill; ` +
    `${gib(told.memory_used_bytes)} used, ${gib(told.memory_granted_bytes)} granted of ` +
    `${gib(told.memory_total_bytes)}; ${told.tasks} tasks, ${told.waiting} waiting`;
  return element("p", line);
}

function show() {
  const parts = view.totals ? [totals(view.totals)] : [];
  for (const [title, [name, columns]] of Object.entries(COLUMNS))
    if (view[name]) parts.push(table(title, view[name], columns));
  document.getElementById("main").replaceChildren(...parts);
  document.getElementById("leave").hidden = !token();
}

// -- start --

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", location.pathname + location.search);
  sessionStorage.setItem(KEY, given);
}
document.getElementById("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  enter(field.value.trim());
  field.value = "";
});
document.getElementById("leave").addEventListener("click", leave);
follow();
