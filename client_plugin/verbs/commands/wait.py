"""`nodemgr wait JOB…`: until jobs have ended; its exit code is theirs."""

from __future__ import annotations

from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.launch import runner
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import TableRow
from client_plugin.verbs.reading import status_warnings
from client_plugin.ways import choice
from client_plugin.ways.faults import Fault, say
from client_plugin.ways.lasting import LastingWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

    from client_plugin.ways.choice import Way, Whom

EXAMINED = 5
"""The most jobs that are checked for a start that cannot happen."""


def run(said: Said) -> int:
    job_ids = list(dict.fromkeys(said.job))
    if said.inside:
        # a manager that is away is reported at once
        choice.users_way(said.whom()).ask("job_show", job=job_ids[0])
        runner.ensure(said.whom())
    rows = _outcomes(job_ids, said.whom())
    if said.as_json:
        tables.print_json({"schema_version": 1, "jobs": rows})
    for row in rows:
        if row["exit"] != 0:
            of = f" ({row['of']})" if row["of"] != row["job"] else ""
            outcome = (row["state"] or "unknown") + (f", {row['why']}" if row["why"] else "")
            say(f"{row['job']}{of}: {outcome}")
    return next((int(row["exit"]) for row in rows if row["exit"] != 0), 0)


def _outcomes(job_ids: List[str], whom: Whom) -> List[TableRow]:
    """How each ended, in this order.

    Those of several environments are waited for one environment after the other.
    """
    ways = choice.choose(whom)
    if len(ways) == 1:
        told: List[TableRow] = _ask(ways[0], job_ids)["jobs"]
        return told
    env_of = {job_id: choice.way_to(job_id, whom).env for job_id in job_ids}
    rows = {
        row["job"]: row
        for way in ways
        if (of_it := [job_id for job_id in job_ids if env_of[job_id] == way.env])
        for row in _ask(way, of_it)["jobs"]
    }
    return [rows[job_id] for job_id in job_ids]


def _say_what_stalls(way: Way, job_ids: List[str]) -> None:
    """Prints a line if the jobs cannot start."""
    try:
        health = way.ask("queue", limit=1)
        if health["launcher"]["state"] != "ok":
            rows = [
                row
                for job_id in job_ids[:EXAMINED]
                for row in way.ask("job_show", job=job_id)["jobs"]
            ]
            status_warnings.say_failures(None, health["launcher"], rows)
    except Fault:
        pass  # the answer itself says what is wrong


def _ask(way: Way, job_ids: List[str]) -> Any:
    """The answer, which comes when all have ended; asked for again where the manager went away."""
    _say_what_stalls(way, job_ids)
    return LastingWay(way).ask("job_wait", timeout_s=None, jobs=job_ids)


VERB = Verb(
    "wait",
    VERBS["wait"],
    run,
    (
        VerbOption("job", kind=kinds.JOB, repeat=True, required=True),
        VerbOption("--env", kind=kinds.ENV, help="As a user of this environment."),
        RUN_DIR,
        JSON,
    ),
    text="Waits until each JOB has ended (of an array: all its jobs).\n\nEnds with the exit "
    "code of the first that did not end well, in "
    "the order named: the job's own, 128 + N for signal N, 77 if it was withdrawn; 0 if "
    "all ended well.",
)
