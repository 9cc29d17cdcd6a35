"""`nodemgr` inside a container, with the standard library alone: what its users may ask about their environment, and order in it.

Knows: the verbs and their arguments. Must not know: how the manager is reached (asking), how things look (tables, doctor), what follows a
log (logs). Administrators' verbs are the node's (package `nodemgr`, which is not in the container).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from client_plugin.verbs import asking, doctor, logs, runner, submit, tables

ON_THE_NODE = ("env", "quota", "serve", "allocations", "events", "run", "demo", "setup")
INTERRUPTED, BROKEN_PIPE, USAGE, FAILED = 130, 141, 2, 1
PAGE = 200
HISTORY_COUNT = 100
SECONDS_OF = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
WEEK_S = 7 * 86_400
JOB = re.compile(r"j[0-9]{1,15}(\.[0-9]{1,10})?", re.ASCII)
JOB_OR_REQUEST = re.compile(r"j[0-9]{1,15}(\.[0-9]{1,10})?|r[0-9]{1,15}", re.ASCII)
Row = Dict[str, Any]


def _job(pattern: "re.Pattern[str]") -> Callable[[str], str]:
    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no job: write its id as `nodemgr queue` shows it (j12, j12.3)")
        return text

    return parse


def _moment(text: str) -> int:
    """How long ago, as nanoseconds since the epoch."""
    match = re.fullmatch("([0-9]{1,6})(s|min|h|d)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write how long ago, e.g. 30min, 2h, 7d")
    return (int(time.time()) - int(match[1]) * SECONDS_OF[match[2]]) * 10**9


# -- what each verb gets --


def status(_options: argparse.Namespace) -> Row:
    return asking.ask("status")


def release(options: argparse.Namespace) -> Row:
    return asking.ask("release", options.task)


def examine(_options: argparse.Namespace) -> Row:
    return {"schema_version": 1, "checks": doctor.examine()}


def queue(_options: argparse.Namespace) -> Row:
    """All pages; a job that was moved or started meanwhile may come twice."""
    runner.ensure()
    rows: Dict[str, Row] = {}
    page = asking.order("queue", limit=PAGE)
    rows.update((row["id"], row) for row in page["queue"])
    while page["after"] is not None:
        page = asking.order("queue", after=page["after"], limit=PAGE)
        rows.update((row["id"], row) for row in page["queue"])
    waiting = [row for row in rows.values() if row["state"] not in tables.RUNS]
    running = [row for row in rows.values() if row["state"] in tables.RUNS]
    node = {name: page[name] for name in ("queues", "store", "launcher")}
    return {"schema_version": 1, "queue": waiting, "running": running, **node}


def position(options: argparse.Namespace) -> Row:
    return asking.order("job_show", job=options.job)


def move(options: argparse.Namespace) -> Row:
    return asking.order("job_move", job=options.job, queue=options.queue)


def _ordering(verb: str) -> Callable[[argparse.Namespace], Row]:
    return lambda options: asking.order(f"job_{verb}", job=options.job)


def wait(options: argparse.Namespace) -> Row:
    asking.order("job_show", job=options.jobs[0])  # a manager that is away is told at once
    runner.ensure()
    return asking.order("job_wait", asking.FOR_EVER_MS, jobs=options.jobs)


def history(options: argparse.Namespace) -> Row:
    if options.job is not None:
        return asking.order("job_show", job=options.job)
    rows: List[Row] = []
    before: Optional[int] = None
    count = options.count or (HISTORY_COUNT if options.since is None else sys.maxsize)
    while len(rows) < count:
        page = asking.order(
            "history", asking.LONG_MS, since_wall_ns=options.since or 0, before=before, limit=min(PAGE, count - len(rows))
        )
        rows, before = page["history"] + rows, page["before"]
        if before is None:
            break
    return {"schema_version": 1, "history": rows}


def report(options: argparse.Namespace) -> Row:
    since = (int(time.time()) - WEEK_S) * 10**9 if options.since is None else options.since
    return asking.order("report", asking.LONG_MS, since_wall_ns=since)


# -- the table of verbs --


class Option(NamedTuple):
    names: Tuple[str, ...]
    settings: Dict[str, Any]


class Verb(NamedTuple):
    """`get` gives one JSON object, `lines` what people see of it. None: the verb does it all itself (`run`)."""

    help: str
    get: Optional[Callable[[argparse.Namespace], Row]]
    lines: Callable[[Row], List[str]] = tables.nothing
    options: Sequence[Option] = ()
    run: Optional[Callable[[argparse.Namespace], int]] = None
    under: Optional[Dict[str, "Verb"]] = None
    """Verbs that may follow it."""


ONE_JOB = Option(("job",), {"type": _job(JOB)})
ANY_ONE = Option(("job",), {"type": _job(JOB_OR_REQUEST)})
SINCE = Option(("--since",), {"type": _moment, "metavar": "TIME"})

ORDERS = {
    "position": Verb("Say where a job (or a request) stands, and why it waits.", position, tables.standings, (ANY_ONE,)),
    "withdraw": Verb("Take a job (or request) out of its queue, or end it.", _ordering("withdraw"), tables.said("is withdrawn"), [ANY_ONE]),
    "hold": Verb("Take a job out of its queue until it is freed.", _ordering("hold"), tables.said("is held"), (ONE_JOB,)),
    "free": Verb("Put a held job at the end of its queue.", _ordering("free"), tables.said("is freed"), (ONE_JOB,)),
    "move": Verb("Put a job at the end of another queue.", move, tables.said("is moved"), (ONE_JOB, Option(("queue",), {}))),
    "requeue": Verb("Have a job begin anew.", _ordering("requeue"), tables.said("waits again"), (ONE_JOB,)),
}
VERBS = {
    "status": Verb("Show this environment's GPUs, tasks and waiting requests.", status, tables.status),
    "submit": Verb(
        "Have a command run in this container when its turn comes.", None, run=submit.run,
        options=(
            Option(("--env",), {"help": "This container's own; there is no other."}),
            Option(("--gpus",), {"type": submit.count, "help": "GPUs for the job; 0: none. Not said: what a program here would get."}),
            Option(("--memory",), {"type": submit.size, "metavar": "SIZE", "help": "Device memory that it needs on each GPU, e.g. 8GiB."}),
            Option(("--priority",), {"metavar": "QUEUE", "help": "The queue to wait in; not said: the quota's."}),
            Option(("--after",), {"type": submit.jobs, "action": "append", "metavar": "JOB", "help": "Only when these ended well: j3,j4."}),
            Option(("--array",), {"type": submit.array, "metavar": "0-9,12", "help": "One job for each NODEMGR_ARRAY_INDEX."}),
            Option(("--time",), {"type": submit.duration, "metavar": "TIME", "help": "It is ended when it has run so long, e.g. 2h."}),
            Option(("--max-restarts",), {"type": submit.count, "metavar": "N", "help": "How often it is tried again after a failure (3)."}),
            Option(("--name",), {"help": "What it is called in lists (the command's name)."}),
            Option(("--hold",), {"action": "store_true", "help": "It waits until it is freed: nodemgr queue free JOB."}),
            Option(("command",), {"nargs": argparse.REMAINDER, "help": "The command and its words."}),
        ),
    ),
    "queue": Verb("Show what of this environment waits and runs; change it.", queue, tables.queue, under=ORDERS),
    "logs": Verb(
        "Show what a job wrote.", None, run=logs.run,
        options=(ONE_JOB, Option(("--follow", "-f"), {"action": "store_true"}), Option(("--attempt",), {"type": int})),
    ),
    "wait": Verb(
        "Wait until jobs have ended; its exit code is theirs.", wait, tables.outcomes,
        (Option(("jobs",), {"type": _job(JOB), "nargs": "+", "metavar": "job"}),),
    ),
    "history": Verb(
        "Show the jobs that have ended; of one job the whole story.", history, tables.history,
        (Option(("job",), {"type": _job(JOB), "nargs": "?"}), SINCE, Option(("--count", "-n"), {"type": int})),
    ),
    "report": Verb("Show this environment's GPU hours, waits and jobs.", report, tables.report, (SINCE,)),
    "release": Verb(
        "Take a task's GPUs back (t17), or a waiting request out of the queue (r17).", release, tables.released, (Option(("task",), {}),)
    ),
    "doctor": Verb("Check what is active in this container, and what to do about what is not.", examine, doctor.lines),
}  # fmt: skip


def _add(verbs: Any, name: str, verb: Verb) -> None:
    parser = verbs.add_parser(name, help=verb.help, description=verb.help)
    parser.set_defaults(chosen=verb)
    for option in verb.options:
        parser.add_argument(*option.names, **option.settings)
    if verb.get is not None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="JSON on stdout: bytes and seconds as integers.")
    if verb.under:
        more = parser.add_subparsers(metavar="ORDER")
        for below, order in verb.under.items():
            _add(more, below, order)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nodemgr", description="What this container's environment holds and waits for.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        _add(verbs, name, verb)
    return parser


def main(arguments: List[str]) -> int:
    """The exit code. What can go wrong ends in one line on stderr."""
    if arguments and arguments[0] in ON_THE_NODE:
        return _refuse(f"{arguments[0]} is a verb of the node's own nodemgr; in a container there are {', '.join(VERBS)}", USAGE)
    options = _parser().parse_args(arguments)
    verb: Verb = options.chosen
    try:
        if verb.run is not None:
            return verb.run(options)
        assert verb.get is not None
        answer = verb.get(options)
        text = json.dumps(answer, indent=2) if options.as_json else "\n".join(verb.lines(answer))
        if text:
            print(text, flush=True, file=sys.stderr if verb.get is wait and not options.as_json else sys.stdout)
    except asking.Refused as refused:
        return _refuse(str(refused), refused.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # Python would complain once more at exit about what it could not write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if verb.get is wait:
        return next((int(row["exit"]) for row in answer["jobs"] if row["exit"] != 0), 0)
    return FAILED if any(check["ok"] is False for check in answer.get("checks", ())) else 0


def _refuse(line: str, code: int) -> int:
    sys.stderr.write(f"nodemgr: {tables.printable(line)}\n")
    return code
