// The columns of each list. Knows: the fields of rows. Must not know: where the rows come from.

import { el, envName, setStyle, setText, told } from "./dom.js";
import {
  NONE, askedGpus, celsius, clock, count, duration, expectedStart, gib, gibNumber, heldGpus, list,
  outcome, percent, ran, taskState, visible, watts,
} from "./format.js";
import { format } from "./routes.js";

export function column(id, label, text, more = {}) {
  return { id, label, text, ...more };
}

// Without `value` it is sorted by its text.
export function number(id, label, text, value = undefined, more = {}) {
  return column(id, label, text, { numeric: true, ...(value && { value }), ...more });
}

// A field as text.
export function figure(id, label, text, field, minor = undefined) {
  return number(id, label, (row) => text(row[field]), (row) => row[field], { minor });
}

export const env = column("env", "Env", (row) => row.env, {
  draw: (cell, row) => cell.replaceChildren(envName(row.env)),
});

export const command = column("command", "Command", (row) => row.command ?? "", {
  wide: true,
  draw: (cell, row) => {
    const text = row.name ? `${row.name}: ${row.command ?? ""}` : (row.command ?? "");
    cell.replaceChildren(told(text, { class: "command", title: visible(text) }));
  },
});

// What a task may use on each GPU: the limit of its environment, or what it named for itself.
function limits(row) {
  const isOwn = !row.transports?.includes("udp");
  const own = isOwn ? (row.memory_max_bytes ?? row.memory_named_bytes) : null;
  return (row.memory_limit_bytes ?? []).map((limit) => Math.min(limit, own ?? limit));
}

export function jobLink(id, name = id) {
  return id ? el("a", { href: format({ view: "jobs", id }) }, name) : NONE;
}

// Those of an array that wait together are one row. A job on another node of the cluster names it.
export function jobName(row) {
  const name = row.indices ? `${row.job} (${row.jobs} jobs)` : row.id;
  return row.node ? `${name} on ${row.node}` : name;
}

function link(id, label, of) {
  const draw = (cell, row) => cell.replaceChildren(jobLink(of(row)));
  return column(id, label, (row) => of(row) ?? "", { draw });
}

// A number with a small bar; the bar repeats the text.
function drawMeter(cell, text, share) {
  if (!cell.meter) {
    cell.words = el("span");
    cell.meter = el("span", { class: "meter-fill" });
    const bar = el("span", { class: "meter", "aria-hidden": "true" }, cell.meter);
    cell.replaceChildren(cell.words, bar);
  }
  setText(cell.words, text);
  setStyle(cell.meter, "width", `${Math.round(100 * Math.min(1, share ?? 0))}%`);
}

export const use = {
  ...figure("use", "Use", percent, "utilization_percent"),
  draw: (cell, row) => {
    drawMeter(cell, percent(row.utilization_percent), (row.utilization_percent ?? 0) / 100);
  },
};

function idle(row) {
  if (row.idle_seconds === null || row.idle_seconds === undefined) return NONE;
  return `${row.idle_source === "nvml_at_least" ? "> " : ""}${duration(row.idle_seconds)}`;
}

function container(row) {
  const found = (row.places ?? []).map((place) => place.container_name || place.container);
  return [...new Set(found.filter(Boolean))].join(", ");
}

function who(row) {
  const where = container(row);
  return list(row.users ?? []) + (where ? ` @ ${where}` : "");
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// `now`: () => the manager's time.
export function taskColumns(now) {
  return [
    column("id", "Task", (row) => row.id),
    env,
    column("who", "User", who, { minor: 1 }),
    column("gpus", "GPUs", heldGpus),
    use,
    number(
      "memory",
      "GPU memory",
      (row) => `${gibNumber(row.memory_bytes)} / ${gib(sum(limits(row)))}`,
      (row) => row.memory_bytes,
    ),
    number("idle", "Idle", idle, (row) => row.idle_seconds),
    number("age", "Age", (row) => duration(now() - row.since), (row) => -row.since),
    figure("cpu", "CPU", percent, "host_cpu_percent", 2),
    figure("host", "Host mem.", gib, "host_memory_bytes", 2),
    { ...link("job", "Job", (row) => row.job), minor: 2 },
    column("state", "State", taskState, { minor: 1 }),
    command,
  ];
}

// Of a job that runs, or of a start of it.
export const hostUse = [
  figure("cpu", "CPU time", duration, "cpu_seconds", 1),
  figure("host", "Most host mem.", gib, "host_peak_bytes", 2),
  figure("read", "Read", gib, "read_bytes", 2),
  figure("written", "Written", gib, "written_bytes", 2),
];

// `expected`: request or id -> the row with its expected start.
export function queueColumns(now, expected) {
  return [
    figure("position", "Place", (place) => (place === null ? NONE : String(place)), "position"),
    column("id", "Id", jobName, {
      draw: (cell, row) => cell.replaceChildren(row.job ? jobLink(row.job, jobName(row)) : row.id),
    }),
    env,
    column("who", "User", who, { minor: 1 }),
    number("gpus", "GPUs", askedGpus, (row) => row.gpus),
    column("queue", "Queue", (row) => row.priority, { minor: 2 }),
    number("waits", "Waits", (row) => duration(now() - row.since), (row) => -row.since),
    column("start", "Expected start", (row) => expectedStart(expected(row), now()), {
      value: (row) => expected(row)?.expected_start ?? null,
    }),
    command,
  ];
}

const user = column("who", "User", (row) => row.user ?? NONE, { minor: 1 });
const waited = number("waited", "Waited", (row) => duration(row.waited_seconds, row.waited_at_least));
waited.minor = 2;
const why = (label) => column("why", label, (row) => row.why ?? "", { minor: 1 });

export function historyColumns(now) {
  return [
    link("job", "Job", (row) => row.job),
    env,
    user,
    column("state", "State", (row) => row.state),
    column("end", "Exit", outcome),
    number("gpus", "GPUs", askedGpus),
    column("ended", "Ended", (row) => clock(row.ended, now())),
    number("took", "Ran", (row) => duration(row.ran_seconds, row.ran_at_least)),
    waited,
    figure("restarts", "Restarts", String, "restarts", 2),
    why("Why"),
    command,
  ];
}

export function leaseColumns(now) {
  return [
    column("task", "Task", (row) => row.task),
    { ...link("job", "Job", (row) => row.job ?? null), minor: 2 },
    env,
    user,
    column("gpus", "GPUs", (row) => list(row.gpu_indices.map((index) => index ?? "lost"))),
    column("began", "Began", (row) => clock(row.began, now())),
    column("ended", "Ended", (row) => (row.ended === null ? "holds" : clock(row.ended, now()))),
    number("took", "Held", (row) => ran(row, row.began, now())),
    waited,
    why("End"),
    command,
  ];
}

const gpu = column("gpu", "GPU", (row) => String(row.gpu_index));
const pid = number("pid", "PID", (row) => String(row.pid ?? NONE));

export const VIOLATIONS = [
  env,
  gpu,
  pid,
  figure("used", "Uses", gib, "memory_bytes"),
  figure("allowed", "May use", gib, "allowed_bytes"),
  column("offence", "Offence", (row) => String(row.offence).replaceAll("_", " ")),
  command,
];

export const UNRECLAIMED = [env, gpu, pid, figure("used", "Still holds", gib, "memory_bytes")];

export function gpuFacts(gpu) {
  const figures = [celsius(gpu.temperature_c), watts(gpu.power_w)].filter((text) => text !== NONE);
  const use = gpu.tasks ? count(gpu.tasks, "task") : gpu.drained ? "no task" : "free";
  const failed = gpu.failures ? [count(gpu.failures, "failure")] : [];
  return [...figures, use, ...failed, ...(gpu.drained ? ["drained"] : [])];
}
