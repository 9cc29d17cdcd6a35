"""The way into containers: the CDI file of this manager, and the small files that it mounts.

Knows: the mounts of an env's container and their sources. Must not know: the file's form
(core/views/cdi.py), quotas, leases.

A container gets, read-only: its env's directory at /run/nodemgr-env, the client at /opt/nodemgr,
and an /etc/ld.so.preload that names the shim. The shim is thus active in every program there. A
container of a simulated node gets the driver too, at the first place that the dynamic linker looks
at.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from client_plugin.messages.form import notice, stated
from client_plugin.ways import locations
from nodemgr import arrival
from nodemgr.core.views import cdi
from nodemgr.edge.containers import payload
from nodemgr.edge.containers.shared_files import OpenFiles, files_below
from nodemgr.edge.containers.simulator_mount import may_be_shared
from nodemgr.edge.host import stderr_log, threads
from nodemgr.edge.host.rundir import SIMULATOR_DIR, make_open, refresh
from nodemgr.edge.kernel.device_nodes import GPU_MAJOR
from nodemgr.paths import CONTAINER_ENV_DIR, CONTAINER_PAYLOAD_DIR, container_dir, payload_dir

PRELOAD_FILE = "ld.so.preload"
CONTAINER_PRELOAD = "/etc/ld.so.preload"
VERBS = "client_plugin/bin/nodemgr"
VERBS_ON_PATH = "/usr/local/bin/nodemgr"
LINKER_PATHS = ("/usr/lib", "/usr/lib64")
"""The directories that every glibc searches, on Debian's kind of system and on Red Hat's."""
UNIFIED_MEMORY = "nvidia-uvm"
NODE_GLOBS = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps/*")

CDI_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
NVIDIA_KIND = b"nvidia.com/gpu"
NVIDIA_DEVICES = "nvidia.com/gpu=all"

HookOf = Callable[[str], cdi.Hook | None]


class Containers:
    """This manager's CDI file, kept as the envs are."""

    def __init__(
        self,
        directory: Path,
        kind: str,
        run_dir: Path,
        state_dir: Path,
        simulated: int,
        hook_of: HookOf,
    ) -> None:
        """`simulated`: GPUs of a simulated node, 0 on a real one.

        `hook_of` names what must happen before a container of an env starts: a CDI hook, or None.
        """
        self._open_files = OpenFiles()
        self.kind = kind
        self.path = directory / cdi.file_name(kind)
        self.fault: str | None = None
        """Why containers do not see the envs as they are now."""
        self._run_dir = run_dir
        self._state_dir = state_dir
        self._is_placed = False
        self._simulated = simulated
        self._hook_of = hook_of

    def device(self, env: str) -> str | None:
        """The value for an engine's `--device`; None for a name that CDI cannot express."""
        return f"{self.kind}={env}" if cdi.is_device_name(env) else None

    def companions(self) -> list[str]:
        """Further devices that bring the driver itself in.

        They are NVIDIA's own, if its CDI file is on this node.
        """
        if self._simulated:
            return []
        files = (
            file
            for directory in CDI_DIRS
            for pattern in ("*.json", "*.yaml")
            for file in directory.glob(pattern)
        )
        return [NVIDIA_DEVICES] if any(_speaks_of_nvidia(file) for file in files) else []

    def mounts(self, env: str) -> tuple[cdi.Mount, ...]:
        """All mounts of a container of `env`, for engines without a CDI device."""
        return (self._env_mount(env), *self._common().mounts)

    def missing(self) -> str | None:
        """The part that containers need and cannot get, in one line; None: all is there."""
        if not self._simulated:
            return missing_node()
        state, is_read = self._state_file(), self.path.parent in CDI_DIRS
        if may_be_shared(state) or not is_read:
            return None
        return notice(
            f"containers get no simulated driver: {state} is not on a mount of its own (nosuid, "
            "nodev, noexec) that the whole node sees. Remove the file and start the manager anew "
            "as root, outside of a mount namespace",
            code="host",
        )

    def _state_file(self) -> Path:
        from nodemgr.simulator import STATE_FILE

        return self._run_dir / SIMULATOR_DIR / STATE_FILE

    def settle(self, envs: Iterable[str]) -> None:
        """Writes the present devices. A failure is reported, kept, and harms nothing else."""
        names = sorted(filter(cdi.is_device_name, envs))
        try:
            self._write(names)
        except OSError as error:
            fault = stated(
                f"{self.path} could not be written, containers do not see this change: "
                f"{error.strerror or error}",
                "make the directory writable, or name another (cdi_dir)",
            )
            if fault != self.fault:
                stderr_log.say(fault)
            self.fault = fault
        else:
            self.fault = None

    def _write(self, names: list[str]) -> None:
        refresh(
            self._run_dir / PRELOAD_FILE,
            f"{locations.preload_entry(str(CONTAINER_PAYLOAD_DIR))}\n",
            0o644,
        )
        if not self._is_placed:  # at the start; an upgrade counts for the next manager
            payload.place(payload_dir(), self._state_dir)
            self._is_placed = True
            self._keep_open()
        if not names:
            self.path.unlink(missing_ok=True)  # a file without a device is no CDI file
            return
        make_open(self.path.parent)
        refresh(
            self.path,
            cdi.document(self.kind, self._common(), [self._device(name) for name in names]),
            0o644,
        )

    def close(self) -> None:
        self._open_files.close()

    def _keep_open(self) -> None:
        """All copies of the client, also those of earlier containers, and the other shared files.

        In a thread: an open waits for the lease that a container took while no manager ran.
        """
        mounts = [mount.host_path for mount in self._common().mounts if not mount.writable]
        roots = (payload.current(self._state_dir).parent, *map(Path, mounts))
        threads.start(lambda: self._open_files.keep(files_below(roots)), "shared files")

    def _device(self, env: str) -> cdi.CdiDevice:
        hook = self._hook_of(env)
        hooks = () if hook is None else (hook,)
        gated = range(self._simulated if hooks else 0)  # the gate needs nodes to guard
        nodes = tuple(cdi.NumberedNode(f"/dev/nvidia{index}", GPU_MAJOR, index) for index in gated)
        return cdi.CdiDevice(
            env, cdi.Edits((self._env_mount(env),), hooks=hooks, numbered_nodes=nodes)
        )

    def _env_mount(self, env: str) -> cdi.Mount:
        return cdi.Mount(str(container_dir(self._run_dir, env)), str(CONTAINER_ENV_DIR))

    def _common(self) -> cdi.Edits:
        client = payload.current(self._state_dir)
        mounts = [
            *(
                cdi.Mount(str(client / part), str(CONTAINER_PAYLOAD_DIR / part))
                for part in payload.PARTS
            ),
            cdi.Mount(str(self._run_dir / PRELOAD_FILE), CONTAINER_PRELOAD),
            *(
                cdi.Mount(str(client / VERBS), place)
                for place in (str(CONTAINER_PAYLOAD_DIR / "bin" / "nodemgr"), VERBS_ON_PATH)
            ),
        ]
        if self._simulated and may_be_shared(self._state_file()):
            return cdi.Edits((*mounts, *self._simulator()), hooks=_arrival())
        return cdi.Edits(tuple(mounts), gpu_nodes(), _arrival())

    def _simulator(self) -> list[cdi.Mount]:
        from nodemgr.simulator import CLIENT_LIBRARIES, STATE_FILE

        home = self._run_dir / SIMULATOR_DIR
        libraries = [
            cdi.Mount(str(home / name), f"{place}/{name}")
            for place in LINKER_PATHS
            for name in CLIENT_LIBRARIES
        ]
        state = cdi.Mount(
            str(self._state_file().resolve()),
            str(CONTAINER_PAYLOAD_DIR / SIMULATOR_DIR / STATE_FILE),
            writable=True,
        )
        return [*libraries, state]


def gpu_nodes(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The driver's device nodes of this node.

    All of them: the device gate decides which of them open.
    """
    found = {
        path
        for pattern in NODE_GLOBS
        for path in devices.glob(pattern)
        if stat.S_ISCHR(path.stat().st_mode)
    }
    return tuple(sorted(map(str, found)))


def missing_node(devices: Path = Path("/dev")) -> str | None:
    """A missing device node without which programs find no CUDA; in one line.

    A container cannot make this node itself.
    """
    node = devices / UNIFIED_MEMORY
    if not gpu_nodes(devices) or node.exists():
        return None
    return (
        f"{node} is not there, so programs in containers find no CUDA: nvidia-modprobe -u -c=0, "
        "then restart the manager"
    )


def _speaks_of_nvidia(file: Path) -> bool:
    try:
        return NVIDIA_KIND in file.read_bytes()
    except OSError:
        return False


def _arrival() -> tuple[cdi.Hook, ...]:
    """The hook that reports, in the container, that the client cannot be active in it."""
    return (
        cdi.Hook(
            "createRuntime",
            sys.executable,
            ("python3", "-I", "-S", str(Path(arrival.__file__).resolve())),
        ),
    )
