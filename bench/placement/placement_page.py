"""docs/placement.md, made of the figures of policies.py, and its two pictures.

Must not know: how a figure was found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodemgr.placement import pictures
from nodemgr.placement.evaluation import PairedDifference, PolicyRow

if TYPE_CHECKING:
    from policies import Found, Section, Speed

SCORER, SOURCE, RELIABLE = "equivariant scorer", "source's network", "reliable (Gamma-Poisson)"
AIM_PERCENT = 3.0
"""The learned policy was to end so much earlier than the fewest recorded failures."""
HEAD = """# Placement on GPUs that fail

Some GPUs fail far more often than others. A job on several GPUs ends when one of them fails; it
pays the restart, and the work since its last checkpoint. So the choice of its GPUs counts.
`reliable`, the policy that learns failure rates, is built into the manager. This page is about the
policies that are trained in a simulator, and compares all of them.

**At published failure rates the choice hardly counts**: with a failure in 50 000 h of a GPU (419 in
54 days on 16 384 GPUs), and one GPU in 16 that fails 100 or 1 000 times as often, every order is
within 0.6 % of random placement (300 seeds, each interval includes 0; the last tables of
`bench/placement/policies.py`). The figures below are of clusters with far worse GPUs.

{result}

<!-- not run: 1 000 rounds take half an hour; tests/placement -->
```sh
nodemgr placement train --out placement.json
nodemgr placement evaluate --weights placement.json --seeds 300
nodemgr placement use placement.json
```

- `train` needs the extra `torch`. The first command is the one that made the shipped weights,
  `nodemgr/placement/scorer.json`: 1 000 rounds with the seed 1, less than 30 minutes on a loaded
  machine of two cores. It can be stopped by Ctrl-C and goes on with the same command. The
  checkpoint beside the weights is removed at the end; `nodemgr placement export
  placement.checkpoint placement.json` writes the weights of a training that was stopped.
  `--trace FILE` takes the batches from a CSV file (timestamp, duration, num_gpus), `--history` from
  this node's ended jobs, on a cluster of its GPUs with their recorded failure rates (experimental;
  refused below 20 recorded failures). `--method source` trains the source's network.
- Beside the weights stand the learning curve (`.csv`; `.png` with the extra `plots`).
- `placement = "learned"` in the settings chooses by the scorer: by the shipped weights, or by those
  of `use`. A running manager has them at once, without a restart, and after each start.
- `use` takes the source's network too (experimental). It fits nodes of the number of GPUs that it
  was trained for, by the GPUs' indices; on a node with more, `reliable` decides.
- The weights are JSON with shapes and a checksum. A file that is cut, of another version or with a
  number that is not finite is refused in one line, and `reliable` decides; `nodemgr status` prints
  the line until `use` gives other weights.

## The simulator

A batch of jobs is submitted at once and starts strictly in order, each job on whole GPUs of its
own. A GPU fails at the same times whatever runs on it, so all policies meet the same failures
(common random numbers). By default: 16 GPUs, 40 jobs on 1 to 8 GPUs with a median time of 3 hours;
one GPU in five fails 40 times as often as the others, which fail once in 400 hours; a failed GPU is
down for an hour, and a restart adds 5 minutes; 30 days of failures were recorded before the batch.
`nodemgr/placement/batch_model.py` is a model of the decision core's order of service for whole
GPUs; it takes some milliseconds for a batch. The manager's rule that a requeued job avoids the GPU
that failed under it is left out of this table (`Cluster.avoids`). `bench/trace/core_model.py`
runs a batch on the decision core itself; tests hold that both give the same times, with that rule.

## The methods

- **The source's network** (CN113535365A): the state <n, t, s>, networks with dense layers of 256,
  196, 196, 128, GPUs picked one by one with failed and taken ones masked, a replay stack, the
  reward (t_random - t_rl) / t_random against the best of 4 random placements, planned rounds. The
  source does not state its gradient; here it is advantage actor-critic with entropy. It sees no
  failure rates, so it can only remember which GPUs are bad. Its rows are of one training. One
  of 2026-11-23 with the same seed was at -3.4 ± 2.4 % to random on its training set, one of
  2026-11-29 at +5.2 ± 4.1 %. The cause was not looked for.
- **The equivariant scorer** treats GPUs alike and fits any number of them. It sees, for each GPU,
  the estimated failure rate and the time of observation, and of the job the GPUs and the time.
- **reliable, known rates** has the true rates in place of the estimates.
- **spread**, **pack** and **first fit** are the same order where jobs take whole equal GPUs.

Latency-sensitive requests and best effort with a forecast have orders of their own (Requests with a
class): these tables have whole GPUs and no classes.

## The table

Maximum completion time of a batch, mean in hours; paired differences in percent with 95 %
intervals, to random placement and to the GPUs with the fewest recorded failures (warm). Below 0 is
better. Made by `{command}`, {date}.
"""


def interval(found: PairedDifference) -> str:
    return f"{found.mean:+.1f} ± {found.half:.1f}"


def row_of(section: Section, name: str) -> PolicyRow:
    return next(row for row in section.rows if row.name == name)


def result_of(found: Found) -> str:
    """The result in words, from the figures alone."""
    section = found.sections[0]
    own = row_of(section, SCORER).against_warm
    network = row_of(section, SOURCE).against_random
    trained_on = row_of(found.sections[1], SOURCE).against_random
    months = next(pair for days, pair in found.rates if days == 30)
    if own.mean + own.half < 0:
        result = "ends batches earlier than"
    elif own.mean - own.half > 0:
        result = "ends batches later than"
    else:
        result = "is not shown to differ from"
    aim = "met" if own.mean <= -AIM_PERCENT else "not met"
    kept = "met" if abs(months.mean) <= AIM_PERCENT else "not met"
    return (
        f"**Result** ({section.seeds} seeds): on unseen failures the learned scorer {result} the\n"
        f"fewest recorded failures: {interval(own)} % (the aim was {-AIM_PERCENT:+.0f} %: {aim})."
        f" The source's\nnetwork is at {interval(network)} % to random placement on other clusters,"
        f" and at {interval(trained_on)} % on the one\nthat it was trained on. `reliable` is at"
        f" {interval(months)} % to known rates after 30 days of\nrecords (the aim was within"
        f" {AIM_PERCENT:.0f} %: {kept})."
    )


def of_section(section: Section) -> str:
    lines = [
        f"\n### {section.title[0].upper()}{section.title[1:]}\n\n{section.seeds} seeds.\n",
        "| policy | hours | to random, % | to warm, % | not done in 60 days |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.hours:.2f} | {interval(row.against_random)}"
        f" | {interval(row.against_warm)} | {row.undone} |"
        for row in section.rows
    ]
    return "\n".join(lines) + "\n"


def of_rates(rates: Sequence[tuple[int, PairedDifference]]) -> str:
    lines = [
        "\n## How fast rates are learned\n",
        "`reliable` with estimated rates against known rates, by the days of records before the"
        " batch.\n",
        "| days | difference, % |",
        "|---|---|",
    ]
    return "\n".join([*lines, *(f"| {days} | {interval(pair)} |" for days, pair in rates)]) + "\n"


def of_speeds(speeds: Sequence[Speed]) -> str:
    lines = [
        "\n## The cost of a decision\n",
        "Medians, on a machine of two cores beside other work, without the look at the GPUs. The"
        " scorer's\nand the network's forward passes are C in the manager's extension"
        " (`csrc/manager/networks.c`). Beside heavy\nwork a pass at 1 000 GPUs waits for a core:"
        " with real-time priority the scorer took 1.5 ms there\n(2026-11-28).\n",
        "| policy | at 16 GPUs | at 1 000 GPUs | decisions for 8 jobs on 1 000 GPUs, per second |",
        "|---|---|---|---|",
    ]
    for speed in speeds:
        wide = (
            ("fixed size", "-")
            if speed.name == SOURCE
            else (f"{speed.wide_us:.0f} µs", f"{speed.batches_s:.0f}")
        )
        lines.append(f"| {speed.name} | {speed.small_us:.0f} µs | {wide[0]} | {wide[1]} |")
    return "\n".join(lines) + "\n"


BARS = "Differences of all policies to random placement on the test set, with 95 % intervals"
CURVE = "Learning curve of the source's network: the reward of each round and its running mean"
PLOTS = (
    f"\n![{BARS}](pictures/placement-policies.png)\n\n![{CURVE}](pictures/placement-curve.png)\n"
)


def write(found: Found, page: Path, folder: Path) -> None:
    options = found.options
    command = f"python bench/placement/policies.py --seeds {options.seeds} --write"
    date = time.strftime("%Y-%m-%d")
    head = HEAD.format(result=result_of(found), command=command, date=date)
    parts = [
        head,
        PLOTS,
        *map(of_section, found.sections),
        of_rates(found.rates),
        of_speeds(found.speeds),
    ]
    kept = page.read_text().partition("\n## Waiting for")  # by waiting.py, which is run for itself
    waiting = "".join(kept[1:]).partition("\n## How fast")[0]
    parts.insert(-2, waiting)
    page.write_text("".join(parts))
    bars = [
        pictures.Bar(row.name, row.against_random.mean, row.against_random.half)
        for row in found.sections[0].rows
    ]
    pictures.bars(folder / "placement-policies.png", "to random placement, %", bars)
    pictures.learning_curve(folder / "placement-curve.png", found.curve)
