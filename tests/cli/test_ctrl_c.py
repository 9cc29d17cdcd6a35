"""Ctrl-C while a program of nodemgr imports its modules: it ends by the signal, without a line.

A finder sends SIGINT when the program imports a named module, so that no test depends on times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client_plugin.elastic.command import leader_command
from tests.cli.conftest import clean_environment
from tests.support.limits import WAIT_LIMIT_S

STRIKE = """
import os, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == struck:
            os.kill(os.getpid(), signal.SIGINT)
struck = sys.argv.pop(1)
sys.meta_path.insert(0, Strike())
"""
COMMAND_LINE = "from nodemgr.__main__ import main\nsys.exit(main())"
INSIDE = "import client_plugin.verbs.__main__"
SHOW = ["status", "--run-dir", "/none"]


def ended(
    program: str, struck: str, *words: str, **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STRIKE + program, struck, *words], env=clean_environment(),
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False, **options,
    )  # type: ignore[call-overload, no-any-return] # fmt: skip


@pytest.mark.parametrize(
    ("struck", "words"),
    [
        ("nodemgr.cli", SHOW),
        ("client_plugin.verbs", SHOW),
        ("client_plugin.verbs.commands.status", SHOW),
        ("click", ["quota", "show"]),
        ("nodemgr.cli.admins.quota", ["quota", "show"]),
    ],
)
def test_an_import_is_broken_off_without_a_traceback(struck: str, words: list[str]) -> None:
    result = ended(COMMAND_LINE, struck, *words)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_a_verb_inside_a_container_is_broken_off_too() -> None:
    result = ended(INSIDE, "client_plugin.verbs.commands.status", *SHOW)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_a_shell_finds_130() -> None:
    line = ["sh", "-c", '"$@"; echo $?', "sh"]
    program = [sys.executable, "-c", STRIKE + COMMAND_LINE, "client_plugin.verbs", *SHOW]
    result = subprocess.run(
        [*line, *program], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert (result.stdout, result.stderr) == ("130\n", "")


def test_an_ignored_signal_stays_ignored() -> None:
    result = ended(
        COMMAND_LINE, "client_plugin.verbs", *SHOW,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert result.returncode == 69, result.stderr


def test_a_running_verb_ends_with_130() -> None:
    """Behind the imports KeyboardInterrupt comes again: verbs tidy up behind it."""
    late = COMMAND_LINE.replace(
        "sys.exit",
        "from client_plugin.verbs.commands import status\n"
        "def run(said): os.kill(os.getpid(), signal.SIGINT)\nstatus.VERB.run = run\nsys.exit",
    )
    result = ended(late, "none", *SHOW)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_a_leader_that_starts_ends_without_a_traceback(tmp_path: Path) -> None:
    """SIGINT comes between the verb `run` and the first line of the leader: it waits for it."""
    (tmp_path / "envs" / "alice").mkdir(parents=True)
    (tmp_path / "envs" / "alice" / "client.conf").write_text("env=alice\naddress=unix:socket\n")
    program = (
        "execve = os.execve\n"
        "os.execve = lambda *words: (os.kill(os.getpid(), signal.SIGINT), execve(*words))\n"
    )
    result = ended(
        program + COMMAND_LINE, "none", "run", "--env", "alice", "--run-dir",
        str(tmp_path), "--gpus", "1-2", "--elastic", "true",
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (-signal.SIGINT, "")
    assert "Traceback" not in result.stderr


def test_the_imports_of_a_leader_are_broken_off_without_a_traceback(tmp_path: Path) -> None:
    def strike() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.kill(os.getpid(), signal.SIGINT)

    result = subprocess.run(
        leader_command(["true"], minimum=1, maximum=2), preexec_fn=strike, capture_output=True,
        text=True, timeout=WAIT_LIMIT_S, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")
