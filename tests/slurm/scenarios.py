"""A pool on real Slurm loses nodes: time limits, preemption, suspension, and foreign jobs.

Each job of the cluster and each foreign one writes when it begins and ends, and on which node. So a
node that both had at one time is seen, and a job that ran twice without a node taken.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.slurm import epilog, storm
from tests.slurm.storm import Cluster, cluster, until

MARK = "echo {what} {n} {who} {node} $(date +%s%N) >>{file}; "
OURS, THEIRS = "ours", "theirs"


class Use(NamedTuple):
    who: str
    name: str
    node: str
    began_ns: int
    ended_ns: int | None
    """None: it was killed, or runs."""


def script(made: Cluster, name: str, who: str, what: str) -> str:
    node = "$(basename $(dirname $NODEMGR_RUN_DIR))" if who == OURS else "$SLURMD_NODENAME"
    begins, ends = (
        MARK.format(what=word, n=name, who=who, node=node, file=made.directory / "uses")
        for word in ("begun", "ended")
    )
    # an end by a signal is written too: Slurm and nodemgr give time for it
    return f"trap '{ends} exit 1' TERM; {begins} {what} & wait $!; {ends}"


def uses(made: Cluster) -> list[Use]:
    file, open_at, found = made.directory / "uses", dict[str, list[str]](), list[Use]()
    for line in file.read_text().splitlines() if file.exists() else []:
        what, name, who, node, at = line.split()
        if what == "begun":
            if name in open_at:
                found.append(Use(who, name, open_at[name][0], int(open_at[name][1]), None))
            open_at[name] = [node, at, who]
        elif name in open_at:
            found.append(Use(who, name, node, int(open_at.pop(name)[1]), int(at)))
    return found + [
        Use(who, name, node, int(at), None) for name, (node, at, who) in open_at.items()
    ]


def both(found: list[Use]) -> list[tuple[Use, Use]]:
    """Pairs of ours and theirs that had one node at one time."""
    by_node = collections.defaultdict(list)
    for use in found:
        by_node[use.node].append(use)
    return [
        (ours, theirs)
        for rows in by_node.values()
        for ours in rows
        for theirs in rows
        if ours.who == OURS and theirs.who == THEIRS
        and ours.began_ns < (theirs.ended_ns or ours.began_ns)
        and theirs.began_ns < (ours.ended_ns or theirs.began_ns)
    ]  # fmt: skip


def submit(made: Cluster, name: str, what: str, gpus: int = 2) -> str:
    text = script(made, name, OURS, what)
    said = made.says("submit", "--env", "alice", "--gpus", str(gpus), "--", "sh", "-c", text)
    return next(word for word in said.split() if word.startswith("c") and word[1:].isdigit())


def begun(made: Cluster, name: str) -> int:
    return sum(use.name == name for use in uses(made))


def row(made: Cluster, job: str) -> Any:
    (found,) = made.asked("cluster_show", job=job).get("jobs") or [{}]
    return found


def pilot_of(made: Cluster, node: str) -> str:
    """Slurm's number of the pilot there."""
    return made.slurm.says("squeue", "-h", "-tR", f"-w{node}", "-o%A").strip()


def taken(made: Cluster, takes: Callable[[str, str], None], gate: Path) -> dict[str, Any]:
    """A job whose node `takes` away: it begins once more, and ends. Its row, and its uses."""
    job = submit(made, "job", f"until [ -e {gate} ]; do sleep 0.1; done")
    until(lambda: begun(made, "job") == 1)
    (use,) = uses(made)
    takes(use.node, pilot_of(made, use.node))
    until(lambda: begun(made, "job") == 2, storm.CALM_S)
    gate.touch()
    until(made.is_calm, storm.CALM_S)
    found = row(made, job)
    assert found["state"] == "done", found
    assert (found["interruptions"], found["restarts"], begun(made, "job")) == (1, 0, 2), found
    assert both(uses(made)) == [], uses(made)
    return {"job": found, "uses": uses(made)}


def time_limit() -> str:
    """A job without a limit on a pilot of one minute."""
    with cluster("--time", "1m", "--grace", "20s") as made:
        found = taken(made, lambda _node, _pilot: None, made.directory / "gate")
        first, second = found["uses"]
        ran_s = (first.ended_ns - first.began_ns) / 1e9
        return f"ended after {ran_s:.0f} s of a pilot of 60 s, begun again on {second.node}"


def preemption() -> str:
    """A foreign job of a partition that goes first takes the node."""
    with cluster("--grace", "20s") as made:

        def takes(node: str, _pilot: str) -> None:
            text = script(made, "foreign", THEIRS, "sleep 3")
            made.slurm.says(
                "sbatch", "-pfirst", "-N1", "--exclusive", "--gres=gpu:2", f"-w{node}",
                "--output=/dev/null", "--chdir=/", "--wrap", text,
            )  # fmt: skip
            until(lambda: begun(made, "foreign"), storm.CALM_S)

        found = taken(made, takes, made.directory / "gate")
        first = next(use for use in found["uses"] if use.who == OURS)
        foreign = next(use for use in found["uses"] if use.who == THEIRS)
        assert foreign.node == first.node
        after_s = (foreign.began_ns - first.ended_ns) / 1e9
        return f"the foreign job began {after_s:.1f} s after the end of ours"


def suspension() -> str:
    """As by gang scheduling: the pilot's processes stop, and go on when nobody waits for them."""
    with cluster() as made:

        def takes(node: str, pilot: str) -> None:
            made.slurm.says("scontrol", "suspend", pilot)
            until(lambda: not row_of(made, node)["pilot"], storm.CALM_S)
            made.slurm.says("scontrol", "resume", pilot)

        found = taken(made, takes, made.directory / "gate")
        first = found["uses"][0]
        return f"ran {(first.ended_ns - first.began_ns) / 1e9:.0f} s on the suspended pilot's node"


def row_of(made: Cluster, node: str) -> Any:
    shown = made.asked("node_show", node=node)
    return {"pilot": shown.get("state") != "slurm"}


def foreign(jobs: int = 1_000) -> str:
    """Foreign jobs and those of the cluster on the same four nodes."""
    with cluster("--idle-return", "2s") as made:
        lines = [script(made, f"n{number}", OURS, "sleep 0.2") for number in range(jobs)]
        file = made.directory / "jobs"
        rows = [json.dumps({"command": ["sh", "-c", line], "gpus": 1}) for line in lines]
        file.write_text("\n".join(rows) + "\n")
        theirs = made.directory / "theirs"
        theirs.write_text(
            "#!/bin/sh\n" + script(made, "f$SLURM_ARRAY_TASK_ID", THEIRS, "sleep 0.1") + "\n"
        )
        half = jobs // 2
        for at in (0, half):  # one half before the pool has nodes, one behind its pilots
            made.slurm.says(
                "sbatch", f"--array={at}-{at + half - 1}", "-n1", "--gres=gpu:1", "--chdir=/",
                "--output=/dev/null", str(theirs),
            )  # fmt: skip
            if not at:
                made.says("submit", "--from", str(file), "--env", "alice")
        until(made.is_calm, 2 * storm.CALM_S)
        until(lambda: not made.slurm.says("squeue", "-h", "-pgpu", "-o%j").count("theirs"),
              2 * storm.CALM_S)  # fmt: skip
        found = uses(made)
        count = collections.Counter(use.who for use in found)
        names = {use.name for use in found}
        past = made.asked("cluster_history", env="alice", limit=1)
        assert past, "the head is away"
        assert len(names) == 2 * jobs == len(found), (count, len(names))
        assert both(found) == []
        nodes = len({use.node for use in found if use.who == OURS})
        return f"{dict(count)} jobs, each begun once, on {nodes} nodes; at one time on a node: 0"


ALL: dict[str, Callable[[], str]] = {
    "time": time_limit, "preemption": preemption, "suspension": suspension, "foreign": foreign,
    "epilog": epilog.with_epilog, "no-epilog": epilog.without_epilog,
}  # fmt: skip
