"""The state as a step changes it: in place, until the step is kept or undone.

Knows: which sums and indices follow from which rows, and how a step is kept and undone.
Must not know: why a row changes (the modules beside manager.py), and the result of all changes
together (manager.py).

Rows are written only by the methods named after them. These keep every index and sum correct, so a
reader never counts. The queue, the deadlines and the indices of jobs are no tables: they follow
once the step is kept, so a pass walks the queue while entries leave it, and nothing of them is
undone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Set
from typing import TypeVar

from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.effects import Effect, Publish
from nodemgr.core.model.entities import (
    CLASS_ORDER,
    HELD_OR_DEPENDENT,
    LEDGER_SLOTS,
    MS,
    UNDER_WAY,
    Asker,
    Config,
    ConnectionId,
    ElasticLease,
    Ended,
    Env,
    Gpu,
    Grant,
    Job,
    JobPayload,
    JobState,
    Process,
    ProcessKey,
    Request,
    Suspension,
    Task,
    TaskState,
    Transport,
    UnreclaimedMemory,
    Uuid,
)
from nodemgr.core.model.schema import (
    ASIDE,
    EXEMPT,
    GRANTS,
    PAUSE,
    RECALL,
    RESIZES,
    Deadline,
    EnvGpu,
    recall_key,
)
from nodemgr.core.model.values import replace
from nodemgr.core.state import accounting, cpu_jobs, host_use
from nodemgr.core.state.node_state import State, Table, first
from nodemgr.core.state.work_queue import ServiceOrder, Walk, line_name

EVERY_STATE = frozenset(JobState)
NEW = 1 << 62
"""Above every number of a queue."""

K = TypeVar("K")


def line_of(request: Request) -> str:
    """Its line in the work queue: its queue's line for its class."""
    if request.run.compute_percent is None:  # a plain one, of the class in the middle
        return request.priority
    return line_name(request.priority, CLASS_ORDER[request.run.task_class])


class Draft(State):
    """A state with a step: `begin`, the changes, then `settle` or `undo`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.now_ns = 0
        """Time of the step: monotonic,"""
        self.wall_ns = 0
        """and on the wall clock."""
        self.step = 0
        """The number of the last step that began."""
        self.is_open = False
        """It is neither kept nor undone."""
        self._stamped_before_ns = 0
        self._begin_results()

    def begin(self, now_ns: int, wall_ns: int) -> None:
        """Raises ValueError if the last step is neither kept nor undone."""
        if self.is_open:
            raise ValueError("a step begins when the one before it is applied or discarded")
        self.is_open = True
        self.step += 1
        self.now_ns, self.wall_ns = now_ns, wall_ns
        self._stamped_before_ns = self.stamped_ns
        self._begin_results()

    def _begin_results(self) -> None:
        """Empties the step's results, which are in no table of the state."""
        self.history: dict[str, Ended | None] = {}
        """Jobs that ended; None: an ended job runs again."""
        self.payloads: dict[str, JobPayload] = {}
        """Payloads of specs added here."""
        self.effects: list[Effect] = []
        self.published: list[Publish] = []
        self.wakes_scheduler = False
        """Written by wake_scheduler and scheduler_ran."""

    def at(self, now_ns: int) -> Draft:
        """The state as a pass would find it now. Between steps, to be read."""
        self.now_ns = now_ns
        return self

    # Rows: each method writes one table and all that follows from it.

    def put_gpu(self, gpu: Gpu) -> None:
        self.gpus.put(gpu.uuid, gpu)

    def put_env(self, env: Env) -> None:
        self.envs.put(env.name, env)
        for uuid in self.gpus:
            grant = self.grants.get((env.name, uuid))
            if grant is not None:
                self.put_grant(grant)

    def put_task(self, task: Task) -> None:
        before = self.tasks.get(task.task_id)
        self.tasks.put(task.task_id, task)
        if before is None:
            self.task_of_token.put((task.env, task.token), task.task_id)
            self.env_tasks.add(task.env, task.task_id)
            for uuid in task.gpus:
                self.gpu_tasks.add(uuid, task.task_id)
        if task.run.compute_percent is not None:
            self._count_share(before, task)
        self._count_suspended(before, task)
        if task.state is TaskState.STALLED:
            self.stalled.put(task.task_id, True)
        elif before is not None and before.state is TaskState.STALLED:
            self.stalled.drop(task.task_id)
            self.schedule(("kill", task.task_id), None)
        if task.task_id in self.silent_jobs and not (
            task.processes and task.suspension is Suspension.NONE
        ):
            self.drop_silence(task.task_id)

    def drop_silence(self, task_id: str) -> None:
        """Its job is not silent any more: it was heard, is suspended, or has no process left."""
        self.silent_jobs.drop(task_id)
        self.schedule(("kill", task_id), None)

    def _count_suspended(self, before: Task | None, after: Task | None) -> None:
        """Counts the host memory of suspensions to the node, to no environment."""
        more = (after.suspended_bytes or 0 if after else 0) - (
            before.suspended_bytes or 0 if before else 0
        )
        if more:
            _add(self.host_bytes, host_use.NODE, more)

    def _count_share(self, before: Task | None, after: Task | None) -> None:
        task = before or after
        assert task is not None
        more = _counted_percent(after) - _counted_percent(before)
        for uuid in task.gpus:
            _add(self.compute, uuid, more)
        _mark(self.shrunk, task.task_id, after is not None and is_shrunk(after))

    def resize_task(self, task: Task) -> None:
        """Writes a task with other GPUs than before."""
        before = self.tasks[task.task_id]
        percent = _counted_percent(before)
        for uuid in before.gpus:
            if uuid not in task.gpus:
                self.gpu_tasks.remove(uuid, task.task_id)
                if percent:
                    _add(self.compute, uuid, -percent)
        for uuid in task.gpus:
            if uuid not in before.gpus:
                self.gpu_tasks.add(uuid, task.task_id)
                if percent:
                    _add(self.compute, uuid, percent)
        self.tasks.put(task.task_id, task)
        self.put_task(task)

    def put_elastic(self, lease: ElasticLease) -> None:
        """Writes an elastic lease; a new recall has its deadline from now on."""
        before = self.elastics.get(lease.task_id)
        recalled_before = () if before is None else [recall.uuid for recall in before.recalls]
        recalled = [recall.uuid for recall in lease.recalls]
        for uuid in recalled_before:
            if uuid not in recalled:
                self.schedule((RECALL, recall_key(lease.task_id, uuid)), None)
        for uuid in recalled:
            if uuid not in recalled_before:
                due_ns = self.now_ns + self.config.recall_ms * MS
                self.schedule((RECALL, recall_key(lease.task_id, uuid)), due_ns)
        self.elastics.put(lease.task_id, lease)

    def _drop_elastic(self, task_id: str) -> None:
        lease = self.elastics.get(task_id)
        if lease is not None:
            self.put_elastic(replace(lease, recalls=()))
            self.elastics.drop(task_id)
            self.declined_until.drop(task_id)

    def drop_task(self, task: Task) -> None:
        if task.run.compute_percent is not None:
            self._count_share(self.tasks.get(task.task_id), None)
        self._count_suspended(self.tasks.get(task.task_id), None)
        if self.elastics.is_used():
            self._drop_elastic(task.task_id)
            for uuid in task.gpus:
                self.calm_since.drop(uuid)
        self.tasks.drop(task.task_id)
        if task.task_id in self.silent_jobs:
            self.drop_silence(task.task_id)
        self.progress.drop(task.task_id)
        self.task_of_token.drop((task.env, task.token))
        self.env_tasks.remove(task.env, task.task_id)
        for uuid in task.gpus:
            self.gpu_tasks.remove(uuid, task.task_id)
        _mark(self.stalled, task.task_id, False)
        self.schedule(("kill", task.task_id), None)

    def put_process(self, process: Process) -> None:
        if process.key not in self.processes:
            _add(self.members, process.env, 1)
            if process.slot is not None:
                _add(self.slots, process.env, 1 << process.slot)
        self.processes.put(process.key, process)
        if process.pid is not None:
            self.process_of_pid.put((process.env, process.pid), process.key)

    def drop_process(self, process: Process) -> None:
        self.processes.drop(process.key)
        _add(self.members, process.env, -1)
        if process.slot is not None:
            _add(self.slots, process.env, -(1 << process.slot))
        self._forget_pid(process.env, process.pid, process.key)

    def put_grant(self, grant: Grant) -> None:
        """Writes the grant. Computes `limit_bytes` anew and ignores the caller's value."""
        target_bytes = accounting.target(self, grant)
        limit_bytes = max(0, min(grant.memory_bytes, target_bytes) - grant.caps_bytes)
        if limit_bytes != grant.limit_bytes:
            grant = replace(grant, limit_bytes=limit_bytes)
        self._write_grant(grant.env, grant.uuid, grant)
        _mark(self.unsettled, (grant.env, grant.uuid), grant.memory_bytes != target_bytes)
        if target_bytes < grant.memory_bytes:
            self._shrinks(grant, max(target_bytes, grant.caps_bytes))

    def share_grant(self, grant: Grant, kept_bytes: int) -> None:
        """Adds a task to a grant that others use. Its memory follows from the quota and stays."""
        shared = replace(grant, tasks=grant.tasks + 1, kept_bytes=grant.kept_bytes + kept_bytes)
        if accounting.is_parked(grant):
            self.put_grant(shared)
            return
        self.grants.put((grant.env, grant.uuid), shared)
        _add(self.active, grant.uuid, 1)

    def _shrinks(self, grant: Grant, least_bytes: int) -> None:
        """Asks for figures at once if the grant may shrink further than before this step."""
        before = self.grants.before((grant.env, grant.uuid))
        further = before is None or least_bytes < max(
            self._target_before(before), before.caps_bytes
        )
        if further and least_bytes < grant.memory_bytes:
            self.at_latest("figures", self.now_ns)

    def _target_before(self, grant: Grant) -> int:
        """The size that the grant should have had before the step."""
        env, gpu = self.envs.before(grant.env), self.gpus.before(grant.uuid)
        return accounting.target_of(None if env is None else env.quota, gpu, grant)

    def drop_grant(self, grant: Grant) -> None:
        self._write_grant(grant.env, grant.uuid, None)
        _mark(self.unsettled, (grant.env, grant.uuid), False)

    def _write_grant(self, env: str, uuid: Uuid, grant: Grant | None) -> None:
        before = self.grants.get((env, uuid))
        alive_bytes = self.unreclaimed_alive.get((env, uuid)) or 0
        more_bytes = max(0 if grant is None else grant.memory_bytes, alive_bytes)
        more_bytes -= max(0 if before is None else before.memory_bytes, alive_bytes)
        on_gpu_bytes = max(accounting.on_gpu(grant), alive_bytes)
        on_gpu_bytes -= max(accounting.on_gpu(before), alive_bytes)
        if grant is None:
            self.grants.drop((env, uuid))
        else:
            self.grants.put((env, uuid), grant)
        if (grant is not None and grant.most_bytes) or (before is not None and before.most_bytes):
            self._note_elastic(before, grant, (env, uuid))
        _add(self.charged, uuid, on_gpu_bytes)
        _add(self.env_charged, env, more_bytes)
        _add(self.active, uuid, accounting.present_tasks(grant) - accounting.present_tasks(before))

    def _note_elastic(self, before: Grant | None, grant: Grant | None, key: EnvGpu) -> None:
        """A limit that changes by itself makes an order to lower it void."""
        is_elastic = grant is not None and grant.most_bytes > 0
        _mark(self.elastic_grants, key, is_elastic)
        if (
            not is_elastic
            or grant is None
            or before is None
            or grant.limit_bytes != before.limit_bytes
        ):
            self.lowerings.drop(key)

    def put_unreclaimed(self, unreclaimed: UnreclaimedMemory) -> None:
        self._write_unreclaimed(unreclaimed, unreclaimed)

    def drop_unreclaimed(self, unreclaimed: UnreclaimedMemory) -> None:
        self._write_unreclaimed(unreclaimed, None)

    def _write_unreclaimed(
        self, unreclaimed: UnreclaimedMemory, after: UnreclaimedMemory | None
    ) -> None:
        env, uuid, key = unreclaimed.env, unreclaimed.uuid, (unreclaimed.process, unreclaimed.uuid)
        is_parked = accounting.is_parked(self.grants.get((env, uuid)))  # else one sum serves both
        charge_bytes = accounting.charge(self, env, uuid)
        gpu_bytes = accounting.gpu_charge(self, env, uuid) if is_parked else charge_bytes
        before = self.unreclaimed.get(key)
        if before is not None:
            _add(self._sum_of(before), (env, uuid), -before.memory_bytes)
        if after is None:
            self.unreclaimed.drop(key)
        else:
            _add(self._sum_of(after), (env, uuid), after.memory_bytes)
            self.unreclaimed.put(key, after)
        now_bytes = accounting.charge(self, env, uuid)
        gpu_now_bytes = accounting.gpu_charge(self, env, uuid) if is_parked else now_bytes
        _add(self.charged, uuid, gpu_now_bytes - gpu_bytes)
        _add(self.env_charged, env, now_bytes - charge_bytes)

    def _sum_of(self, unreclaimed: UnreclaimedMemory) -> Table[EnvGpu, int]:
        return self.unreclaimed_alive if unreclaimed.alive else self.unreclaimed_dead

    def put_request(self, request: Request) -> None:
        before = self.requests.get(request.request_id)
        self.requests.put(request.request_id, request)
        _add(self.queued, request.priority, request.size - (0 if before is None else before.size))
        if request.job_id is None and request.resumes is None:
            self.request_of_token.put((request.env, request.token), request.request_id)
        for asker in () if before is None else before.askers:
            if asker not in request.askers:
                self._forget_asker(request.env, asker)
        for asker in request.askers:
            self.request_of.put(asker.process, request.request_id)
            if asker.pid is not None:
                self.process_of_pid.put((request.env, asker.pid), asker.process)
            _mark(self.udp_askers, asker.process, asker.transport is Transport.UDP)

    def drop_request(self, request: Request) -> None:
        self.requests.drop(request.request_id)
        _add(self.queued, request.priority, -request.size)
        if request.job_id is None and request.resumes is None:
            self.request_of_token.drop((request.env, request.token))
        self.standings.drop(request.request_id)
        _mark(self.wants_figures, request.request_id, False)
        self.set_aside.drop(request.request_id)
        self.schedule(("wait", request.request_id), None)
        for asker in request.askers:
            self._forget_asker(request.env, asker)

    def put_job(self, job: Job) -> None:
        before = self.jobs.get(job.job_id)
        self.jobs.put(job.job_id, job)
        if job.state is not JobState.PAUSED:
            self.schedule((PAUSE, job.job_id), None)
        self._count_cpu_job(before, job)
        self._count_host_use(before, job)
        _add(self.job_bytes, job.env, job.row_bytes - (0 if before is None else before.row_bytes))
        _add(self.env_jobs, job.env, job.size - (0 if before is None else before.size))
        if before is None:
            self._use_spec(job)
            array = _array_of(job)
            if array is not None:
                self.elements.add(array, job.job_id)
            if job.key:
                self.job_of_key.put((job.env, job.key), array or job.job_id)
        self._await(job.job_id, () if before is None else before.after, job.after)

    def _await(self, job_id: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        for awaited in before:
            if awaited not in after:
                self.dependents.remove(awaited, job_id)
                if (array := job_ids.array_of(awaited)) and not self.dependents.count(awaited):
                    self.awaited.remove(array, awaited)
        for awaited in after:
            if awaited not in before:
                if (array := job_ids.array_of(awaited)) and not self.dependents.count(awaited):
                    self.awaited.add(array, awaited)
                self.dependents.add(awaited, job_id)

    def _use_spec(self, job: Job) -> None:
        if self.spec_jobs.get(job.spec_id) is None:
            _add(self.job_bytes, job.env, self.specs[job.spec_id].payload_bytes)
        _add(self.spec_jobs, job.spec_id, 1)

    def _leave_spec(self, job: Job) -> None:
        """Drops it with its last job."""
        _add(self.spec_jobs, job.spec_id, -1)
        if self.spec_jobs.get(job.spec_id) is None:
            _add(self.job_bytes, job.env, -self.specs[job.spec_id].payload_bytes)
            self.specs.drop(job.spec_id)

    def split_off(self, row: Job, job_id: str) -> Job:
        """Gives an element that waits in an array's row a row of its own, in no queue.

        The caller writes its next state: an element that was queued is so without a request here.
        """
        own, rest = array_rows.split(row, job_id)
        own = replace(own, request_id=None)
        self.put_job(own)
        request = None if row.request_id is None else self.requests[row.request_id]
        if rest is not None:
            if request is not None:
                remaining = replace(request, queued_ns=rest.queued_ns, size=rest.size)
                self.put_request(remaining)
            self.put_job(rest)
            return own
        if request is not None:
            self.drop_request(request)
        self.drop_job(row.job_id)
        return own

    def drop_job(self, job_id: str) -> None:
        job = self.jobs[job_id]
        self.jobs.drop(job_id)
        self.schedule((PAUSE, job_id), None)
        self._count_cpu_job(job, None)
        self._count_host_use(job, None)
        _add(self.job_bytes, job.env, -job.row_bytes)
        self._leave_spec(job)
        _add(self.env_jobs, job.env, -job.size)
        array = _array_of(job)
        if array is not None:
            self.elements.remove(array, job.job_id)
        if job.key and (array is None or not self.elements.count(array)):
            self.job_of_key.drop((job.env, job.key))
        self._await(job.job_id, job.after, ())

    def _count_cpu_job(self, before: Job | None, after: Job | None) -> None:
        """Counts it. Wakes the scheduler if it ended in a limited env."""
        job = before or after
        if job is None or job.run.gpus > 0:
            return
        more = (after is not None and after.state in UNDER_WAY) - (
            before is not None and before.state in UNDER_WAY
        )
        if more < 0 and cpu_jobs.limit(self, job.env) is not None:
            self.wake_scheduler()
        _add(self.cpu_jobs, job.env, more)

    def _count_host_use(self, before: Job | None, after: Job | None) -> None:
        """Counts what it reserves. Wakes the scheduler if it gives something back."""
        for job, sign in ((before, -1), (after, 1)):
            if job is not None and job.state in UNDER_WAY and host_use.needs(job.run):
                _add(self.host_cpus, job.env, sign * (job.run.cpus or 0))
                _add(self.host_bytes, job.env, sign * (job.run.host_memory_bytes or 0))
                if sign < 0 and (after is None or after.state not in UNDER_WAY):
                    self.wake_scheduler()

    def _forget_asker(self, env: str, asker: Asker) -> None:
        self.request_of.drop(asker.process)
        _mark(self.udp_askers, asker.process, False)
        self.come_back(asker.process)
        if asker.process not in self.processes:
            self._forget_pid(env, asker.pid, asker.process)

    def _forget_pid(self, env: str, pid: int | None, process: ProcessKey) -> None:
        if pid is not None and self.process_of_pid.get((env, pid)) == process:
            self.process_of_pid.drop((env, pid))

    # Rows lost at a restart.

    def connect(self, process: ProcessKey, connection: ConnectionId) -> None:
        before = self.connections.get(process)
        if before != connection:
            self.disconnect(process)
            self.connections.put(process, connection)
            self.process_of_connection.put(connection, process)
            self.parted.drop(process)
        self.come_back(process)

    def disconnect(self, process: ProcessKey) -> None:
        connection = self.connections.get(process)
        if connection is not None:
            self.connections.drop(process)
            self.process_of_connection.drop(connection)

    def go_away(self, process: ProcessKey) -> None:
        self.away.put(process, self.now_ns)
        self.schedule(("away", process), self.now_ns + self.config.timeout_ms * MS)

    def come_back(self, process: ProcessKey) -> None:
        if process in self.away:
            self.away.drop(process)
            self.schedule(("away", process), None)

    def schedule(self, deadline: Deadline, due_ns: int | None) -> None:
        if due_ns is not None:
            self.agenda.put(deadline, due_ns)
        else:
            self.agenda.drop(deadline)

    def due(self) -> list[Deadline]:
        """The deadlines that were due when the step began, earliest first."""
        end = bisect_left(self.deadlines, (self.now_ns + 1, ("", "")))
        return [deadline for _, deadline in self.deadlines[:end]]

    def at_latest(self, timer: str, due_ns: int) -> None:
        """Sets a timer, unless it is set to an earlier time."""
        before = self.timers.get(timer)
        if before is None or due_ns < before:
            self.timers.put(timer, due_ns)

    # The end of the step.

    def settle(self, inadmissible: Set[str] = frozenset()) -> None:
        """The step is kept: what is no table follows.

        `inadmissible`: the envs that passes skip from now on, until something of theirs changes.
        """
        self.version += 1
        for deadline, before_ns, due_ns in self.agenda.changes():
            self._reschedule(deadline, before_ns, due_ns)
        for name, _, row in self.queues.changes():
            if row is None:
                self.queue.remove(name)
            else:
                self.queue.configure(name, row.rank)
        for env in self.readmitted():
            self.queue.readmit(env)
        if self.requests.old:
            _requeue(self)
        for env in inadmissible:
            self.queue.set_inadmissible(env)
        for task_id, _, record in self.records.changes():
            if record is not None and record.ended_wall_ns is not None:
                del self.records[task_id]
        if self.jobs.old:
            _file_jobs(self)
        for table in self.changed:
            table.old.clear()
        self.changed.clear()
        self.is_open = False
        _stop_timers(self)

    def undo(self) -> None:
        """The step has happened nowhere: every row is as it was before."""
        for table in self.changed:
            table.undo()
        self.changed.clear()
        self.stamped_ns = self._stamped_before_ns
        self.is_open = False
        self._begin_results()

    def _reschedule(self, deadline: Deadline, before_ns: int | None, due_ns: int | None) -> None:
        if before_ns is not None:
            del self.deadlines[bisect_left(self.deadlines, (before_ns, deadline))]
        if due_ns is not None:
            insort(self.deadlines, (due_ns, deadline))

    # Used by handlers.

    def count(self, counter: str) -> int:
        """The next number of a counter, from 1."""
        number = (self.counters.get(counter) or 0) + 1
        self.counters.put(counter, number)
        return number

    def free_slot(self, env: str) -> int | None:
        """The lowest free slot of the env's ledger."""
        taken = self.slots.get(env) or 0
        slot = (~taken & (taken + 1)).bit_length() - 1
        return slot if slot < LEDGER_SLOTS else None

    def stamp(self, size: int = 1) -> int:
        """A stamp for the end of a queue; the first of so many."""
        stamp_ns = max(self.stamped_ns + 1, self.queue_now(self.now_ns))
        self.stamped_ns = stamp_ns + size - 1
        return stamp_ns

    def front_ns(self, name: str) -> int:
        """The earliest queue time of the queue's waiting requests; now if none."""
        firsts = [
            first(entry for entry in line if entry in self.requests)
            for line in self.queue.lines_of(name)
        ]
        stamps = [self.requests[entry].queued_ns for entry in firsts if entry is not None]
        stamps += [request.queued_ns for request in self._own() if request.priority == name]
        return min(stamps, default=self.queue_now(self.now_ns))

    def _own(self) -> list[Request]:
        """This step's own requests: the queue has them once the step is kept."""
        return [
            request
            for request_id in self.requests.old
            if (request := self.requests.get(request_id)) is not None
            and request_id not in self.queue
        ]

    def walk(self) -> Walk:
        """Walks the requests in the order of service, including this step's own.

        (Requests that it took out stay in.) Readmits the inadmissible envs that this step changed.
        """
        sizes = {key: now.size for key, _, now in self.requests.changes() if now is not None}
        walk = self.queue.walk(self.readmitted(), sizes)
        for request in self._own():
            order, group = self.order(request), request.equivalence_group
            walk.join(request.request_id, order, group, request.size)
        return walk

    def readmitted(self) -> Iterable[str]:
        """The inadmissible envs with a quota, holding or request that this step changed.

        If it changed a GPU, a place or an unconfirmed job: all inadmissible envs.
        """
        inadmissible = self.queue.inadmissible()
        if not inadmissible:
            return ()
        if self.gpus.old or self.launch_hosts.old or self.unconfirmed.old:
            return list(inadmissible)
        rows = [
            row
            for _, before, after in self.requests.changes()
            for row in (before, after)
            if row is not None
        ]
        return inadmissible & {
            *self.envs.old,
            *(env for env, _ in self.grants.old),
            *(row.env for row in rows),
        }

    def inadmissible_envs(self) -> Set[str]:
        """The envs that a walk leaves out."""
        return self.queue.inadmissible() - set(self.readmitted())

    def order(self, request: Request) -> ServiceOrder:
        """Its place in the order of service. This step's own stand last among equal stamps."""
        if request.request_id in self.queue:
            return self.queue.order(request.request_id)
        return self.queue.order_of(line_of(request), request.queued_ns, NEW + request.sequence)

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def wake_scheduler(self) -> None:
        """A resource became free, or the queue changed: a scheduling pass follows this step."""
        self.wakes_scheduler = True

    def scheduler_ran(self) -> None:
        """A pass in this step sees all that woke the scheduler before it."""
        self.wakes_scheduler = False

    def publish(self, name: str, fields: dict[str, object]) -> None:
        self.published.append(Publish(name, fields))


def is_shrunk(task: Task) -> bool:
    """Whether it has less compute than it asked for."""
    return (task.granted_percent or 0) < (task.run.compute_percent or 0)


def _array_of(job: Job) -> str | None:
    """The array of an element, or of the row of those that wait together."""
    return job.job_id if job.indices else job_ids.array_of(job.job_id)


def _counted_percent(task: Task | None) -> int:
    """The compute of each of its GPUs that a task has now."""
    if task is None or task.granted_percent is None or task.state is TaskState.STALLED:
        return 0
    return 0 if task.suspension is Suspension.SUSPENDED else task.granted_percent


def _mark(marks: Table[K, bool], key: K, marked: bool) -> None:
    if marked:
        marks.put(key, True)
    else:
        marks.drop(key)


def _add(sums: Table[K, int], key: K, more: int) -> None:
    """A zero sum has no row."""
    if more:
        total = (sums.get(key) or 0) + more
        if total:
            sums.put(key, total)
        else:
            sums.drop(key)


def _file_jobs(draft: Draft) -> None:
    """The indices of jobs."""
    for index, states in (
        (draft.living, EVERY_STATE),
        (draft.held_or_dependent, HELD_OR_DEPENDENT),
        (draft.under_way, UNDER_WAY),
    ):
        came, gone = [], []
        for _, before, job in draft.jobs.changes():
            if before is not None and before.state not in states:
                before = None
            if job is not None and job.state not in states:
                job = None
            index.size += (0 if job is None else job.size) - (0 if before is None else before.size)
            if job is not None and before is None:
                came.append(job)
            elif job is None and before is not None:
                gone.append(before)
        index.change(came, gone)


def _requeue(draft: Draft) -> None:
    """Withdraws removed requests, and inserts new ones by stamp."""
    queue = draft.queue
    came: list[Request] = []
    for request_id, _, request in draft.requests.changes():
        if request is None:
            if request_id in queue:
                queue.withdraw(request_id)
        elif request_id not in queue:
            came.append(request)
        elif request.size != queue.size(request_id):
            queue.resize(request_id, request.queued_ns, request.size)
    for request in sorted(came, key=lambda request: request.sequence):
        queue.insert(
            line_of(request),
            request.request_id,
            request.queued_ns,
            request.equivalence_group,
            request.owner,
            request.size,
        )


def _stop_timers(state: State) -> None:
    """Stops each timer that no row needs."""
    if not state.tasks and not state.udp_askers:
        state.timers.pop("silence", None)
    if not state.unsettled and not state.wants_figures:
        state.timers.pop("figures", None)
    if not state.set_aside or not (state.tasks or state.requests):
        state.timers.pop(ASIDE, None)
    if not state.requests:
        state.timers.pop(EXEMPT, None)
    if not state.elastics:
        state.timers.pop(RESIZES, None)
    if not state.elastic_grants:
        state.timers.pop(GRANTS, None)
        state.room_since.clear()
