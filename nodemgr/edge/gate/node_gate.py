"""The device gate of the node: logins and jobs open the GPUs of tasks in their own cgroup alone.

One eBPF program stands at `user.slice` and at the scope of the jobs. It lets root pass. A cgroup
opens the GPUs of each task that has a process directly in it; a job's cgroup opens the job's GPUs
from before its start. Other cgroups (services in `system.slice`) are not closed.

Knows: cgroups of processes and of jobs, the map in the kernel. Must not know: the owner of a task,
leases. Like the gate of containers it stays in force without a manager, and takes no descriptor
away.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from client_plugin.messages.form import stated
from nodemgr.edge.gate.device_gate import GateUnavailable
from nodemgr.edge.gate.ebpf import (
    PinnedNodeGate,
    PlacedDevice,
    node_pins,
    prepare_bpf,
    remove_pins,
    try_bpf,
)
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.device_nodes import GPU_MAJOR, Nodes, nodes
from nodemgr.messages import doctor

LOGINS = "user.slice"


class _Followed(NamedTuple):
    """A task with a lease."""

    job_id: str | None
    pids: tuple[int, ...]
    minors: frozenset[int]


class NodeGate:
    """Without a pinned gate (the default) every method does nothing."""

    def __init__(
        self,
        run_dir: Path = Path(),
        pinned: PinnedNodeGate | None = None,
        note: Callable[..., None] = lambda _name, **_fields: None,
        off: str | None = None,
        logins: Path | None = None,
    ) -> None:
        """`note(name, **fields)` reports an event; `off`: why there is no gate."""
        self._run_dir, self._pinned, self._note = run_dir, pinned, note
        self._off = doctor.NODE_GATE_OFF() if off is None else off
        self._nodes = Nodes() if pinned is None else nodes()
        self._logins = logins
        self._scope: Path | None = None
        self._tasks: dict[str, _Followed] = {}
        self._opened: dict[str, frozenset[PlacedDevice]] = {}
        """The entries of each task."""
        self._held: Counter[PlacedDevice] = Counter()
        self._leaves: dict[str, int] = {}
        """The cgroups of jobs, by the inodes of their directories."""
        self._cgroup_of: dict[int, int | None] = {}
        """Of the tasks' processes; None: outside of what is closed."""
        self._fault: str | None = None
        self._is_stale = False
        """The map may have other entries than `_held`."""

    @property
    def is_on(self) -> bool:
        return self._pinned is not None

    def closes_jobs(self) -> bool:
        return self._pinned is not None and self._scope is not None

    @classmethod
    def by_setting(cls, is_wanted: bool, run_dir: Path, note: Callable[..., None]) -> NodeGate:
        """Raises GateUnavailable where it is wanted and cannot be had."""
        why = _hindrance(prepare_bpf if is_wanted else try_bpf)
        if is_wanted and why is not None:
            raise GateUnavailable(
                f"gate_node is true, but the node's devices cannot be gated here: {why}",
                "mend that, or set gate_node = false",
            )
        if not is_wanted:
            cls.lift(run_dir)
            off = (
                doctor.NODE_GATE_OFF()
                if why is None
                else (
                    "off: every process outside of containers can open every GPU; gate_node would "
                    f"not work here: {why}"
                )
            )
            return cls(off=off)
        mount = cgroups.mount_point()
        assert mount is not None
        pinned = PinnedNodeGate.make(node_pins(run_dir), nodes().caps_major)
        gate = cls(run_dir, pinned, note, logins=mount / LOGINS)
        gate.check()
        return gate

    @staticmethod
    def lift(run_dir: Path) -> None:
        """Every process opens every GPU again. OSError."""
        directory, mount = node_pins(run_dir), cgroups.mount_point()
        try:
            pinned = PinnedNodeGate.found(directory)
        except (FileNotFoundError, PermissionError):  # as pinned_envs() says
            return
        for cgroup in [] if mount is None else [mount / LOGINS, *mount.glob("*/*.scope")]:
            if cgroup.is_dir():
                pinned.detach(cgroup)
        pinned.close()
        remove_pins(directory)

    def stand_at(self, scope: str) -> None:
        """The scope of the jobs' cgroups; empty: they have none."""
        self._scope = Path(scope) if scope else None
        self.check()

    # -- what is open --

    def follow(
        self, task_id: str, job_id: str | None, pids: Collection[int], minors: Iterable[int]
    ) -> None:
        """Open these GPUs, by the minors of their nodes, where the task's processes are."""
        if self._pinned is not None:
            self._leave_out(task_id, pids)
            self._tasks[task_id] = _Followed(job_id, tuple(pids), frozenset(minors))
            self._settle(task_id)

    def forget(self, task_id: str) -> None:
        """The lease has ended."""
        if task_id in self._tasks:
            self._leave_out(task_id, ())
            del self._tasks[task_id]
            self._move(task_id, frozenset())

    def _leave_out(self, task_id: str, staying: Collection[int]) -> None:
        """A PID that leaves may be another process's later."""
        task = self._tasks.get(task_id)
        for pid in set(() if task is None else task.pids).difference(staying):
            self._cgroup_of.pop(pid, None)

    def has_leaf(self, job_id: str, leaf: Path) -> None:
        """The job's cgroup is there."""
        inode = _inode(leaf)
        if self._pinned is not None and inode is not None:
            self._leaves[job_id] = inode
            for task_id in [name for name, task in self._tasks.items() if task.job_id == job_id]:
                self._settle(task_id)

    def has_ended(self, job_id: str) -> None:
        self._leaves.pop(job_id, None)

    def shown(self, pid: int | None) -> frozenset[int] | None:
        """The minors of the GPUs that this process can open; None: it is not behind this gate."""
        cgroup = None if pid is None or self._pinned is None else self._closed_cgroup(pid)
        if cgroup is None or _is_root(pid):
            return None
        return frozenset(
            place.minor
            for place in self._held
            if place.cgroup == cgroup and place.major == GPU_MAJOR
        )

    def _settle(self, task_id: str) -> None:
        task = self._tasks[task_id]
        found = {self._leaves.get(task.job_id or "")}
        for pid in task.pids:
            if pid not in self._cgroup_of:
                self._cgroup_of[pid] = self._closed_cgroup(pid)
            found.add(self._cgroup_of[pid])
        devices = self._nodes.of_gpus(task.minors)
        self._move(
            task_id,
            frozenset(
                PlacedDevice(cgroup, *device)
                for cgroup in found
                if cgroup is not None
                for device in devices
            ),
        )

    def _move(self, task_id: str, after: frozenset[PlacedDevice]) -> None:
        before = self._opened.pop(task_id, frozenset())
        if after:
            self._opened[task_id] = after
        held = self._held
        held.update(after - before)
        held.subtract(before - after)
        shut = {place for place in before - after if held[place] == 0}
        for place in shut:
            del held[place]
        try:
            self._write(shut, {place for place in after - before if held[place] == 1})
        except OSError as error:
            self._report(error)

    def _write(self, shut: Iterable[PlacedDevice], opened: Iterable[PlacedDevice]) -> None:
        assert self._pinned is not None
        for place in shut:
            self._pinned.move(place, is_open=False)
        for place in opened:
            self._pinned.move(place, is_open=True)

    def _closed_cgroup(self, pid: int) -> int | None:
        directory = cgroups.directory_of(pid)
        if directory is None or not any(
            directory.is_relative_to(place) for place in (self._logins, self._scope) if place
        ):
            return None
        return _inode(directory)

    # -- the gate itself --

    def keep_only(self) -> None:
        """Open what the followed tasks hold, and shut what an earlier manager left."""
        self._is_stale = True
        self.check()

    def check(self) -> None:
        """Attach the program where it is missing; after a fault write the whole map again."""
        if self._pinned is None:
            return
        try:
            for place in (self._logins, self._scope):
                if place is not None and place.is_dir():
                    self._pinned.attach(place)
            if self._is_stale:
                now, wanted = self._pinned.entries(), set(self._held)
                self._write(now - wanted, wanted - now)
                self._is_stale = False
        except OSError as error:
            self._report(error)
        else:
            if self._fault is not None:
                self._fault = None
                self._note("gate.mended", env="*")

    def _report(self, error: OSError) -> None:
        fault = stated(
            f"the device gate of the node is not as it should be: {error}",
            "the manager tries again; `nodemgr doctor` shows when it is mended",
        )
        if fault != self._fault:
            stderr_log.say(fault)
            self._note("gate.failed", env="*", error=str(error))
        self._fault, self._is_stale = fault, True

    def state(self) -> tuple[bool, str]:
        """(is it well, one line), for the doctor."""
        if self._pinned is None:
            return True, self._off
        if self._fault is not None:
            return False, self._fault
        return (
            True,
            "on, by eBPF: logins (user.slice) and jobs open their own tasks' GPUs alone; root and "
            "services (system.slice) open every GPU"
            if self._scope
            else (
                "on, by eBPF: logins (user.slice) open their own tasks' GPUs alone; root, "
                "services (system.slice) and jobs, which have no cgroups here, open every GPU"
            ),
        )


NO_NODE_GATE = NodeGate()


def _hindrance(tried: Callable[..., str | None]) -> str | None:
    """Why the node's GPUs cannot be gated here."""
    if os.geteuid() != 0:
        return "only a manager that runs as root can gate the node's devices"
    if cgroups.mount_point() is None:
        return "cgroup version 2 is not mounted"
    fault = tried(is_node=True)
    return None if fault is None else f"the kernel refused the device gate ({fault})"


def _inode(directory: Path) -> int | None:
    try:
        return directory.stat().st_ino
    except OSError:
        return None


def _is_root(pid: int | None) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == 0
    except OSError:
        return False
