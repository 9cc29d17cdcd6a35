"""The device gate: it limits which GPUs' device nodes an env's containers can open.

A process there can open a node only while the env holds that GPU.

Knows: each env's gate in the kernel, the containers that are behind it. Must not know: why an env
holds a GPU, how a container is started (gate_hook.py shuts its gate before its first process).

The kernel holds the gate: an eBPF program at the container's cgroup (version 2). It stays in force
without a manager, unchanged. A device that is open already stays open: a descriptor is never taken
away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from client_plugin.messages.form import SpokenError, relayed, stated
from nodemgr.core.views import cdi
from nodemgr.edge.gate.ebpf import PinnedGate, env_pins, pinned_envs, prepare_bpf, unpin
from nodemgr.edge.gate.state_files import DIRECTORY, GatedCgroup, Records
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.device_nodes import DeviceNode, nodes
from nodemgr.edge.kernel.ownership import mount_namespace, outside_namespaces
from nodemgr.messages import doctor

HOOK = Path(__file__).resolve().parents[2] / "gate_hook.py"
HOOK_TIMEOUT_S = 20


class GateUnavailable(SpokenError):
    """This host cannot gate devices. One line: why."""


class _EnvGate:
    """The gate of one env."""

    def __init__(self, records: Records, pinned: PinnedGate) -> None:
        self.records = records
        self.pinned = pinned
        self.devices: set[DeviceNode] | None = None
        """The open device nodes, as far as this manager set them."""
        self.fault: str | None = None


class Gate:
    """All envs' gates. Made by start()."""

    def __init__(self, run_dir: Path, note: Callable[..., None]) -> None:
        """`note(name, **fields)` reports an event."""
        self.run_dir = run_dir
        self._note = note
        self._nodes = nodes()
        self._gates: dict[str, _EnvGate] = {}

    @classmethod
    def start(cls, run_dir: Path, note: Callable[..., None]) -> Gate:
        """Raises GateUnavailable."""
        if os.geteuid() != 0:
            raise GateUnavailable(
                "only a manager that runs as root can gate devices",
                'run it as root, or set device_gate = "off"',
            )
        if cgroups.mount_point() is None:
            raise GateUnavailable(
                "the device gate needs cgroup version 2, which is not mounted here, so containers "
                "can open every GPU that they were given: boot with "
                "systemd.unified_cgroup_hierarchy=1, or mount cgroup2"
            )
        if (fault := prepare_bpf()) is not None:
            raise GateUnavailable(f"the kernel refused the device gate ({fault})")
        return cls(run_dir, note)

    @staticmethod
    def lift(run_dir: Path) -> None:
        """The administrator wants no gate any more: containers that are behind one find it open.

        OSError.
        """
        everything = nodes().all_gpus()
        for directory in pinned_envs(run_dir):
            unpin(directory, everything)
        for directory in _directories(run_dir / DIRECTORY):
            Records(run_dir, directory.name).remove()

    # -- envs --

    def keep_only(self, envs: Iterable[str]) -> None:
        """Forgets what an earlier manager made for envs that are gone."""
        known = set(envs)
        for directory in _directories(self.run_dir / DIRECTORY):
            if directory.name not in known:
                self.remove(directory.name)
        pins = {env_pins(self.run_dir, env) for env in known}
        for directory in pinned_envs(self.run_dir):
            if directory not in pins:
                unpin(directory)

    def ensure(self, env: str) -> None:
        """Make the gate of an env, shut.

        An existing gate stays unchanged until allow() sets it.
        """
        if env in self._gates:
            return
        records = Records(self.run_dir, env)
        records.make()
        pinned = PinnedGate.make(env_pins(self.run_dir, env), self._nodes.caps_major)
        self._gates[env] = _EnvGate(records, pinned)

    def remove(self, env: str) -> None:
        """The env is gone: what runs in its containers opens nothing any more."""
        if (gate := self._gates.pop(env, None)) is not None:
            gate.pinned.close()
        if (pins := env_pins(self.run_dir, env)) in pinned_envs(self.run_dir):
            unpin(pins)
        Records(self.run_dir, env).remove()

    def allow(self, env: str, gpus: set[int]) -> None:
        """Open exactly these GPUs (by the minor of their node) to the env; shut before opening.

        A failure is reported, and tried again by check(). An earlier fault stays until then: it
        may be one of a container.
        """
        gate = self._gates.get(env)
        devices = self._nodes.of_gpus(gpus)
        if gate is None or gate.devices == devices:
            return
        gate.devices = devices
        self._try(env, gate, partial(gate.pinned.set_open, devices))

    def _try(self, env: str, gate: _EnvGate, change: Callable[[], None]) -> bool:
        """Returns whether the change was made; reports a fault that is new."""
        try:
            change()
        except (OSError, ValueError) as error:
            fault = stated(
                f"the device gate of env {env} is not as it should be: {error}",
                "the manager tries again; `nodemgr doctor` shows when it is mended",
            )
            if fault != gate.fault:
                stderr_log.say(fault)
                self._note("gate.failed", env=env, error=str(error))
            gate.fault = fault
            return False
        return True

    # -- containers --

    def check(self) -> None:
        """Check that each container is still behind its gate.

        A runtime that changes a running container's limits detaches programs that are not its own.
        """
        for env, gate in self._gates.items():
            if self._try(env, gate, partial(self._check, env, gate)) and gate.fault is not None:
                gate.fault = None
                self._note("gate.mended", env=env)

    def _check(self, env: str, gate: _EnvGate) -> None:
        if gate.fault is not None:
            gate.pinned.set_open(gate.devices or set())
        for place in _living(gate.records):
            with _unless_gone(place):
                if gate.pinned.attach(place.cgroup):
                    stderr_log.say(
                        f"the device gate of env {env} was taken off {place.cgroup}, and is there "
                        "again"
                    )
                    self._note("gate.restored", env=env, cgroup=str(place.cgroup))

    def cdi_hook(self, env: str) -> cdi.Hook:
        """The hook entry of the env's CDI device."""
        program = [sys.executable, "-I", "-B", str(HOOK), str(self.run_dir), env]
        return cdi.Hook("createRuntime", program[0], tuple(program), HOOK_TIMEOUT_S)

    # -- for the doctor --

    def state(self) -> tuple[bool, str]:
        """(is it well, one line)."""
        faults = [gate.fault for gate in self._gates.values() if gate.fault is not None]
        count = sum(1 for gate in self._gates.values() for _ in _living(gate.records))
        if faults:
            return False, relayed("; ".join(faults))
        return True, f"on, by eBPF: {count} container{'' if count == 1 else 's'} behind it"

    def state_of(self, env: str, pid: int | None) -> tuple[bool, str]:
        """The same for one process of an env; None: it came over the network."""
        gate = self._gates.get(env)
        if gate is None or pid is None or mount_namespace(pid) in (None, *outside_namespaces()):
            return True, "none here: this is no container of its own"
        if gate.fault is not None:
            return False, gate.fault
        try:
            is_behind = self._is_behind(gate, pid)
        except OSError as error:
            return False, f"its state cannot be read: {error}"
        return (
            is_behind,
            "shut, except for the GPUs that the environment holds"
            if is_behind
            else "not before this container, whose processes can open every GPU that it was given",
        )

    def holds(self, env: str, pid: int | None) -> bool:
        """Whether this process of the env sees the opened GPUs alone."""
        gate = self._gates.get(env)
        try:
            return gate is not None and pid is not None and self._is_behind(gate, pid)
        except OSError:
            return False

    @staticmethod
    def _is_behind(gate: _EnvGate, pid: int) -> bool:
        cgroup = cgroups.directory_of(pid)
        return cgroup is not None and gate.pinned.is_attached(cgroup)


def _living(records: Records) -> Iterator[GatedCgroup]:
    """Containers that still exist; the records of the others are removed."""
    for place in records.gated():
        if place.is_there():
            yield place
        else:
            records.drop(place)


@contextmanager
def _unless_gone(place: GatedCgroup) -> Iterator[None]:
    """A container may end at any moment: what fails then is no fault."""
    try:
        yield
    except OSError:
        if place.is_there():
            raise


def _directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def gate_by_setting(
    setting: str, run_dir: Path, is_simulated: bool, note: Callable[..., None]
) -> tuple[Gate | None, str]:
    """The gate that the setting `device_gate` asks for, or None and the reason.

    Raises GateUnavailable if it is set to on and unavailable.
    """
    if setting == "off" or (setting == "auto" and is_simulated):
        Gate.lift(run_dir)
        is_off = setting == "off"
        return (
            None,
            doctor.GATE_OFF_BY_SETTING() if is_off else "off, simulated GPUs have no device nodes",
        )
    try:
        return Gate.start(run_dir, note), relayed("")
    except GateUnavailable as error:
        if setting == "on":
            raise GateUnavailable(
                f"device_gate is on, but devices cannot be gated here: {error}",
                'mend that, or set device_gate = "auto" or "off"',
            ) from None
        stderr_log.say(f"no device gate: {error}")
        return None, f"off: {error}"
