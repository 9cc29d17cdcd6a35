"""`nodemgr placement`: train, evaluate and export a learned placement, in a simulator.

Knows: options, files, lines. Must not know: how a round learns (nodemgr/placement). torch and the
simulator are imported by the verb that needs them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from client_plugin.messages.form import notice
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column
from client_plugin.ways.faults import Exit, Fault
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup

if TYPE_CHECKING:
    from client_plugin.ways.control import ControlConnection
    from nodemgr.placement.batches import TraceJob
    from nodemgr.placement.rollouts import Draw

HISTORY_PAGE = 200
LEAST_FAILURES = 20
"""Below it, rates by GPU are mostly the prior's."""
FILE = click.Path(dir_okay=False, path_type=Path)
COLUMNS = (
    Column("POLICY", lambda r: r["policy"], rest=True),
    Column("HOURS", lambda r: f"{r['hours']:.2f}", right=True),
    Column("TO RANDOM", lambda r: _interval(r["to_random"]), right=True),
    Column("TO WARM", lambda r: _interval(r["to_warm"]), right=True),
    Column("UNDONE", lambda r: r["undone"] or None, right=True),
)


def _interval(pair: tuple[float, float]) -> str:
    return f"{pair[0]:+.1f} % ± {pair[1]:.1f}"


@click.group(
    "placement",
    cls=VerbGroup,
    short_help="Train and evaluate a learned placement of jobs on GPUs that fail.",
)
def command() -> None:
    """Learn where to place jobs on GPUs that fail, in a simulator, without a GPU.

    A batch of jobs runs on a simulated cluster of which some GPUs fail far more often than others.
    The figure of a policy is the maximum completion time of the batch.
    """


def _cluster_options(function: Any) -> Any:
    """The options of the simulated cluster and its batches."""
    for option in (
        click.option("--run-dir", type=options.DIRECTORY, help="The manager's run directory."),
        click.option("--history", is_flag=True, help="This node's ended jobs and failure rates."),
        click.option("--trace", type=FILE, help="Batches from a CSV file of jobs."),
        click.option(
            "--checkpoint",
            type=options.DURATION,
            help="The time between checkpoints of a job.",
        ),
        click.option(
            "--drift", type=options.DURATION, help="After each such time other GPUs are bad."
        ),
        click.option("--jobs", type=click.IntRange(1, 1_000), default=40, help="In a batch."),
        click.option("--gpus", type=click.IntRange(1, 1_000), default=16, help="Of the cluster."),
    ):
        function = option(function)
    return function


@command.command("train")
@_cluster_options
@click.option(
    "--method", type=click.Choice(["scorer", "source"]), default="scorer", help="The network."
)
@click.option("--rounds", type=click.IntRange(1, 1_000_000), default=1_000, help="Of training.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, help="Of all draws.")
@click.option("--restart", is_flag=True, help="Begin anew, without the checkpoint beside --out.")
@click.option("--out", type=FILE, default=Path("placement.json"), help="The file of weights.")
def train(method: str, rounds: int, seed: int, restart: bool, out: Path, **cluster: Any) -> None:
    """Train a placement and write its weights.

    The scorer learns on a cluster of its own in each batch, and fits any number of GPUs. The
    source's network learns on one cluster with the same bad GPUs in all batches.

    Beside the weights stand the learning curve (.csv, and .png with the extra plots) and, until
    the end, a checkpoint. Ctrl-C stops after a round; the same command goes on from there.
    """
    from nodemgr.placement import training

    with _faults():
        training.need_torch()
        training.check_name(out)
        from nodemgr.placement import scorer, source_method

        draw, given = _draw(**cluster, one_cluster=f"train/{seed}" if method == "source" else None)
        given |= {"method": method, "seed": seed}
        trainer: training.RoundTrainer = (
            scorer.ScorerTraining(draw, seed)
            if method == "scorer"
            else source_method.SourceTraining(draw, seed, given["gpus"])
        )
        run = training.Training(trainer, training.Files(out), rounds, given)
        if restart:
            run.files.checkpoint.unlink(missing_ok=True)
        run.resume()
        _train(run)


def _train(run: Any) -> None:
    done, asked = len(run.curve), list[bool]()
    before = signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        shown: Any = click.progressbar(
            length=run.rounds,
            label="training",
            file=sys.stderr,
            item_show_func=lambda last: "" if last is None else f"reward {last.reward:+.3f}",
        )
        with shown as bar:
            bar.update(done)

            def report(progress: Any) -> None:
                bar.update(1, progress.last)

            is_done = run.run(report, lambda: bool(asked))
    finally:
        signal.signal(signal.SIGINT, before)
    _draw_curve(run)
    if not is_done:
        click.echo(
            notice(
                f"stopped after {len(run.curve)} of {run.rounds} rounds; the same command goes on "
                "from there"
            ),
            err=True,
        )
        raise SystemExit(Exit.INTERRUPTED)
    run.finish()
    click.echo(notice(f"weights: {run.files.weights}; learning curve: {run.files.csv}"), err=True)


def _draw_curve(run: Any) -> None:
    from nodemgr.placement import pictures

    if pictures.can_draw():
        pictures.learning_curve(run.files.picture, run.curve)
    else:
        click.echo(
            notice(f"no picture {run.files.picture}: it needs the extra `plots` (matplotlib)"),
            err=True,
        )


@command.command("evaluate")
@_cluster_options
@click.option("--weights", "files", type=FILE, multiple=True, help="Weights to compare; several.")
@click.option("--seeds", type=click.IntRange(2, 100_000), default=100, help="Batches.")
@options.json_option
def evaluate(files: tuple[Path, ...], seeds: int, as_json: bool, **cluster: Any) -> None:
    """Compare policies on the same batches and failures.

    HOURS is the mean of the maximum completion times. TO RANDOM and TO WARM are paired differences
    to random placement and to the fewest recorded failures, with 95 % intervals.
    """
    with _faults():
        from nodemgr.placement import evaluation

        draw, given = _draw(**cluster)
        policies = dict(evaluation.POLICIES)
        for path in files:
            policies[f"weights {path.name}"] = evaluation.learned(_weights(path))
        with click.progressbar(length=seeds, label="evaluating", file=sys.stderr) as bar:
            rows = evaluation.table(_instances(draw, seeds), policies, lambda done: bar.update(1))
    shown = [
        {
            "policy": row.name,
            "hours": row.hours,
            "to_random": list(row.against_random),
            "to_warm": list(row.against_warm),
            "undone": row.undone,
        }
        for row in rows
    ]
    if as_json:
        tables.print_json({"schema_version": 1, "cluster": given, "policies": shown})
    else:
        tables.show(COLUMNS, shown)


def _instances(draw: Draw, seeds: int) -> Iterator[Any]:
    from random import Random

    return (draw(Random(f"test/{number}"), f"test/{number}") for number in range(seeds))


@command.command("export")
@click.argument("checkpoint", type=FILE)
@click.argument("out", type=FILE)
def export(checkpoint: Path, out: Path) -> None:
    """Write the weights of a stopped training, from its CHECKPOINT, to the file OUT."""
    with _faults():
        from nodemgr.placement import training

        training.need_torch()
        training.check_name(out)
        from nodemgr.edge.placement import weights
        from nodemgr.placement import scorer, source_method

        saved = training.read_checkpoint(checkpoint)
        given = saved["given"]
        trainer: training.RoundTrainer = (
            scorer.ScorerTraining(_undrawn, given["seed"])
            if given["method"] == "scorer"
            else source_method.SourceTraining(_undrawn, given["seed"], given["gpus"])
        )
        training.restore(trainer, saved, checkpoint)
        weights.save(out, trainer.weights({**given, "rounds": len(saved["curve"])}))
    click.echo(notice(f"weights: {out}"), err=True)


@command.command("use")
@click.argument("file", type=FILE)
@click.option("--state-dir", type=options.DIRECTORY, help="The manager's state directory.")
@options.run_dir_option
def use(file: Path, state_dir: str | None, run_dir: str | None) -> None:
    """Give the manager the weights of FILE, at once and for its next starts.

    placement = "learned" in the settings chooses by them. Without a file of this verb the manager
    has the weights that come with nodemgr.
    """
    manager, read = asking.control(run_dir), None
    if state_dir is None:
        read = _read_by(manager)
    with _faults():
        from nodemgr import paths
        from nodemgr.edge.placement import learned, weights

        directory = paths.default_state_dir() if state_dir is None else Path(state_dir)
        path = Path(read) if read else directory.absolute() / learned.WEIGHTS_NAME
        weights.save(path, weights.load_either(file))
    other = _read_by(manager)
    if other is None:
        line = notice(f"weights: {path}; no manager runs, the next one that starts there has them")
    elif Path(other).resolve() == path.resolve():
        line = notice(
            f"weights: {path}; the policy `learned` of the running manager has them from now on"
        )
    else:
        line = notice(
            f"weights: {path}; the running manager does not read them, its file is {other}"
        )
    click.echo(line, err=True)


def _read_by(manager: ControlConnection) -> str | None:
    """The file of weights of this manager, which it reads again; None: no manager answers."""
    try:
        return str(manager.call("placement_read")["path"])
    except Fault as fault:
        if fault.code != Exit.UNREACHABLE:
            raise
        return None


def _undrawn(*_: Any) -> Any:
    raise AssertionError("an export draws no batch")


def _weights(path: Path) -> Any:
    """Of either kind. Raises WeightsError."""
    from nodemgr.edge.placement import weights

    return weights.load_either(path)


def _draw(
    gpus: int,
    jobs: int,
    trace: Path | None,
    history: bool,
    checkpoint: int | None,
    drift: int | None,
    run_dir: str | None,
    one_cluster: str | None = None,
) -> tuple[Draw, dict[str, Any]]:
    """A maker of batches, and the options that decide them.

    `one_cluster`: the seed of the bad GPUs, the same for all batches.
    """
    from nodemgr.placement import batches, rollouts
    from nodemgr.placement.failures import Cluster

    if trace is not None and history:
        raise Fault("--trace and --history both name the jobs", "give one of them", code=Exit.USAGE)
    recorded = _recorded(run_dir) if history else ()
    gpus = len(recorded) or gpus
    cluster = Cluster(
        gpus=gpus,
        recorded_per_hour=recorded,
        checkpoint_ms=checkpoint,
        drift_hours=None if drift is None else drift / batches.HOUR_MS,
    )
    source = "this node's history" if history else "made up" if trace is None else trace.name
    given = {
        "gpus": gpus, "jobs": jobs, "batches": source, "checkpoint_ms": checkpoint,
        "drift_ms": drift,
    }  # fmt: skip
    if trace is None and not history:
        return rollouts.made_up(cluster, jobs, one_cluster), given
    path = Path(source) if trace is None else trace
    rows = _history(run_dir) if trace is None else batches.read_trace(trace)
    fitting = batches.fitting(rows, gpus, path)
    if fitting.left_out:
        click.echo(
            notice(
                f"jobs of the trace that need more than {gpus} GPUs are left out: "
                f"{fitting.left_out}"
            ),
            err=True,
        )
    return rollouts.of_trace(cluster, fitting.jobs, jobs, one_cluster), given


def _recorded(run_dir: str | None) -> tuple[float, ...]:
    """The estimated failures in an hour of each GPU of this node, by index."""
    gpus = asking.control(run_dir).call("status")["gpus"]
    count = sum(gpu["failures"] for gpu in gpus)
    if count < LEAST_FAILURES:
        raise Fault(
            f"{count} failures of GPUs are recorded on this node, and --history needs "
            f"{LEAST_FAILURES}",
            "train without --history",
            code=Exit.FAILED,
        )
    return tuple((gpu["failures_per_1000_hours"] or 0.0) / 1_000 for gpu in gpus)


def _history(run_dir: str | None) -> list[TraceJob]:
    """The jobs of this node that ended well, in the order of their submission."""
    from nodemgr.placement.batches import TraceJob

    ask: Callable[..., Any] = asking.control(run_dir).call
    rows, before = list[Any](), None
    while True:
        page = ask("history", since_wall_ns=0, before=before, limit=HISTORY_PAGE)
        rows += page["history"]
        before = page["before"]
        if before is None:
            break
    found = sorted(
        (row["entered"] or row["started"], max(1, int(row["ran_seconds"])), row["gpus"])
        for row in rows
        if row["state"] == "done" and row["ran_seconds"] is not None and row["gpus"]
    )
    if not found:
        raise Fault(
            "no job with GPUs has ended well on this node",
            "name a trace (--trace), or neither",
            code=Exit.FAILED,
        )
    return [TraceJob(entered - found[0][0], ran, gpus) for entered, ran, gpus in found]


@contextmanager
def _faults() -> Iterator[None]:
    """The faults of the simulator and of its files as the verb's."""
    from nodemgr.edge.placement.weights import WeightsError
    from nodemgr.placement.batches import BadTrace
    from nodemgr.placement.failures import BadCluster
    from nodemgr.placement.training import TrainingFault

    try:
        yield
    except (BadTrace, BadCluster) as fault:
        raise Fault(fault.line, code=Exit.USAGE) from None
    except (WeightsError, TrainingFault) as fault:
        raise Fault(fault.line) from None
    except OSError as error:
        name = error.filename or "a file"
        raise Fault(
            f"{name}: {error.strerror}", "name a file in a directory that you may write to"
        ) from None
