"""Shuts the device gate of a container that starts.

A container runtime runs this program as its `createRuntime` hook.

    python -I gate_hook.py RUN_DIR ENV      (the container's state, as OCI defines it, on stdin)

Knows: the state's `pid`, the manager's pins and records. Must not know: the manager's traffic; it
need not even run. Ends with 0 when the gate is shut, or open as far as the environment holds GPUs
already; with 1 and one line otherwise, and then the runtime does not start the container.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":  # by its file's name: an isolated interpreter knows no path to us
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from client_plugin.messages.form import SpokenError
from nodemgr.edge.gate.ebpf import PinnedGate, env_pins
from nodemgr.edge.gate.state_files import GatedCgroup, Records
from nodemgr.edge.kernel import cgroups
from nodemgr.messages import node as messages
from nodemgr.paths import is_env_name

MOST_OF_STATE_BYTES = 1 << 20


class Refused(SpokenError):
    """The container must not start. One line, with what to do."""


def main(arguments: list[str], state_text: bytes) -> int:
    """The exit code."""
    try:
        if len(arguments) != 2 or not is_env_name(arguments[1]):
            raise Refused("usage: gate_hook.py RUN_DIR ENV, with the container's state on stdin")
        shut(Path(arguments[0]), arguments[1], pid_of_state(state_text))
    except Refused as refusal:
        return _say(refusal.line)
    except PermissionError as error:
        return _say(
            f"only root's container engine can shut its device gate ({error}): start it as root"
        )
    except OSError as error:
        return _say(
            f"its device gate could not be shut ({error}): see `nodemgr doctor`, and start it again"
        )
    return 0


def _say(why: str) -> int:
    print(f"nodemgr: {messages.NOT_STARTED_CONTAINER(why=why)}", file=sys.stderr)
    return 1


def pid_of_state(text: bytes) -> int:
    """Raises Refused for anything but an OCI state with a living process."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = None
    pid = state.get("pid") if isinstance(state, dict) else None
    if isinstance(pid, bool) or not isinstance(pid, int) or not 1 < pid < 1 << 31:
        raise Refused(
            "its runtime gave no state with a pid on the hook's stdin: use a runtime of OCI 1.0 or "
            "newer"
        )
    return pid


def shut(run_dir: Path, env: str, pid: int) -> None:
    """Shuts the gate before the container's first process runs. Raises Refused, OSError."""
    records = Records(run_dir, env)
    if not records.exists():
        raise Refused(
            f"environment {env} has no device gate, since it was removed (nodemgr env list) or the "
            "manager never ran with device_gate: make it again, or start the manager with "
            "device_gate"
        )
    pinned = PinnedGate.found(env_pins(run_dir, env))
    place = _gated_cgroup(pid)
    records.add(place)
    pinned.attach(place.cgroup)


def _gated_cgroup(pid: int) -> GatedCgroup:
    """The container's own cgroup: a gate at a shared cgroup would shut out other processes too."""
    directory = cgroups.directory_of(pid)
    if directory is not None and cgroups.is_alone(directory, pid):
        return GatedCgroup.of(directory)
    if not Path(f"/proc/{pid}").exists():
        raise Refused(f"its process {pid} has ended: start it again")
    raise Refused(
        "it has no cgroup (version 2) of its own, at which the device gate stands: start it with "
        "one (podman: not --cgroups=disabled), boot the node with "
        'systemd.unified_cgroup_hierarchy=1, or set device_gate = "off"'
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read(MOST_OF_STATE_BYTES)))
