"""The disks of the machines: Debian, the project's wheel in it, a node after `nodemgr setup`.

Knows: mmdebstrap, pip, the files of an image. Must not know: what is tried.

Each is made once and kept in the cache under a name that has a hash of all that it is made of.
`$NODEMGR_VM_CACHE` names another cache than `~/.cache/nodemgr-vm`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.wheel import ROOT, copy_source
from tests.vm.machine import Machine, MachineFault

GUEST = Path(__file__).parent / "guest"
TOOLS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs")
SUITES = {"bookworm": "3.11", "trixie": "3.13"}
"""Debian's suites and the Python of each."""
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "init-system-helpers"),
    *("python3", "python3-venv", "linux-image-cloud-amd64", "libpam-systemd"),
)
LOCK = ROOT / "deploy" / "debian" / "requirements.txt"
"""The versions of the packages that nodemgr needs."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
SPARE_MIB = 1_500
FSTAB = "tmpfs /run tmpfs rw,nosuid,nodev,exec,mode=755 0 0\n"
"""The initial RAM disk mounts /run noexec, and the simulator's libraries lie there."""
USERS = {"alice": 1001, "bob": 1002}
AGENT_UNIT = """\
[Unit]
Description=Executes the commands of the emulator's host
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/vm-agent.py
"""
AGENT_TARGET = """\
[Unit]
Description=multi-user, and the host's commands
Requires=multi-user.target
After=multi-user.target
Wants=vm-agent.service
"""
SETTINGS = 'simulate = "4x8GiB"'
PROGRAM = "/opt/nodemgr/bin/nodemgr"
ACTIVE = "systemctl is-active --quiet nodemgr"


class Image(NamedTuple):
    """A disk to begin with, and the directory of the kernel that boots it."""

    kernel: Path
    disk: Path
    saved: bool = False
    """Whether the disk has a running machine."""

    def machine(self, *files: Path) -> Machine:
        return Machine(self.kernel, self.disk, files, saved=self.saved)


def lacking() -> str | None:
    """Why no machine can be had here; None: it can be tried."""
    if os.geteuid() != 0:
        return "only root makes an image"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    packages = "qemu-system-x86 qemu-utils mmdebstrap e2fsprogs"
    return f"{', '.join(missing)} missing: apt-get install {packages}" if missing else None


def digest(*parts: str | bytes | Path) -> str:
    """A short name for all parts; of a path, the content of the file."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


def cache() -> Path:
    named = os.environ.get("NODEMGR_VM_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(named) if named else Path(home, "nodemgr-vm")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cached(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The directory KIND-KEY of the cache; made anew in place of others of its kind."""
    place = cache() / f"{kind}-{key}"
    if not place.exists():
        for old in cache().glob(f"{kind}-*"):
            shutil.rmtree(old)
        fresh = Path(tempfile.mkdtemp(prefix="making-", dir=cache()))
        try:
            make(fresh)
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return place


def debian(suite: str) -> Path:
    """The root of a fresh Debian, as a file of tar."""

    def make(place: Path) -> None:
        command = ["nice", "-n", "2", "mmdebstrap", "--quiet", "--variant=minbase"]
        command += [f"--include={','.join(PACKAGES)}", suite, str(place / "root.tar")]
        subprocess.run(command, check=True)

    return cached(f"debian-{suite}", digest(suite, *PACKAGES), make) / "root.tar"


def wheels(python: str) -> Path:
    """The wheels of the packages that nodemgr needs, for that Python."""

    def make(place: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(place)]
        command += ["--only-binary=:all:", "--no-deps", "--python-version", python]
        command += [word for name in PLATFORMS for word in ("--platform", name)]
        subprocess.run([*command, "--requirement", str(LOCK)], check=True)

    return cached(f"wheels-{python}", digest(LOCK, python), make)


def built(source: Path, place: Path) -> Path:
    """The wheel of a checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(place), str(source)]
    # the sources of another checkout must not stand in for its own
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineFault(f"{source} builds no wheel: {done.stderr[-1_000:]}")
    (wheel,) = place.glob("*.whl")
    return wheel


def own_wheel() -> Path:
    """The wheel of this checkout; built anew when a source has changed."""
    with tempfile.TemporaryDirectory() as directory:
        source = copy_source(Path(directory, "source"))
        files = sorted(path for path in source.rglob("*") if path.is_file())
        key = digest(*(part for path in files for part in (str(path.relative_to(source)), path)))
        place = cached("wheel", key, lambda place: _build_into(source, place))
    return next(place.glob("*.whl"))


def earlier_wheel(commit: str) -> Path:
    """The wheel of a commit of the repository's history."""
    named = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"]
    full = subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()

    def make(place: Path) -> None:
        with tempfile.TemporaryDirectory() as source:
            archive = subprocess.run(
                ["git", "-C", str(ROOT), "archive", full], check=True, stdout=subprocess.PIPE
            )
            subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
            _build_into(Path(source), place)

    return next(cached("earlier", full[:16], make).glob("*.whl"))


def _build_into(source: Path, place: Path) -> None:
    built(source, place)


def installed(wheel: Path | None, suite: str = "bookworm") -> Image:
    """Debian with the wheel in /opt/nodemgr; None: without it."""
    tar, agent = debian(suite), GUEST / "agent.py"
    words = (agent, AGENT_UNIT, AGENT_TARGET, FSTAB, str(USERS), tar.parent.name)
    kind = f"bare-{suite}" if wheel is None else f"installed-{wheel.parent.name.split('-')[0]}"
    key = digest(*words) if wheel is None else digest(*words, wheel, LOCK)
    place = cached(kind, key, lambda place: _make_disk(place, tar, wheel, suite))
    return Image(place, place / "disk.qcow2")


def _make_disk(place: Path, tar: Path, wheel: Path | None, suite: str) -> None:
    root = place / "root"
    root.mkdir()
    subprocess.run(["tar", "-xf", str(tar), "-C", str(root)], check=True)
    _prepare(root)
    if wheel is not None:
        install(root, wheel, wheels(SUITES[suite]))
    for name, found in (("vmlinuz", "vmlinuz"), ("initrd", "initrd.img")):
        shutil.copy(root / found, place / name)
    used = subprocess.run(["du", "-sm", str(root)], check=True, capture_output=True, text=True)
    raw, size_mib = place / "disk.raw", int(used.stdout.split()[0]) + SPARE_MIB
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, raw, f"{size_mib}M"], check=True)
    convert = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, place / "disk.qcow2"]
    subprocess.run(convert, check=True)
    raw.unlink()
    shutil.rmtree(root)


def _prepare(root: Path) -> None:
    """The agent that runs the host's commands, and users."""
    units = root / "etc/systemd/system"
    shutil.copy(GUEST / "agent.py", root / "usr/local/lib/vm-agent.py")
    (units / "vm-agent.service").write_text(AGENT_UNIT)
    (units / "vm.target").write_text(AGENT_TARGET)
    (units / "default.target").symlink_to("vm.target")
    (units / "systemd-firstboot.service").symlink_to("/dev/null")
    (root / "etc/hostname").write_text("node\n")
    (root / "etc/fstab").write_text(FSTAB)
    (root / "etc/hosts").write_text("127.0.0.1 localhost node\n")
    (root / "etc/machine-id").write_text(f"{digest(str(root)) * 2}\n")
    (root / "var/log/journal").mkdir(exist_ok=True)
    for name, uid in USERS.items():
        add = ["useradd", "--create-home", "--uid", str(uid), "--shell", "/bin/bash", name]
        subprocess.run(["chroot", str(root), *add], check=True)


def install(root: Path, wheel: Path, needed: Path, place: str = "/opt/nodemgr") -> None:
    """A virtual environment with the wheel below `root`, by the Python that is there."""
    folder = root / "wheels"
    shutil.copytree(needed, folder)
    shutil.copy(wheel, folder)
    shutil.copy(LOCK, folder / "requirements.txt")
    inside = ["chroot", str(root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    pip = [*inside, f"{place}/bin/pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*inside, "python3", "-m", "venv", place], check=True)
    subprocess.run([*pip, "-f", "/wheels", "-r", "/wheels/requirements.txt"], check=True)
    subprocess.run([*pip, f"/wheels/{wheel.name}"], check=True)
    link = root / "usr/local/bin/nodemgr"
    if place == "/opt/nodemgr":
        link.symlink_to(f"{place}/bin/nodemgr")
    shutil.rmtree(folder)


def set_up(machine: Machine) -> None:
    """`nodemgr setup`, on simulated GPUs; the settings are an administrator's own file."""
    machine.run(f"mkdir -p /etc/nodemgr && echo '{SETTINGS}' > /etc/nodemgr/config.toml")
    # it gives systemd a minute to start the manager, which a busy emulator may need more than once
    again = "systemctl start nodemgr; nodemgr setup --yes"
    machine.run(f"nodemgr setup --yes || for n in 1 2 3 4 5; do {again} && break; done; {ACTIVE}")
    machine.run("systemctl is-system-running --wait || true")


def node(wheel: Path) -> Image:
    """A running node after `nodemgr setup` under its own systemd; it goes on from there."""
    base = installed(wheel)

    def make(place: Path) -> None:
        with base.machine() as machine:
            set_up(machine)
            machine.run("nodemgr env create alice --gpus 2 --memory 8GiB --user alice")
            machine.run("nodemgr env create bob --gpus 2 --memory 8GiB --user bob")
            machine.save()
            shutil.copy(machine.disk, place / "disk.qcow2")

    kind = f"node-{wheel.parent.name.split('-')[0]}"
    place = cached(kind, digest(base.kernel.name, SETTINGS), make)
    return Image(base.kernel, place / "disk.qcow2", saved=True)
