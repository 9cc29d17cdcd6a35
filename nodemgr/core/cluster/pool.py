"""The pool's decisions: when a pilot is asked for, when a node goes back, what a list means.

Knows: pilots, the queue, what nodes say. Must not know: Slurm's commands, clocks; which job a node
gets (passes.py).

- Wanted: the nodes in use, and those that the first entries of the queue would use if they were
  free; between min_nodes and max_nodes. At most PENDING pilots are on their way.
- sbatch is run once for each pilot. Where its answer is lost, Slurm's list says whether the pilot
  exists; a number is never asked for again.
- A node goes back when it has been idle, before its time ends, or when a person has drained it.
- A held pilot that Slurm does not list stays as long as its node says that it holds it. If the node
  is silent too, the row goes. Jobs there stay unknown until the node speaks; the pool asks for that
  node.
"""

from __future__ import annotations

from nodemgr.core.cluster import draining, events, gpu_rooms, gpu_shares, passes
from nodemgr.core.cluster.entities import ClusterJob, ClusterNode, ClusterStage, NodeGpu
from nodemgr.core.cluster.gpu_rooms import Held
from nodemgr.core.cluster.pilots import (
    COMING,
    PILOTS,
    AskSlurm,
    CancelPilots,
    ListedPilot,
    Pilot,
    PilotEvent,
    PilotStage,
    PoolConfig,
    PoolFacts,
    ReturnNode,
)
from nodemgr.core.cluster.rooms import limit_ns
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import MS
from nodemgr.core.model.transitions import checked
from nodemgr.core.model.values import replace

S = 1_000_000_000
PENDING = 2
DEPTH = 100
"""So many entries of the queue count."""
LISTS = 3
"""So many lists in a row without a pilot mean that Slurm does not have it."""
BACK_WHY = "it goes back to Slurm"
MAX_PAUSE_S = 600


def word_of(number: int) -> str:
    """The name in a pilot's join word. It is no name of a node: any of the pool may use it."""
    return f"@{number}"


def _move(
    draft: ClusterDraft, pilot: Pilot, event: PilotEvent, stage: PilotStage, **fields: object
) -> None:
    before = draft.pilots.get(pilot.number)
    checked(PILOTS, None if before is None else before.stage, event, stage)
    if stage is PilotStage.GONE:
        draft.pilots.drop(pilot.number)
        for word in list(draft.words.values()):
            if word.node == word_of(pilot.number):
                draft.words.drop(word.public)
    else:
        draft.pilots.put(pilot.number, replace(pilot, stage=stage, since_ns=draft.now_ns, **fields))


def _pilots(draft: ClusterDraft, *stages: PilotStage) -> list[Pilot]:
    return [row for row in list(draft.pilots.values()) if not stages or row.stage in stages]


# -- the words of nodes --


def heard(draft: ClusterDraft, name: str, said: events.LentNode | None) -> None:
    """A node has said which pilot it holds."""
    node = draft.nodes[name]
    facts = None if said is None else _facts(draft, node, said)
    if facts == node.pool and facts is None:
        return
    draft.nodes.put(name, replace(node, pool=facts))
    held = 0 if facts is None else facts.pilot
    for pilot in _pilots(draft, PilotStage.HELD, PilotStage.RETURNING):
        if pilot.node == name and pilot.number != held:
            _move(draft, pilot, PilotEvent.CLOSED, PilotStage.ENDING)
    if held:
        _registered(draft, name, held)
    elif facts is not None:
        for row in draft.at(name):
            job = draft.jobs[row.job_id]
            if job.stage is ClusterStage.ASSIGNED:  # it has not begun, and the GPUs are closed
                draining.ask_back(draft, job)


def _facts(draft: ClusterDraft, node: ClusterNode, said: events.LentNode) -> PoolFacts:
    closes_ns = None if said.left_ms is None else draft.now_ns + said.left_ms * MS
    before = None if node.pool is None or node.pool.pilot != said.pilot else node.pool.closes_ns
    if closes_ns is not None and before is not None and abs(before - closes_ns) < 2 * S:
        closes_ns = before  # the same end, on a link that is slower now
    return PoolFacts(said.pilot, closes_ns, said.waits)


def _registered(draft: ClusterDraft, name: str, number: int) -> None:
    pilot = draft.pilots.get(number)
    if pilot is None:
        if number > draft.head.pilot:
            draft.put_head(replace(draft.head, pilot=number))
        pilot = Pilot(number, draft.now_ns)
        _move(draft, pilot, PilotEvent.ADOPT, PilotStage.HELD, node=name)
    elif pilot.stage is PilotStage.ENDING:
        _move(draft, pilot, PilotEvent.REGISTERED, PilotStage.RETURNING, node=name)
        return
    elif pilot.stage in COMING:
        _move(draft, pilot, PilotEvent.REGISTERED, PilotStage.HELD, node=name, unlisted=0)
        draft.pool = replace(draft.pool, failures=0, fault="")
    else:
        return
    node = draft.nodes[name]
    if node.drained and node.why == BACK_WHY:
        draft.nodes.put(name, replace(node, drained=False, why=""))


# -- the words of Slurm --


def answered(draft: ClusterDraft, event: events.PilotAnswered) -> None:
    """The answer of sbatch; none is also an answer: Slurm's list will say."""
    pilot = draft.pilots.get(event.number)
    if pilot is None:
        return
    if event.fault:
        _blame(draft, event.fault)
        if pilot.stage is PilotStage.ASKED:
            _move(draft, pilot, PilotEvent.REFUSED, PilotStage.GONE)
    elif pilot.stage is PilotStage.ASKED:
        _move(draft, pilot, PilotEvent.TAKEN, PilotStage.QUEUED)


def _blame(draft: ClusterDraft, fault: str) -> None:
    """Asking again rests, each time for twice as long."""
    failures = draft.pool.failures + 1
    until_ns = draft.now_ns + min(MAX_PAUSE_S, 5 << min(failures, 10)) * S
    draft.pool = replace(draft.pool, failures=failures, fault=fault, until_ns=until_ns)


def tick(draft: ClusterDraft, event: events.PoolTick) -> None:
    """Slurm's list, or None where Slurm does not answer; then what the pool does next."""
    config = event.config
    if event.listed is not None:
        listed = {row.number: row for row in event.listed}
        for pilot in _pilots(draft):
            _listed(draft, config, pilot, listed.get(pilot.number))
    for pilot in _pilots(draft, PilotStage.HELD):
        _watch(draft, config, pilot)
    if not (draft.head.is_copy or draft.head.is_restoring):
        _size(draft, config)
    cancelled = tuple(pilot.number for pilot in _pilots(draft, PilotStage.ENDING))
    if cancelled:
        draft.pool_effects.append(CancelPilots(cancelled))
    for pilot in _pilots(draft, PilotStage.RETURNING):
        draft.pool_effects.append(ReturnNode(pilot.node, pilot.number))


def _listed(
    draft: ClusterDraft, config: PoolConfig, pilot: Pilot, seen: ListedPilot | None
) -> None:
    waited_ns = draft.now_ns - pilot.since_ns
    if seen is None:
        pilot = replace(pilot, unlisted=pilot.unlisted + 1)
        draft.pilots.put(pilot.number, pilot)
        if pilot.unlisted < LISTS or _is_claimed(draft, pilot):
            return
        if pilot.stage is PilotStage.ASKED and waited_ns < config.register_s * S:
            return  # sbatch may still be on its way
        if pilot.stage is PilotStage.STARTED:
            _blame(draft, f"pilot {pilot.number} ended before its node registered it")
        _move(draft, pilot, PilotEvent.UNLISTED, PilotStage.GONE)
        return
    if pilot.unlisted:
        pilot = replace(pilot, unlisted=0)
        draft.pilots.put(pilot.number, pilot)
    if seen.runs and pilot.stage in (PilotStage.ASKED, PilotStage.QUEUED):
        _move(draft, pilot, PilotEvent.RUNS, PilotStage.STARTED, node=seen.node or pilot.node)
    elif pilot.stage is PilotStage.ASKED:
        _move(draft, pilot, PilotEvent.TAKEN, PilotStage.QUEUED)
    elif pilot.stage is PilotStage.STARTED and waited_ns > config.register_s * S:
        where = seen.node or "its node"
        _blame(draft, f"pilot {pilot.number} runs, and no manager on {where} has registered it")
        _move(draft, pilot, PilotEvent.CANCEL, PilotStage.ENDING)


def _is_claimed(draft: ClusterDraft, pilot: Pilot) -> bool:
    """Its node speaks, and says that it holds it."""
    node = draft.nodes.get(pilot.node)
    return (
        node is not None
        and pilot.node in draft.sessions
        and node.pool is not None
        and node.pool.pilot == pilot.number
    )


# -- one held node --


def is_idle(draft: ClusterDraft, node: ClusterNode) -> bool:
    return node.name in draft.sessions and not node.others and not draft.at(node.name)


def _watch(draft: ClusterDraft, config: PoolConfig, pilot: Pilot) -> None:
    """Since when it is idle; it goes back before its time ends, or as a person says."""
    node = draft.nodes.get(pilot.node)
    if node is None:
        return
    if not is_idle(draft, node):
        if pilot.idle_ns is not None:
            pilot = replace(pilot, idle_ns=None)
            draft.pilots.put(pilot.number, pilot)
    elif pilot.idle_ns is None:
        pilot = replace(pilot, idle_ns=draft.now_ns)
        draft.pilots.put(pilot.number, pilot)
    closes_ns = None if node.pool is None else node.pool.closes_ns
    ends = closes_ns is not None and closes_ns - draft.now_ns < config.notice_s * S
    if ends or (node.drained and pilot.idle_ns is not None):
        _give_back(draft, pilot)


def _give_back(draft: ClusterDraft, pilot: Pilot) -> None:
    _move(draft, pilot, PilotEvent.GIVE_BACK, PilotStage.RETURNING)
    node = draft.nodes[pilot.node]
    if not node.drained:
        draining.drain(draft, node, BACK_WHY)


# -- the number of nodes --


def needed(draft: ClusterDraft, config: PoolConfig) -> int:
    """The further nodes that the first entries of the queue would use now, if they were free."""
    going = passes.ClusterPass(draft)
    ahead = [job for _, job in passes.waiting(draft, going)]
    waiting = [job for job in ahead if job.stage is ClusterStage.ASSIGNED]  # else: asked back
    waiting += [
        draft.jobs[row.job_id]
        for pilot in _pilots(draft, PilotStage.RETURNING)
        for row in draft.at(pilot.node)
        if row.began_ns is None
    ]
    walk = draft.queue.walk()
    for count, job_id in enumerate(walk):
        if count >= DEPTH:
            break
        waiting.append(draft.jobs[job_id])
    empty = _empty_node(draft, config)
    bins: list[Held] = []
    used: dict[str, int] = {}
    for job in waiting:
        env, limit = draft.envs.get(job.env), limit_ns(job)
        if env is None or job.gpus > config.gpus or gpu_shares.above_quota(draft, job) is not None:
            continue
        counted = 0 if job.assigned is not None else job.gpus
        if going.total(job.env) + used.get(job.env, 0) + counted > env.gpus:
            continue
        if limit is not None and limit > (config.time_limit_s - config.notice_s) * S:
            continue
        used[job.env] = used.get(job.env, 0) + counted
        if not any(_takes(draft, one, job) for one in bins):
            bins.append(empty.copy())
            _takes(draft, bins[-1], job)
    return len(bins)


def _empty_node(draft: ClusterDraft, config: PoolConfig) -> Held:
    """One that Slurm may lend, as those report that it lends now; else without memory."""
    lent = [draft.shares[name].gpus for name, node in draft.nodes.items()
            if node.pool is not None and name in draft.shares]  # fmt: skip
    most_bytes = max([gpu.memory_bytes for gpus in lent for gpu in gpus], default=0)
    gpus = (NodeGpu(most_bytes, most_bytes),) * config.gpus
    return Held(gpu_rooms.reported(gpus))


def _takes(draft: ClusterDraft, node: Held, job: ClusterJob) -> bool:
    """A job that shares GPUs counts as one of whole ones where it is not known what they have."""
    asked, found = gpu_shares.want(draft, job), None
    if job.shares and any(gpu.memory_bytes for gpu in node.gpus):
        found = node.find(asked)
    if found is not None:
        node.take(found, asked)
    elif job.gpus <= node.left.empty:
        node.take_whole(job.gpus, job.env)
    else:
        return False
    return True


def _size(draft: ClusterDraft, config: PoolConfig) -> None:
    """One change at a time: ask for a pilot, cancel one, or give a node back."""
    pool = draft.pool
    if pool.changed_ns is not None and draft.now_ns - pool.changed_ns < config.rest_s * S:
        return
    every, coming = _pilots(draft), _pilots(draft, *COMING)
    held = _pilots(draft, PilotStage.HELD)
    idle = [pilot for pilot in held if pilot.idle_ns is not None]
    more = needed(draft, config)
    wanted = min(config.max_nodes, max(config.min_nodes, len(held) - len(idle) + more))
    may_ask = (
        len(every) < config.max_nodes and len(coming) < PENDING and draft.now_ns >= pool.until_ns
    )
    reserved = _by_name(draft, config)
    have = {pilot.node for pilot in every}
    named = next((name for name in reserved if name not in have), "")
    if may_ask and (named or len(held) + len(coming) < wanted):
        head = replace(draft.head, pilot=draft.head.pilot + 1)
        draft.put_head(head)
        pilot = Pilot(head.pilot, draft.now_ns, node=named)
        _move(draft, pilot, PilotEvent.ASK, PilotStage.ASKED)
        draft.pool_effects.append(AskSlurm(pilot.number, named))
    elif len(held) + len(coming) <= wanted or not _shrink(draft, config, reserved, coming, idle):
        return
    draft.pool = replace(pool, changed_ns=draft.now_ns)


def _by_name(draft: ClusterDraft, config: PoolConfig) -> list[str]:
    """Nodes that are asked for by name: for ever, for a waiting program, for unknown jobs."""
    calls = [name for name in sorted(draft.nodes) if _calls(draft, draft.nodes[name])]
    return [*config.always, *calls]


def _calls(draft: ClusterDraft, node: ClusterNode) -> bool:
    if node.pool is None or node.lost:
        return False
    return node.pool.waits or (node.name not in draft.sessions and bool(draft.at(node.name)))


def _shrink(
    draft: ClusterDraft,
    config: PoolConfig,
    reserved: list[str],
    coming: list[Pilot],
    idle: list[Pilot],
) -> bool:
    """The last that Slurm has not started, else the node that has been idle the longest."""
    for pilot in sorted(coming, key=lambda row: -row.number):
        if pilot.stage is PilotStage.QUEUED and pilot.node not in reserved:
            _move(draft, pilot, PilotEvent.CANCEL, PilotStage.ENDING)
            return True
    for pilot in sorted(idle, key=lambda row: (row.idle_ns, row.number)):
        long_ns = draft.now_ns - (pilot.idle_ns or 0)
        if long_ns >= config.idle_return_s * S and pilot.node not in reserved:
            _give_back(draft, pilot)
            return True
    return False
