"""Each pair of a caller and a verb: carried out, or refused before its arguments are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.edge.api.verb_table import ADMIN, ENV, PAGE, Right, Speaker, Verbs
from nodemgr.edge.rpc.operation import OperationError
from tests.support.local import LocalManager

READS = {"history", "job_show", "leases", "queue", "report"}
ALLOWED: dict[Right, set[str]] = {
    ENV: READS | {
        "allocations", "doctor", "figures", "forecast", "holdings", "job_assign", "job_free",
        "job_hold", "job_log_read", "job_modules", "job_move", "job_orders", "job_place",
        "job_requeue", "job_submit", "job_submit_many", "job_wait", "job_withdraw", "program_begun",
        "program_ran", "programs", "release", "run_begin", "status", "task_keep", "task_resume",
        "task_show", "task_suspend", "web_revoke", "web_token", "web_tokens",
    },
    ADMIN: READS | {
        "allocations", "doctor", "env_create", "env_rekey", "env_show", "events", "figures",
        "gpu_drain", "gpu_failed", "gpu_repaired", "gpu_resume", "job_acknowledge", "job_assigned",
        "job_free", "job_hold", "job_log_read", "job_move", "job_orders", "job_requeue", "job_wait",
        "job_withdraw", "node_join", "node_leave", "ping", "placement_read", "pool_hold",
        "pool_state", "queue_create", "queue_rm", "quota_rm",
        "quota_set", "quota_show", "release", "report_forecast", "report_samples", "status",
        "task_keep", "task_resume", "task_show", "task_suspend", "web_revoke", "web_token",
        "web_tokens",
    },
    Right.ENV_TOKEN: READS | {
        "job_withdraw", "metrics", "quota_show", "release", "samples", "view",
    },
    Right.ADMIN_TOKEN: READS | {
        "job_withdraw", "metrics", "quota_set", "quota_show", "release", "samples", "view",
    },
    PAGE: {"hello", "judge", "metrics", "view"},
}  # fmt: skip
"""Written by hand a second time: a wrong right in the table is a failure here."""


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with LocalManager() as manager:
        for env in ("alice", "bob"):
            manager.call("quota_set", env=env, gpus=1)
        yield manager.service.daemon.verbs


def caller(right: Right) -> Speaker:
    env = "alice" if right in ENV | Right.ENV_TOKEN else None
    return Speaker(right, "someone", "someone", env)


def refusal(verbs: Verbs, who: Speaker, verb: str, given: object) -> OperationError | None:
    try:
        verbs.find(who, verb, given)
    except OperationError as error:
        return error
    return None


@pytest.mark.parametrize("right", list(Right), ids=lambda right: right.name)
def test_each_pair_of_caller_and_verb(verbs: Verbs, right: Right) -> None:
    nothing: Any = None  # no object: refused as arguments, where the verb is the caller's
    found = {verb: refusal(verbs, caller(right), verb, nothing) for verb in verbs.rows}
    allowed = {verb for verb, error in found.items() if "args must be" in str(error)}
    assert allowed == ALLOWED[right]
    for verb, error in found.items():
        assert error is not None, verb
        assert error.code in ("usage", "token", "forbidden", "refused"), verb


def test_a_viewer_is_refused_another_environment_before_anything(verbs: Verbs) -> None:
    for verb in ALLOWED[Right.ENV_TOKEN]:
        error = refusal(verbs, caller(Right.ENV_TOKEN), verb, {"env": "bob"})
        assert error is not None
        assert error.code == "forbidden"


@pytest.mark.parametrize("verb", sorted(ALLOWED[ENV]))
def test_a_user_learns_nothing_of_another_environment(verbs: Verbs, verb: str) -> None:
    """No verb of users carries out an order with the name of another environment."""
    row, given = verbs.rows[verb], {"for_ms": 3_600_000, "order": "hold", "name": "*"}
    if "env" in row.arguments:
        with pytest.raises(OperationError, match="alice"):
            row.perform(caller(ENV), {"env": "bob", **given})
