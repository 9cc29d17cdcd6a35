"""Jobs once more, in plain form: lists and loops, everything counted anew at each question.

Knows: the promises to a job. Must not know: nodemgr.core; nothing of it is used here. The core
decides the next start: `starts` and `granted` get its decision, and check it. `idle` checks whether
a start is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RANKS = ("high", "normal", "low")
WAITING = ("held", "after", "paused", "queued")
UNDER_WAY = ("starting", "running", "stopping")
PAUSE_S, LONGEST_PAUSE_S = 5, 40
MOST_WITHOUT_GPU, MOST_WITHOUT_GPU_OF_ENV = 3, 2


@dataclass
class Job:
    name: str
    env: str
    gpus: int
    queue: str
    max_restarts: int
    state: str
    after: list[str] = field(default_factory=list)
    then: str = ""
    attempt: int = 0
    restarts: int = 0
    ran: bool = False
    """In this attempt, since:"""
    since_s: int = 0
    lost_gpu: int | None = None
    """A GPU that was lost or failed in this attempt."""
    avoids: set[int] = field(default_factory=set)
    """GPUs that failed under earlier attempts."""
    interruptions: int = 0
    resumes_s: int = 0
    """While paused."""
    place: str = ""
    number: int | None = None
    """In the order in which all came to the ends of their queues; None: it was moved to a front."""
    together: bool = False
    """It waits with others of its array: it has not started, and no order named it alone."""


class PlainJobs:
    def __init__(self, gpus: int) -> None:
        self.healthy = dict.fromkeys(range(gpus), True)
        self.drained: set[int] = set()
        """As the core says: tests/core/plain.py has its rule."""
        self.failed: set[int] = set()
        """GPUs with a recorded failure."""
        self.quota: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        self.over: dict[str, str] = {}
        self.gone: dict[str, Job] = {}
        """Jobs that ended, as they were then."""
        self.lines: dict[str, list[str]] = {rank: [] for rank in RANKS}
        """The entries of each queue: jobs, and processes as their numbers."""
        self.holders: dict[int, list[str]] = {gpu: [] for gpu in self.healthy}
        self.env_of: dict[str, str] = {}
        self.numbers = 0
        self.came = 0
        self.now_s = 0
        self.up: set[str] = set()
        """Places."""

    # -- what can be seen --

    def used(self, env: str) -> int:
        return sum(
            healthy and any(self.env_of[who] == env for who in self.holders[gpu])
            for gpu, healthy in self.healthy.items()
        )

    def free(self) -> list[int]:
        return [gpu for gpu in self.usable() if not self.holders[gpu]]

    def usable(self) -> list[int]:
        return [gpu for gpu, ok in self.healthy.items() if ok and gpu not in self.drained]

    def avoided(self, job: Job) -> set[int]:
        """None where the node has too few others."""
        avoids = job.avoids & self.failed
        return avoids if len(set(self.usable()) - avoids) >= job.gpus else set()

    def fits(self, who: str) -> bool:
        """Could it be served now, if no entry were before it?"""
        env, quota = self.env_of[who], self.quota[self.env_of[who]]
        if not self.takes_part(who):
            return False
        if who in self.jobs and self.jobs[who].gpus == 0:
            return (
                self.without_gpu(env) < MOST_WITHOUT_GPU_OF_ENV
                and self.without_gpu() < MOST_WITHOUT_GPU
            )
        if who in self.jobs:
            need, free = self.jobs[who].gpus, set(self.free()) - self.avoided(self.jobs[who])
            return self.used(env) + need <= quota and len(free) >= need
        if self.used(env) < quota:
            return bool(self.free())
        return any(
            self.env_of[other] == env for gpu in self.usable() for other in self.holders[gpu]
        )

    def is_up(self, who: str) -> bool:
        return who not in self.jobs or self.jobs[who].place in self.up

    def takes_part(self, who: str) -> bool:
        """Its place is up, and its env's quota admits it."""
        gpus = self.jobs[who].gpus if who in self.jobs else 1
        return self.is_up(who) and gpus <= self.quota[self.env_of[who]]

    def idle(self) -> str | None:
        """The first of all waiting entries that take part, if it can be served.

        Or one that waits for no GPU.
        """
        waiting = [who for rank in RANKS for who in self.lines[rank] if self.takes_part(who)]
        without_gpu = [who for who in waiting if who in self.jobs and self.jobs[who].gpus == 0]
        return next((who for who in (*waiting[:1], *without_gpu) if self.fits(who)), None)

    def without_gpu(self, env: str | None = None) -> int:
        """How many jobs run that take none."""
        return sum(
            job.gpus == 0 and job.state in UNDER_WAY and env in (None, job.env)
            for job in self.jobs.values()
        )

    def living(self, name: str) -> list[Job]:
        """The living jobs; those of an array in the order of their indices."""
        found = [
            job for job in self.jobs.values() if job.name == name or job.name.split(".")[0] == name
        ]
        return sorted(found, key=self.order)

    def order(self, job: Job) -> tuple[int, int, int]:
        """By submission and index; those of an array that wait together stand at their first."""
        array, _, text = job.name.partition(".")
        number, index = int(array[1:]), int(text or 0)
        together = [
            int(other.name.partition(".")[2])
            for other in self.jobs.values()
            if other.together and other.name.startswith(f"{array}.")
        ]
        return number, min(together) if job.together else index, index

    # -- what the core says it did --

    def starts(self, name: str, attempt: int, gpus: list[int]) -> None:
        job = self.jobs[name]
        assert (job.state, job.attempt, job.gpus) == ("queued", attempt - 1, len(gpus))
        assert self.is_up(name)
        assert job.gpus or self.fits(name)
        assert not gpus or (
            set(gpus) <= set(self.free()) - self.avoided(job)
            and self.used(job.env) + job.gpus <= self.quota[job.env]
        )
        self.lines[job.queue].remove(name)
        job.together = False
        job.state, job.attempt, job.ran, job.lost_gpu = "starting", attempt, False, None
        self._hold(name, gpus)

    def granted(self, who: str, gpus: list[int]) -> None:
        env = self.env_of[who]
        fresh = [gpu for gpu in gpus if not self.holders[gpu]]
        assert not fresh or self.used(env) + len(fresh) <= self.quota[env]
        assert all(
            gpu in self.usable() and all(self.env_of[other] == env for other in self.holders[gpu])
            for gpu in gpus
        )
        for line in self.lines.values():
            if who in line:
                line.remove(who)
        self._hold(who, gpus)

    def _hold(self, who: str, gpus: list[int]) -> None:
        for gpu in gpus:
            self.holders[gpu].append(who)

    def _let_go(self, who: str) -> None:
        for holders in self.holders.values():
            if who in holders:
                holders.remove(who)

    # -- what happens --

    def submit(
        self,
        env: str,
        gpus: int,
        queue: str,
        after: list[str],
        array: int,
        max_restarts: int,
        hold: bool,
        place: str,
    ) -> str | None:
        if (
            env not in self.quota
            or (gpus and self._impossible(env, gpus))
            or any(not self._of_env(name, env) for name in after)
        ):
            return None
        self.numbers += 1
        awaited = [name for name in after if self._of_env(name, env)]
        for name in [f"j{self.numbers}.{index}" for index in range(array)] or [f"j{self.numbers}"]:
            self.env_of[name] = env
            state, waits_for = "held" if hold else "after", list(dict.fromkeys(awaited))
            self.jobs[name] = Job(
                name, env, gpus, queue, max_restarts, state, waits_for, place=place
            )
            self.jobs[name].together = array > 0
            self._go_on(self.jobs[name])
        return f"j{self.numbers}"

    def _of_env(self, name: str, env: str) -> list[Job]:
        return [job for job in self.living(name) if job.env == env]

    def _impossible(self, env: str, gpus: int) -> bool:
        return gpus > self.quota[env]

    def _go_on(self, job: Job) -> None:
        """Into its queue, if nothing keeps it."""
        if job.state == "after" and not job.after:
            self._queue(job)

    def _queue(self, job: Job, *, first: bool = False) -> None:
        self.came += 1
        job.state, job.number = "queued", None if first else self.came
        self.lines[job.queue].insert(0 if first else len(self.lines[job.queue]), job.name)

    def requeued_before_start(self, name: str, attempt: int, line: list[str]) -> None:
        """No process could begin it: it goes back to the core's place for it in this line.

        This must be its old place among all that came to the end of the queue as it did.
        """
        job = self.jobs.get(name)
        if (
            job is None
            or job.state not in ("starting", "stopping")
            or job.attempt != attempt
            or job.ran
        ):
            return
        self._let_go(name)
        then, job.then = job.then, ""
        if then == "paused":
            self._pause(job)
        elif then and then != "queued":
            self.end(job, then)
        elif then:
            self._queue(job)
        else:
            self._go_back(job, line)

    def _go_back(self, job: Job, line: list[str]) -> None:
        """Put it at its place among all that came to the end of the queue as it did.

        An entry outside the core's line was started at once.
        """
        job.state = "queued"
        mine = self.lines[job.queue]
        before = (
            [who for who in line[: line.index(job.name)] if who in mine] if job.name in line else []
        )
        for who in mine if job.name in line else ():
            number = self.jobs[who].number if who in self.jobs else None
            if number is not None and job.number is not None and who in line:
                assert (who in before) == (number < job.number)
        mine.insert(mine.index(before[-1]) + 1 if before else 0, job.name)

    def _pause(self, job: Job) -> None:
        """Its last attempt ended by no fault of its own; the pause doubles after a short run."""
        lasted_s = self.now_s - job.since_s if job.ran else 0
        job.interruptions = 1 if lasted_s >= LONGEST_PAUSE_S else job.interruptions + 1
        job.state, job.resumes_s = (
            "paused",
            self.now_s + min(PAUSE_S * 2 ** (job.interruptions - 1), LONGEST_PAUSE_S),
        )

    def next_end_of_pause(self) -> int | None:
        return min(
            (job.resumes_s for job in self.jobs.values() if job.state == "paused"), default=None
        )

    def resume(self, lines: dict[str, list[str]]) -> None:
        """The jobs with a pause that is over now."""
        for job in [
            job
            for job in self.jobs.values()
            if job.state == "paused" and job.resumes_s <= self.now_s
        ]:
            self._go_back(job, lines[job.queue])

    def end(self, job: Job, how: str) -> None:
        """The job is over, and with it the jobs that wait for it in vain."""
        self._leave_line(job)
        self._let_go(job.name)
        del self.jobs[job.name]
        self.over[job.name], self.gone[job.name] = how, job
        for name in {job.name, job.name.split(".")[0]}:
            if how == "done" and self.living(name):
                continue  # an array of which some live on
            waiters = [other for other in self.jobs.values() if name in other.after]
            for other in sorted(waiters, key=self.order):
                if other.name not in self.jobs:
                    continue
                if how == "done":
                    other.after.remove(name)
                    self._go_on(other)
                else:
                    self.end(other, "withdrawn")

    def _leave_line(self, job: Job) -> None:
        for line in self.lines.values():
            if job.name in line:
                line.remove(job.name)

    def runs(self, name: str, attempt: int) -> None:
        job = self.jobs.get(name)
        if job is not None and job.state in UNDER_WAY and job.attempt == attempt:
            job.since_s = job.since_s if job.ran else self.now_s
            job.state, job.ran = "running" if job.state == "starting" else job.state, True

    def ended(self, name: str, attempt: int, how: str) -> None:
        """`how`: "well", "badly", "hopeless" or "interrupted"."""
        job = self.jobs.get(name)
        if job is None or job.state not in UNDER_WAY or job.attempt != attempt:
            return
        self._let_go(name)
        then, job.then = job.then, ""
        if how == "badly" and job.lost_gpu is not None:
            how = "interrupted"
            if not then:
                job.avoids.add(job.lost_gpu)
        if then == "queued":
            self._queue(job)
        elif then == "paused" or (not then and how == "interrupted"):
            self._pause(job)
        elif then:
            self.end(job, then)
        elif how == "well":
            self.end(job, "done")
        elif how == "hopeless" or job.restarts >= job.max_restarts:
            self.end(job, "failed")
        else:
            job.restarts += 1
            self._queue(job)

    # -- orders --

    def withdraw(self, name: str) -> None:
        for job in self.living(name):
            if job.state in WAITING:
                self.end(job, "withdrawn")
            else:
                job.state, job.then = "stopping", "withdrawn"

    def hold(self, name: str) -> None:
        for job in self.living(name):
            if job.state in ("after", "paused", "queued"):
                self._leave_line(job)
                job.state = "held"
                self._part(job, name)

    def free_job(self, name: str, lines: dict[str, list[str]]) -> None:
        for job in self.living(name):
            if job.state == "paused":
                job.resumes_s = self.now_s
                self.resume(lines)
            elif job.state == "held":
                job.state = "after"
                self._part(job, name)
                self._go_on(job)

    def move(self, name: str, queue: str | None, *, first: bool) -> None:
        moved = [
            job
            for job in self.living(name)
            if job.state == "queued" or (job.state in WAITING and not first)
        ]
        target = moved[0].queue if moved and queue is None else queue
        for job in reversed(moved) if first else moved:
            self._leave_line(job)
            self._part(job, name)
            job.queue = target or job.queue
            if job.state == "queued":
                self._queue(job, first=first)
            elif job.state == "paused":
                self.came += 1
                job.number = self.came

    @staticmethod
    def _part(job: Job, name: str) -> None:
        """The order named it alone, or its array."""
        job.together = job.together and job.name != name

    def requeue(self, name: str, *, by_admin: bool) -> None:
        living = self.living(name)
        for job in living:
            if job.state in ("starting", "running"):
                job.state, job.then = "stopping", "paused" if by_admin else "queued"
        again = self.gone.get(name)
        if not living and again is not None and again.env in self.quota:
            del self.over[name], self.gone[name]
            again.restarts, again.interruptions, again.state = 0, 0, "after"
            again.together = False
            again.after = [name for name in again.after if self._of_env(name, again.env)]
            self.jobs[name] = again
            self._go_on(again)

    # -- the rest of the node --

    def set_quota(self, env: str, gpus: int) -> None:
        """Nothing that waits fails by it."""
        self.quota[env] = gpus

    def remove_quota(self, env: str) -> None:
        for who in [
            who for who, owner in self.env_of.items() if owner == env and who not in self.jobs
        ]:
            self.dies(who)
        for job in [job for job in self.jobs.values() if job.env == env]:
            if job.name in self.jobs and job.state in WAITING:
                self.end(job, "withdrawn")
            elif job.name in self.jobs:
                self._let_go(job.name)
                job.state, job.then = "stopping", "withdrawn"
        self.quota.pop(env, None)

    def gpu_is(self, gpu: int, *, healthy: bool) -> None:
        self.healthy[gpu] = healthy
        if healthy:
            return
        if any(self.healthy.values()) and gpu not in self.drained:
            self.failed.add(gpu)
        self._notify(gpu)

    def gpu_fails(self, gpu: int) -> None:
        self.failed.add(gpu)
        self._notify(gpu)

    def _notify(self, gpu: int) -> None:
        for who in self.holders[gpu]:
            if who in self.jobs:
                self.jobs[who].lost_gpu = gpu

    def asks(self, who: str, env: str) -> None:
        """A process asks for one GPU and waits as long as it takes."""
        self.env_of[who] = env
        if self.quota.get(env, 0) > 0:
            self.lines["normal"].append(who)

    def dies(self, who: str) -> None:
        self._let_go(who)
        for line in self.lines.values():
            if who in line:
                line.remove(who)
