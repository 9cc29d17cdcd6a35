"""A world without processes for the plan of an elastic task: a lease, and workers that train.

Its workers keep the protocol of the training library: a step needs all members of a generation,
they switch together, a dead member breaks the collective (or, as with NCCL, leaves the others to
wait in it). Everything happens in a seeded order.
"""

from __future__ import annotations

import random
from collections import deque

from client_plugin.elastic.orders import (
    Accept,
    BlockFailed,
    Decline,
    Died,
    Done,
    Failed,
    Finish,
    GiveGpu,
    GpuOffered,
    GpuRecalled,
    GpuWithdrawn,
    Hello,
    LeaseRejoined,
    Leaving,
    Left,
    Members,
    Parked,
    PlanEvent,
    PlanOrder,
    Resized,
    Signal,
    StartWorker,
    TimePassed,
)
from client_plugin.elastic.plan import ElasticPlan

GPUS = tuple(f"GPU-{index}" for index in range(6))
RECALL_S = 10.0


class Trainee:
    """A worker of the imagined world."""

    def __init__(self, number: int, gpu: str, ready_s: float) -> None:
        self.number = number
        self.gpu = gpu
        self.ready_s = ready_s
        self.stage = "starting"
        self.generation = 0
        self.known: Members | None = None
        self.inbox: deque[Members] = deque()
        self.steps: int | None = None
        self.stuck = False


class World:
    """The lease, the workers and the plan between them."""

    def __init__(
        self, seed: int, gpus: int = 2, *, breaks: bool = True, late: bool = False
    ) -> None:
        """`breaks`: a death breaks collectives by itself. `late`: words of workers take time."""
        self.random = random.Random(seed)
        self.breaks = breaks
        self.late = late
        self.words: list[tuple[int, PlanEvent]] = []
        """Of living and dead workers, on their way."""
        self.now_s = 100.0
        self.lease: dict[str, float | None] = dict.fromkeys(GPUS[:gpus])
        self.offered: set[str] = set()
        self.workers: dict[int, Trainee] = {}
        self.sent: dict[int, Members] = {}
        self.stepped_in = 0
        self.steps = 0
        self.end: int | None = None
        self.numbers: set[int] = set()
        self.log: list[object] = []
        self.declined: list[str] = []
        self.ends: deque[Died] = deque()
        self._needless: list[str] = []
        """Recalls that the manager withdraws: another GPU was left."""
        self.plan = ElasticPlan(
            tuple(self.lease), self.now_s, checkpoints=False, most_gpus=len(GPUS)
        )
        self._carry_out(self.plan.begin())

    # -- what a test does --

    def happen(self, event: PlanEvent) -> None:
        """Give the plan an event, and carry out its orders."""
        self.log.append((round(self.now_s, 2), event))
        self._carry_out(self.plan.step(event, self.now_s))
        while self._needless:
            self.withdraw(self._needless.pop())

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with the plan's ticks in it, and the deadlines of the manager."""
        until_s = self.now_s + seconds + 1e-9
        while self.end is None:
            wake_s = self.plan.wake_s()
            due = [until_s, *(end for end in self.lease.values() if end is not None)]
            due += [] if wake_s is None else [wake_s]
            self.now_s = min(time_s for time_s in due if time_s > self.now_s)
            for gpu, deadline in list(self.lease.items()):
                if deadline is not None and self.now_s >= deadline:
                    assert not self.on(gpu), f"{gpu} is in use at its deadline: {self.log[-30:]}"
            if self.now_s >= until_s:
                break
            self.happen(TimePassed())
        if self.end is None:
            self.happen(TimePassed())

    def offer(self, gpu: str) -> None:
        self.lease[gpu] = None
        self.offered.add(gpu)
        self.happen(GpuOffered(gpu))

    def recall(self, gpu: str) -> None:
        self.lease[gpu] = self.now_s + RECALL_S
        self.happen(GpuRecalled(gpu, self.now_s + RECALL_S))

    def withdraw(self, gpu: str) -> None:
        self.lease[gpu] = None
        self.happen(GpuWithdrawn(gpu))

    def rejoin(self) -> None:
        self.happen(LeaseRejoined(tuple(self.lease)))

    def kill(self, number: int, code: int = -9) -> None:
        """A worker's process ends; the plan learns of it later."""
        del self.workers[number]
        self.ends.append(Died(number, code))

    def has_state(self, worker: Trainee) -> bool:
        return worker.steps is not None and worker.stage == "stepping"

    def fail(self, number: int, *, own: int = 2) -> None:
        """A worker leaves its block by an exception; its process goes on."""
        self.workers[number].stage = "failed"
        self.say(number, BlockFailed(number, 1, self.steps + 1, own))

    def on(self, gpu: str) -> list[Trainee]:
        return [worker for worker in self.workers.values() if worker.gpu == gpu]

    # -- orders --

    def _carry_out(self, orders: list[PlanOrder]) -> None:
        for order in orders:
            self.log.append(order)
            match order:
                case StartWorker():
                    self._start(order)
                case GiveGpu(worker=number, gpu=gpu) if number in self.workers:
                    self._give(self.workers[number], gpu)
                case Members():
                    self._send(order)
                case Signal(worker=number) if number in self.workers:
                    self.kill(number, -order.signal)
                case Left(gpu=gpu):
                    assert not self.on(gpu), f"{gpu} is said to be free: {self.log[-30:]}"
                    if self.lease.pop(gpu, None) is None:
                        recalled = [each for each, end in self.lease.items() if end is not None]
                        self._needless += recalled[:1]
                case Decline(gpu=gpu):
                    assert not self.on(gpu)
                    self.declined.append(gpu)
                    self.lease.pop(gpu, None)
                case Accept(gpu=gpu):
                    assert gpu in self.lease
                case Finish():
                    assert not self.workers
                    self.end = order.code

    def _start(self, order: StartWorker) -> None:
        assert order.worker not in self.numbers, "a number is used twice"
        assert not self.on(order.gpu), f"two workers on {order.gpu}"
        is_own = not order.gpu or self.lease.get(order.gpu, 0.0) is None
        assert is_own, f"{order.gpu} is not the task's"
        self.numbers.add(order.worker)
        ready_s = self.now_s + self.random.uniform(0.1, 6.0)
        self.workers[order.worker] = Trainee(order.worker, order.gpu, ready_s)

    def _give(self, spare: Trainee, gpu: str) -> None:
        assert spare.stage == "parked"
        assert not self.on(gpu), f"two workers on {gpu}"
        assert self.lease.get(gpu, 0.0) is None, f"{gpu} is not the task's"
        spare.gpu, spare.stage, spare.ready_s = gpu, "starting", self.now_s

    def _send(self, order: Members) -> None:
        workers = [worker for worker, _ in order.members]
        gpus = [gpu for _, gpu in order.members]
        assert len(set(workers)) == len(workers) > 0
        assert len(set(gpus)) == len(gpus)
        assert order.root in workers
        newest = max(self.sent, default=0)
        assert order.generation in (newest, newest + 1)
        self.sent[order.generation] = order
        root = self.workers.get(order.root)
        if self.steps and root is not None:
            assert root.steps is not None, f"the root has no state: {self.log[-30:]}"
        for number in order.receivers:
            if number in self.workers:
                self.workers[number].inbox.append(order)

    # -- workers --

    def say(self, number: int, word: PlanEvent) -> None:
        """A worker says a word."""
        if self.late:
            self.words.append((number, word))
        else:
            self.happen(word)

    def hear(self, number: int) -> None:
        """The plan learns a worker's first word that is on its way."""
        word = next((each for each in self.words if each[0] == number), None)
        if word is not None:
            self.words.remove(word)
            self.happen(word[1])

    def move(self, worker: Trainee) -> None:
        """One thing that this worker can do now, if there is one."""
        if worker.number not in self.workers or worker.stuck:
            return
        if worker.stage == "starting":
            if self.now_s >= worker.ready_s and not worker.gpu:
                worker.stage = "parked"
                self.say(worker.number, Parked(worker.number))
            elif self.now_s >= worker.ready_s:
                worker.stage = "waiting"
                self.say(worker.number, Hello(worker.number, 1))
        elif worker.stage in ("failed", "finished"):
            worker.inbox.clear()
        elif worker.inbox:
            self._receive(worker, worker.inbox.popleft())
        elif worker.stage == "forming":
            self._form(worker)
        elif worker.stage == "stepping" and self._broken(worker):
            self._fail(worker)

    def _receive(self, worker: Trainee, order: Members) -> None:
        if worker.known is not None and order.generation <= worker.known.generation:
            return
        worker.known = order
        if worker.stage != "stepping" or order.now:
            self._go_to(worker, order)

    def _go_to(self, worker: Trainee, order: Members) -> None:
        if worker.number in [number for number, _ in order.members]:
            worker.stage, worker.generation = "forming", order.generation
        else:
            self.say(worker.number, Leaving(worker.number, order.generation))
            if worker.number in self.workers:
                self.kill(worker.number, 0)

    def _peers(self, worker: Trainee) -> list[Trainee | None]:
        order = self.sent[worker.generation]
        return [self.workers.get(number) for number, _ in order.members]

    def _form(self, worker: Trainee) -> None:
        """The collective is formed when each member is here or behind it already."""
        peers = self._peers(worker)
        there = [
            peer is not None
            and peer.generation == worker.generation
            and peer.stage in ("forming", "stepping")
            for peer in peers
        ]
        if not all(there):
            return
        root = self.workers[self.sent[worker.generation].root]
        root.steps = self.steps if root.steps is None else root.steps
        worker.steps = root.steps
        worker.stage = "stepping"
        self.say(worker.number, Resized(worker.number, worker.generation))

    def _broken(self, worker: Trainee) -> bool:
        return self.breaks and any(
            peer is None or peer.generation != worker.generation or peer.stage == "finished"
            for peer in self._peers(worker)
        )

    def _fail(self, worker: Trainee) -> None:
        known = worker.known
        if known is not None and known.generation > worker.generation:
            self._go_to(worker, known)
        else:
            worker.stage = "waiting"
            self.say(worker.number, Failed(worker.number, worker.generation))

    def step(self) -> bool:
        """A training step of the newest collective whose members are all there."""
        generation, workers = self._whole()
        if workers:
            self._finish_step(generation, workers)
        return bool(workers)

    def end_training(self) -> bool:
        """Its members' loops end after the last step, as far as no urgent word interrupts it."""
        _, workers = self._whole()
        late = [w for w in workers if any(order.now for order in w.inbox)]
        ended = [w for w in workers if w not in late or self.random.random() < 0.5] or workers
        for worker in ended:
            self.leave_loop(worker, Done(worker.number, 1))
        return bool(workers)

    def leave_loop(self, worker: Trainee, word: PlanEvent) -> None:
        """The loop of a worker is over, and its process goes on."""
        worker.stage = "finished"
        self.say(worker.number, word)

    def _whole(self) -> tuple[int, list[Trainee]]:
        """The newest collective whose members are all there."""
        for generation in sorted(self.sent, reverse=True):
            workers = [self.workers.get(number) for number, _ in self.sent[generation].members]
            if all(
                worker is not None
                and not worker.stuck
                and worker.stage == "stepping"
                and worker.generation == generation
                for worker in workers
            ):
                return generation, [worker for worker in workers if worker is not None]
        return 0, []

    def _finish_step(self, generation: int, workers: list[Trainee]) -> None:
        assert generation >= self.stepped_in, f"two generations train: {self.log[-30:]}"
        assert {worker.steps for worker in workers} == {self.steps}, "a step is lost or repeated"
        self.stepped_in = generation
        self.steps += 1
        for worker in workers:
            worker.steps = self.steps
        agreed = min(w.known.generation for w in workers if w.known is not None)
        if agreed > generation:
            for worker in workers:
                self._go_to(worker, self.sent[agreed])

    def finish_training(self) -> None:
        """The loops of all stepping workers end, and then their processes."""
        for worker in list(self.workers.values()):
            if worker.stage == "stepping":
                self.happen(Done(worker.number, 1))
                if worker.number in self.workers:
                    self.kill(worker.number, 0)

    def tell_ends(self) -> None:
        while self.ends and self.end is None:
            self.tell_end()

    def tell_end(self) -> None:
        """The plan learns of an end, after the last words of the worker."""
        died = self.ends.popleft()
        for _ in [each for each in self.words if each[0] == died.worker]:
            self.hear(died.worker)
        self.happen(died)

    def run(self, seconds: float) -> None:
        """Everything goes its way, undisturbed."""
        until_s = self.now_s + seconds
        while self.now_s < until_s and self.end is None:
            self.tell_ends()
            while self.words:
                self.hear(self.words[0][0])
            for worker in list(self.workers.values()):
                self.move(worker)
            self.step()
            self.pass_time(0.1)
