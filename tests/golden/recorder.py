"""Record verbs, options, exit codes and fields of `--json`, on which programs rely.

    python -m tests.golden.recorder [PYTHON]           prints it as JSON
    python -m tests.golden.recorder --store [PYTHON]   prints a store as SQL, and what it reads

PYTHON is an interpreter in which nodemgr is installed (default: this one). Everything is asked from
outside, by `PYTHON -m nodemgr`, so that two versions can be compared.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.session import TMP, remove
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import end_jobs

GROUPS = ("env", "gpu", "kernel", "quota", "queue", "web")
"""Verbs with verbs of their own."""
PRAGMAS = ("application_id", "user_version", "auto_vacuum")
STORED = (
    ("quota", "show"),
    ("queue",),
    ("history",),
    ("history", "j1"),
    ("allocations",),
    ("web", "tokens"),
)
TOKEN = ("w1", "alice", "0" * 64, "root (uid 0)", 1_700_000_000 * 10**9, 4_000_000_000 * 10**9)
"""A row of `web_tokens`: a real one has a hash that is another one each time."""
PASSING = ("waited_seconds", "since", "sequence", "pid", "reason")
USE_CUDA = (
    "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); print('holds', flush=True);"
    " sys.stdin.read()"
)
FAILING = (
    ("quota", "set", "alice", "--gpus", "x"),
    ("quota", "rm", "nosuch"),
    ("quota", "rm", "bob"),
    ("allocations", "nosuch"),
    ("events", "--name", "nosuch"),
    ("queue", "withdraw", "j999"),
    ("queue", "move", "j1", "nosuch"),
    ("release", "t999"),
    ("logs", "j999"),
    ("wait", "j999"),
    ("history", "j999"),
    ("env", "show", "nosuch"),
    ("submit", "--env", "alice", "--gpus", "5", "--", "true"),
    ("submit", "--env", "alice", "--memory", "60GiB", "--", "true"),
    ("submit", "--env", "nosuch", "--", "true"),
    ("run", "--env", "alice", "--gpus", "5", "--", "true"),
    ("run", "--env", "alice", "--", "no-such-program"),
    ("run", "--env", "alice", "--", "false"),
    ("nosuch",),
)
ASKED = (
    ("status",),
    ("queue",),
    ("history",),
    ("history", "j1"),
    ("allocations",),
    ("quota", "show"),
    ("quota", "show", "alice"),
    ("env", "list"),
    ("env", "show", "alice"),
    ("report",),
    ("queue", "position", "j3"),
    ("doctor",),
)


class Node:
    """A simulated node of two GPUs, and its command line."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.directory = Path(tempfile.mkdtemp(prefix="nmg", dir=TMP))
        self.directory.chmod(0o755)
        self.state = self.directory / "state"
        self.environment = {  # few: jobs keep them, and the store with them
            "PATH": "/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NODEMGR_RUN_DIR": str(self.directory / "run"),
        }
        self._children: list[subprocess.Popen[str]] = []

    def call(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run one command of nodemgr to its end."""
        return subprocess.run(
            [self.python, "-m", "nodemgr", *arguments],
            cwd="/",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
            **more,
        )

    def begin(self, *arguments: str, until: str = "") -> subprocess.Popen[str]:
        """Start one command of nodemgr; return when its output holds `until`, if that is named."""
        child = subprocess.Popen(
            [self.python, "-m", "nodemgr", *arguments],
            cwd="/",
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._children.append(child)
        assert child.stdout is not None
        said = ""
        while until:
            line = child.stdout.readline()
            said += line
            if until in line:
                break
            assert line, f"{arguments} did not say {until!r}; it said:\n{said}"
        return child

    def json(self, *arguments: str) -> Any:
        """The output of a verb with --json."""
        result = self.call(*arguments, "--json")
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    def submit(self, *arguments: str) -> str:
        """The id of the submitted job."""
        result = self.call("submit", *arguments)
        assert result.returncode == 0, result.stderr
        return re.findall(r"\bj\d+\b", result.stdout)[0]

    def until(self, *arguments: str, holds: str) -> None:
        """Ask until the output holds a text: what it tells of happens in another process."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while holds not in (said := self.call(*arguments).stdout):
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def stop(self, child: subprocess.Popen[str]) -> None:
        """End it by SIGTERM, and wait for its end."""
        child.send_signal(signal.SIGTERM)
        child.communicate()
        self._children.remove(child)

    def close_manager(self) -> None:
        """Stop the manager, which was started first."""
        self.stop(self._children[0])

    def close(self) -> None:
        for child in self._children[::-1]:  # the manager last
            self.stop(child)
        end_jobs(self.state)
        remove(self.directory)

    def serve(self) -> subprocess.Popen[str]:
        """Start the manager; return when it is ready."""
        directories = {"--run-dir": self.directory / "run", "--state-dir": self.state}
        named = [str(word) for pair in directories.items() for word in pair]
        return self.begin("serve", "--simulate", "2x80GiB", *named, until="ready on ")


@contextmanager
def node(python: str) -> Iterator[Node]:
    made = Node(python)
    try:
        yield made
    finally:
        made.close()


def surface(asked: Node) -> dict[str, list[str]]:
    """Verb -> its options, of every verb."""
    found = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        path = waiting.pop()
        text = asked.call(*path, "--help").stdout
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+(?: / --[\w-]+)?)", text, re.MULTILINE)
        found[" ".join(path)] = sorted(set(options))
        if not path or path[-1] in GROUPS:
            below = text.partition("\nOptions:\n")[2].partition("\n\n")[2]
            assert below, text
            waiting += [(*path, name) for name in re.findall(r"^  (\w+)", below, re.MULTILINE)]
    return dict(sorted(found.items()))


def fields(value: Any) -> Any:
    """The names in a JSON value; the elements of a list are laid over one another."""
    if isinstance(value, dict):
        return {
            "*" if re.fullmatch(r"GPU-.*|alice|bob|[jt]\d+", key) else key: fields(inner)
            for key, inner in sorted(value.items())
        }
    if isinstance(value, list):
        merged: dict[str, Any] = {}
        for inner in map(fields, value):
            if isinstance(inner, dict):
                _lay_over(merged, inner)
            elif isinstance(inner, list) and inner:
                return [inner]
        return [merged] if merged else []
    return None


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, inner in above.items():
        if isinstance(inner, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], inner)
        elif inner or key not in below:
            below[key] = inner


def events(asked: Node) -> dict[str, list[str]]:
    """Event -> its fields."""
    found: dict[str, set[str]] = {}
    for line in asked.call("events", "--json").stdout.splitlines():
        event = json.loads(line)
        found.setdefault(event["name"], set()).update(event)
    return {name: sorted(names) for name, names in sorted(found.items())}


def happenings(asked: Node) -> None:
    """Two environments, a job that ended, one that runs, some that wait, a task beside them."""
    for arguments in (
        ("quota", "set", "alice", "--gpus", "1", "--memory", "40GiB"),
        ("quota", "set", "bob", "--gpus", "2"),
    ):
        result = asked.call(*arguments)
        assert result.returncode == 0, result.stderr
    ended = asked.submit("--env", "alice", "--gpus", "1", "--time", "1h", "--", "true")
    asked.call("wait", ended)
    runs = asked.submit("--env", "alice", "--gpus", "1", "--name", "long", "--", "sleep", "600")
    asked.until("queue", holds="running")
    asked.submit("--env", "alice", "--gpus", "1", "--time", "2h", "--after", runs, "--", "true")
    asked.submit("--env", "alice", "--gpus", "1", "--array", "1-2", "--", "true")
    asked.begin(
        "run", "--env", "bob", "--gpus", "1", "--", asked.python, "-c", USE_CUDA, until="holds"
    )


def record(python: str) -> dict[str, Any]:
    with node(python) as asked:
        asked.serve()
        happenings(asked)
        return {
            "verbs": surface(asked),
            "exit codes": {" ".join(call): asked.call(*call).returncode for call in FAILING},
            "json": {" ".join(call): fields(asked.json(*call)) for call in ASKED},
            "events": events(asked),
        }


def store(python: str) -> dict[str, Any]:
    """The store of a manager with quotas, queues, an ended job and held jobs, as lines of SQL.

    And the answers of a manager that starts on it.
    """
    with node(python) as asked:
        manager = asked.serve()
        for arguments in (
            ("quota", "set", "alice", "--gpus", "1", "--memory", "40GiB", "--enforce", "kill"),
            ("quota", "set", "bob", "--gpus", "2", "--priority", "high", "--no-gpu", "cpu"),
            ("queue", "create", "night", "--rank", "50", "--cap", "10", "--max-restarts", "2"),
        ):
            result = asked.call(*arguments)
            assert result.returncode == 0, result.stderr
        ended = asked.submit("--env", "alice", "--gpus", "1", "--time", "1h", "--", "true")
        asked.call("wait", ended)
        first = asked.submit(
            "--env", "bob", "--hold", "--name", "sweep", "--gpus", "2", "--", "true"
        )
        asked.submit("--env", "bob", "--after", first, "--", "echo", "two words")
        asked.submit(
            "--env", "bob", "--hold", "--array", "1-3", "--memory", "10GiB", "--", "sleep", "1"
        )
        asked.submit("--env", "alice", "--hold", "--priority", "night", "--", "false")
        asked.stop(manager)
        with contextlib.closing(sqlite3.connect(asked.state / "state.db")) as database:
            database.execute("INSERT INTO web_tokens VALUES (?, ?, ?, ?, ?, ?)", TOKEN)
            database.commit()
        lines = dump(asked.state / "state.db")
    with manager_on(python, lines) as asked:
        return {"sql": lines, "answers": answers(asked)}


def dump(path: Path) -> list[str]:
    """A database as lines of SQL, with the numbers by which a manager knows its own."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(
            "UPDATE meta SET value = ? WHERE key = 'boots'", (f'[["{uuid.UUID(int=0)}",0]]',)
        )
        numbers = [
            f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in PRAGMAS
        ]
        return [*numbers, *database.iterdump()]


@contextmanager
def manager_on(python: str, lines: Sequence[str]) -> Iterator[Node]:
    """A manager that starts on the store of these lines of SQL."""
    with node(python) as asked:
        asked.state.mkdir(mode=0o700)
        with contextlib.closing(sqlite3.connect(asked.state / "state.db")) as database:
            database.executescript("\n".join(lines))
        asked.serve()
        yield asked


def answers(asked: Node) -> dict[str, Any]:
    """The manager's report on its store."""
    happened = map(json.loads, asked.call("events", "--json").stdout.splitlines())
    return {
        **{" ".join(call): steady(asked.json(*call)) for call in STORED},
        "events": [steady(each) for each in happened if not each["name"].startswith("manager")],
    }


def steady(value: Any) -> Any:
    """A JSON value without what passes with time, or is another node's."""
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if key not in PASSING}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    wanted = sys.argv[1:]
    made = store if wanted[:1] == ["--store"] else record
    python = next((word for word in wanted if word != "--store"), sys.executable)
    print(json.dumps(made(python), indent=1))
