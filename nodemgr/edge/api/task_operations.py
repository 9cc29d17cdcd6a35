"""The verbs on a task: release, suspend, resume, keep.

Knows: the refusals of each, and the end that it waits for. Must not know: sockets, the driver.
"""

from __future__ import annotations

from typing import Any

from client_plugin.messages.form import Message, stated
from client_plugin.units import MAX_DURATION_MS, format_duration
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.leases import ends
from nodemgr.core.lifecycle import administration
from nodemgr.core.model import events
from nodemgr.core.model.entities import Suspension, Task, TaskState
from nodemgr.core.requests.notify import Standings
from nodemgr.core.state.node_state import State
from nodemgr.core.views import job_rows
from nodemgr.edge.api.verb_table import ADMIN, ENV, EVERYONE, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import Argument, Later, OperationError, Reply, duration, text
from nodemgr.messages import suspension as messages

SHOWN_CHARS = 40


TASK = {"task": Argument(text, required=True)}
FOR_MS = Argument(duration(1, MAX_DURATION_MS), required=True)


class TaskOperations:
    """The verbs, on a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @verb("release", EVERYONE, TASK, changes=True)
    def release(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """Ends the lease, or withdraws the request."""
        task_id = to_release(self._daemon.state, given["task"], who.env)
        wall_ns = self._daemon.clock.wall_ns()
        self._daemon.submit_or_refuse(events.ReleaseTask(task_id, who.user, wall_ns, env=who.env))
        return {"task": task_id}

    @verb("task_suspend", ENV | ADMIN, TASK, changes=True)
    def suspend(self, who: Speaker, given: dict[str, Any]) -> Later:
        """Answers when the memory is on the host, or with the reason why it is not."""
        task = self._task(who, given["task"])
        self._check_suspend(task)
        event = events.SuspendTask(
            task.task_id, who.name, self._daemon.clock.wall_ns(), env=who.env
        )
        self._daemon.submit_or_refuse(event)
        if self._suspension(task.task_id) is not Suspension.SUSPENDING:
            return Later(lambda reply: reply(self._facts(task.task_id)))
        return self._at_the_end(
            task.task_id,
            Message(
                "{task} is not suspended and goes on: {reason}", "see `nodemgr events`", "refused"
            ),
        )

    @verb("task_resume", ENV | ADMIN, TASK, changes=True)
    def resume(self, who: Speaker, given: dict[str, Any]) -> Later:
        """Answers when the memory is back; at once if it has to wait for room."""
        task = self._task(who, given["task"])
        if task.suspension is Suspension.RESUMING:
            raise OperationError(messages.BEING_RESUMED(task=task.task_id))
        if task.suspension is Suspension.NONE:
            raise OperationError(
                f"{task.task_id} is not suspended", "it goes on by itself", "refused"
            )
        event = events.ResumeTask(task.task_id, who.name, self._daemon.clock.wall_ns(), env=who.env)
        self._daemon.submit_or_refuse(event)
        if self._suspension(task.task_id) is not Suspension.RESUMING:
            return Later(lambda reply: reply(self._facts(task.task_id)))
        return self._at_the_end(
            task.task_id,
            Message(
                "the GPU memory of {task} did not come back: {reason}",
                "try once more, else end its processes",
                "refused",
            ),
        )

    @verb("task_keep", ENV | ADMIN, {**TASK, "for_ms": FOR_MS}, changes=True)
    def keep(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """No idle policy acts on the task for this time. The quota limits it for users."""
        task, for_ms = self._task(who, given["task"]), given["for_ms"]
        limit_ms = self._daemon.state.envs[task.env].quota.max_keep_ms
        if who.env is not None and for_ms > limit_ms:
            raise OperationError(
                f"a user of {task.env} may keep an idle task for {format_duration(limit_ms)}, not "
                f"for {format_duration(for_ms)}",
                "name a shorter time, or ask an administrator (quota set --max-keep)",
                "quota",
            )
        wall_ns = self._daemon.clock.wall_ns()
        self._daemon.submit_or_refuse(
            events.KeepTask(task.task_id, who.name, for_ms, wall_ns, env=who.env)
        )
        return {"task": task.task_id, "for_ms": for_ms}

    def _task(self, who: Speaker, name: str) -> Task:
        state = self._daemon.state
        task = state.tasks.get(administration.present_id(state, name))
        if task is not None and who.env in (None, task.env):
            return task
        known = [row.task_id for row in state.tasks.values() if who.env in (None, row.env)]
        shown, meant = name[:SHOWN_CHARS], did_you_mean(name, known)
        raise OperationError(
            stated(f"there is no task {shown!r}{meant}", "`nodemgr status` lists them", "not_found")
            if who.env is None
            else stated(
                f"{who.env} has no task {shown!r}{meant}",
                "`nodemgr status` lists them",
                "not_found",
            )
        )

    def _check_suspend(self, task: Task) -> None:
        """Raises OperationError for a task that cannot be suspended now."""
        state, task_id = self._daemon.state, task.task_id
        waits = ends.resume_id(task_id) in state.requests
        if task.suspension is Suspension.SUSPENDED and not waits:
            raise OperationError(
                f"{task_id} is suspended already",
                f"`nodemgr resume {task_id}` brings it back",
                "refused",
            )
        if task.suspension is Suspension.SUSPENDING:
            raise OperationError(
                f"{task_id} is being suspended", "wait, or see `nodemgr status`", "busy"
            )
        if task.suspension is Suspension.RESUMING:
            raise OperationError(messages.BEING_RESUMED(task=task_id))
        if task.state is TaskState.STALLED or task_id in state.silent_jobs:
            raise OperationError(
                f"{task_id} is stalled, and a stopped process cannot be suspended",
                f"`nodemgr release {task_id}` takes its GPUs back",
                "refused",
            )
        if task_id in state.elastics:
            raise OperationError(
                f"{task_id} is an elastic task, which is never suspended",
                "it gives GPUs back while others wait, and nodemgr release ends its lease",
                "refused",
            )
        members = [state.processes[key] for key in task.processes]
        if not members or any(member.pid is None for member in members):
            raise OperationError(
                f"{task_id} has processes on other machines or none yet, and only those of this "
                "node can be suspended",
                f"`nodemgr release {task_id}` takes its GPUs back",
                "refused",
            )

    def _at_the_end(self, task_id: str, failed: Any) -> Later:
        def begin(reply: Reply) -> None:
            def ended(reason: str) -> None:
                if reason:
                    reply(OperationError(failed(task=task_id, reason=reason)))
                elif task_id not in self._daemon.state.tasks:
                    reply(
                        OperationError(
                            f"{task_id} has ended", "`nodemgr events` says why", "not_found"
                        )
                    )
                else:
                    reply(self._facts(task_id))

            self._daemon.suspensions.when_ended(task_id, ended)

        return Later(begin)

    def _facts(self, task_id: str) -> dict[str, Any]:
        """The task's suspension, and why its resume waits."""
        state, now_ns = self._daemon.state, self._daemon.clock.monotonic_ns()
        request = state.requests.get(ends.resume_id(task_id))
        found = {"task": task_id, "suspension": self._suspension(task_id).value}
        if request is None:
            return {**found, **job_rows.unplaced_for(None)}
        standing = Standings(state, now_ns).of(request)
        return {**found, "priority": standing.queue, **standing.row}

    def _suspension(self, task_id: str) -> Suspension:
        task = self._daemon.state.tasks.get(task_id)
        return Suspension.NONE if task is None else task.suspension


def to_release(state: State, name: str, env: str | None) -> str:
    """The present id of it. `env`: the environment of the order; None: an administrator's.

    Raises OperationError if there is none, it is another environment's, or it is suspended: its
    processes could not go on. A job that is suspended is withdrawn, which ends its processes.
    """
    found = administration.to_release(state, name, env)
    if found is not None:
        task = state.tasks.get(found)
        if task is not None and task.job_id is None and task.suspension is not Suspension.NONE:
            members = [state.processes[key].pid for key in task.processes]
            pids = " ".join(str(pid) for pid in members if pid is not None)
            raise OperationError(
                f"{found} is suspended, and its processes cannot go on without their GPU memory",
                f"bring it back first (`nodemgr resume {found}`), or end its processes (kill "
                f"{pids})",
                "refused",
            )
        return found
    shown = name[:SHOWN_CHARS]
    raise OperationError(
        stated(
            f"there is no task or waiting request {shown!r}",
            "`nodemgr status` lists them",
            "not_found",
        )
        if env is None
        else stated(
            f"{env} has no task or waiting request {shown!r}",
            "`nodemgr status` lists them",
            "not_found",
        )
    )
