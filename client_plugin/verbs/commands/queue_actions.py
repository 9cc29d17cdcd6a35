"""Sub-verbs of `nodemgr queue`: orders to jobs, and to queues.

Knows: the options of each, the line that reports its result. Must not know: whether an order is
valid; the manager decides that.
"""

from __future__ import annotations

from client_plugin import fields
from client_plugin.messages import verbs as messages
from client_plugin.messages.form import notice, relayed, stated
from client_plugin.verbs import UNDER_QUEUE
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import (
    JSON,
    RUN_DIR,
    Said,
    ValueKind,
    Verb,
    VerbOption,
    mistake,
)
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.members import access_lines, membership
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say
from client_plugin.ways.retry_timeout import RetryTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

    from client_plugin.ways.choice import Way, Whom

AS_USER = VerbOption("--env", kind=kinds.ENV, help="As a user of this environment.")


FILTERS = (
    VerbOption(
        "--name",
        kind=kinds.TEXT,
        metavar="PATTERN",
        help="All of this name; * and ? stand for other letters.",
    ),
    VerbOption(
        "--state",
        kind=kinds.TEXT,
        help="All in this state, as nodemgr queue (or history) shows it.",
    ),
    VerbOption("--mine", help="All that are yours."),
    VerbOption("--all-of", kind=kinds.ENV, help="All of this environment."),
)
"""Filters, in place of ids. Several filters select the jobs that match all of them."""
MAX_IDS = 250
"""Ids in one order: it is done in parts, and each part has all of them again."""
MAX_LINES = 20
"""The most printed lines about successes."""
MANY_TEXT = (
    "Many jobs change in several steps. A filter (--name, --state, --mine, --all-of) selects the"
    " matching jobs whose state allows the change. Each id that cannot be changed gets one line,"
    " and the exit code is then 1."
)


def order(said: Said, ids: List[str], verb: str, done: str) -> int:
    """Order several jobs, by their ids or by a filter; returns the exit code.

    Each way that reaches some of the jobs gets orders, each for as many as one step can do.
    """
    whom, asked = said.whom(), {"name": said.name, "state": said.state, "mine": said.mine}
    if bool(ids) is bool(said.all_of or any(asked.values())):
        mistake(said.verb, "name ids or a filter (--name, --state, --mine, --all-of), and not both")
    if said.all_of:
        if whom.env not in (None, said.all_of):
            mistake(
                said.verb,
                stated("--env and --all-of name two environments", "leave one of them out"),
            )
        whom.env = said.all_of
    ways = choice.choose(whom) if verb != "release" or not ids else [choice.node_or_env(whom)]
    rows: List[Dict[str, Any]] = []
    retry_timeout = RetryTimeout(0) if said.no_wait else RetryTimeout()
    try:
        for way, some, of_filter in _some(ways, ids, whom, verb, asked, retry_timeout):
            for answer in _answers(way, verb, some, of_filter, retry_timeout):
                rows += answer["jobs"]
    except (Fault, KeyboardInterrupt):
        if rows:
            _report(rows, done)
        raise
    if not rows:
        what = f"the filter matches nothing that this order can change ({verb})"
        raise Fault(what, "`nodemgr queue` shows what waits, `nodemgr status` what runs")
    return _report(rows, done)


def _some(
    ways: Sequence[Way],
    ids: List[str],
    whom: Whom,
    verb: str,
    asked: Dict[str, Any],
    retry_timeout: RetryTimeout,
) -> Iterator[Tuple[Way, List[str], bool]]:
    """The ids, and whether a filter found them, by the way on which they are known."""
    if ids:
        for way, some in _by_way(ids, ways, whom):
            yield way, some, False
        return
    for way in ways:
        arguments = {"order": verb, **_filter(way, whom, asked)}
        for page in _parts(way, arguments, retry_timeout):
            if page["matched"]:
                yield way, page["matched"], True


def _answers(
    way: Way, verb: str, ids: List[str], of_filter: bool, retry_timeout: RetryTimeout
) -> Iterator[Dict[str, Any]]:
    """Each part of the order to these ids; the manager does the next one behind its end."""
    for start in range(0, len(ids), MAX_IDS):
        arguments = {"order": verb, "jobs": ids[start : start + MAX_IDS], "skip": of_filter}
        yield from _parts(way, arguments, retry_timeout)


def _parts(
    way: Way, arguments: Dict[str, Any], retry_timeout: RetryTimeout
) -> Iterator[Dict[str, Any]]:
    """The answers to an order, each behind the one before.

    One that was lost is asked for again: what is done already counts as done.
    """
    arguments = dict(arguments)
    while True:
        answer = retry_timeout.outlast(
            lambda: way.ask("job_orders", again=retry_timeout.lost, **arguments)
        )
        yield answer
        if answer["after"] is None:
            return
        arguments["after"] = answer["after"]


def _by_way(ids: List[str], ways: Sequence[Way], whom: Whom) -> List[Tuple[Way, List[str]]]:
    if len(ways) == 1:
        return [(ways[0], ids)]
    found: Dict[Optional[str], Tuple[Way, List[str]]] = {}
    for one in ids:
        way = choice.way_to(one, whom)
        found.setdefault(way.env, (way, []))[1].append(one)
    return list(found.values())


def _filter(way: Way, whom: Whom, asked: Dict[str, Any]) -> Dict[str, Any]:
    """The filter as the manager takes it.

    An administrator names the user. Of any other caller the manager gets the user from the kernel.
    """
    said = {key: value for key, value in asked.items() if value}
    if isinstance(way, choice.AdminWay) and said.pop("mine", False):
        said["user"] = choice.user()
    return said if whom.env is None else {**said, "env": whom.env}


def _report(rows: List[Dict[str, Any]], done: str) -> int:
    """Elements of one array that went alike are one line."""
    same: Dict[Tuple[str, Optional[str]], List[Dict[str, Any]]] = {}
    for row in rows:
        array = row["job"].partition(".")[0]
        name = array if row["error"] is None else row["job"]
        same.setdefault((name, row["error"]), []).append(row)
    lines: Dict[bool, List[str]] = {True: [], False: []}
    for (name, error), group in same.items():
        count = sum(row.get("jobs", 1) for row in group)
        what = group[0]["job"] if count == 1 else f"{name} ({count} jobs)"
        lines[error is None].append(
            messages.CHANGED(subject=what, done=done) if error is None else _refusal(what, error)
        )
    for line in (*lines[True][:MAX_LINES], *lines[False]):
        say(line)
    if len(lines[True]) > MAX_LINES:
        count = len(lines[True])
        say(f"and {count - MAX_LINES} more of {count}")
    return Exit.FAILED if any(row["error"] is not None for row in rows) else 0


def _refusal(job_id: str, error: str) -> str:
    """Most errors name the job themselves."""
    words = (word.strip(",:;()'") for word in error.split())
    if job_id in words:
        return relayed(error)
    return notice(f"{job_id}: {error}")


def _action(verb: str, done: str) -> Callable[[Said], int]:
    def run(said: Said) -> int:
        ids = list(dict.fromkeys(said.job))
        no_after = {"no_after": True} if verb == "requeue" and said.no_after else {}
        if len(ids) != 1 or said.all_of or said.name or said.state or said.mine:
            if no_after:
                mistake(said.verb, stated("--no-after takes one JOB", "name it, without a filter"))
            return order(said, ids, verb, done)
        choice.way_to(ids[0], said.whom()).ask(f"job_{verb}", job=ids[0], **no_after)
        say(messages.CHANGED(subject=ids[0], done=done))
        return 0

    return run


def _position(said: Said) -> int:
    told = choice.way_to(said.job, said.whom()).ask("job_show", job=said.job)
    if said.as_json:
        tables.print_json(told)
        return 0
    for row in told["jobs"]:
        print(tables.printable(f"{row.get('job') or row['id']}: {cells.standing(row)}"))
    return 0


def _move(said: Said) -> int:
    if (said.queue is None) is not said.first:
        mistake(
            said.verb,
            "name a queue (for its end) or --first (for the front of the job's own queue)",
        )
    choice.way_to(said.job, said.whom()).ask(
        "job_move", job=said.job, queue=said.queue, first=said.first
    )
    if said.first:
        say(f"{said.job} is moved to the front of its queue")
    else:
        say(f"{said.job} is moved to the end of queue {said.queue}")
    return 0


def _create(said: Said) -> int:
    if said.everybody and (said.users or said.groups):
        mistake(
            said.verb, stated("--everybody together with --user or --group", "name one of them")
        )
    order = fields.said(fields.OF_QUEUE, vars(said))
    order.update(membership(vars(said), said.users_only or said.everybody))
    row = choice.admins_way(said.whom()).ask("queue_create", queue=said.queue, **order)
    takes = f", takes {row['cap']} at most" if row["cap"] is not None else ""
    again = f", restarts failed jobs {row['max_restarts']} times" if row["max_restarts"] else ""
    whose = ", ".join([*row["users"], *(f"@{group}" for group in row["groups"])])
    users = f", is for {whose} alone" if whose else ""
    say(f"queue {said.queue} has rank {row['rank']}{takes}{again}{users}")
    for line in access_lines(row, f"queue {said.queue}"):
        say(line)
    return 0


def _remove(said: Said) -> int:
    if said.queue in fields.PRESETS and not said.force:
        line = stated(
            f"queue {said.queue} is built in, and defaults and scripts name it", "add --force"
        )
        raise Fault(line, code=Exit.USAGE)
    choice.admins_way(said.whom()).ask("queue_rm", queue=said.queue)
    say(f"queue {said.queue} is removed")
    return 0


def _one(kind: ValueKind) -> VerbOption:
    return VerbOption("job", kind=kind, required=True)


def _several(kind: ValueKind) -> Sequence[VerbOption]:
    return (VerbOption("job", kind=kind, repeat=True), *FILTERS, AS_USER)


def _verb(name: str, run: Callable[[Said], int], *options: VerbOption, text: str = "") -> Verb:
    return Verb(f"queue {name}", UNDER_QUEUE[name], run, (*options, RUN_DIR), text=text)


VERBS = {
    "position": _verb(
        "position",
        _position,
        _one(kinds.JOB_OR_REQUEST),
        AS_USER,
        JSON,
        text="Shows the place of JOB, why it waits, or how it ended. JOB is a job, "
        "an array (all its jobs) or a waiting request (r17).",
    ),
    "withdraw": _verb(
        "withdraw",
        _action("withdraw", "is withdrawn"),
        *_several(kinds.JOB_OR_REQUEST),
        text=MANY_TEXT,
    ),
    "hold": _verb("hold", _action("hold", "is held"), *_several(kinds.JOB), text=MANY_TEXT),
    "unhold": _verb("unhold", _action("free", "is unheld"), *_several(kinds.JOB), text=MANY_TEXT),
    "move": _verb(
        "move",
        _move,
        _one(kinds.JOB),
        VerbOption("queue", kind=kinds.QUEUE),
        VerbOption("--first", help="To the front of its queue (for admins)."),
        AS_USER,
    ),
    "requeue": _verb(
        "requeue",
        _action("requeue", "waits again"),
        *_several(kinds.JOB_OR_ENDED),
        VerbOption("--no-after", help="Without the jobs for which it still waited when it ended."),
        text=MANY_TEXT,
    ),
    "create": _verb(
        "create",
        _create,
        VerbOption("queue", kind=kinds.QUEUE, required=True),
        *kinds.options_of(fields.OF_QUEUE),
        *kinds.options_of(fields.members("ask for it", "everybody")),
        text="An option that is not given leaves the queue's value as it is. A "
        "user also needs the right of the environment (quota set --max-priority). "
        "Neither binds admins.",
    ),
    "rm": _verb(
        "rm",
        _remove,
        VerbOption("queue", kind=kinds.QUEUE, required=True),
        VerbOption("--force", help="Also a queue that is built in: high, normal, low."),
    ),
}
