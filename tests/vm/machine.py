"""One emulated machine: boot, commands, reboot, power cut.

Knows: qemu's options, the protocol of guest/agent.py. Must not know: what is installed in the
machine, what is tried.
"""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MEMORY_MIB = 1024
BOOT_LIMIT_S = 600.0
"""Emulation on a busy machine is slow: these bounds are against a hang."""
COMMAND_LIMIT_S = 900.0
KERNEL = "console=ttyS0 root=/dev/vda rw loglevel=4 panic=-1 systemd.show_status=no no_timer_check"
FILES_LABEL, FILES_SIZE = "vm-files", "256M"
SNAPSHOT = "ready"
PROMPT = b"(qemu) "


class MachineFault(Exception):
    """The machine or a command in it did not do what was expected."""


def emulator(image: Path, directory: Path, *more: str) -> list[str]:
    """The command of the machine. `image`: the directory with vmlinuz and initrd."""
    drives = [
        f"file={directory}/disk.qcow2,format=qcow2,if=virtio,cache=writeback",
        f"file={directory}/files.raw,format=raw,if=virtio,readonly=on",
    ]
    return [
        *("nice", "-n", "2", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-m", str(MEMORY_MIB), "-smp", "1", "-display", "none"),
        *("-monitor", f"unix:{directory}/monitor,server=on,wait=off"),
        *("-no-reboot", "-nic", "none"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", KERNEL),
        *(word for drive in drives for word in ("-drive", drive)),
        *("-serial", f"file:{directory}/console", "-device", "virtio-serial"),
        *("-chardev", f"socket,id=agent,path={directory}/agent,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=agent"),
        *more,
    ]


def overlay(base: Path, disk: Path) -> None:
    """A new disk that begins as `base`, which stays as it is."""
    disk.unlink(missing_ok=True)
    made = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(disk)]
    subprocess.run(made, check=True)


def files_disk(files: Sequence[Path], disk: Path) -> None:
    """A disk with copies of the files in its root. Its size is that of any other's."""
    with tempfile.TemporaryDirectory() as copies:
        for path in files:
            shutil.copy(path, copies)
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", FILES_LABEL, "-d", copies]
        subprocess.run([*command, str(disk), FILES_SIZE], check=True, capture_output=True)


class Machine:
    """A fresh copy of an image. Use it as a context: at its end the machine is killed."""

    def __init__(self, image: Path, base: Path, files: Sequence[Path], *, saved: bool) -> None:
        """`base`: the disk that is copied. `files`: the files that the machine has below /mnt.

        `saved`: the disk has a machine that is running already (`save`), which goes on.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="nm-vm")
        self._image, self._saved = image, saved
        self._directory = Path(self._temporary.name)
        self.disk = self._directory / "disk.qcow2"
        if saved:
            subprocess.run(["cp", "--reflink=auto", base, self.disk], check=True)
        else:
            overlay(base, self.disk)
        files_disk(files, self._directory / "files.raw")
        self._process: subprocess.Popen[bytes] | None = None
        self._agent: socket.socket | None = None
        self._unread = b""
        self.boots = 0

    def __enter__(self) -> Machine:
        self._start(*(("-loadvm", SNAPSHOT) if self._saved else ()))
        if not self._saved:
            self._booted()
        self.run("blockdev --flushbufs /dev/vdb && mount /dev/vdb /mnt")
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._temporary.cleanup()

    def boot(self) -> None:
        """Returns when systemd has started all of multi-user.target."""
        self._start()
        self._booted()

    def _start(self, *more: str) -> None:
        for name in ("agent", "monitor"):
            (self._directory / name).unlink(missing_ok=True)
        command = emulator(self._image, self._directory, *more)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._agent = self._connected("agent")

    def _booted(self) -> None:
        self.boots = int(str(self._read(time.monotonic() + BOOT_LIMIT_S)["boot"]))

    def save(self) -> None:
        """Keep the running machine in its disk, and kill it."""
        self.run("umount /mnt")
        with self._connected("monitor") as monitor:
            for command in (b"", b"savevm " + SNAPSHOT.encode() + b"\n"):
                monitor.sendall(command)
                said = b""
                while not said.endswith(PROMPT):
                    said += monitor.recv(65_536)
        if b"rror" in said:
            raise MachineFault(f"the machine cannot be saved: {said.decode()}")
        self.cut()

    def _connected(self, name: str) -> socket.socket:
        """The emulator makes its sockets at its start."""
        assert self._process is not None
        deadline = time.monotonic() + BOOT_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                connection.connect(str(self._directory / name))
                return connection
            connection.close()
            select.select([], [], [], 0.1)
        raise MachineFault("the emulator did not start")

    def lines(self, command: str) -> Iterator[str]:
        """Run the command by bash as root; its output as it comes. Raises MachineFault."""
        assert self._agent is not None, "the machine is off"
        self._agent.sendall(json.dumps({"command": command}).encode() + b"\n")
        deadline, said = time.monotonic() + COMMAND_LIMIT_S, [""]
        while "status" not in (answer := self._read(deadline)):
            said.append(str(answer["line"]))
            yield said[-1]
        if answer["status"] != 0:
            text = "\n".join(said[-20:])
            raise MachineFault(f"{command}: exit {answer['status']}{text}")

    def run(self, command: str) -> str:
        """The command's output, when it has ended. Raises MachineFault if it failed."""
        return "\n".join(self.lines(command))

    def cut(self) -> None:
        """A power cut: what the machine has not flushed to its disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close()

    def shut_down(self, verb: str = "poweroff") -> None:
        """A clean shutdown; returns when the machine is off."""
        assert self._process is not None
        with contextlib.suppress(MachineFault):
            self.run(f"systemctl --no-block {verb}")
        try:
            self._process.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise MachineFault("the machine does not go down") from None
        self._close()

    def reboot(self) -> None:
        """A clean reboot."""
        self.shut_down("reboot")
        self.boot()

    def _close(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent, self._process, self._unread = None, None, b""

    def _read(self, deadline: float) -> dict[str, object]:
        assert self._agent is not None
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._agent], [], [], left_s)[0]:
                raise MachineFault("no answer from the machine in time")
            data = self._agent.recv(65_536)
            if not data:
                said = (self._directory / "console").read_text(errors="replace")[-2_000:]
                raise MachineFault(f"the machine went off; its console: {said}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer
