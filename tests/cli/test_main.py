"""The command line as a whole: help, versions, what users get wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from nodemgr.cli.presentation import group
from tests.cli.conftest import Run, clean_environment, one_line
from tests.support.limits import WAIT_LIMIT_S


def test_the_help_names_every_verb(nodemgr: Run) -> None:
    result = nodemgr("--help")
    assert result.returncode == 0
    for verb in group.VERBS:
        assert f"\n  {verb} " in result.stdout
    assert sorted(verb for listed in group.HEADINGS.values() for verb in listed) == sorted(
        group.VERBS
    )


@pytest.mark.parametrize("verb", group.VERBS)
def test_each_verb_is_there_and_helps(verb: str) -> None:
    command = group.nodemgr.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    assert command.get_short_help_str(limit=100) == group.VERBS[verb], (
        "the help of all verbs and the verb's own say the same"
    )
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"], prog_name=verb)
    assert ended.value.code == 0


def test_the_help_imports_no_verb() -> None:
    program = "import sys; from nodemgr.cli import main; main(['--help']); print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = result.stdout.splitlines()[-1].split()
    homes = ("nodemgr.cli", "client_plugin.verbs")
    said = [
        name
        for name in loaded
        if name.rpartition(".")[0] in homes and name.rpartition(".")[2] in group.VERBS
    ]
    assert said + [name for name in ("zmq", "pynvml", "psutil", "ctypes") if name in loaded] == []


@pytest.mark.parametrize(
    "words",
    [["--help"], ["quota", "show"], ["env", "list"], ["allocations"], ["events"], ["queue"]],
)
def test_a_short_verb_imports_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    """Modules of the standard library that take as long as a tenth of such a verb.

    (-S: what a .pth file imports is not ours.)
    """
    program = f"""
import sys
sys.path += {sys.path!r}
from nodemgr.cli import main
main({words!r})
print(*sys.modules)"""
    environment = {**clean_environment(), "NODEMGR_RUN_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = result.stdout.splitlines()[-1].split()
    assert "nodemgr.cli" in loaded
    assert [
        name
        for name in ("pathlib", "shutil", "subprocess", "urllib.parse", "socket", "zmq", "sqlite3")
        if name in loaded
    ] == []


def test_without_a_verb_there_is_help(nodemgr: Run) -> None:
    result = nodemgr()
    assert result.returncode == 2
    assert "Set up:" in result.stderr
    assert result.stdout == ""


def test_version(nodemgr: Run) -> None:
    assert nodemgr("--version").stdout == f"nodemgr {version('nodemgr')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["stauts"],
        ["--stauts"],
        ["status", "--jsn"],
        ["status", "x"],
        ["quota", "put"],
        ["quota", "set"],
        ["release"],
    ],
)
def test_a_slip_is_one_line(nodemgr: Run, arguments: list[str]) -> None:
    result = nodemgr(*arguments)
    assert result.returncode == 2
    assert "--help)" in one_line(result)
    assert result.stdout == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(nodemgr: Run, shell: str) -> None:
    result = nodemgr("completion", shell)
    assert (result.returncode, result.stderr) == (0, "")
    assert "_NODEMGR_COMPLETE" in result.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=True)


def test_no_completion_for_other_shells(nodemgr: Run) -> None:
    result = nodemgr("completion", "csh")
    assert result.returncode == 2
    assert "csh" in one_line(result)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["stauts"], "status"),
        (["QUOTA"], "quota"),
        (["quota", "shwo", "alice"], "show"),
        (["env", "crate", "alice"], "create"),
        (["status", "--env", "alcie"], "alice"),
        (["events", "--name", "task.grant"], "task.granted"),
        (["events", "--name", "taks"], "task"),
    ],
)
def test_a_typo_is_answered_with_the_name_that_was_meant(
    nodemgr: Run, short_dir: Path, words: list[str], meant: str
) -> None:
    (short_dir / "envs" / "alice").mkdir(parents=True)
    result = nodemgr(*words)
    assert result.returncode in (2, 77)
    assert f"; did you mean {meant!r}?" in one_line(result)


@pytest.mark.parametrize(
    "words", [["xyzzy"], ["x" * 100_000], ["quota", "xyzzy"], ["events", "--name", "xyzzy"]]
)
def test_a_name_that_is_near_to_none_gets_no_proposal(nodemgr: Run, words: list[str]) -> None:
    result = nodemgr(*words)
    assert result.returncode == 2
    assert "did you mean" not in one_line(result)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["quota", "remove"], "load, rm, set, show"),
        (["web", "list"], "revoke, token, tokens"),
        (["kernel", "drop"], "install, list, rm"),
    ],
)
def test_an_unknown_word_below_a_verb_is_answered_with_those_that_there_are(
    nodemgr: Run, words: list[str], known: str
) -> None:
    result = nodemgr(*words)
    assert result.returncode == 2
    assert f"No such command '{words[1]}'; there are {known} (see" in one_line(result)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("nodemgr sta", "status"),
        ("nodemgr run --env al", "alice"),
        ("nodemgr quota set --acquire im", "import"),
        ("nodemgr quota rm a", "alice"),
    ],
)
def test_completion_offers(nodemgr_process: Run, short_dir: Path, words: str, offered: str) -> None:
    (short_dir / "envs" / "alice").mkdir(parents=True)
    environment: dict[str, str | None] = {
        "_NODEMGR_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    assert nodemgr_process(environment=environment).stdout == f"plain,{offered}\n"


SAY_CLOSED = (
    "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'nodemgr',"
    " *sys.argv[1:]])"
)


def test_a_full_disk_under_the_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "nodemgr", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_LIMIT_S,
        )
    assert result.returncode == 1
    assert one_line(result) == (
        "the output cannot be written: No space left on device; free space there, or write it"
        " elsewhere"
    )


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["nonsense"], 2)])
def test_without_a_standard_output_a_verb_does_its_work(arguments: list[str], code: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SAY_CLOSED, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
