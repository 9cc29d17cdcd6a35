"""A machine with systemd, in namespaces, over an overlay of this machine's own root.

The overlay is removed at the end.

Knows: namespaces, cgroups, how systemd says that it has booted. Must not know: what is tested.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.session import TMP, remove
from tests.support.limits import WAIT_LIMIT_S
from tests.support.supervisor import Supervisor

BEGIN = Path(__file__).parent / "begin.sh"
CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
HIERARCHIES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
"""The place of cgroups that systemd sorts, by the kind of machine."""
TARGET = (
    "[Unit]\nDescription=A node\nDefaultDependencies=no\nAllowIsolate=yes\nWants=nodemgr.service\n"
)
BOOT_LIMIT_S = 120.0


def unusable() -> str | None:
    """Why nothing can be booted here; None: it can be tried."""
    if os.geteuid() != 0:
        return "needs root"
    return (
        None
        if SYSTEMD.exists() and shutil.which("unshare") and shutil.which("nsenter")
        else "needs systemd and util-linux"
    )


class Booted:
    """Boots at once; `prepare` (shell) runs in the new root before systemd does.

    Raises RuntimeError where that is not to be had.
    """

    def __init__(self, prepare: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nm", dir=TMP))
        self.shared = self.directory / "shared"
        for path in (self.shared, self.directory / "over"):
            path.mkdir()
        self._supervisor = Supervisor(self.shared)
        self._cgroups = [
            Path(parent) / self.directory.name
            for parent in HIERARCHIES
            if (Path(parent) / "cgroup.procs").exists()
        ]
        (self.shared / "node.target").write_text(TARGET)
        (self.shared / "prepare.sh").write_text(f"{prepare}\n")
        self._log = (self.shared / "log").open("w+")
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--uts",
            "--ipc",
            "--cgroup",
            "sh",
            str(BEGIN),
            str(self.directory),
        ]
        self._process = subprocess.Popen(
            [*command, *map(str, shown())], stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, preexec_fn=self._enter_cgroups,
            env={"PATH": os.environ["PATH"], "container": "test",
                "NOTIFY_SOCKET": self._supervisor.address},
        )  # fmt: skip
        try:
            while self._is_alive_or_heard() and "READY=1" not in self._supervisor.hear(
                BOOT_LIMIT_S
            ):
                pass
            assert self._process.poll() is None
        except AssertionError:
            self._log.seek(0)
            said = " ".join(self._log.read().split())[-300:]
            booting = (
                self._process.poll() is None
                and Path(f"/proc/{self.init}/comm").read_text() == "systemd\n"
            )
            self.close()
            if booting:  # so what it should start does not
                raise
            raise RuntimeError(f"systemd does not boot here: {said}") from None

    def _is_alive_or_heard(self) -> bool:
        """Waits until it says something; False: it has ended instead."""
        ended = os.pidfd_open(self._process.pid)
        try:
            return (
                self._supervisor
                in select.select([self._supervisor, ended], [], [], BOOT_LIMIT_S)[0]
            )
        finally:
            os.close(ended)

    def _enter_cgroups(self) -> None:
        for cgroup in self._cgroups:
            cgroup.mkdir()
            (cgroup / "cgroup.procs").write_text("0")

    @property
    def init(self) -> int:
        """The PID of systemd, seen from here."""
        (pid,) = (
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        )
        return int(pid)

    def command(self, *words: str) -> list[str]:
        """The command that runs in the booted machine."""
        return ["nsenter", f"--target={self.init}", "--all", "--root", "--wd", "--", *words]

    def run(self, *words: str, check: bool = True) -> str:
        """Its output, stderr with it."""
        done = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
            timeout=WAIT_LIMIT_S,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}"
        )
        return done.stdout

    def show(self, what: str) -> str:
        """A property of the service."""
        return self.run("systemctl", "show", "nodemgr", f"--property={what}", "--value").strip()

    def close(self) -> None:
        """Its first process ends, and everything with it."""
        if self._process.poll() is None:
            os.kill(self.init, signal.SIGKILL)
            self._process.wait(WAIT_LIMIT_S)
        for cgroup in self._cgroups:
            for path in sorted(
                [cgroup, *(path for path in cgroup.rglob("*") if path.is_dir())], reverse=True
            ):
                path.rmdir()
        self._supervisor.close()
        self._log.close()
        remove(self.directory)


def shown() -> list[Path]:
    """The tests' own environment, at any mount."""
    paths: Sequence[str | Path] = (CHECKOUT, sys.prefix, sys.base_prefix)
    return list(dict.fromkeys(Path(path).resolve() for path in paths))
