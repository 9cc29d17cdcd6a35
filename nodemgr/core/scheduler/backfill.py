"""Which reserved GPUs a later request may have for a while.

Makes plans (plan.py) of this node's GPUs for one scheduling pass.

Knows: the tasks on each GPU and their ends, where time limits give them. Must not know: which
request is served (passes.py).

GPUs of one size stand for one another. A GPU is busy until the last of its tasks has ended. Its end
is unknown if one of its tasks has no time limit, is stopped or overdue, if it holds memory outside
its tasks' grants, or if it is above the least number of an elastic task: a recall may bring it back
at any moment. A request for whole GPUs is planned by counting. Counting is too simple
for a request that shares GPUs or holds some already. The plan assumes that it can start as soon as
something ends on as many GPUs as it is short of. From then on the GPUs belong to it.

The rest of an env's quota is planned in the same way: a request that is planned by counting starts
when both the node and its env's quota have room for it. If that time is unknown for the quota, the
env may take the rest of its quota at any moment from the earliest such time on, so that is not
known to be free. The same holds for an inadmissible env, or if its own tasks' ends are unknown.

A share of a GPU's compute may become free at any moment: no later request gets a GPU for a while
that a request with a share waits for.

A request without a time limit is planned with the time that it is expected to run, if there is a
forecast. No attempt ends because that was too short: from then on its end is unknown.

If all limits and forecasts are true, no later request delays an earlier one. If jobs end before
them, the first waiting request still starts no later than was planned when it became the first.
Nothing else is promised (plan.py: reasons, exceptions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodemgr.core.model.entities import END_GRACE_MS, MS, Gpu, Request, Uuid
from nodemgr.core.scheduler import own_tasks, placement
from nodemgr.core.scheduler.allocator import Ask, Candidate, qualifies
from nodemgr.core.scheduler.plan import Plan, Start
from nodemgr.core.state import accounting, elastic_leases
from nodemgr.core.state.draft import Draft


@dataclass(slots=True)
class Use:
    """The known use of one GPU.

    Times are of the monotonic clock; `now` if a task may end at any moment.
    """

    pool: int
    empty: bool
    first_ns: int
    """The earliest end of its tasks; now, if it is empty."""
    last_ns: int | None
    """The end of its last task. None: unknown."""


class ReservationTable:
    """The plans of the node's GPUs, extended along the queue during a scheduling pass."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._now_ns = draft.now_ns
        self._uses = {gpu.uuid: self._use(gpu) for gpu in draft.gpus.values() if gpu.usable}
        self._roomy = [uuid for uuid in self._uses if is_roomy(draft, draft.gpus[uuid])]
        pools = [use.pool for use in self._uses.values()]
        self._plans = {pool: Plan(pools.count(pool), self._now_ns) for pool in set(pools)}
        self._quotas: dict[str, Plan] = {}
        """The plan of each env's quota, for envs with a planned request."""
        self._starts: dict[str, int] = {}
        """The earliest start of each env's last planned request."""
        self._wanted: Counter[str] = Counter()
        """The GPUs that each env's requests want that wait for their own env, sure or not."""
        self._reserving: dict[str, list[tuple[int, int]]] = {}
        """(earliest start, GPUs) of each env's requests that wait until GPUs become free."""
        for use in self._uses.values():
            if not use.empty:
                self._plans[use.pool].runs(1, use.last_ns)

    def _use(self, gpu: Gpu) -> Use:
        draft, now_ns = self._draft, self._now_ns
        tasks = [draft.tasks[task_id] for task_id in draft.gpu_tasks.members(gpu.uuid)]
        promised_bytes = sum(
            [
                accounting.on_gpu(draft.grants.get((env, gpu.uuid)))
                for env in {task.env for task in tasks}
            ]
        )
        ends_ns = [own_tasks.end_ns(task, now_ns) or now_ns for task in tasks]
        if (draft.charged.get(gpu.uuid) or 0) > promised_bytes or draft.unbooked.get(gpu.uuid):
            ends_ns.append(now_ns)
        if any(elastic_leases.may_return(draft, task, gpu.uuid) for task in tasks):
            ends_ns.append(now_ns)
        known = all(end_ns > now_ns for end_ns in ends_ns)
        last_ns = max(ends_ns, default=now_ns) if known else None
        return Use(
            gpu.memory_total_bytes,
            not ends_ns,
            min(ends_ns, default=now_ns) if known else now_ns,
            last_ns,
        )

    def blocked(self, request: Request, ask: Ask, rows: Sequence[Candidate]) -> None:
        """Plan a request that waits until GPUs become free."""
        start_ns = self._reserve(request, ask, rows)
        self._reserving.setdefault(request.env, []).append((start_ns, request.run.gpus))

    def _reserve(self, request: Request, ask: Ask, rows: Sequence[Candidate]) -> int:
        """The earliest start of the request, from which on its GPUs are kept."""
        shares = ask.reuse_below > 1
        used = sum([row.used for row in rows])
        mine = [row for row in rows if row.big_enough and not (row.used and shares)]
        pools = {self._uses[row.uuid].pool for row in mine}
        short = max(1, request.run.gpus - (used if shares else 0))
        # a share may become free, a GPU may come or be healthy again, at any moment
        if request.run.compute_percent is not None or short > len(mine):
            self.close(pools, self._now_ns)
            return self._now_ns
        if not (used and shares) and is_counted(
            self._draft, request, [self._draft.gpus[row.uuid] for row in mine]
        ):
            pool = pools.pop()
            start = self._place(request, pool)
            return start.time if start is not None else self._plans[pool].horizon or self._now_ns
        start_ns = sorted(self._first_ns(row, ask) for row in mine)[short - 1]
        self.close(pools, start_ns)
        return start_ns

    def foresee(self, request: Request) -> bool:
        """Plan a request that waits for its own env's tasks (ends known).

        Return whether its start is sure.
        """
        self._wanted[request.env] += request.run.gpus
        (pool,) = self._plans
        start = self._place(request, pool)
        return start is not None and start.sure

    def _place(self, request: Request, pool: int, begin_ns: int | None = None) -> Start | None:
        limit_ns = None if request.planned_ms is None else request.planned_ms * MS
        plan = self._plans[pool]
        start = plan.place(request.run.gpus, limit_ns, self._quota(request.env), begin_ns)
        if start is not None:
            self._starts[request.env] = start.time
        return start

    def _quota(self, env: str) -> Plan:
        plan = self._quotas.get(env)
        if plan is None:
            plan = self._quotas[env] = Plan(self._draft.envs[env].quota.gpus, self._now_ns)
            for end_ns in own_tasks.ends(self._draft, env, accounting.used_gpus(self._draft, env)):
                plan.runs(1, end_ns)
        return plan

    def follows(self, request: Request) -> bool:
        """Plan a request no earlier than its env's last planned request.

        That one waits for the env's tasks. Returns whether its start is sure; if not, no further
        request of the env is planned.
        """
        self._wanted[request.env] += request.run.gpus
        (pool,) = self._plans
        start_ns = self._starts[request.env]
        if (
            request.job_id is not None
            and request.run.memory_bytes is None
            and request.run.compute_percent is None
            and not request.avoids
            and (start := self._place(request, pool, start_ns)) is not None
            and start.sure
        ):
            return True
        self._starts[request.env] = start_ns
        self.stops(request.env)
        return False

    def stops(self, env: str) -> None:
        """Stop planning the env's requests.

        From its last planned start on, the env may take all that its quota leaves it.
        """
        (plan,) = self._plans.values()
        plan.leave(self._quota(env), self._starts[env])

    def waits_for_itself(self, env: str) -> None:
        """A request waits until its own env gives something back.

        It keeps no GPU, yet it comes before requests that are considered later. At any moment it,
        or a request behind it, may take the rest of the quota and the GPUs given back.
        """
        used = accounting.used_gpus(self._draft, env)
        left = self._draft.envs[env].quota.gpus - len(used)
        for plan in self._plans.values() if left > 0 else ():
            plan.runs(left, None)
        for gpu in used:
            if gpu.drained:  # it may take another one instead
                (end_ns,) = own_tasks.ends(self._draft, env, [gpu])
                for plan in self._plans.values():
                    plan.runs(1, None, start=end_ns)
            elif (last_ns := self._uses[gpu.uuid].last_ns) is not None:
                self._plans[self._uses[gpu.uuid].pool].runs(1, None, start=last_ns)

    def _first_ns(self, row: Candidate, ask: Ask) -> int:
        """The earliest time at which the request can have this GPU."""
        use = self._uses[row.uuid]
        if not qualifies(row, ask):
            return use.first_ns
        change_ns = self._plans[use.pool].next_change() if row.reserved else None
        return self._now_ns if change_ns is None else change_ns

    def comes_back(self, rows: Iterable[Candidate]) -> None:
        """A request that could be served is away. It may come back at any moment."""
        self.close({self._uses[row.uuid].pool for row in rows}, self._now_ns)

    def close(self, pools: Iterable[int], time_ns: int) -> None:
        for pool in pools:
            self._plans[pool].close(time_ns)

    def shut(self) -> None:
        """Stop planning: every reservation holds from now on."""
        self.close(self._plans, self._now_ns)

    def open(self, reserved: Container[Uuid]) -> bool:
        """Return whether any request, however short, could have one of the reserved GPUs."""
        return any(
            uuid in reserved and self._plans[self._uses[uuid].pool].horizon != self._now_ns
            for uuid in self._roomy
        )

    def reserved(self, request: Request, reserved: Mapping[Uuid, Request]) -> dict[Uuid, Request]:
        """The reserved GPUs that the request may not have now."""
        limit_ns = None if request.planned_ms is None else request.planned_ms * MS
        if not self._leaves_quota(request):
            return dict(reserved)
        spare = {pool: plan.spare(limit_ns) for pool, plan in self._plans.items()}
        still = dict(reserved)
        for gpu in sorted(
            (self._draft.gpus[uuid] for uuid in reserved if uuid in self._uses),
            key=self._preference(request),
        ):
            use = self._uses[gpu.uuid]
            if use.empty:
                if spare[use.pool] > 0:
                    spare[use.pool] -= 1
                    del still[gpu.uuid]
            elif (
                limit_ns is not None
                and use.last_ns is not None
                and self._ends_within(use, limit_ns, use.last_ns)
            ):
                del still[gpu.uuid]
        return still

    def _leaves_quota(self, request: Request) -> bool:
        """Return whether its env's earlier requests keep enough GPUs in their quota.

        One that is surely over (a forecast is not sure) before an earlier request's GPUs are kept
        is not in its way. A request that waits for its own env keeps no GPU from others: a later
        one that ends a second late would cost it its place.
        """
        limit_ms = request.run.time_limit_ms
        over_ns = None if limit_ms is None else self._now_ns + (limit_ms + END_GRACE_MS) * MS
        wanted = self._wanted[request.env] + sum(
            gpus
            for start_ns, gpus in self._reserving.get(request.env, ())
            if over_ns is None or start_ns < over_ns
        )
        used = len(accounting.used_gpus(self._draft, request.env)) if wanted else 0
        quota = self._draft.envs[request.env].quota
        return not wanted or used + wanted + request.run.gpus <= quota.gpus

    def _preference(self, request: Request) -> Callable[[Gpu], tuple[float, ...]]:
        """The sort key of the request's placement policy: its first choices are offered."""
        draft, order = self._draft, placement.order_of(self._draft, request)

        def key(gpu: Gpu) -> tuple[float, ...]:
            tasks, room_bytes = draft.active.get(gpu.uuid) or 0, accounting.gpu_room(draft, gpu)
            return order(Candidate(gpu.uuid, gpu.index, False, tasks, room_bytes, 0))

        return key

    def _ends_within(self, use: Use, limit_ns: int, last_ns: int) -> bool:
        """Whether a request that shares this GPU ends by the end of its other tasks.

        It must also end by the pool's horizon.
        """
        end_ns, horizon_ns = self._now_ns + limit_ns, self._plans[use.pool].horizon
        return end_ns <= last_ns and (horizon_ns is None or end_ns <= horizon_ns)

    def prolongs(self, request: Request, gpus: Iterable[Uuid]) -> bool:
        """Return whether the request may use one of these GPUs for longer than its tasks do."""
        limit_ms, ends_ns = request.planned_ms, [self._uses[uuid].last_ns for uuid in gpus]
        return limit_ms is None or any(
            end_ns is None or self._now_ns + limit_ms * MS > end_ns for end_ns in ends_ns
        )

    def served(self, request: Request, gpus: Iterable[Uuid]) -> None:
        """Record that the request has these GPUs now."""
        self._roomy = [
            uuid for uuid in self._roomy if is_roomy(self._draft, self._draft.gpus[uuid])
        ]
        end_ns = None if request.planned_ms is None else self._now_ns + request.planned_ms * MS
        for uuid in gpus:
            use = self._uses.get(uuid)
            if use is None:
                continue  # a suspended task comes back to a drained GPU, which no plan counts
            if (
                request.env in self._quotas
                and accounting.active_tasks(self._draft.grants.get((request.env, uuid))) == 1
            ):
                self._quotas[request.env].runs(1, end_ns)
            if use.empty:
                self._plans[use.pool].runs(1, end_ns)
                self._uses[uuid] = Use(
                    use.pool, False, self._now_ns if end_ns is None else end_ns, end_ns
                )
            elif use.last_ns is not None:
                longer = end_ns is None or end_ns > use.last_ns
                if longer:
                    self._plans[use.pool].runs(1, end_ns, start=use.last_ns)
                first_ns = self._now_ns if end_ns is None else min(use.first_ns, end_ns)
                self._uses[uuid] = Use(use.pool, False, first_ns, end_ns if longer else use.last_ns)


def is_counted(draft: Draft, request: Request, gpus: Sequence[Gpu]) -> bool:
    """Return whether the request takes whole GPUs, each of which can stand for any other."""
    if request.run.compute_percent is not None or request.avoids:
        return False
    if request.run.memory_most_bytes is not None:
        return False
    quota = draft.envs[request.env].quota
    if len({gpu.memory_total_bytes for gpu in gpus}) != 1:
        return False
    return all(accounting.full_grant(quota, gpu) >= accounting.capacity(draft, gpu) for gpu in gpus)


def is_roomy(draft: Draft, gpu: Gpu) -> bool:
    """Return whether the GPU has memory and a task slot left."""
    return (
        accounting.gpu_room(draft, gpu) > 0
        and (draft.active.get(gpu.uuid) or 0) < draft.config.max_tasks_per_gpu
    )
