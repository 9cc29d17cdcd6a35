"""The orders of a node's users and administrators that are the head's to answer.

Knows: which order is about the cluster, the head's verb for it. Must not know: the link, what the
head does with it.

A job `cN` is the head's. A submission is, if its environment is the cluster's and it does not say
`here`. A list shows this node's rows first (its own jobs, and requests), then the cluster's.
The web page shows what its node has under the node's own ids, and the cluster's other jobs.
While the head is away, a list shows all that this node has, under its names in the cluster, and the
state, the output and the end of such a job are answered here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from client_plugin.messages.form import stated
from nodemgr.core.state.node_state import State
from nodemgr.edge.api.verb_table import ADMIN, ENV, VIEWERS, Begin, Speaker
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply

AskHead = Callable[[Speaker, str, dict[str, Any], Reply], None]
"""Has the head carry out one of its verbs."""

OF_JOB = {
    "job_show": ("cluster_show", ("job",)),
    "job_log_read": ("cluster_logs", ("job", "attempt", "offset", "wait")),
    "job_wait": ("cluster_wait", ("jobs",)),
    "job_orders": ("cluster_orders", ("order", "jobs")),
    "job_move": ("cluster_move", ("job", "queue", "first")),
}
"""This node's verb, the head's, and the arguments that both have."""
ORDERS = {
    "job_withdraw": "withdraw", "job_hold": "hold", "job_free": "free", "job_requeue": "requeue",
}  # fmt: skip
"""Orders to one job, as they are named in orders to many."""
OF_ADMINS = frozenset({
    "cluster_status", "node_list", "node_show", "node_drain", "node_resume", "node_lost",
    "node_remove", "env_set", "env_rm", "env_list",
})  # fmt: skip
OF_USERS = frozenset({"cluster_status", "node_list"})
OF_ENV = frozenset({"quota_set", "quota_rm", "env_create"})
"""Orders about an environment, which the head gives."""
SUBMITS = {"job_submit": "cluster_submit", "job_submit_many": "cluster_submit_many"}
ONLY_HERE = frozenset({"features", "recognised"})
ANSWERED_HERE = frozenset({"job_show", "job_log_read", "job_wait"})
OF_PAGE = frozenset({"queue", "job_show", "job_withdraw"})
EMPTY: dict[str, Any] = {"queues": [], "store": None}
OF_FILTER = ("order", "env", "name", "state", "user", "mine")
BEYOND = "cluster:"
"""Before the head's own cursor: the node's part of the list is over."""


def ids_of(given: dict[str, Any]) -> list[object]:
    named = given.get("jobs") if isinstance(given.get("jobs"), list) else [given.get("job")]
    assert isinstance(named, list)
    return named


def is_clusters(job_id: object) -> bool:
    return isinstance(job_id, str) and job_id[:1] == "c" and job_id[1:2].isdecimal()


class Delegation:
    """The choice between this node and its head."""

    def __init__(
        self,
        state: State,
        head: str,
        node: str,
        envs: Callable[[], tuple[str, ...]],
        ask: AskHead,
        away: Callable[[], str],
    ) -> None:
        """`node`: this one's name. `envs`: the environments of the cluster, as they are now.

        `away`: why the head is.
        """
        self._state, self._head, self._envs, self._ask = state, head, envs, ask
        self._node, self._away = node, away

    def take(
        self, begin: Begin, who: Speaker, name: str, given: dict[str, Any], reply: Reply
    ) -> bool:
        """False: the order is this node's alone. Raises OperationError."""
        if not (who.right & (ENV | ADMIN) or (who.right & VIEWERS and name in OF_PAGE)):
            return False
        env = who.env or given.get("env")
        if name in OF_ENV and given.get("env") in self._envs():
            what = f"environment {given['env']} is the cluster's"
            raise OperationError(what, f"change it at the head {self._head}", "refused")
        if any(map(is_clusters, ids_of(given))):
            self._of_jobs(begin, who, name, given, reply)
        elif name in SUBMITS and env in self._envs() and not given.pop("here", False):
            self._submit(who, name, given, reply)
        elif name in (OF_ADMINS if who.right is ADMIN else OF_USERS):
            self._ask(who, name, given, reply)
        elif name == "queue" and (env is None or env in self._envs()):
            self._queue(begin, who, given, reply)
        elif name == "job_orders" and self._is_filter(given, env):
            self._match(begin, who, given, reply)
        elif name == "history" and env in self._envs():
            self._ask(who, "cluster_history", given, reply)
        else:
            given.pop("here", None)
            return False
        return True

    def _submit(self, who: Speaker, name: str, given: dict[str, Any], reply: Reply) -> None:
        rest = {key: given[key] for key in given if key not in ONLY_HERE}
        self._ask(who, SUBMITS[name], rest, reply)

    def _of_jobs(
        self, begin: Begin, who: Speaker, name: str, given: dict[str, Any], reply: Reply
    ) -> None:
        if not all(map(is_clusters, ids_of(given))):
            what = "some of these jobs are the cluster's, and some are this node's"
            raise OperationError(what, "name them in two orders", "usage")
        if self._away() and name in ANSWERED_HERE and (names := self._names_here(ids_of(given))):

            def answered(answer: Any) -> None:
                shown = self._shown(answer)
                if name == "job_wait" and not _are_done(shown):  # the head may start it again
                    self._ask(who, "cluster_wait", given, reply)
                else:
                    reply(shown)

            rest = {key: given[key] for key in given if key != "attempt"}  # one of the head's
            begin(who, name, _renamed(rest, names), answered)
        elif name in OF_JOB:
            verb, keys = OF_JOB[name]
            self._ask(who, verb, {key: given[key] for key in keys if key in given}, reply)
        elif name in ORDERS:
            self._ask(who, "cluster_order", {"job": given["job"], "order": ORDERS[name]}, reply)
        else:
            what = f"the head of a cluster does not offer {name}"
            raise OperationError(what, "it is for jobs of one node (submit --here)", "refused")

    def _queue(self, begin: Begin, who: Speaker, given: dict[str, Any], reply: Reply) -> None:
        is_page = bool(who.right & VIEWERS)
        if (beyond := _beyond(given)) is not None:

            def there(answer: Any) -> None:
                shown = self._beyond(answer)
                if is_page and isinstance(shown, dict):
                    rows = [row for row in shown["queue"] if row["node"] != self._node]
                    shown = {**shown, "queue": rows}
                reply(shown)

            rest = {key: given[key] for key in ("env", "limit") if given.get(key) is not None}
            self._ask(who, "cluster_queue", {**rest, **beyond}, there)
            return

        why = self._away()

        def here(answer: Any) -> None:
            if isinstance(answer, JsonText):
                answer = json.loads(answer)
            if isinstance(answer, dict) and why:
                answer = {**self._shown(answer), "note": _alone(why)}
            elif isinstance(answer, dict):
                rows = [row for row in answer["queue"] if is_page or not self._is_assigned(row)]
                after = BEYOND if answer["after"] is None else answer["after"]
                answer = {**answer, "queue": rows, "after": after}
            reply(answer)

        begin(who, "queue", given, here)

    def _is_filter(self, given: dict[str, Any], env: object) -> bool:
        """An order to what a filter matches, here and at the head."""
        return (
            not given.get("jobs")
            and given.get("order") != "release"
            and (env is None or env in self._envs())
        )

    def _match(self, begin: Begin, who: Speaker, given: dict[str, Any], reply: Reply) -> None:
        """This node's matches first, then the head's; the client gives the order to the ids."""
        if (beyond := _beyond(given)) is not None:

            def there(answer: Any) -> None:
                reply(_further(answer) if isinstance(answer, dict) else answer)

            rest = {key: given[key] for key in OF_FILTER if given.get(key) is not None}
            self._ask(who, "cluster_match", {**rest, **beyond}, there)
            return

        def here(answer: Any) -> None:
            if isinstance(answer, JsonText):
                answer = json.loads(answer)
            if isinstance(answer, dict):
                names = {row.job_id for row in self._state.assignments.values()}
                ids = [one for one in answer["matched"] if one not in names]
                after = BEYOND if answer["after"] is None else answer["after"]
                answer = {**answer, "matched": ids, "after": after}
            reply(answer)

        begin(who, "job_orders", given, here)

    def _names_here(self, ids: list[object]) -> dict[object, str]:
        """This node's ids of these jobs of the cluster; empty: it lacks one of them."""
        found = {
            _job_of(row.key): row.job_id for row in self._state.assignments.values() if row.job_id
        }  # the last attempt
        return {one: found[str(one)] for one in ids} if found.keys() >= {*ids} else {}

    def _shown(self, answer: Any) -> Any:
        """Rows of this node's jobs under their names in the cluster."""
        if isinstance(answer, JsonText):
            answer = json.loads(answer)
        if not isinstance(answer, dict):
            return answer
        of = {row.job_id: _job_of(row.key) for row in self._state.assignments.values()}
        rows = {
            key: [_renamed(row, of) for row in answer[key]]
            for key in ("queue", "jobs")
            if isinstance(answer.get(key), list)
        }
        return {**_renamed(answer, of), **rows}

    def _beyond(self, answer: Any) -> Any:
        if isinstance(answer, OperationError) and (why := self._away()):
            return {**EMPTY, "schema_version": 1, "queue": [], "after": None, "note": _alone(why)}
        return {**EMPTY, **_further(answer)} if isinstance(answer, dict) else answer

    def _is_assigned(self, row: dict[str, Any]) -> bool:
        job = self._state.jobs.get(str(row.get("job") or row.get("id")))
        return job is not None and bool(job.assigned)


def _beyond(given: dict[str, Any]) -> dict[str, int] | None:
    """The head's own place in its list; None: the list is still this node's."""
    after = given.get("after")
    if not (isinstance(after, str) and after.startswith(BEYOND)):
        return None
    place = after.removeprefix(BEYOND)
    return {"after": int(place)} if place.isdecimal() else {}


def _further(answer: dict[str, Any]) -> dict[str, Any]:
    after = answer.get("after")
    return {**answer, "after": None if after is None else f"{BEYOND}{after}"}


def _job_of(key: str) -> str:
    return key.split("/")[2]


def _renamed(row: dict[str, Any], of: Mapping[Any, str]) -> dict[str, Any]:
    """The same with other ids of jobs."""
    found: dict[str, Any] = {
        key: of.get(row[key], row[key]) for key in ("id", "job", "of") if key in row
    }
    named = row.get("jobs")
    if isinstance(named, list) and all(isinstance(one, str) for one in named):
        found["jobs"] = [of.get(one, one) for one in named]
    return {**row, **found}


def _are_done(answer: Any) -> bool:
    return isinstance(answer, dict) and all(row["state"] == "done" for row in answer["jobs"])


def _alone(why: str) -> str:
    return stated(
        f"the cluster's head does not answer ({why}): these are this node's rows alone",
        "what runs goes on",
    )
