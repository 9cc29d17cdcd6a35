// A view and its changes, as the stream brings them. Pure.

const ROW_KEYS = {
  gpus: ["uuid"],
  tasks: ["id"],
  envs: ["name"],
  queue: ["request", "id"],
  jobs: ["id"],
};

// Of a row of unreclaimed memory. Exported memory of an environment has no PID.
export function unreclaimedKey(row) {
  return `${row.env} ${row.pid} ${row.gpu_index}`;
}

export function keyOf(name, row) {
  const field = ROW_KEYS[name].find((key) => row[key] !== null && row[key] !== undefined);
  return String(row[field]);
}

const indices = new WeakMap(); // list -> key -> row

function indexOf(name, list) {
  let index = indices.get(list);
  if (!index) {
    index = new Map(list.map((row) => [keyOf(name, row), row]));
    indices.set(list, index);
  }
  return index;
}

// The view with the event `change` applied. A row that changes stays the same object, as does a
// list whose rows stay: a busy node has 800 rows that change each second.
export function merge(view, change) {
  const merged = { ...view, ...change.set, now: change.now };
  const parts = [change.rows, change.gone, change.order];
  const names = new Set(parts.flatMap((part) => Object.keys(part ?? {})));
  for (const name of names) merged[name] = mergeRows(name, view[name] ?? [], change);
  return merged;
}

function mergeRows(name, list, { rows = {}, gone = {}, order = {} }) {
  const index = indexOf(name, list);
  const added = [];
  for (const [key, fields] of Object.entries(rows[name] ?? {})) {
    const row = index.get(key);
    if (row) Object.assign(row, fields);
    else added.push([key, fields]);
  }
  if (!added.length && !gone[name] && !order[name]) return list;
  const found = new Map(index);
  for (const key of gone[name] ?? []) found.delete(key);
  for (const [key, fields] of added) found.set(key, fields);
  const keys = order[name] ?? [...found.keys()];
  const next = keys.filter((key) => found.has(key)).map((key) => found.get(key));
  indices.set(next, found);
  return next;
}

// The parts of one GPU's memory: [{env, granted, used}], with env null for the parts of others.
// `tasks`: the tasks that this viewer sees. A part's `used` is null where it is not known.
export function memoryParts(gpu, tasks) {
  const parts = new Map();
  for (const task of tasks) {
    const at = task.gpus.indexOf(gpu.uuid);
    if (at < 0) continue;
    const part = parts.get(task.env) ?? { env: task.env, granted: 0, used: 0 };
    if (!task.suspended)
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
  const sum = (field) => {
    const known = view.gpus.map((gpu) => gpu[field]).filter((figure) => figure !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) : null;
  };
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
    tasks: view.tasks.length,
    waiting: view.queue_length,
  };
}

function groupsOf(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return groups;
}

// Rows of equal `text`, at the place of the first of them: [{heading}, row, row, {heading}, …].
export function grouped(rows, text) {
  return [...groupsOf(rows, text)].flatMap(([heading, own]) => [{ heading }, ...own]);
}

// The rows of one array and state as one row, which counts their jobs; `folded` has their ids.
export function foldArrays(rows) {
  const array = (row) => (/[.]/.test(row.id) || row.indices ? row.id.split(".")[0] : null);
  const groups = groupsOf(rows, (row) => (array(row) ? `${array(row)} ${row.state}` : row));
  return [...groups.values()].map((own) => {
    if (own.length === 1) return own[0];
    const jobs = own.reduce((sum, row) => sum + (row.jobs ?? 1), 0);
    const job = array(own[0]);
    const clauses = own[0].clauses?.map(([form, fields]) => [form, { ...fields, entry: job }]);
    return { ...own[0], job, clauses, indices: "*", jobs, folded: own.map((row) => row.id) };
  });
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
