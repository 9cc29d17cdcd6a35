"""The same node once more, in the plainest form: lists, loops, no kept sums.

Knows: docs/allocation.md ("Which GPUs", life of a request). Must not know: nodemgr.core; nothing
of it is used here, so that an error in one is not an error in the other. Processes are numbers,
GPUs are indices, time is in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 1 << 30
TIMEOUT_S = 5
RANKS = ("high", "normal", "low")
FAILURE_GAP_S = 60
DRAIN_FAILURES = 3


@dataclass
class Quota:
    gpus: int
    memory: int | None
    rank: str


@dataclass
class Task:
    number: int
    env: str
    token: str
    gpus: list[int]
    members: list[int]
    reserved: int = 0
    named: int | None = None
    caps: dict[int, int] = field(default_factory=dict)
    stalled: bool = False


@dataclass
class Request:
    number: int
    env: str
    token: str
    gpus: int
    named: int | None
    rank: str
    askers: list[int]
    wait: int | None
    deadline: int | None
    away: dict[int, int] = field(default_factory=dict)


@dataclass
class Lost:
    env: str
    memory: int
    alive: bool


class PlainNode:
    def __init__(self, sizes: list[int]) -> None:
        self.size = dict(enumerate(sizes))
        self.healthy = dict.fromkeys(self.size, True)
        self.drained = dict.fromkeys(self.size, False)
        self.failures: dict[int, list[int]] = {gpu: [] for gpu in self.size}
        """The last evidence of each failure, in seconds of the service clock."""
        self.service_ahead = 0
        """The service clock less `now`; and its time that the store knows:"""
        self.service_stored = 0
        self.quotas: dict[str, Quota] = {}
        self.tasks: list[Task] = []
        self.queue: list[Request] = []
        self.memory: dict[tuple[str, int], int] = {}
        """The memory that each grant takes."""
        self.lost: dict[tuple[int, int], Lost] = {}
        """By process and GPU."""
        self.used: dict[tuple[str, int], int] = {}
        self.shared: dict[tuple[str, int], int] = {}
        """The least of it that tasks without named memory use; else the others use theirs first."""
        self.blind = False
        """The present event brings no figures of memory in use, and grants may shrink after it.

        A request that names its memory then shares no grant: it waits for the next Tick, which
        comes at once.
        """
        self.left: dict[int, str] = {}
        """Processes that left their lease and live on, with their env."""
        self.udp: set[int] = set()
        self.heard: dict[int, int] = {}
        self.now = 0
        self.numbers = 0

    # -- sums, counted anew --

    def active(self, env: str, gpu: int) -> list[Task]:
        return [
            task for task in self.tasks if task.env == env and gpu in task.gpus and not task.stalled
        ]

    def tasks_on(self, gpu: int) -> int:
        return sum(gpu in task.gpus and not task.stalled for task in self.tasks)

    def used_gpus(self, env: str) -> list[int]:
        return [gpu for gpu in self.size if self.healthy[gpu] and self.active(env, gpu)]

    def usable(self, gpu: int) -> bool:
        return self.healthy[gpu] and not self.drained[gpu]

    def shareable(self, env: str) -> list[int]:
        """The used GPUs that may get another task of the env."""
        return [gpu for gpu in self.used_gpus(env) if not self.drained[gpu]]

    def full(self, env: str, gpu: int) -> int:
        quota = self.quotas[env]
        if quota.memory is None or quota.gpus == 0:
            return self.size[gpu]
        return min(quota.memory // quota.gpus, self.size[gpu])

    def target(self, env: str, gpu: int) -> int:
        if not self.active(env, gpu):
            return 0
        return self.memory[env, gpu] if self.quotas[env].gpus == 0 else self.full(env, gpu)

    def caps(self, env: str, gpu: int) -> int:
        return sum(
            sum(task.caps.values()) for task in self.tasks if task.env == env and gpu in task.gpus
        )

    def limit(self, env: str, gpu: int) -> int:
        return max(0, min(self.memory[env, gpu], self.target(env, gpu)) - self.caps(env, gpu))

    def free(self, env: str, gpu: int) -> int:
        promised = self.reserved(env, gpu) + self.unreserved(env, gpu)
        return max(0, self.limit(env, gpu) - promised)

    def reserved(self, env: str, gpu: int) -> int:
        return sum(task.reserved for task in self.tasks if task.env == env and gpu in task.gpus)

    def unreserved(self, env: str, gpu: int) -> int:
        """The memory in use beyond what is reserved for the task that uses it."""
        used = self.used.get((env, gpu), 0) - self.reserved(env, gpu)
        return max(0, used, self.shared.get((env, gpu), 0))

    def charge(self, env: str, gpu: int, grant: int | None = None) -> int:
        if grant is None:
            grant = self.memory.get((env, gpu), 0)
        alive = sum(
            lost.memory
            for (_, on), lost in self.lost.items()
            if (lost.env, on) == (env, gpu) and lost.alive
        )
        dead = sum(
            lost.memory
            for (_, on), lost in self.lost.items()
            if (lost.env, on) == (env, gpu) and not lost.alive
        )
        return max(grant, alive) + dead

    def every_env(self) -> set[str]:
        return {
            *self.quotas,
            *(env for env, _ in self.memory),
            *(lost.env for lost in self.lost.values()),
        }

    def room(self, gpu: int) -> int:
        return self.size[gpu] - sum(self.charge(env, gpu) for env in self.every_env())

    def quota_room(self, env: str) -> int | None:
        quota = self.quotas[env]
        if quota.memory is None:
            return None
        return quota.memory - sum(self.charge(env, gpu) for gpu in self.size)

    # -- asking --

    def ask(
        self,
        env: str,
        pid: int,
        gpus: int | None,
        named: int | None,
        token: str,
        wait: int | None,
        udp: bool,
    ) -> str:
        """A new process, or one that left its lease.

        Returns what becomes of it: granted, waits, or why it is denied.
        """
        if env not in self.quotas:
            return "unknown_env"
        quota = self.quotas[env]
        self.heard[pid] = self.now
        if udp:
            self.udp.add(pid)
        task = next((task for task in self.tasks if (task.env, task.token) == (env, token)), None)
        if task is not None and task.stalled and not self.resume(task):
            self.fence(task)
            task = None
        if task is not None:
            return self.join(task, pid)
        waits = next(
            (request for request in self.queue if (request.env, request.token) == (env, token)),
            None,
        )
        explicit = gpus is not None
        usable = sum(map(self.usable, self.size)) or len(self.size)
        count = min(quota.gpus, usable) if gpus is None else gpus
        refused = self.refusal(env, count, named, explicit)
        if refused is not None:
            self.settle()
            return refused
        if waits is None:
            self.numbers += 1
            deadline = None if wait is None else self.now + wait
            waits = Request(
                self.numbers, env, token, count, named, quota.rank, [pid], wait, deadline
            )
            self.queue.append(waits)
        else:
            waits.askers.append(pid)
            waits.gpus = max(waits.gpus, count)
            waits.named = max(waits.named or 0, named or 0) or None
            waits.wait = None if None in (waits.wait, wait) else max(waits.wait or 0, wait or 0)
            waits.deadline = (
                None
                if None in (waits.deadline, wait)
                else max(waits.deadline or 0, self.now + (wait or 0))
            )
        self.settle()
        if self.task_of(pid) is not None:
            return "granted"
        if not any(pid in request.askers for request in self.queue):
            return "memory_above_limit"
        if wait == 0:
            self.stop_waiting(pid)
            self.settle()
            return "wait_timeout"
        return "waits"

    def refusal(self, env: str, gpus: int, named: int | None, explicit: bool) -> str | None:
        quota = self.quotas[env]
        if quota.gpus == 0 or gpus == 0:
            return "no_gpu"
        if gpus > quota.gpus:
            return "over_quota"
        if explicit and gpus > len(self.size):
            return "more_than_node"
        if named is not None and named > max(self.full(env, gpu) for gpu in self.size):
            return "memory_above_limit"
        return None

    def join(self, task: Task, pid: int) -> str:
        if pid in self.udp:
            wanted = min(
                task.named if task.named is not None else self.whole(task.env, gpu)
                for gpu in task.gpus
            )
            if any(self.free(task.env, gpu) < wanted for gpu in task.gpus):
                self.settle()
                return "memory_above_limit"
            task.caps[pid] = wanted
        self.stop_waiting(pid)
        self.enter(task, pid)
        self.settle()
        return "granted"

    def enter(self, task: Task, pid: int) -> None:
        task.members.append(pid)
        self.left.pop(pid, None)
        for gpu in task.gpus:
            self.lost.pop((pid, gpu), None)

    # -- serving --

    def settle(self) -> None:
        """Pending raises, then waiting requests."""
        for env, gpu in sorted(self.memory):
            target = self.target(env, gpu)
            if self.memory[env, gpu] < target:
                room = self.room(gpu)
                quota_room = self.quota_room(env)
                if quota_room is not None:
                    room = min(room, quota_room)
                alive = sum(
                    lost.memory
                    for (_, on), lost in self.lost.items()
                    if (lost.env, on, lost.alive) == (env, gpu, True)
                )
                if room > 0:
                    self.memory[env, gpu] = min(target, max(self.memory[env, gpu], alive) + room)
        while self.serve():
            pass

    def serve(self) -> bool:
        """Runs one scheduling pass; returns whether a request was served."""
        served = False
        reserved: set[int] = set()
        turns: dict[str, Request] = {}
        held: dict[str, int] = {}
        for request in self.in_order():
            if self.refusal(request.env, request.gpus, request.named, explicit=False) is not None:
                continue  # a lowered quota does not admit it: as if it were not there
            if request.gpus > self.in_service(request):
                continue  # nor does a node with too many GPUs drained or lost
            if request.env in turns:
                reserved |= self.hold(request, turns[request.env], held, reserved)
                continue
            answer = self.place(request, reserved)
            if isinstance(answer, list) and any(pid not in request.away for pid in request.askers):
                self.queue.remove(request)
                self.begin(request, answer)
                served = True
            elif (
                isinstance(answer, list)
                and len(self.used_gpus(request.env)) >= self.quotas[request.env].gpus
            ):
                continue  # away, and it will share GPUs of its env: it needs no other
            elif answer == "own":
                turns[request.env] = request
                reserved |= self.hold(request, request, held, reserved)
            else:
                reserved |= self.could_ever_use(request)
        return served

    def in_service(self, request: Request) -> int:
        """The GPUs that could serve it, once they are free."""
        return sum(
            self.usable(gpu) and (request.named or 0) <= self.full(request.env, gpu)
            for gpu in self.size
        )

    def hold(
        self, request: Request, first: Request, held: dict[str, int], reserved: set[int]
    ) -> set[int]:
        """The GPUs that are reserved for a request that waits for its own env's memory.

        They are as many as it needs beside those that it may share. They are taken from the end of
        the order: of those that have room and that the first of its env could have now, then of the
        others that it could ever use.
        """
        used = self.used_gpus(first.env)
        slots = max(0, self.quotas[first.env].gpus - len(used))
        needs = max(0, request.gpus - len(self.shareable(first.env)))
        more = min(slots, needs) - held.get(first.env, 0)
        if more <= 0:
            return set()
        held[first.env] = held.get(first.env, 0) + more
        fresh = self.fresh(first, reserved, None, most=len(self.size))
        others = [
            gpu
            for gpu in self.could_ever_use(first) - reserved
            if gpu not in fresh and self.tasks_on(gpu) < 8
        ]
        others.sort(key=lambda gpu: (-self.room(gpu), self.tasks_on(gpu), gpu))
        return set([gpu for gpu in (*others, *fresh) if self.room(gpu) > 0][-more:])

    def in_order(self) -> list[Request]:
        return sorted(self.queue, key=lambda request: (RANKS.index(request.rank), request.number))

    def could_ever_use(self, request: Request) -> set[int]:
        held = self.used_gpus(request.env)
        return {
            gpu
            for gpu in self.size
            if self.usable(gpu)
            and gpu not in held
            and (request.named or 0) <= self.full(request.env, gpu)
        }

    def wanted(self, request: Request, gpu: int) -> int:
        over_udp = sum(pid in self.udp for pid in request.askers)
        if over_udp == 0:
            return request.named or 0
        return over_udp * (
            request.named if request.named is not None else self.whole(request.env, gpu)
        )

    def whole(self, env: str, gpu: int) -> int:
        """A grant as a process over UDP takes it that names nothing."""
        return (
            min(self.memory[env, gpu], self.target(env, gpu))
            if self.active(env, gpu)
            else self.full(env, gpu)
        )

    def place(self, request: Request, reserved: set[int]) -> list[int] | str:
        env = request.env
        shareable = self.shareable(env)
        slots = max(0, self.quotas[env].gpus - len(self.used_gpus(env)))
        away = all(pid in request.away for pid in request.askers)  # what is free may be gone then
        reusable = [
            gpu
            for gpu in shareable
            if (wanted := self.wanted(request, gpu)) == 0
            or (not away and not self.blind and self.free(env, gpu) >= wanted)
        ]
        reusable.sort(key=lambda gpu: (self.tasks_on(gpu), -self.room(gpu), gpu))
        fresh = self.fresh(request, reserved, self.quota_room(env))[: request.gpus]
        if len(fresh) + len(reusable) >= request.gpus:
            return fresh + reusable[: request.gpus - len(fresh)]
        fresh = self.fresh(request, reserved, None, mind_free=False)
        if request.gpus <= len(fresh) + len(shareable) or request.gpus > slots + len(shareable):
            return "own"
        return "node"

    def free_if_fresh(self, env: str, gpu: int) -> int:
        tasks = [task for task in self.tasks if task.env == env and gpu in task.gpus]
        if tasks:
            return max(
                0,
                self.full(env, gpu) - self.reserved(env, gpu) - self.unreserved(env, gpu),
            )
        alive = sum(
            lost.memory
            for (_, on), lost in self.lost.items()
            if (lost.env, on, lost.alive) == (env, gpu, True)
        )
        return max(0, self.full(env, gpu) - alive)

    def fresh(
        self,
        request: Request,
        reserved: set[int],
        quota_room: int | None,
        mind_free: bool = True,
        most: int | None = None,
    ) -> list[int]:
        env = request.env
        slots = max(0, self.quotas[env].gpus - len(self.used_gpus(env))) if most is None else most
        order = [
            gpu
            for gpu in self.size
            if self.usable(gpu) and gpu not in self.used_gpus(env) and gpu not in reserved
        ]
        order.sort(key=lambda gpu: (-self.room(gpu), self.tasks_on(gpu), gpu))
        picked: list[int] = []
        for gpu in order:
            need = max(0, self.charge(env, gpu, self.full(env, gpu)) - self.charge(env, gpu))
            fits = (
                need <= self.room(gpu)
                and self.tasks_on(gpu) < 8
                and (request.named or 0) <= self.full(env, gpu)
            )
            fits = fits and (
                not mind_free or self.free_if_fresh(env, gpu) >= self.wanted(request, gpu)
            )
            if fits and len(picked) < slots and (quota_room is None or need <= quota_room):
                picked.append(gpu)
                quota_room = None if quota_room is None else quota_room - need
        return picked

    def begin(self, request: Request, gpus: list[int]) -> None:
        env = request.env
        fresh = [gpu for gpu in gpus if gpu not in self.used_gpus(env)]
        over_unix = any(pid not in self.udp for pid in request.askers)
        task = Task(
            request.number,
            env,
            request.token,
            sorted(gpus),
            [],
            (request.named or 0) if over_unix else 0,
            named=request.named,
        )
        self.tasks.append(task)
        for gpu in gpus:
            if (env, gpu) not in self.memory:
                self.memory[env, gpu] = 0
                alive = [
                    lost.memory
                    for (_, on), lost in self.lost.items()
                    if (lost.env, on, lost.alive) == (env, gpu, True)
                ]
                self.used[env, gpu] = sum(alive)
            if gpu in fresh:
                self.memory[env, gpu] = max(self.memory[env, gpu], self.full(env, gpu))
        for pid in request.askers:
            if pid in self.udp:
                wanted = min(
                    task.named if task.named is not None else self.whole(env, gpu) for gpu in gpus
                )
                if any(self.free(env, gpu) < wanted for gpu in gpus):
                    continue
                task.caps[pid] = wanted
            self.enter(task, pid)
        if not task.members:
            self.end(task)

    # -- ending --

    def task_of(self, pid: int) -> Task | None:
        return next((task for task in self.tasks if pid in task.members), None)

    def end(self, task: Task) -> None:
        self.tasks.remove(task)
        for gpu in task.gpus:
            if not any(other.env == task.env and gpu in other.gpus for other in self.tasks):
                del self.memory[task.env, gpu]
                del self.used[task.env, gpu]
                self.shared.pop((task.env, gpu), None)

    def take_out(self, task: Task, pid: int) -> None:
        task.members.remove(pid)
        for gpu in task.gpus:
            least = max(
                self.target(task.env, gpu), self.memory[task.env, gpu] - task.caps.get(pid, 0)
            )
            self.memory[task.env, gpu] = min(self.memory[task.env, gpu], least)
        task.caps.pop(pid, None)
        if not task.members:
            self.end(task)

    def depart(self, task: Task, pid: int) -> None:
        """It lives on: what it has may be as much as the grant."""
        if pid not in self.udp:
            self.left[pid] = task.env
            for gpu in task.gpus:
                if self.memory[task.env, gpu] > 0:
                    self.lost[pid, gpu] = Lost(task.env, self.memory[task.env, gpu], alive=True)
        self.take_out(task, pid)

    def fence(self, task: Task) -> None:
        for pid in list(task.members):
            self.depart(task, pid)

    def stop_waiting(self, pid: int) -> None:
        for request in list(self.queue):
            if pid in request.askers:
                request.askers.remove(pid)
                request.away.pop(pid, None)
                if not request.askers:
                    self.queue.remove(request)

    def leaves(self, pid: int) -> None:
        self.stop_waiting(pid)
        task = self.task_of(pid)
        if task is not None:
            self.depart(task, pid)
        self.settle()

    def dies(self, pid: int, unreclaimed: dict[int, int]) -> None:
        self.stop_waiting(pid)
        task = self.task_of(pid)
        env = task.env if task is not None else self.left.pop(pid, None)
        for gpu in self.size:
            self.lost.pop((pid, gpu), None)
        if env is not None:
            for gpu, memory in unreclaimed.items():
                self.lost[pid, gpu] = Lost(env, memory, alive=False)
        if task is not None:
            self.take_out(task, pid)
        self.settle()

    def admin_releases(self, number: int) -> None:
        for task in [task for task in self.tasks if task.number == number]:
            self.fence(task)
        self.queue = [request for request in self.queue if request.number != number]
        self.settle()

    # -- time --

    def second(self, stopped: set[int]) -> None:
        self.now += 1
        self.tick(stopped)

    def tick(self, stopped: set[int]) -> None:
        """Look at every process's silence, deadlines and memory in use.

        A process that is not stopped is heard now.
        """
        for pid in self.heard:
            if pid not in stopped:
                self.heard[pid] = self.now
        for request in list(self.queue):
            silent = {
                pid
                for pid in request.askers
                if pid in self.udp and self.now - self.heard[pid] >= TIMEOUT_S
            }
            away = {pid for pid, since in request.away.items() if self.now - since >= TIMEOUT_S}
            if request.deadline is not None and self.now >= request.deadline:
                self.queue.remove(request)
            else:
                for pid in silent | away:
                    self.stop_waiting(pid)
        self.shrink()
        for task in list(self.tasks):
            if not task.stalled and all(
                self.now - self.heard[pid] >= TIMEOUT_S for pid in task.members
            ):
                for pid in [pid for pid in task.members if pid in self.udp]:
                    self.take_out(task, pid)
                task.stalled = bool(task.members)
        self.settle()
        self.shrink()
        self.settle()

    def shrink(self) -> None:
        for env, gpu in self.memory:
            if self.target(env, gpu) < self.memory[env, gpu]:
                left = min(
                    self.memory[env, gpu], self.used.get((env, gpu), 0) + self.caps(env, gpu)
                )
                self.memory[env, gpu] = max(self.target(env, gpu), left)

    def hears(self, pid: int) -> None:
        """A member of a stalled task beats again."""
        self.heard[pid] = self.now
        task = self.task_of(pid)
        if task is not None and task.stalled and not self.resume(task):
            self.fence(task)
        self.settle()

    def resume(self, task: Task) -> bool:
        env = task.env
        used = self.used_gpus(env)
        again = [gpu for gpu in task.gpus if gpu not in used]
        if not all(self.healthy[gpu] for gpu in task.gpus) or (
            again and len(used) + len(again) > self.quotas[env].gpus
        ):
            return False
        needs = {}
        for gpu in again:
            if self.memory[env, gpu] < self.full(env, gpu):
                needs[gpu] = max(
                    0, self.charge(env, gpu, self.full(env, gpu)) - self.charge(env, gpu)
                )
        quota_room = self.quota_room(env)
        if needs and quota_room is not None and sum(needs.values()) > quota_room:
            return False
        if any(need > self.room(gpu) for gpu, need in needs.items()) or any(
            self.tasks_on(gpu) >= 8 for gpu in again
        ):
            return False
        for gpu in again:
            self.memory[env, gpu] = max(self.memory[env, gpu], self.full(env, gpu))
        task.stalled = False
        return True

    # -- orders --

    def set_quota(self, env: str, quota: Quota) -> None:
        self.quotas[env] = quota
        self.blind = True
        self.settle()
        self.blind = False

    def remove_quota(self, env: str) -> None:
        self.queue = [request for request in self.queue if request.env != env]
        for task in [task for task in self.tasks if task.env == env]:
            self.fence(task)
        self.quotas.pop(env, None)
        self.settle()

    # -- GPUs --

    def lose_or_restore(self, gpu: int, *, healthy: bool) -> None:
        self.healthy[gpu] = healthy
        if not healthy and any(self.healthy.values()) and not self.drained[gpu]:
            last = self.failures[gpu][-1:]
            service = self.stamp()
            if last and service - last[0] < FAILURE_GAP_S:
                self.failures[gpu][-1] = service
            else:
                self.fail(gpu)
        self.settle()

    def report_failure(self, gpu: int) -> None:
        self.fail(gpu)
        self.settle()

    def fail(self, gpu: int) -> None:
        """A walk is shorter than the hour in which failures count."""
        self.failures[gpu].append(self.stamp())
        others = any(self.usable(other) for other in self.size if other != gpu)
        if len(self.failures[gpu]) >= DRAIN_FAILURES and others:
            self.drained[gpu] = True

    def drain(self, gpu: int, *, drained: bool) -> None:
        if drained is not self.drained[gpu]:
            self.stamp()
        self.drained[gpu] = drained
        self.settle()

    def stamp(self) -> int:
        self.service_stored = max(self.service_stored, self.now + self.service_ahead)
        return self.now + self.service_ahead

    def restart(self) -> None:
        self.service_ahead = self.service_stored - self.now
        for request in self.queue:
            request.away = dict.fromkeys(request.askers, self.now)
            request.deadline = None if request.wait is None else self.now + request.wait
        self.heard = dict.fromkeys(self.heard, self.now)
