"""The last line of a job's log where the job did not end by itself. Pure.

Knows: the end of an attempt. Must not know: the log, the job's next attempt.
"""

from __future__ import annotations

import signal

from client_plugin import units
from client_plugin.messages import attempts
from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor.interface import Status

OF_ENV, OTHERS_GO_ON = attempts.OVER_ENV_MEMORY(), attempts.OTHERS_GO_ON()


def last_line(
    job_id: str, env: str, limit_ms: int | None, status: Status, early: int = 0
) -> str | None:
    """The cause of the end, whose limit it was, and the remedy; None: the job ended by itself.

    A job that never began has no log. `limit_ms`: its time limit. `early`: the signal that it gets
    before its end; 0: none. Whether it runs again is not known here: it may be withdrawn, or the
    head of a cluster decides.
    """
    if status.started_wall_ns is None or status.why in ("", OTHERS_GO_ON):
        return None
    if status.cause is Cause.TIME_LIMIT:
        limit = units.format_duration(limit_ms or 0)
        if status.signal == early and early not in (0, signal.SIGTERM):  # TERM is also the limit's
            name = signal.Signals(early).name.removeprefix("SIG")
            return stated(
                f"the job was ended by its --signal {name}, before its time limit of {limit}",
                "handle that signal, or submit it with a longer --time",
            )
        return stated(
            f"the job was ended at its time limit of {limit}", "submit it with a longer --time"
        )
    if status.cause is Cause.HOST_MEMORY:
        more = "submit it with more --host-memory"
        if status.why == OF_ENV:
            more = f"run fewer at once, or ask an admin (nodemgr quota set {env} --host-memory)"
        return stated(f"the job was ended: {status.why}", more)
    if status.cause in (Cause.NODE_DOWN, Cause.SUPERVISOR_LOST, Cause.CONTAINER_STOPPED):
        more = f"no fault of its own (`nodemgr history {job_id}` shows whether it runs again)"
        return stated(f"the job was ended: {status.why}", more)
    return stated(f"the job was ended: {status.why}", f"`nodemgr history {job_id}` has its end")
