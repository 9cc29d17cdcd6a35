"""`nodemgr predict -- COMMAND`: the memory and time of a training, before it runs on a GPU.

The command runs here for a few seconds, without a GPU, a network or a lease. The manager makes the
forecast of what was seen.
"""

from __future__ import annotations

from client_plugin.fields import MAX_MODELS
from client_plugin.messages.form import relayed, sentence, stated
from client_plugin.prediction.features import is_experimental
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.launch.watching import watched_findings
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column, SizeColumn, TableRow
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from client_plugin.prediction.findings import Findings

SOURCES = {"measured": "measured before", "carried": "from another model"}
COLUMNS = (
    Column("GPU", lambda row: row["name"]),
    SizeColumn("MEMORY", lambda row: row["memory_bytes"]),
    SizeColumn("MARGIN", lambda row: row["memory_margin_bytes"]),
    Column("USE", lambda row: _percent(row), right=True),
    Column("STEP", lambda row: _step(row), right=True),
    Column("RUN", lambda row: tables.seconds(row["run_seconds"]), right=True),
    Column("FROM", lambda row: _source(row)),
    Column("", lambda row: row["reason"]),
)


def _percent(row: TableRow) -> Optional[str]:
    percent = row["utilization_percent"]
    return None if percent is None else f"{percent} %"


def _step(row: TableRow) -> Optional[str]:
    """With its interval, in milliseconds or seconds."""
    seconds = row["step_seconds"]
    if seconds is None:
        return None
    low, high = (row["interval"] or {}).get("step_seconds", (None, None))
    unit, factor = ("s", 1) if seconds >= 1 else ("ms", 1_000)
    text = f"{seconds * factor:.3g} {unit}"
    return text if low is None else f"{text} ({low * factor:.3g} to {high * factor:.3g})"


def _source(row: TableRow) -> str:
    """A learned time with its median error on the newest runs."""
    source: str = SOURCES.get(row["source"]) or row["source"]
    percent = row["error_percent"]
    return source if percent is None else f"{source} (error {percent} %)"


def run(said: Said) -> int:
    if len(said.gpu) > MAX_MODELS:
        mistake(VERB, stated(f"{len(said.gpu)} GPU models are named", f"name at most {MAX_MODELS}"))
    _refuse_unknown_env(said)
    found = watched_findings(said.command, said.limit, not said.unconfined, said.steps or 0)
    answer = _answer(said, found)
    for note in found.notes:
        say(note)
    if said.as_json:
        tables.print_json(answer)
    elif found.features is not None:
        _print(answer, found.features)
        print(_phases(found.phases or {}))
    elif found.reason is not None:
        say(found.reason)
    return Exit.FAILED if found.features is None else 0


def _refuse_unknown_env(said: Said) -> None:
    """Before the command is watched, which takes up to a minute. Without a manager it is, too."""
    try:
        choice.users_way(said.whom())
    except Fault as fault:
        if fault.code == Exit.USAGE or (said.env is not None and fault.code == Exit.QUOTA_REFUSES):
            raise


def _answer(said: Said, found: Findings) -> Dict[str, Any]:
    """The manager's answer, or the same form without it."""
    answer: Dict[str, Any] = {
        "schema_version": 1, "memory_bytes": None, "memory_margin_bytes": None, "models": [],
        "features": {}, "reason": found.reason,
    }  # fmt: skip
    if found.features is not None:
        arguments: Dict[str, Any] = {"features": found.features}
        if said.gpu:
            arguments["models"] = said.gpu
        try:
            answer = choice.users_way(said.whom()).ask("forecast", **arguments)
        except Fault as fault:
            if fault.code != Exit.UNREACHABLE:
                raise
            graph, execution = found.features["graph"], found.features["execution"]
            answer["features"] = {**graph, **execution}
            answer["memory_bytes"] = found.features["memory"]["peak_bytes"]
            answer["reason"] = f"times are not predicted: {fault.message}"
    seen = "" if found.features is None else found.features["framework"]
    return {
        **answer,
        "dropped_files": found.dropped,
        "phases": found.phases,
        "is_experimental": is_experimental(seen),
    }


def _print(answer: Dict[str, Any], features: Dict[str, Any]) -> None:
    richer, execution = features["richer"], features["execution"]
    _print_row("parameters", f"{richer['parameters']:,}")
    _print_row("batch size", execution["batchsize"] or "unknown")
    billions = f"{richer['operations'] / 1e9:,.1f}"
    _print_row("operations", f"{billions} x 10^9 in a step")
    if not answer["models"]:
        size = tables.size(answer["memory_bytes"])
        _print_row("memory", f"{size} and the GPU's context")
    else:
        print()
    tables.show(COLUMNS, answer["models"])
    if not execution["iteration"] and any(row["step_seconds"] for row in answer["models"]):
        print("Run times need the number of steps of the whole run: name it with --steps.")
    if answer["reason"]:
        print(sentence(relayed(answer["reason"])))


def _phases(phases: Dict[str, Any]) -> str:
    """One line: what was seen, and what may need more memory."""
    steps, shapes = phases["steps"], len(phases["batch_shapes"])
    seen = [f"{steps} training step{'s' * (steps != 1)}"]
    seen += [f"{shapes} shapes of batches"] if shapes > 1 else []
    seen += [name for name in ("validation", "checkpoint") if phases[name]]
    unseen = [name for name in ("validation", "checkpoint") if not phases[name]]
    unseen += ["batches of another shape"] if shapes <= 1 else ["larger batches"]
    seen_text, unseen_text = ", ".join(seen), ", ".join(unseen)
    wider = " The margin is wider for it." if phases["is_margin_wider"] else ""
    return f"Seen: {seen_text}; not seen, and not in the figure: {unseen_text}.{wider}"


def _print_row(heading: str, value: object) -> None:
    print(f"{heading:18}{value}")


VERB = Verb(
    "predict",
    VERBS["predict"],
    run,
    (
        VerbOption("--gpu", kind=kinds.GPU_MODEL, repeat=True,
                   help="A GPU model, e.g. A100-80GiB, or NAME:TFLOPS:GBPS:GIB; may be repeated."),
        VerbOption("--steps", kind=kinds.count(1),
                   help="The training steps of the whole run, for its time."),
        VerbOption("--limit", kind=kinds.DURATION,
                   help="How long to watch the command at most, e.g. 2min."),
        VerbOption("--unconfined",
                   help="Run it without a private view of the disk and the network."),
        VerbOption("--env", kind=kinds.ENV, help="Ask as this environment."),
        RUN_DIR,
        JSON,
        VerbOption("command", rest=True, required=True),
    ),
    text=(
        "Runs COMMAND, a training with PyTorch, TensorFlow or Keras, for a few seconds without a "
        "GPU, and stops it after two training steps. Tensors on the GPU have sizes but no values. "
        "Files that it writes are dropped and listed, and it has no network."
        ),
)  # fmt: skip
