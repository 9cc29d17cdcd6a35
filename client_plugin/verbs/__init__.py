"""`nodemgr` inside a container, with the standard library alone: what its users may ask about their environment.

Knows: the verbs and their arguments. Must not know: how the manager is reached (asking), how things look (tables, doctor).
Administrators' verbs are the node's (package `nodemgr`, which is not in the container).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from client_plugin.verbs import asking, doctor, tables

ON_THE_NODE = ("env", "quota", "serve", "allocations", "events", "run", "demo", "setup")
INTERRUPTED, BROKEN_PIPE, USAGE = 130, 141, 2


def status(_options: argparse.Namespace) -> Dict[str, Any]:
    return asking.ask("status")


def queue(_options: argparse.Namespace) -> Dict[str, Any]:
    told = asking.ask("status")
    return {"schema_version": told["schema_version"], "queue": told["queue"]}


def release(options: argparse.Namespace) -> Dict[str, Any]:
    return asking.ask("release", options.task)


def examine(_options: argparse.Namespace) -> Dict[str, Any]:
    return {"schema_version": 1, "checks": doctor.examine()}


class Verb(NamedTuple):
    """`get` gives one JSON object, `lines` what people see of it."""

    help: str
    get: Callable[[argparse.Namespace], Dict[str, Any]]
    lines: Callable[[Dict[str, Any]], List[str]]
    argument: Optional[str] = None


VERBS = {
    "status": Verb("Show this environment's GPUs, tasks and waiting requests.", status, tables.status),
    "queue": Verb("Show what of this environment waits, at which place and for what.", queue, tables.queue),
    "release": Verb("Take a task's GPUs back (t17), or a waiting request out of the queue (r17).", release, tables.released, "task"),
    "doctor": Verb("Check what is active in this container, and what to do about what is not.", examine, doctor.lines),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nodemgr", description="What this container's environment holds and waits for.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help)
        if verb.argument is not None:
            sub.add_argument(verb.argument)
        sub.add_argument("--json", action="store_true", dest="as_json", help="JSON on stdout: bytes and seconds as integers.")
    return parser


def main(arguments: List[str]) -> int:
    """The exit code. What can go wrong ends in one line on stderr."""
    if arguments and arguments[0] in ON_THE_NODE:
        sys.stderr.write(f"nodemgr: {arguments[0]} is a verb of the node's own nodemgr; in a container there are {', '.join(VERBS)}\n")
        return USAGE
    options = _parser().parse_args(arguments)
    verb = VERBS[options.verb]
    try:
        answer = verb.get(options)
        text = json.dumps(answer, indent=2) if options.as_json else "\n".join(verb.lines(answer))
        print(text, flush=True)
    except asking.Refused as refused:
        sys.stderr.write(f"nodemgr: {tables.printable(str(refused))}\n")
        return refused.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # Python would complain once more at exit about what it could not write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 1 if any(check["ok"] is False for check in answer.get("checks", ())) else 0
