"""The demo's stage: a private manager in its own directory, the envs' programs, the events.

Knows: how to start, await and end processes within a deadline. Must not know: the story on it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from client_plugin.messages.form import SpokenError
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Fault
from nodemgr.edge.host import module_path

START_TIMEOUT_S = 60.0
MOST_TMPDIR_BYTES = 40
STEP_TIMEOUT_S = 30.0
END_TIMEOUT_S = 3.0
CHECK_S = 0.3
"""How long no event comes until we look whether the program that is to bring one still lives."""
LAST_LINES = 3

PublishedEvent = Mapping[str, Any]


class NotSeen(SpokenError):
    """Something that should have happened did not, in time or at all. One line."""


class Program:
    """A command in an environment.

    It prints a line at each of its steps, and continues at each line of its input.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        directory: Path,
        timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._errors = directory / f"{name.replace('/', '-')}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        self._text = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self, beginning: str, timeout_s: float | None = None) -> str:
        """Waits for a line that begins so; others are passed over. Raises NotSeen."""
        timeout_s = timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                if (text := line.decode(errors="replace")).startswith(beginning):
                    return text
                continue
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise NotSeen(
                    f"{self.name} did not print {beginning!r} within {timeout_s:g} "
                    f"s{self.printed()}"
                )
            more = os.read(descriptor, 65_536)
            if not more:
                raise NotSeen(f"{self.name} ended without printing {beginning!r}{self.printed()}")
            self._text += more

    def go_on(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
        except BrokenPipeError:
            line = f"{self.name} ended before it was told to go on{self.printed()}"
            raise NotSeen(line) from None

    def ended(self) -> int:
        """Its exit code, when it has ended. Raises NotSeen."""
        try:
            return self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise NotSeen(
                f"{self.name} did not end within {self._timeout_s:g} s{self.printed()}"
            ) from None

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> int:
        """kill -9; returns the time of it on the monotonic clock, in ns."""
        at_ns = time.monotonic_ns()
        self._process.send_signal(signal.SIGKILL)
        return at_ns

    def maps(self, library: str) -> bool:
        """Whether the process has this library in its memory."""
        try:
            return library in Path(f"/proc/{self.pid}/maps").read_text(errors="replace")
        except OSError:
            return False

    def printed(self) -> str:
        """The end of its stderr, for a message."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        last = " | ".join(lines[-LAST_LINES:])
        return f"; it printed: {last}" if lines else ""

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _short(directory: str) -> str:
    """TMPDIR, where the paths of the demo's sockets fit into a socket address."""
    return directory if len(os.fsencode(directory)) <= MOST_TMPDIR_BYTES else "/tmp"


class Stage:
    """A manager of our own, ended with everything started here when the `with` block ends."""

    def __init__(self, simulate: str | None, timeout_s: float = STEP_TIMEOUT_S) -> None:
        """`patience_s`: how long a step may take before it counts as one that did not happen."""
        self._simulate = simulate
        self._timeout_s = timeout_s
        self._directory = Path(
            tempfile.mkdtemp(prefix="nodemgr-demo-", dir=_short(tempfile.gettempdir()))
        )
        self.run_dir = self._directory / "run"
        self._programs: list[Program] = []
        self._manager: subprocess.Popen[bytes] | None = None
        self._seen: list[PublishedEvent] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in self._programs:
            program.close()
        if self._manager is not None:
            self._manager.terminate()
            try:
                self._manager.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._manager.kill()
                self._manager.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start_manager(self) -> None:
        """Starts the manager and waits until it answers. Raises NotSeen."""
        self._directory.chmod(0o755)
        log = self._directory / "manager.log"
        node = ["--simulate", self._simulate] if self._simulate else []
        directories = [
            "--run-dir",
            str(self.run_dir),
            "--state-dir",
            str(self._directory / "state"),
        ]
        with log.open("wb") as errors:
            self._manager = subprocess.Popen(
                module_path.command("nodemgr.__main__", "serve", *node, *directories),
                env=self._variables(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            printed = log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            lines = " | ".join(printed)
            if self._manager.poll() is not None:
                code = self._manager.returncode
                raise NotSeen(f"the manager ended with {code}: {lines}")
            if time.monotonic() > deadline:
                limit = f"{START_TIMEOUT_S:g}"
                raise NotSeen(f"the manager was not ready within {limit} s: {lines}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            self.call("ping")
        except Fault:
            return False
        return True

    def call(self, verb: str, **arguments: Any) -> Any:
        return ControlConnection(self.run_dir).call(verb, **arguments)

    def status(self) -> Any:
        return self.call("status")

    def program(
        self,
        env: str,
        name: str,
        command: Sequence[object],
        options: Sequence[object] = (),
        **variables: str,
    ) -> Program:
        """Starts `nodemgr run --env ENV [OPTIONS] -- COMMAND`, which becomes the command."""
        place = ["run", "--run-dir", self.run_dir, "--env", env]
        words = map(str, [*place, *options, "--", *command])
        program = Program(
            f"{env}/{name}",
            module_path.command("nodemgr.__main__", *words),
            self._variables(**variables),
            self._directory,
            self._timeout_s,
        )
        self._programs.append(program)
        return program

    @staticmethod
    def _variables(**variables: str) -> dict[str, str]:
        """Ours, without what the user's own environment or task would bring into the story."""
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("NODEMGR_") and key != "CUDA_VISIBLE_DEVICES"
        }
        return {**inherited, **variables}

    @contextmanager
    def events(self) -> Iterator[None]:
        """Within the block, `event` may be used."""
        from client_plugin.ways.event_stream import EventStream

        with EventStream(self.run_dir, 0) as self._stream:
            yield

    def event(self, name: str, *, of: Program | None = None, **fields: object) -> PublishedEvent:
        """The first event not yet returned that has this name and these fields.

        Waits for it, but not longer than `of`, the program that is to cause it, lives. Raises
        NotSeen.
        """

        def matches(event: PublishedEvent) -> bool:
            return bool(event["name"] == name) and all(
                event.get(key) == value for key, value in fields.items()
            )

        for index, event in enumerate(self._seen):
            if matches(event):
                return self._seen.pop(index)
        what = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        printed = of.printed if of is not None else str
        deadline = time.monotonic() + self._timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            over = of is not None and of.is_over()
            for event in self._stream.follow(min(left_s, CHECK_S)):
                if matches(event):
                    return event
                self._seen.append(event)
            if over and of is not None:
                raise NotSeen(
                    f"{of.name} ended with {of.ended()} and brought no event {what}{printed()}"
                )
        raise NotSeen(f"no event {what} within {self._timeout_s:g} s{printed()}")
