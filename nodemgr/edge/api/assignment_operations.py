"""Orders of a cluster's head to this node: take a job, tell the ends, forget those that it has.

Knows: the arguments of these orders, the users of this node. Must not know: how the head's words
arrive; which answer a key has (core/lifecycle/assignments.py).

An order with a row in its answer is answered for ever: the job is here, or the node has refused it.
Any other answer is none: the head says the same again.

A job runs as the user that the head names. So `job_assign` is an order of root alone, on the client
socket of the job's environment, where the kernel names the caller (job_operations.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from client_plugin import fields
from client_plugin.messages.form import relayed, stated
from client_plugin.units import MAX_DURATION_MS
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import MS, DenyCode, JobPayload, JobSpec
from nodemgr.core.views import assigned
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.api import run_specs
from nodemgr.edge.api.session_hosts import LaunchHosts
from nodemgr.edge.api.verb_table import ADMIN, ENV, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.kernel.processes import known_user_name
from nodemgr.edge.rpc.cost import NAMES_AT_ONCE, Units
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    Reply,
    duration,
    integer,
    of_field,
    text,
)

_KEY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[0-9]{1,18}/c[0-9]{1,15}(\.[0-9]{1,10})?/[0-9]{1,10}",
    re.ASCII,
)
_HEAD = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
MAX_ID = 2**32 - 2
MAX_NUMBER = 2**62
MAX_KEYS = 100
"""The most keys in one acknowledgement."""
THE_HEADS = ("after", "array", "hold", "max_restarts")
"""Fields of a submission that a head keeps to itself."""


def _form(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise OperationError("must be a head's name, and for a key HEAD/GENERATION/JOB/ATTEMPT")
    return value


def _key(value: object) -> str:
    return _form(_KEY, value)


def _head(value: object) -> str:
    return _form(_HEAD, value)


def _keys(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_KEYS:
        raise OperationError(f"must be a list of at most {MAX_KEYS} keys")
    return tuple(map(_key, value))


ASSIGN = {
    "key": Argument(_key, required=True),
    "number": Argument(integer(1, MAX_NUMBER), required=True),
    "waited_ms": Argument(duration(0, MAX_DURATION_MS)),
    "user": Argument(text, required=True),
    "uid": Argument(integer(0, MAX_ID), required=True),
    "gid": Argument(integer(0, MAX_ID), required=True),
    "argv": Argument(kinds.argv, required=True),
    "cwd": Argument(kinds.directory, required=True),
    "environ": Argument(kinds.environ, required=True),
    "umask": Argument(kinds.umask),
    "leader": Argument(kinds.argv),
    **{
        row.name: of_field(row, kinds.OF_KIND, is_wish=True)
        for row in fields.ORDERED
        if row.name not in THE_HEADS
    },
}
ACKNOWLEDGE = {
    "head": Argument(_head, required=True),
    "keys": Argument(_keys, required=True),
    "below": Argument(integer(0, MAX_NUMBER), required=True),
}
LIST = {
    "head": Argument(_head, required=True),
    "after": Argument(_key),
    "limit": Argument(kinds.limit),
}


class AssignmentOperations:
    """The verbs, on a daemon."""

    def __init__(self, daemon: Daemon, launch_hosts: LaunchHosts) -> None:
        self._daemon, self._launch_hosts = daemon, launch_hosts

    @verb("job_assign", ENV, ASSIGN, changes=True)
    def assign(self, who: Speaker, given: dict[str, Any]) -> Later:
        """Answers with the row of the key, once it is stored."""
        if who.env is None or not self._launch_hosts.is_root(who.session):
            raise OperationError(
                "a job that runs as another user is root's to assign, on this node",
                "submit it as its user (nodemgr submit)",
                code="refused",
            )
        return self.take(who.name, who.env, given)

    def take(self, by: str, env: str, given: dict[str, Any], refusal: str = "") -> Later:
        """The same by the link. `refusal`: why this node starts nothing under the key."""
        submission = self._submission(by, env, given, refusal)

        def begin(reply: Reply) -> None:
            self._daemon.submissions.submit(
                submission,
                lambda answered: self._when_applied(lambda: reply(self._answer(given, answered))),
            )

        return Later(begin)

    def _when_applied(self, then: Callable[[], None]) -> None:
        """The state takes a step after its effects."""
        self._daemon.loop.call_soon(then)

    def _answer(
        self, given: dict[str, Any], answered: effects.SubmitAnswered
    ) -> dict[str, Any] | OperationError:
        state = self._daemon.state
        found = state.assignments.get(given["key"])
        if found is not None and answered.code is not DenyCode.STORE_FULL:
            return assigned.row(state, found)
        if answered.code is None:  # acknowledged meanwhile
            return OperationError(
                f"{given['key']} has ended here, and its head has acknowledged that",
                "nothing is to be done",
                "refused",
            )
        code = "store" if answered.code is DenyCode.STORE_FULL else "refused"
        return OperationError(relayed(answered.reason), code=code)

    def _submission(
        self, by: str, env: str, given: dict[str, Any], refusal: str
    ) -> events.Submission:
        rest = {name: given[name] for name in given if name not in ("key", "number")}
        uid, user = rest.pop("uid"), rest.pop("user")
        spec = JobSpec("", user, uid, rest.pop("gid"), rest.pop("umask", 0o022))
        command, leader = rest.pop("argv"), rest.pop("leader", ())
        payload = JobPayload(leader + command, rest.pop("cwd"), rest.pop("environ"))
        waited_ns, refusal = rest.pop("waited_ms", 0) * MS, refusal or _stranger(user, uid)
        is_default = rest.get("gpus") is None
        run = run_specs.take(rest, command, "", is_elastic=bool(leader))
        wished: dict[str, Any] = {"priority": None, **rest}
        wished["name"] = rest.get("name") or kinds.name_of(command[0])
        return events.Submission(
            ref=0,
            by=by,
            env=env,
            spec=spec,
            payload=payload,
            run=run,
            is_default=is_default,
            max_restarts=0,
            assigned=events.Assigned(given["key"], given["number"], waited_ns, refusal),
            **wished,
        )

    @verb(
        "job_acknowledge",
        ADMIN,
        ACKNOWLEDGE,
        changes=True,
        steps=((Units.NAMES, 1 + MAX_KEYS // NAMES_AT_ONCE),),
    )
    def acknowledge(self, _who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        wall_ns = self._daemon.clock.wall_ns()
        self._daemon.submit_or_refuse(
            events.AcknowledgeEnds(given["head"], given["keys"], given["below"], wall_ns)
        )
        left = self._daemon.state.assignments
        return {"open": [key for key in given["keys"] if key in left and not left[key].is_over]}

    @verb("job_assigned", ADMIN, LIST, steps=((Units.ROW, Units.ROW.within()),))
    def list(self, _who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """The answers to this head that are kept, a page in the order of their keys."""
        state, after = self._daemon.state, given.get("after", "")
        limit = given.get("limit", kinds.MAX_ROWS)
        mine = sorted(
            key
            for key, answer in state.assignments.items()
            if answer.head == given["head"] and key > after
        )
        rows = [assigned.row(state, state.assignments[key]) for key in mine[:limit]]
        return {"schema_version": 1, "assigned": rows, "more": len(mine) > limit}


def _stranger(user: str, uid: int) -> str:
    """Why this node does not run jobs as the user; empty: it does. Raises OperationError."""
    try:
        name = known_user_name(uid)
    except TimeoutError:
        raise OperationError(
            f"the user database of the node does not name uid {uid} in time",
            "assign the job again in a moment",
            "busy",
        ) from None
    return (
        ""
        if name == user
        else stated(
            f"uid {uid} is {user} at the head and {name} on this node",
            "give the user the same number on each node",
            "refused",
        )
    )
