"""The verbs of the page process: one table with the right that each needs.

Knows: which view or action of the manager each verb is. Must not know: sockets, HTTP. An action
carries the token of its viewer, and the right is judged here, not in the page process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nodemgr.edge.api.gpu_use import PastUse
from nodemgr.edge.api.job_operations import JobOperations, Who
from nodemgr.edge.api.release_names import release
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    Operation,
    OperationError,
    Operations,
    check,
    text,
)
from nodemgr.edge.web.metric_values import MetricValues
from nodemgr.edge.web.scope_views import ScopeViews
from nodemgr.edge.web.tokens import TokenHolder, WebTokens
from nodemgr.messages import web as messages
from nodemgr.messages.orders import (
    ARGUMENTS_NOT_OBJECT,
    UNKNOWN_VERB,
)

MAX_JUDGED = 1_000
SECOND_NS = 1_000_000_000

PerformForViewer = Callable[[TokenHolder, dict[str, Any]], Any]


class WebVerb(NamedTuple):
    """A verb of viewers with a token."""

    perform: PerformForViewer
    is_action: bool = False
    admins_only: bool = False


def _tokens(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_JUDGED:
        raise OperationError(messages.MUST_BE_TOKENS(limit=MAX_JUDGED))
    return value


class WebVerbs:
    """The table, on a daemon."""

    def __init__(
        self,
        daemon: Daemon,
        views: ScopeViews,
        metrics: MetricValues,
        jobs: JobOperations,
        admin: Operations,
        tokens: WebTokens,
        gpu_use: PastUse,
        hello: Mapping[str, Any],
    ) -> None:
        """`admin`: the administrators' verbs; `hello`: what the page process is told of itself."""
        self._daemon = daemon
        self._views = views
        self._metrics = metrics
        self._jobs = jobs
        self._admin = admin
        self._tokens = tokens
        self._hello = hello
        self._table: Mapping[str, WebVerb] = {
            "queue": WebVerb(self._of_jobs("queue")),
            "history": WebVerb(self._of_jobs("history")),
            "report": WebVerb(self._of_jobs("report")),
            "leases": WebVerb(self._of_jobs("leases")),
            "job": WebVerb(self._of_jobs("job_show")),
            "samples": WebVerb(lambda viewer, given: gpu_use.samples(viewer.env or "", given)),
            "quotas": WebVerb(self._quotas),
            "release": WebVerb(self._release, is_action=True),
            "withdraw": WebVerb(self._of_jobs("job_withdraw"), is_action=True),
            "quota_set": WebVerb(self._quota_set, is_action=True, admins_only=True),
        }

    def perform(self, verb: str, token: object, given: object) -> Any:
        """The result, or a Later. Raises OperationError."""
        if verb == "hello":
            return self._hello
        if verb == "judge":
            arguments = check({"tokens": Argument(_tokens, required=True)}, given)
            return [self._judged(one) for one in arguments["tokens"]]
        viewer = None if token is None else self._tokens.judge(token)
        if verb == "view":
            check({}, given)
            return Later(lambda reply: self._views.get(viewer, reply))
        if verb == "metrics":
            check({}, given)
            return Later(lambda reply: self._metrics.get(viewer, reply))
        row = self._table.get(verb)
        if row is None:
            raise OperationError(UNKNOWN_VERB(verb=verb[:40], known=", ".join(sorted(self._table))))
        if viewer is None:
            raise OperationError(messages.NEEDS_TOKEN())
        if row.admins_only and viewer.env is not None:
            raise OperationError(messages.NEEDS_ADMIN_TOKEN())
        if not isinstance(given, dict):
            raise OperationError(ARGUMENTS_NOT_OBJECT())
        if viewer.env is not None and given.get("env") not in (None, viewer.env):
            raise OperationError(messages.TOKEN_OF_OTHER_ENV(env=viewer.env))
        return self._carry_out(row, viewer, given)

    @staticmethod
    def _carry_out(row: WebVerb, viewer: TokenHolder, given: dict[str, Any]) -> Any:
        """A task or job of another env is refused as one that does not exist is."""
        try:
            return row.perform(viewer, given)
        except OperationError as error:
            if row.is_action and viewer.env is not None and error.code == "not_found":
                raise OperationError(messages.NOT_OF_TOKEN(refusal=error, env=viewer.env)) from None
            raise

    def _judged(self, token: object) -> dict[str, Any]:
        try:
            viewer = self._tokens.judge(token)
        except OperationError as error:
            return {"error": str(error), "code": error.code}
        return {
            "scope": "admin" if viewer.env is None else "env",
            "env": viewer.env,
            "token": viewer.token_id,
            "expires": viewer.expires_wall_ns // SECOND_NS,
        }

    def _of_jobs(self, verb: str) -> PerformForViewer:
        """A verb on jobs, with the rights that the env's users have, or an administrator."""
        row = self._jobs.table[verb]
        return lambda viewer, given: row.perform(
            Who(viewer.name, viewer.env), check(row.arguments, given)
        )

    def _quotas(self, viewer: TokenHolder, given: dict[str, Any]) -> Any:
        check({}, given)
        return self._admin["quota_show"].perform({} if viewer.env is None else {"env": viewer.env})

    def _quota_set(self, viewer: TokenHolder, given: dict[str, Any]) -> Any:
        order: Operation = self._admin["quota_set"]
        arguments = {name: row for name, row in order.arguments.items() if name != "by"}
        return order.perform({**check(arguments, given), "by": viewer.name})

    def _release(self, viewer: TokenHolder, given: dict[str, Any]) -> dict[str, Any]:
        named = check({"task": Argument(text, required=True)}, given)["task"]
        return release(self._daemon, named, viewer.name, viewer.env)
