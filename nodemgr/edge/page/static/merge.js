// A view and its changes, as the stream brings them. Pure.

const ROW_KEYS = {
  gpus: ["uuid"],
  tasks: ["id"],
  envs: ["name"],
  queue: ["request", "id"],
  jobs: ["id"],
};

export function keyOf(name, row) {
  const field = ROW_KEYS[name].find((key) => row[key] !== null && row[key] !== undefined);
  return String(row[field]);
}

// The view with the event `change` applied. Lists and rows without a change stay the same objects.
export function merge(view, change) {
  const merged = { ...view, ...change.set, now: change.now };
  const parts = [change.rows, change.gone, change.order];
  const names = new Set(parts.flatMap((part) => Object.keys(part ?? {})));
  for (const name of names) {
    const rows = new Map((view[name] ?? []).map((row) => [keyOf(name, row), row]));
    for (const key of change.gone?.[name] ?? []) rows.delete(key);
    for (const [key, fields] of Object.entries(change.rows?.[name] ?? {})) {
      rows.set(key, { ...rows.get(key), ...fields });
    }
    const order = change.order?.[name] ?? [...rows.keys()];
    merged[name] = order.map((key) => rows.get(key)).filter((row) => row !== undefined);
  }
  return merged;
}

// The parts of one GPU's memory: [{env, granted, used}], with env null for the parts of others.
// `tasks`: the tasks that this viewer sees. A part's `used` is null where it is not known.
export function memoryParts(gpu, tasks) {
  const parts = new Map();
  for (const task of tasks) {
    const at = task.gpus.indexOf(gpu.uuid);
    if (at < 0) continue;
    const part = parts.get(task.env) ?? { env: task.env, granted: 0, used: 0 };
    part.granted = Math.max(part.granted, task.memory_limit_bytes?.[at] ?? 0);
    const used = task.gpu_memory_bytes?.[at];
    part.used = used === null || used === undefined || part.used === null ? null : part.used + used;
    parts.set(task.env, part);
  }
  const found = [...parts.values()].sort((a, b) => (a.env < b.env ? -1 : 1));
  const granted = found.reduce((sum, part) => sum + part.granted, 0);
  const others = gpu.memory_granted_bytes - granted;
  if (others > 0) {
    const used = found.reduce((sum, part) => sum + (part.used ?? 0), 0);
    const rest = gpu.memory_used_bytes === null ? null : Math.max(0, gpu.memory_used_bytes - used);
    found.push({ env: null, granted: others, used: rest === null ? null : Math.min(rest, others) });
  }
  return found;
}

// GPUs and tasks of the whole view in a few numbers, in the form of the public totals.
export function totalsOf(view) {
  if (view.totals) return view.totals;
  const sum = (field) =>
    view.gpus.reduce((total, gpu) => (gpu[field] === null ? total : (total ?? 0) + gpu[field]), null);
  const busy = view.gpus.map((gpu) => gpu.utilization_percent).filter((use) => use !== null);
  return {
    gpus: view.gpus.length,
    gpus_healthy: view.gpus.filter((gpu) => gpu.state === "healthy").length,
    gpus_held: view.gpus.filter((gpu) => gpu.tasks > 0).length,
    memory_total_bytes: sum("memory_total_bytes"),
    memory_granted_bytes: sum("memory_granted_bytes"),
    memory_used_bytes: sum("memory_used_bytes"),
    power_w: sum("power_w"),
    utilization_percent: busy.length ? busy.reduce((a, b) => a + b, 0) / busy.length : null,
    tasks: view.scope === "admin" ? view.tasks.length : view.gpus.reduce((n, g) => n + g.tasks, 0),
    waiting: view.queue_length,
  };
}

// Rows that hold every word of `find`, in the order of `sort` ("name" or "-name" of a column).
export function arrange(rows, columns, { find = "", sort = "" }) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = columns.filter((column) => column.text);
  let found = rows;
  if (words.length) {
    found = rows.filter((row) => {
      const whole = texts.map((column) => column.text(row)).join(" ").toLowerCase();
      return words.every((word) => whole.includes(word));
    });
  }
  const falling = sort.startsWith("-");
  const column = columns.find((one) => one.id === sort.slice(falling ? 1 : 0));
  if (!column) return found;
  const value = column.value ?? column.text;
  const keyed = found.map((row, at) => [value(row), at, row]);
  keyed.sort(([a, i], [b, j]) => compare(a, b, falling) || i - j);
  return keyed.map(([, , row]) => row);
}

// Unknown values come last in both directions.
function compare(a, b, falling) {
  const noA = a === null || a === undefined;
  const noB = b === null || b === undefined;
  if (noA || noB) return Number(noA) - Number(noB);
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return falling ? -order : order;
}
