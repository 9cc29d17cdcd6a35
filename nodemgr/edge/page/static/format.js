// Values as text, and the colour of an environment. Pure: no document, no clock.

export const GIB = 2 ** 30;
export const NONE = "–";
// The states of jobs whose program runs, or is suspended.
export const RUNS = new Set(["running", "suspending", "suspended", "resuming"]);
const COLOURS = 12;
const SEED = 5905; // gives common names different colours
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86400;
// Controls, and marks that change the direction of the text around them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function known(value) {
  return value !== null && value !== undefined;
}

// A text of a user as one visible line.
export function visible(text) {
  return String(text ?? "").replace(
    UNSEEN,
    (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function gibNumber(bytes) {
  if (!known(bytes)) return NONE;
  const gib = bytes / GIB;
  return gib >= 100 || Number.isInteger(gib) ? gib.toFixed(0) : gib.toFixed(1);
}

export function gib(bytes) {
  if (!known(bytes)) return NONE;
  return bytes > 0 && bytes < GIB / 10 ? mib(bytes) : `${gibNumber(bytes)} GiB`;
}

function mib(bytes) {
  return `${Math.max(1, Math.round(bytes / 2 ** 20))} MiB`;
}

export function percent(value) {
  return known(value) ? `${Math.round(value)} %` : NONE;
}

export function celsius(value) {
  return known(value) ? `${Math.round(value)} °C` : NONE;
}

export function watts(value) {
  if (!known(value)) return NONE;
  return value >= 1000 ? `${(value / 1000).toFixed(2)} kW` : `${Math.round(value)} W`;
}

// A job's or a lease's run that began at `from`: measured by the node, or until now.
export function ran(row, from, now) {
  return row.ended === null ? duration(now - from) : duration(row.ran_seconds, row.ran_at_least);
}

// A measured time span in the form of format_span of client_plugin/verbs/presentation/units.py.
export function duration(seconds, atLeast = false) {
  if (!known(seconds)) return NONE;
  if (atLeast) return `at least ${duration(seconds)}`;
  const whole = Math.max(0, Math.floor(seconds));
  const days = Math.floor(whole / DAY_S);
  const hours = Math.floor((whole % DAY_S) / HOUR_S);
  const rest = `${pad(Math.floor((whole % HOUR_S) / MINUTE_S))}:${pad(whole % MINUTE_S)}`;
  return days ? `${days} d ${pad(hours)}:${rest}` : `${hours}:${rest}`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}

const ISO = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // 2026-11-28 09:05:00
const ZONE = new Intl.DateTimeFormat("en", { timeZoneName: "short" });

// The time of day in the browser's zone, without the zone: of the marks of an axis.
export function timeOfDay(epoch_s) {
  return ISO.format(epoch_s * 1000).slice(11, 16);
}

// The time of day with its zone, and with the date if it is not the day of `now`.
export function clock(epoch_s, now_s, withSeconds = false) {
  if (!known(epoch_s)) return NONE;
  const moment = new Date(epoch_s * 1000);
  const zone = ZONE.formatToParts(moment).find(({ type }) => type === "timeZoneName").value;
  const text = `${ISO.format(moment).slice(0, withSeconds ? 19 : 16)} ${zone}`;
  const today = ISO.format(now_s * 1000);
  const isKnown = [10, 4].find((length) => text.slice(0, length) === today.slice(0, length)) ?? -1;
  return text.slice(isKnown + 1); // without the date of today, or the year of today
}

export function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

export function list(values) {
  return values.length ? values.join(", ") : NONE;
}

// The same colour for a name on every page and day (FNV-1a): 0 to 11.
export function colourOf(name) {
  let hash = SEED;
  for (let at = 0; at < name.length; at += 1) {
    hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193) >>> 0;
  }
  return ((hash ^ (hash >>> 15)) >>> 0) % COLOURS;
}

// The GPUs that a request or a job asks for: a number or a range.
export function askedGpus(row) {
  return known(row.gpus_max) ? `${row.gpus_min}-${row.gpus_max}` : String(row.gpus);
}

// Those that a task holds; of an elastic one with its range.
export function heldGpus(row) {
  const range = `${row.gpus_min}-${row.gpus_max}`;
  const more = row.borrowed ? `, ${row.borrowed} borrowed` : "";
  const held = list(row.gpu_indices);
  return known(row.gpus_max) ? `${held} (${row.gpu_indices.length} of ${range}${more})` : held;
}

// The end of a job or attempt in one word.
export function outcome(row) {
  if (known(row.signal)) return `signal ${row.signal}`;
  return known(row.exit_code) ? `exit ${row.exit_code}` : NONE;
}

// Why a row waits, with its times in the browser's zone (client_plugin/messages/form.py).
export function reason(row, now_s) {
  const shown = (name, value) =>
    /_(minute|second)$/.test(name) ? clock(value, now_s, name.endsWith("_second")) : value;
  const filled = ([form, fields]) => form.replace(/\{(\w+)\}/g, (_, name) => shown(name, fields[name]));
  return row.clauses?.map(filled).join("; ") ?? row.reason ?? "";
}

export function expectedStart(row, now_s) {
  if (!known(row?.expected_start)) return NONE;
  const spread_s = row.expected_spread_seconds;
  const around = spread_s ? ` ± ${duration(spread_s)}` : "";
  return `~${clock(row.expected_start, now_s)}${around}`;
}

// With the class and the share of a task that is not plain: "running, best-effort 10 of 40 %".
export function taskState(row) {
  const asked = row.compute_percent ?? null;
  const isPaused = row.gate_reason === "paused" && row.state === "running";
  const words = [isPaused ? "paused: it used more than its share" : row.state];
  if (asked !== null) {
    const granted = row.compute_granted_percent ?? asked;
    words.push(`${row.class} ${granted < asked ? `${granted} of ` : ""}${Math.max(granted, asked)} %`);
  }
  return words.join(", ");
}
