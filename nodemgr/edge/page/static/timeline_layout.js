// Leases of one GPU as bars in lanes, and its use as a line. Pure.

const MAX_LANES = 8;
const FINE = 0.0015; // of the width: shorter bars of one env that touch become one

// [[{env, from, to, first, count}]], from and to between 0 and 1; `first` is the first of `count`
// leases. Leases beyond MAX_LANES at a time share the last lane.
export function lanes(leases, since, until) {
  const span = until - since;
  const sorted = [...leases].sort((a, b) => a.began - b.began || a.record - b.record);
  const found = [];
  for (const lease of sorted) {
    const from = Math.max(0, (lease.began - since) / span);
    const to = Math.min(1, ((lease.ended ?? until) - since) / span);
    if (to < 0 || from > 1) continue;
    const joined = found.find((lane) => canJoin(lane.at(-1), lease.env, from, to));
    if (joined) {
      const bar = joined.at(-1);
      bar.to = Math.max(bar.to, to);
      bar.count += 1;
      continue;
    }
    let lane = found.find((bars) => bars.at(-1).to <= from);
    if (!lane && found.length < MAX_LANES) found.push((lane = []));
    (lane ?? found.at(-1)).push({ env: lease.env, from, to, first: lease, count: 1 });
  }
  return found;
}

// Tasks of one time stay in lanes of their own, however short their bars are.
function canJoin(bar, env, from, to) {
  const isFine = to - from < FINE || (bar.count > 1 && bar.to - bar.from < FINE);
  return bar.env === env && isFine && from - bar.to < FINE && from >= bar.to;
}

// The least of these numbers of hours before `until` that has all leases; the last if none has.
export function fittingHours(leases, until, choices) {
  const first = Math.min(until, ...leases.map((lease) => lease.began));
  return choices.find((hours) => first >= until - hours * 3600) ?? choices.at(-1);
}

// The share of the span in which at least one of the leases held the GPU.
export function heldShare(leases, since, until) {
  const spans = leases
    .map((lease) => [Math.max(since, lease.began), Math.min(until, lease.ended ?? until)])
    .filter(([from, to]) => to > from)
    .sort(([a], [b]) => a - b);
  let sum = 0;
  let reached = since;
  for (const [from, to] of spans) {
    sum += Math.max(0, to - Math.max(from, reached));
    reached = Math.max(reached, to);
  }
  return sum / (until - since);
}

// The area under the use as an SVG path of this size; nothing where nothing was read.
export function usePath(samples, uuid, since, until, width, height) {
  const means = samples?.gpus?.[uuid]?.utilization_percent ?? [];
  const step = samples?.step_s;
  const x = (time) => {
    const share = Math.min(1, Math.max(0, (time - since) / (until - since)));
    return (width * share).toFixed(1);
  };
  let path = "";
  let isOpen = false;
  means.forEach((mean, at) => {
    const from = samples.since + at * step;
    if (mean === null || from + step < since || from > until) {
      if (isOpen) path += `V${height}Z`;
      isOpen = false;
      return;
    }
    const y = (height * (1 - mean / 100)).toFixed(1);
    path += isOpen ? `V${y}` : `M${x(from)} ${height}V${y}`;
    path += `H${x(from + step)}`;
    isOpen = true;
  });
  return isOpen ? `${path}V${height}Z` : path;
}

export function meanUse(samples, uuid) {
  const known = (samples?.gpus?.[uuid]?.utilization_percent ?? []).filter((mean) => mean !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

const STEPS_S = [300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// The marks of the axis: epoch seconds at round times of the zone, at most `most`.
export function ticks(since, until, most, zone_s) {
  const step = STEPS_S.find((one) => (until - since) / one <= most) ?? STEPS_S.at(-1);
  const marks = [];
  for (let at = Math.ceil((since + zone_s) / step) * step; at <= until + zone_s; at += step) {
    marks.push(at - zone_s);
  }
  return marks;
}
