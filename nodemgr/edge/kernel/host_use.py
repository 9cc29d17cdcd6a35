"""The host CPU and memory that process trees use, from /proc.

Knows: /proc/PID/stat, and how a process belongs to the nearest of its ancestors that counts. Must
not know: GPUs, tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from nodemgr.core.views.figures import HostUse
from nodemgr.edge.kernel.processes import stat_fields

TREE_NS = 5_000_000_000
"""How long the tree of all processes is taken as known: to read it costs most."""
FORGET_NS = 10_000_000_000
"""The longest time between two readings for a difference."""
MAX_ROOTS = 1_000
"""The most processes whose trees are read; the others have no figures."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# of the fields of stat_fields
PARENT, USER, SYSTEM, START, RESIDENT = 1, 11, 12, 19, 21


class _Usage(NamedTuple):
    start_ticks: int
    cpu_ticks: int
    memory_bytes: int


class HostReader:
    """Remembers the last reading for the difference to the next. One thread uses it."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._tree_ns: int | None = None
        self._last: dict[int, _Usage] = {}
        self._last_ns: int | None = None

    def read(self, roots: Iterable[int], now_ns: int) -> dict[int, HostUse]:
        """The use by root. A root that has gone is absent."""
        wanted = dict.fromkeys(root for root, _ in zip(roots, range(MAX_ROOTS), strict=False))
        if not wanted:
            self._last, self._last_ns = {}, None
            return {}
        if self._tree_ns is None or now_ns - self._tree_ns >= TREE_NS:
            self._children, self._tree_ns = _children(), now_ns
        is_recent = self._last_ns is not None and now_ns - self._last_ns <= FORGET_NS
        before, before_ns = (self._last, self._last_ns) if is_recent else ({}, None)
        now: dict[int, _Usage] = {}
        trees = {root: self._read_tree(root, wanted, now) for root in wanted}
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        span_ns = 0 if before_ns is None else now_ns - before_ns
        found = {}
        for root, tree in trees.items():
            cpu = [_cpu_ns(now[pid], before.get(pid), span_ns, boot_ns) for pid in tree]
            known = [part for part in cpu if part is not None]
            is_known = span_ns > 0 and len(known) == len(cpu)
            percent = round(100 * sum(known) / span_ns) if is_known else None
            if tree:
                found[root] = HostUse(percent, sum(now[pid].memory_bytes for pid in tree))
        self._last, self._last_ns = now, now_ns
        return found

    def _read_tree(self, root: int, others: dict[int, None], now: dict[int, _Usage]) -> list[int]:
        """The living processes below and with `root`, without the trees of other roots."""
        alive: list[int] = []
        waiting = [root]
        while waiting:
            pid = waiting.pop()
            process = None if pid in now else _process(pid)
            if process is not None:
                now[pid] = process
                alive.append(pid)
                waiting += [child for child in self._children.get(pid, ()) if child not in others]
            elif pid == root:
                return []
        return alive


def _cpu_ns(process: _Usage, last: _Usage | None, span_ns: int, boot_ns: int) -> int | None:
    """CPU time within the last `span_ns`; None: unknown."""
    if last is not None and last.start_ticks == process.start_ticks:
        return max(0, process.cpu_ticks - last.cpu_ticks) * TICK_NS
    age_ns = max(TICK_NS, boot_ns - process.start_ticks * TICK_NS)
    if age_ns > span_ns + TREE_NS:  # it was there before, unseen
        return None
    return int(process.cpu_ticks * TICK_NS * min(1.0, span_ns / age_ns))


def _process(pid: int) -> _Usage | None:
    """None: it is gone, or its line cannot be read."""
    fields = stat_fields(pid)
    try:
        if not fields:
            return None
        cpu_ticks = int(fields[USER]) + int(fields[SYSTEM])
        return _Usage(int(fields[START]), cpu_ticks, int(fields[RESIDENT]) * PAGE_BYTES)
    except (IndexError, ValueError):
        return None


def _children() -> dict[int, list[int]]:
    """The children of each process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = stat_fields(int(name))
            if fields and len(fields) > PARENT:
                children.setdefault(int(fields[PARENT]), []).append(int(name))
    return children
