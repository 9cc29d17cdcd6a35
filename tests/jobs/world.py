"""A manager in this process with jobs on this node or on two stand-ins.

Jobs are shell scripts that wait for the test's word.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_plugin.ways.event_stream import EventStream
from nodemgr.core.lifecycle import job_actions
from nodemgr.core.model import array_rows, events
from nodemgr.core.model.effects import SubmitAnswered
from nodemgr.core.model.entities import Ended, Job, JobPayload, JobSpec, RunSpec
from nodemgr.edge.engine.job_controller import Jobs
from tests.jobs.two_nodes import Cluster, TwoNodes
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.local import Died, LocalManager

TWO_NODES = "two nodes"
KINDS = ("this node", TWO_NODES)
ENDS = ("job.ended", "job.withdrawn")


class Refused(Exception):
    """A submission was; the code and the reason."""


class World:
    """One state directory and what runs; managers come and go on them."""

    def __init__(self, directory: Path, kind: str, **settings: Any) -> None:
        """`kind` is of KINDS."""
        self.directory = directory
        self._cluster = Cluster(directory / "cluster") if kind == TWO_NODES else None
        self._settings = settings
        self._gates = 0
        self.start()
        for env in ("alice", "bob"):
            self.manager.call("quota_set", env=env, gpus=8)

    def start(self) -> None:
        cluster = self._cluster
        two_nodes = (
            None
            if cluster is None
            else lambda loop, listener: TwoNodes(loop.call_soon_threadsafe, listener, cluster)
        )
        self.manager = LocalManager(directory=self.directory, factory=two_nodes, **self._settings)

    def revive(self) -> None:
        """A manager that died is followed by the next one, which may die, too."""
        while not self.manager.is_alive:
            with contextlib.suppress(Died):
                self.start()

    def restart(self) -> None:
        self.manager.close()
        self.start()

    def close(self) -> None:
        """Nothing goes on when it returns."""
        self.revive()
        for job_id, job in list(self.manager.daemon.state.jobs.items()):
            if job_id in self.manager.daemon.state.jobs:
                self.order(events.WithdrawJob, job_id)
                self.until_gone(job.job_id)
        self.manager.close()
        if self._cluster is not None:
            self._cluster.close()

    def set_up(self, is_up: bool) -> None:
        """Whether the stand-in's nodes can begin anything."""
        assert self._cluster is not None
        self._cluster.set_up(is_up)
        self.until_seen(lambda: self.manager.daemon.state.is_up("") is is_up)

    def until_seen(self, seen: Callable[[], bool]) -> None:
        """Until the manager's loop sees that it is so."""
        until(lambda: self.manager.do(seen))

    # -- orders --

    @property
    def jobs(self) -> Jobs:
        jobs: Jobs = self.manager.daemon.jobs
        return jobs

    def submission(
        self, script: str = "true", env: str = "alice", gpus: int = 1, **fields: Any
    ) -> events.Submission:
        argv = fields.pop(
            "argv", ("/bin/sh", "-c", f"echo $NODEMGR_JOB >> {self.directory}/begun; {script}")
        )
        environ = (f"PATH={os.environ['PATH']}", *fields.pop("environ", ()))
        spec, payload = (
            JobSpec("", "root", os.getuid(), os.getgid()),
            JobPayload(argv, str(self.directory), environ),
        )
        given: dict[str, Any] = {
            "name": "",
            "priority": None,
            "by": "root (uid 0)",
            **fields,
        }
        given["array"] = array_rows.joined((each, each) for each in given.pop("array", ()))
        run = RunSpec(
            given.pop("command", script),
            gpus,
            given.pop("memory_bytes", None),
            given.pop("time_limit_ms", None),
            given.pop("place", ""),
        )
        return events.Submission(ref=0, env=env, spec=spec, payload=payload, run=run, **given)

    def submit_all(self, submissions: list[events.Submission]) -> list[SubmitAnswered]:
        """All in one turn of the loop."""
        answers: list[SubmitAnswered] = []
        done = threading.Event()

        def answer(answered: SubmitAnswered) -> None:
            answers.append(answered)
            if len(answers) == len(submissions):
                done.set()

        submit = self.manager.daemon.submissions.submit
        self.manager.do(lambda: [submit(submission, answer) for submission in submissions])
        assert done.wait(WAIT_LIMIT_S)
        return answers

    def submit(self, script: str = "true", **fields: Any) -> str:
        (answer,) = self.submit_all([self.submission(script, **fields)])
        if answer.job_id is None:
            raise Refused(answer.code, answer.reason)
        return answer.job_id

    def order(self, kind: Callable[..., events.Event], *arguments: Any) -> bool:
        """An order by root, now."""
        daemon = self.manager.daemon
        done: bool = self.manager.do(
            lambda: daemon.submit(kind(*arguments, "root (uid 0)", daemon.clock.wall_ns()))
        )
        return done

    def gate(self) -> Path:
        """A script reads a line of it to wait for the test; `open_gate` lets it through."""
        self._gates += 1
        path = self.directory / f"gate{self._gates}"
        os.mkfifo(path)
        return path

    def holding(self, **fields: Any) -> tuple[str, Path]:
        """A job that runs until its gate is opened."""
        gate = self.gate()
        return self.submit(f"read line < {gate}", **fields), gate

    # -- what is seen --

    def job(self, job_id: str) -> Job:
        """A living one, also one that waits in its array's row."""
        state = self.manager.daemon.state
        (job,) = self.manager.do(lambda: job_actions.living(state, job_id))
        assert isinstance(job, Job)
        return job

    def ended(self, job_id: str) -> Ended:
        (ended,) = self.manager.do(lambda: self.manager.daemon.journal.ended(job_id))
        assert isinstance(ended, Ended)
        return ended

    def until(self, *names: str, **fields: Any) -> dict[str, Any]:
        """The first event of one of these names with these fields, past or coming."""
        with EventStream(self.manager.run_dir, 0) as stream:
            for event in stream.follow(WAIT_LIMIT_S):
                if event["name"] in names and all(
                    event.get(key) == value for key, value in fields.items()
                ):
                    return event
        raise AssertionError(f"no {names} with {fields}")

    def until_running(self, job_id: str, attempt: int = 1) -> dict[str, Any]:
        return self.until("job.started", job=job_id, attempt=attempt)

    def until_ended(self, job_id: str) -> Ended:
        self.until(*ENDS, job=job_id)
        return self.ended(job_id)

    def until_gone(self, job_id: str) -> None:
        """Until the manager knows that it ended, though it may not be able to store it.

        (The stream tells nothing then.)
        """
        self.until_seen(lambda: job_id not in self.manager.daemon.state.jobs)

    def begun(self) -> list[str]:
        """`j1:1`, each attempt with a started process, in order, by its own word.

        A second start would show.
        """
        path = self.directory / "begun"
        return path.read_text().split() if path.exists() else []

    def until_begun(self, job_id: str) -> None:
        """Until its process says so itself; being started is a moment earlier."""
        until(lambda: f"{job_id}:1" in self.begun(), f"{job_id} does not begin")

    def settle(self) -> None:
        """Until the loop has done what it has to do already."""
        for _ in range(3):
            self.manager.do(lambda: None)

    def log(self, job_id: str) -> bytes:
        with open(self.jobs.factory.logs(job_id), "rb") as log:
            return log.read()

    def job_ids(self, name: str) -> list[str]:
        """The jobs of all events of this name, in order."""
        return [event["job"] for event in self.manager.events(name)]

    def waiting(self) -> list[str]:
        """The jobs that are queued, in the order of service."""

        def look() -> list[str]:
            return [
                request.job_id
                for request, _ in self.manager.daemon.state.waiting()
                if request.job_id is not None
            ]

        waiting: list[str] = self.manager.do(look)
        return waiting


def open_gate(gate: Path) -> None:
    gate.write_text("go\n")
