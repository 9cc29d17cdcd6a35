"""The orders of a node's users and administrators that are the head's to answer.

Knows: which order is about the cluster, the head's verb for it. Must not know: the link, what the
head does with it.

A job `cN` is the head's. A submission is, if its environment is the cluster's and it does not say
`here`. A list shows this node's rows first (its own jobs, and requests), then the cluster's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from client_plugin.messages.form import stated
from nodemgr.core.state.node_state import State
from nodemgr.edge.api.verb_table import ADMIN, ENV, Begin, Speaker
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply

AskHead = Callable[[Speaker, str, dict[str, Any], Reply], None]
"""Has the head carry out one of its verbs."""

OF_JOB = {
    "job_show": ("cluster_show", ("job",)),
    "job_withdraw": ("cluster_cancel", ("job",)),
    "job_log_read": ("cluster_logs", ("job", "attempt", "offset", "wait")),
    "job_wait": ("cluster_wait", ("jobs",)),
}
"""This node's verb, the head's, and the arguments that both have."""
OF_ADMINS = frozenset({
    "cluster_status", "node_list", "node_show", "node_drain", "node_resume", "node_lost",
    "node_remove", "env_set", "env_list",
})  # fmt: skip
OF_ENV = frozenset({"quota_set", "quota_rm", "env_create"})
"""Orders about an environment, which the head gives."""
SUBMITS = frozenset({"job_submit", "job_submit_many"})
ONLY_HERE = frozenset({"features", "recognised"})
BEYOND = "cluster:"
"""Before the head's own cursor: the node's part of the list is over."""


def ids_of(given: dict[str, Any]) -> list[object]:
    named = given.get("jobs") if isinstance(given.get("jobs"), list) else [given.get("job")]
    assert isinstance(named, list)
    return named


def is_clusters(job_id: object) -> bool:
    return isinstance(job_id, str) and job_id[:1] == "c" and job_id[1:].isdecimal()


class Delegation:
    """The choice between this node and its head."""

    def __init__(self, state: State, head: str, envs: Callable[[], tuple[str, ...]], ask: AskHead):
        """`envs`: the environments of the cluster, as they are now."""
        self._state, self._head, self._envs, self._ask = state, head, envs, ask

    def take(
        self, begin: Begin, who: Speaker, name: str, given: dict[str, Any], reply: Reply
    ) -> bool:
        """False: the order is this node's alone. Raises OperationError."""
        if not who.right & (ENV | ADMIN):
            return False
        env = who.env or given.get("env")
        if name in OF_ENV and given.get("env") in self._envs():
            what = f"environment {given['env']} is the cluster's"
            raise OperationError(stated(what, f"change it at the head {self._head}", "refused"))
        if any(map(is_clusters, ids_of(given))):
            self._of_jobs(who, name, given, reply)
        elif name in SUBMITS and env in self._envs() and not given.pop("here", False):
            self._submit(who, name, given, reply)
        elif name in OF_ADMINS and who.right is ADMIN:
            self._ask(who, name, given, reply)
        elif name == "queue" and (env is None or env in self._envs()):
            self._queue(begin, who, given, reply)
        elif name == "history" and env in self._envs():
            self._ask(who, "cluster_history", given, reply)
        else:
            given.pop("here", None)
            return False
        return True

    def _submit(self, who: Speaker, name: str, given: dict[str, Any], reply: Reply) -> None:
        if name != "job_submit":
            raise _not_yet("submit --from")
        rest = {key: given[key] for key in given if key not in ONLY_HERE}
        self._ask(who, "cluster_submit", rest, reply)

    def _of_jobs(self, who: Speaker, name: str, given: dict[str, Any], reply: Reply) -> None:
        if not all(map(is_clusters, ids_of(given))):
            what = "some of these jobs are the cluster's, and some are this node's"
            raise OperationError(stated(what, "name them in two orders", "usage"))
        if name in OF_JOB:
            verb, keys = OF_JOB[name]
            self._ask(who, verb, {key: given[key] for key in keys if key in given}, reply)
        elif name == "job_orders" and given.get("order") == "withdraw":
            self._cancel_each(who, ids_of(given), reply)
        else:
            raise _not_yet("holding, moving and requeueing")

    def _cancel_each(self, who: Speaker, ids: list[object], reply: Reply) -> None:
        rows: list[dict[str, Any]] = []

        def one(job_id: object) -> Reply:
            def answered(answer: Any) -> None:
                refused = isinstance(answer, OperationError)
                more = {"error": str(answer), "code": answer.code} if refused else {"error": None}
                rows.append({"job": job_id, **more})
                if len(rows) == len(ids):
                    reply({"schema_version": 1, "jobs": rows, "after": None})

            return answered

        for job_id in ids:
            self._ask(who, "cluster_cancel", {"job": job_id}, one(job_id))

    def _queue(self, begin: Begin, who: Speaker, given: dict[str, Any], reply: Reply) -> None:
        after = given.get("after")
        if isinstance(after, str) and after.startswith(BEYOND):
            beyond = after.removeprefix(BEYOND)
            rest = {key: given[key] for key in ("env", "limit") if given.get(key) is not None}
            more = {"after": beyond} if beyond else {}
            self._ask(who, "cluster_queue", {**rest, **more}, lambda answer: reply(_beyond(answer)))
            return

        def here(answer: Any) -> None:
            if isinstance(answer, JsonText):
                answer = json.loads(answer)
            if isinstance(answer, dict):
                rows = [row for row in answer["queue"] if not self._is_assigned(row)]
                after = BEYOND if answer["after"] is None else answer["after"]
                answer = {**answer, "queue": rows, "after": after}
            reply(answer)

        begin(who, "queue", given, here)

    def _is_assigned(self, row: dict[str, Any]) -> bool:
        job = self._state.jobs.get(str(row.get("job") or row.get("id")))
        return job is not None and bool(job.assigned)


def _beyond(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return answer
    after = answer.get("after")
    return {"queues": [], "store": None, **answer,
            "after": None if after is None else f"{BEYOND}{after}"}  # fmt: skip


def _not_yet(what: str) -> OperationError:
    return OperationError(
        stated(f"the head of a cluster does not offer {what} yet", "submit jobs one by one, or"
               " with --here on this node", "refused")
    )  # fmt: skip
