// The GPUs: a card each, with use, memory by environment, temperature, power and the last hour.

import {
  Keyed, copyOf, el, envClass, envName, partsOf, setAttribute, setHidden, setStyle, setText,
} from "./dom.js";
import { gib, gibNumber, percent, visible } from "./format.js";
import { gpuFacts } from "./columns.js";
import { memoryParts } from "./merge.js";

const HOUR_S = 3600;
const POINT_S = 20; // between two points of the line of the last hour
const LEAST_S = 600; // what the line spans at first
const GAP_S = 150;
const WIDTH = 120; // and height, of the view box of the template "gpu" in index.html
const HEIGHT = 24;

// The use of each GPU in the last hour, from the samples and from the stream.
export class LastHour {
  #points = new Map(); // uuid -> [[epoch s, percent]]
  version = 0;

  add(view) {
    for (const gpu of view.gpus ?? []) {
      const points = this.#points.get(gpu.uuid) ?? [];
      const last = points.at(-1);
      if (gpu.utilization_percent === null || (last && view.now - last[0] < POINT_S)) continue;
      points.push([view.now, gpu.utilization_percent]);
      while (points[0][0] < view.now - HOUR_S) points.shift();
      this.#points.set(gpu.uuid, points);
      this.version += 1;
    }
  }

  // The samples of `api/samples`: means of buckets of step_s seconds.
  fill({ since, step_s, gpus }) {
    for (const [uuid, { utilization_percent: means }] of Object.entries(gpus)) {
      const own = this.#points.get(uuid) ?? [];
      const first = own[0]?.[0] ?? Infinity;
      const past = means.map((mean, at) => [since + at * step_s, mean]);
      const known = past.filter(([time, mean]) => mean !== null && time + step_s < first);
      this.#points.set(uuid, [...known, ...own]);
    }
    this.version += 1;
  }

  clear() {
    this.#points.clear();
  }

  // The line as the path of an SVG, WIDTH wide, of at most an hour. It has a gap where nothing was
  // read for a while.
  path(uuid, now) {
    const points = this.#points.get(uuid) ?? [];
    if (points.length < 3) return "";
    const span = Math.min(HOUR_S, Math.max(LEAST_S, now - (points[0]?.[0] ?? now)));
    let text = "";
    let before = -Infinity;
    for (const [time, use] of points) {
      if (time < now - span) continue;
      const x = (WIDTH * (1 - (now - time) / span)).toFixed(1);
      const y = (HEIGHT - 1 - ((HEIGHT - 2) * use) / 100).toFixed(1);
      text += `${time - before > GAP_S ? "M" : "L"}${x} ${y}`;
      before = time;
    }
    return now - before > GAP_S ? text : `${text}H${WIDTH}`;
  }
}

export class GpuGrid {
  constructor(lastHour) {
    this.lastHour = lastHour;
    this.list = el("ul", { class: "gpus" });
    this.number = el("span", { class: "count" });
    const heading = el("h2", { id: "gpus-title" }, "GPUs");
    const head = el("div", { class: "section-head" }, heading, this.number);
    this.element = el("section", { "aria-labelledby": "gpus-title" }, head, this.list);
    this.keyed = new Keyed(this.list, card, (element, gpu) => this.#fill(element.card, gpu));
  }

  draw(view) {
    this.view = view;
    this.tasks = new Map(view.gpus.map((gpu) => [gpu.uuid, []]));
    for (const task of view.tasks) for (const uuid of task.gpus) this.tasks.get(uuid)?.push(task);
    this.keyed.draw(view.gpus, (gpu) => gpu.uuid);
    setText(this.number, String(view.gpus.length));
    setStyle(this.list, "--across", String(across(view.gpus.length)));
  }

  #fill(parts, gpu) {
    const isLost = gpu.state !== "healthy";
    setText(parts.title, `GPU ${gpu.index}`);
    setText(parts.name, visible(gpu.name));
    const isDrained = Boolean(gpu.drained) && !isLost;
    const use = isDrained && !gpu.tasks ? "drained" : percent(gpu.utilization_percent);
    setText(parts.use, isLost ? "lost" : use);
    const look = isLost ? "gpu lost" : isDrained ? "gpu drained" : gpu.tasks ? "gpu" : "gpu free";
    setAttribute(parts.element, "class", look);
    setText(parts.facts, gpuFacts(gpu).join(" · "));
    setText(parts.warning, visible(gpu.warning));
    setHidden(parts.warning, !gpu.warning);
    this.#memory(parts, gpu);
    if (parts.version !== this.lastHour.version) {
      parts.version = this.lastHour.version;
      const path = this.lastHour.path(gpu.uuid, this.view.now);
      setAttribute(parts.line, "d", path);
      setAttribute(parts.spark, "hidden", path === "" && "");
    }
  }

  #memory(parts, gpu) {
    const total = gpu.memory_total_bytes;
    const held = memoryParts(gpu, this.tasks.get(gpu.uuid));
    parts.bars.draw(held.map((part) => ({ ...part, total })), partKey);
    parts.names.draw(held, partKey);
    const [used, granted] = [gpu.memory_used_bytes, gpu.memory_granted_bytes].map(gibNumber);
    setText(parts.memory, `${used} used · ${granted} granted of ${gib(total)}`);
    const part = (one) => `${one.env ?? "others"} ${gibNumber(one.used)} of ${gib(one.granted)}`;
    const words = held.map(part);
    setAttribute(parts.bar, "aria-label", `Memory: ${visible(words.join(", ")) || "all free"}`);
    setHidden(parts.list, held.length === 0);
  }
}

// The most cards in a row, so that rows are full.
function across(number) {
  return number <= 4 ? Math.max(1, number) : number <= 12 ? Math.ceil(number / 2) : 8;
}

const partKey = (part) => part.env ?? "\n";

function segment(part) {
  const used = el("span", { class: "used" });
  const made = el("span", { class: `part ${envClass(part.env)}` }, used);
  made.used = used;
  return made;
}

function fillSegment(element, { granted, used, total }) {
  setStyle(element, "width", `${((100 * granted) / total).toFixed(2)}%`);
  const share = used === null || granted === 0 ? 0 : Math.min(1, used / granted);
  setStyle(element.used, "width", `${(100 * share).toFixed(1)}%`);
}

function named(part) {
  const size = el("span", { class: "size" });
  const made = el("li", {}, envName(part.env), " ", size);
  made.size = size;
  return made;
}

function fillNamed(element, { granted, used }) {
  const text = used === null ? gibNumber(granted) : `${gibNumber(used)}/${gibNumber(granted)}`;
  setText(element.size, text);
}

const PARTS = {
  title: "h3", name: ".gpu-name", use: ".gpu-use", spark: ".spark", line: ".spark-line", bar: ".bar",
  memory: ".gpu-memory", list: ".parts", facts: ".gpu-facts", warning: ".gpu-warning",
};

function card() {
  const element = copyOf("gpu");
  const parts = { element, ...partsOf(element, PARTS) };
  parts.bars = new Keyed(parts.bar, segment, fillSegment);
  parts.names = new Keyed(parts.list, named, fillNamed);
  element.card = parts;
  return element;
}
