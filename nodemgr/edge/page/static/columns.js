// The columns of each list. Knows: the fields of rows. Must not know: where the rows come from.

import { el, envName, setStyle, setText, told } from "./dom.js";
import {
  NONE,
  askedGpus,
  celsius,
  clock,
  count,
  duration,
  expectedStart,
  gib,
  gibNumber,
  heldGpus,
  list,
  outcome,
  percent,
  ran,
  reason,
  taskState,
  visible,
  watts,
} from "./format.js";
import { format } from "./routes.js";

export const env = {
  id: "env",
  label: "Env",
  text: (row) => row.env,
  draw: (cell, row) => cell.replaceChildren(envName(row.env)),
};

export const command = {
  id: "command",
  label: "Command",
  wide: true,
  text: (row) => row.command ?? "",
  draw: (cell, row) => {
    const text = row.name ? `${row.name}: ${row.command ?? ""}` : (row.command ?? "");
    cell.replaceChildren(told(text, { class: "command", title: visible(text) }));
  },
};

// What a task may use on each GPU: the limit of its environment, or what it named for itself.
function limits(row) {
  const own = row.transports?.includes("udp")
    ? null
    : (row.memory_max_bytes ?? row.memory_named_bytes);
  return (row.memory_limit_bytes ?? []).map((limit) => Math.min(limit, own ?? limit));
}

export function jobLink(id, name = id) {
  return id ? el("a", { href: format({ view: "jobs", id }) }, name) : NONE;
}

// Those of an array that wait together are one row.
export function jobName(row) {
  return row.indices ? `${row.job} (${row.jobs} jobs)` : row.id;
}

function link(id, label, of) {
  return {
    id,
    label,
    text: (row) => of(row) ?? "",
    draw: (cell, row) => cell.replaceChildren(jobLink(of(row))),
  };
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
  id: "use",
  label: "Use",
  numeric: true,
  text: (row) => percent(row.utilization_percent),
  value: (row) => row.utilization_percent,
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
    { id: "id", label: "Task", text: (row) => row.id },
    env,
    { id: "who", label: "User", minor: 1, text: who },
    { id: "gpus", label: "GPUs", text: heldGpus },
    use,
    {
      id: "memory",
      label: "GPU memory",
      numeric: true,
      text: (row) => `${gibNumber(row.memory_bytes)} / ${gib(sum(limits(row)))}`,
      value: (row) => row.memory_bytes,
    },
    { id: "idle", label: "Idle", numeric: true, text: idle, value: (row) => row.idle_seconds },
    {
      id: "age",
      label: "Age",
      numeric: true,
      text: (row) => duration(now() - row.since),
      value: (row) => -row.since,
    },
    {
      id: "cpu",
      label: "CPU",
      numeric: true,
      minor: 2,
      text: (row) => percent(row.host_cpu_percent),
      value: (row) => row.host_cpu_percent,
    },
    {
      id: "host",
      label: "Host mem.",
      numeric: true,
      minor: 2,
      text: (row) => gib(row.host_memory_bytes),
      value: (row) => row.host_memory_bytes,
    },
    { ...link("job", "Job", (row) => row.job), minor: 2 },
    { id: "state", label: "State", minor: 1, text: taskState },
    command,
  ];
}

// `expected`: request or id -> the row with its expected start.
export function queueColumns(now, expected) {
  return [
    {
      id: "position",
      label: "Place",
      numeric: true,
      text: (row) => (row.position === null ? NONE : String(row.position)),
      value: (row) => row.position,
    },
    {
      id: "id",
      label: "Id",
      text: jobName,
      draw: (cell, row) =>
        cell.replaceChildren(row.job ? jobLink(row.job, jobName(row)) : row.id),
    },
    env,
    { id: "who", label: "User", minor: 1, text: who },
    {
      id: "gpus",
      label: "GPUs",
      numeric: true,
      text: askedGpus,
      value: (row) => row.gpus,
    },
    { id: "queue", label: "Queue", minor: 2, text: (row) => row.priority },
    {
      id: "waits",
      label: "Waits",
      numeric: true,
      text: (row) => duration(now() - row.since),
      value: (row) => -row.since,
    },
    {
      id: "start",
      label: "Expected start",
      text: (row) => expectedStart(expected(row), now()),
      value: (row) => expected(row)?.expected_start ?? null,
    },
    {
      id: "reason",
      label: "Why it waits",
      wide: true,
      text: reason,
      draw: (cell, row) => {
        const text = reason(row);
        cell.replaceChildren(told(text, { title: visible(text) }));
      },
    },
    command,
  ];
}

export function historyColumns(now) {
  return [
    link("job", "Job", (row) => row.job),
    env,
    { id: "who", label: "User", minor: 1, text: (row) => row.user ?? NONE },
    { id: "state", label: "State", text: (row) => row.state },
    { id: "end", label: "Exit", text: outcome },
    { id: "gpus", label: "GPUs", numeric: true, text: askedGpus },
    { id: "ended", label: "Ended", text: (row) => clock(row.ended, now()) },
    {
      id: "took",
      label: "Ran",
      numeric: true,
      text: (row) => duration(row.ran_seconds, row.ran_at_least),
    },
    {
      id: "waited",
      label: "Waited",
      numeric: true,
      minor: 2,
      text: (row) => duration(row.waited_seconds, row.waited_at_least),
    },
    {
      id: "restarts",
      label: "Restarts",
      numeric: true,
      minor: 2,
      text: (row) => String(row.restarts),
    },
    { id: "why", label: "Why", minor: 1, text: (row) => row.why ?? "" },
    command,
  ];
}

export function leaseColumns(now) {
  return [
    { id: "task", label: "Task", text: (row) => row.task },
    { ...link("job", "Job", (row) => row.job ?? null), minor: 2 },
    env,
    { id: "who", label: "User", minor: 1, text: (row) => row.user ?? NONE },
    {
      id: "gpus",
      label: "GPUs",
      text: (row) => list(row.gpu_indices.map((index) => index ?? "lost")),
    },
    { id: "began", label: "Began", text: (row) => clock(row.began, now()) },
    {
      id: "ended",
      label: "Ended",
      text: (row) => (row.ended === null ? "holds" : clock(row.ended, now())),
    },
    {
      id: "took",
      label: "Held",
      numeric: true,
      text: (row) => ran(row, row.began, now()),
    },
    {
      id: "waited",
      label: "Waited",
      numeric: true,
      minor: 2,
      text: (row) => duration(row.waited_seconds, row.waited_at_least),
    },
    { id: "why", label: "End", minor: 1, text: (row) => row.why ?? "" },
    command,
  ];
}

export const VIOLATIONS = [
  env,
  { id: "gpu", label: "GPU", text: (row) => String(row.gpu_index) },
  { id: "pid", label: "PID", numeric: true, text: (row) => String(row.pid) },
  { id: "used", label: "Uses", numeric: true, text: (row) => gib(row.memory_bytes) },
  { id: "allowed", label: "May use", numeric: true, text: (row) => gib(row.allowed_bytes) },
  { id: "offence", label: "Offence", text: (row) => String(row.offence).replaceAll("_", " ") },
  command,
];

export const UNRECLAIMED = [
  env,
  { id: "gpu", label: "GPU", text: (row) => String(row.gpu_index) },
  { id: "pid", label: "PID", numeric: true, text: (row) => String(row.pid ?? NONE) },
  { id: "used", label: "Still holds", numeric: true, text: (row) => gib(row.memory_bytes) },
];

export function gpuFacts(gpu) {
  const figures = [celsius(gpu.temperature_c), watts(gpu.power_w)].filter((text) => text !== NONE);
  const use = gpu.tasks ? count(gpu.tasks, "task") : gpu.drained ? "no task" : "free";
  const failed = gpu.failures ? [count(gpu.failures, "failure")] : [];
  return [...figures, use, ...failed, ...(gpu.drained ? ["drained"] : [])];
}
