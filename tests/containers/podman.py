"""Real containers: podman over an overlay of this machine's own root, without a network.

Their CDI device brings them into an env.

Knows: podman's command line. Must not know: what is tested.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.limits import WAIT_LIMIT_S

RUNTIME = Path(__file__).parent / "runtime"
CDI_DIR = Path("/etc/cdi")
"""Podman 4 reads no other."""


def _podman(*arguments: str, check: bool = True, timeout_s: float = WAIT_LIMIT_S) -> str:
    command = ["podman", "--cgroup-manager=cgroupfs", f"--runtime={RUNTIME}", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@functools.cache
def unusable() -> str | None:
    """Why there can be no containers here; None: there can."""
    if os.geteuid() != 0:
        return "containers need root"
    if missing := [name for name in ("podman", "runc") if shutil.which(name) is None]:
        return f"{' and '.join(missing)}: not installed (apt-get install podman runc)"
    try:
        _podman("run", "--rm", "--network=none", "--rootfs", "/:O", "/bin/true")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return f"podman runs no container here: {str(error).strip().splitlines()[-1][:200]}"
    return None


class Program:
    """Something that runs in a container: its output is read line by line, its input is ours."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._read = b""
        self.said: list[str] = []

    def line(self) -> str:
        """Its next line of output; fails where none comes."""
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._stdout], [], [], WAIT_LIMIT_S)
            chunk = os.read(self._stdout.fileno(), 65_536) if ready else b""
            if not chunk:
                raise AssertionError(
                    f"no further line; its code is {self.process.poll()}, it said {self.said} and"
                    f" {self._read!r}"
                )
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        self.said.append(line.decode(errors="replace").rstrip("\r"))
        return self.said[-1]

    def line_with(self, text: str) -> str:
        """The next line that holds this text."""
        while text not in (line := self.line()):
            pass
        return line

    def json(self) -> Any:
        """The next line that is a JSON object."""
        return json.loads(self.line_with("{"))

    def write(self, text: str) -> None:
        self._stdin.write(text.encode())
        self._stdin.flush()

    def end(self) -> tuple[int, str]:
        """Closes its input and waits; its code and what was left of its output."""
        rest, _ = self.process.communicate(timeout=WAIT_LIMIT_S)
        return self.process.returncode, (self._read + rest).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Containers:
    """The containers of one test, each on a device of the manager's kind; removed at the end."""

    def __init__(self, kind: str, prefix: str) -> None:
        self._kind = kind
        self._prefix = prefix
        self._names: list[str] = []
        self._programs: list[Program] = []

    def _run(
        self,
        env: str | None,
        command: Sequence[str],
        options: Sequence[str],
        *flags: str,
        rootfs: str,
    ) -> list[str]:
        name = f"{self._prefix}-{len(self._names)}"
        self._names.append(name)
        device = [] if env is None else [f"--device={self._kind}={env}"]
        return [
            "run",
            *flags,
            f"--name={name}",
            "--network=none",
            *device,
            *options,
            "--rootfs",
            rootfs,
            *command,
        ]

    def run(
        self, env: str, *command: str, options: Sequence[str] = (), rootfs: str = "/:O"
    ) -> tuple[int, str, str]:
        """From start to end: its code, its output, what it said on stderr."""
        arguments = self._run(env, command, options, "--rm", rootfs=rootfs)
        done = subprocess.run(
            ["podman", "--cgroup-manager=cgroupfs", f"--runtime={RUNTIME}", *arguments],
            capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def start(self, env: str | None, *options: str, rootfs: str = "/:O") -> str:
        """A container that lives until the end of the test, idle; its name.

        None: without an env's device.
        """
        _podman(
            *self._run(
                env, ["/bin/sleep", "infinity"], options, "--detach", "--init=false", rootfs=rootfs
            )
        )
        return self._names[-1]

    def run_beside(
        self, env: str, *command: str, options: Sequence[str] = (), rootfs: str = "/:O"
    ) -> Program:
        """As `run`, but it lives while its input is open; stderr goes with its output."""
        arguments = self._run(env, command, options, "--rm", "--interactive", rootfs=rootfs)
        return self._open(arguments)

    def _open(self, arguments: Sequence[str]) -> Program:
        process = subprocess.Popen(
            ["podman", "--cgroup-manager=cgroupfs", f"--runtime={RUNTIME}", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._programs.append(Program(process))
        return self._programs[-1]

    def spawn(self, container: str, *command: str, options: Sequence[str] = ()) -> Program:
        """A program in a container that runs (`podman exec`); its stderr goes with its output."""
        return self._open(["exec", "--interactive", *options, container, *command])

    def execute(
        self, container: str, *command: str, options: Sequence[str] = ()
    ) -> tuple[int, str]:
        """The same from start to end: its code and all that it said."""
        return self.spawn(container, *command, options=options).end()

    def tell(self, container: str, verb: str) -> None:
        """podman pause, unpause, kill, ..."""
        _podman(verb, container)

    def pause(self, container: str) -> None:
        """Freeze it.

        runc gives up after a while ("unable to freeze") if processes of the container are slow to
        stop, as on a busy machine. It thaws them, and may be asked again.
        """
        deadline = time.monotonic() + WAIT_LIMIT_S
        while True:
            try:
                return self.tell(container, "pause")
            except AssertionError as error:
                if "unable to freeze" not in str(error) or time.monotonic() > deadline:
                    raise

    def inspect(self, container: str, form: str) -> str:
        return _podman("inspect", "--format", form, container).strip()

    def pid(self, container: str) -> int:
        """The PID of its init on the node."""
        return int(self.inspect(container, "{{.State.Pid}}"))

    def close(self) -> None:
        for program in self._programs:
            program.close()
        if self._names:
            with contextlib.suppress(subprocess.TimeoutExpired):
                _podman("rm", "--force", "--time=0", "--ignore", *self._names, check=False)
