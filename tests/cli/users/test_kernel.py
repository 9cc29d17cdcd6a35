"""`nodemgr kernel`: kernelspecs that start kernels in an environment."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.commands import kernel
from tests.cli.conftest import EnvStandIn, Run, one_line

NO_IPYKERNEL = """#!/bin/sh
echo False
"""


@pytest.fixture
def alice(env_stand_in: Callable[[str], EnvStandIn]) -> EnvStandIn:
    return env_stand_in("alice")


@pytest.fixture
def data(short_dir: Path) -> Path:
    return short_dir / "data"


@pytest.fixture
def python(short_dir: Path) -> Path:
    """A Python without ipykernel."""
    program = short_dir / "python"
    program.write_text(NO_IPYKERNEL)
    program.chmod(0o755)
    return program


@pytest.fixture
def verb(nodemgr: Run, data: Path, monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> Run:
    """nodemgr kernel …, as a user with this data directory and no kernels for all users."""
    monkeypatch.setattr(kernel, "SYSTEM_DIRECTORIES", (str(short_dir / "all"),))

    def run(*words: object, **variables: str | None) -> Any:
        return nodemgr("kernel", *words, environment={"JUPYTER_DATA_DIR": str(data), **variables})

    return run


def spec(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "kernel.json").read_text())
    return found


@pytest.mark.frameworks
def test_a_kernelspec_runs_the_kernel_in_the_environment(
    verb: Run, alice: EnvStandIn, data: Path, short_dir: Path
) -> None:
    result = verb("install", "alice", "--user", "--python", sys.executable)
    directory = data / "kernels" / "nodemgr-alice"
    assert result.returncode == 0
    assert result.stderr == f"nodemgr: kernel nodemgr-alice is written to {directory}\n"
    assert spec(directory) == {
        "argv": [
            sys.executable, "-m", "nodemgr", "run", "--env", "alice", "--run-dir", str(short_dir),
            "--", sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
        ],
        "display_name": "Python 3 with GPUs (alice)",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, "nodemgr": {"env": "alice"}},
    }  # fmt: skip


def test_kernels_of_one_environment_have_names_of_their_own(
    verb: Run, alice: EnvStandIn, data: Path
) -> None:
    for name in ("one", "two"):
        assert verb("install", "alice", "--user", "--name", name).returncode == 0
    shown = {spec(data / "kernels" / name)["display_name"] for name in ("one", "two")}
    assert shown == {"Python 3 with GPUs (alice, one)", "Python 3 with GPUs (alice, two)"}


def test_the_options_reach_the_kernel(verb: Run, alice: EnvStandIn, data: Path) -> None:
    wishes = ["--gpus", "1", "--memory", "8GiB", "--wait", "10min"]
    names = ["--name", "one", "--display-name", "Ünter <b>GPU</b>"]
    assert verb("install", "alice", "--user", *names, *wishes).returncode == 0
    written = spec(data / "kernels" / "one")
    argv = written["argv"]
    assert argv[argv.index("--gpus") : argv.index("--")] == wishes
    assert written["display_name"] == "Ünter <b>GPU</b>"


def test_the_python_is_the_one_in_path_and_a_link_stays_one(
    verb: Run, alice: EnvStandIn, data: Path, short_dir: Path
) -> None:
    """A virtual environment's Python is a link; its target knows nothing of the environment."""
    (short_dir / "bin").mkdir()
    (short_dir / "bin" / "python3").symlink_to(sys.executable)
    assert verb("install", "alice", "--user", PATH=str(short_dir / "bin")).returncode == 0
    argv = spec(data / "kernels" / "nodemgr-alice")["argv"]
    assert argv[argv.index("--") + 1] == str(short_dir / "bin" / "python3")


def test_without_ipykernel_it_warns_in_one_line_and_still_writes(
    verb: Run, alice: EnvStandIn, data: Path, python: Path
) -> None:
    result = verb("install", "alice", "--user", "--python", python)
    assert result.returncode == 0
    _, warning = result.stderr.splitlines()
    assert warning == (
        f"nodemgr: warning: {python} has no ipykernel: the kernel starts after {python} -m pip"
        " install ipykernel"
    )
    assert (data / "kernels" / "nodemgr-alice" / "kernel.json").exists()


def test_a_second_install_replaces_the_first(verb: Run, alice: EnvStandIn, data: Path) -> None:
    assert verb("install", "alice", "--user").returncode == 0
    assert verb("install", "alice", "--user", "--gpus", "2").returncode == 0
    assert "--gpus" in spec(data / "kernels" / "nodemgr-alice")["argv"]
    assert os.listdir(data / "kernels" / "nodemgr-alice") == ["kernel.json"]


def test_everybody_may_read_it_whatever_the_umask(
    verb: Run, alice: EnvStandIn, short_dir: Path
) -> None:
    os.umask(0o077)
    assert verb("install", "alice").returncode == 0
    path = short_dir / "all" / "kernels" / "nodemgr-alice" / "kernel.json"
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (path, *list(path.parents)[:3])]
    assert modes == [0o644, 0o755, 0o755, 0o755]


def test_a_kernel_of_another_program_is_left_alone(
    verb: Run, alice: EnvStandIn, data: Path
) -> None:
    other = data / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["python"]}')
    result = verb("install", "alice", "--user", "--name", "python3")
    assert result.returncode == 1
    assert "has not written: choose another --name" in one_line(result)
    assert spec(other) == {"argv": ["python"]}
    assert "no kernel 'python3' was written" in one_line(verb("rm", "python3"))


def test_list_and_rm(verb: Run, alice: EnvStandIn, data: Path, short_dir: Path) -> None:
    assert verb("list").stdout.startswith("No kernel yet")
    verb("install", "alice")
    verb("install", "alice", "--user", "--name", "mine")
    (data / "kernels" / "odd").mkdir()
    (data / "kernels" / "odd" / "kernel.json").write_text("[" * 10_000)
    listed = json.loads(verb("list", "--json").stdout)
    assert [(row["name"], row["env"]) for row in listed["kernels"]] == [
        ("mine", "alice"), ("nodemgr-alice", "alice")
    ]  # fmt: skip
    assert [line.split()[0] for line in verb("list").stdout.splitlines()] == [
        "KERNEL", "mine", "nodemgr-alice"
    ]  # fmt: skip
    assert verb("rm", "nodemgr-alice").returncode == 0
    assert verb("rm", "mine").returncode == 0
    assert json.loads(verb("list", "--json").stdout)["kernels"] == []
    assert not (short_dir / "all" / "kernels" / "nodemgr-alice").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["install"], 2, "Missing argument 'ENV'"),
        (["install", "../x"], 2, "'../x' is no name of an environment"),
        (["install", "bob", "--user"], 77, "no environment 'bob' at"),
        (["install", "alice", "--user", "--name", "../x"], 2, "'../x' is no name of a kernel"),
        (["install", "alice", "--user", "--name", ".."], 2, "'..' is no name of a kernel"),
        (["install", "alice", "--user", "--name", "A b"], 2, "'A b' is no name of a kernel"),
        (["install", "alice", "--user", "--name", ""], 2, "'' is no name of a kernel"),
        (["install", "alice", "--user", "--name", "x" * 64], 2, "is no name of a kernel"),
        (["install", "alice", "--user", "--display-name", "a\x1b[2J"], 2, "is no name to show"),
        (["install", "alice", "--user", "--display-name", " "], 2, "is no name to show"),
        (["install", "alice", "--user", "--memory", "8"], 2, "is a bare number"),
        (["install", "alice", "--user", "--python", "/no/python"], 127, "/no/python: not found"),
        (["install", "alice", "--user", "--python", "/etc/passwd"], 126, "not executable"),
        (["install", "alice", "--user", "--python", "/bin/true"], 2, "/bin/true is no Python 3"),
        (["rm", "none"], 1, "no kernel 'none' was written by nodemgr"),
        (["rm", "../x"], 2, "'../x' is no name of a kernel"),
        ([], 2, "Missing command: install, list, rm"),
        (["instal", "alice"], 2, "No such command 'instal'"),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(
    verb: Run, alice: EnvStandIn, data: Path, words: list[str], code: int, said: str
) -> None:
    result = verb(*words)
    assert result.returncode == code
    assert said in one_line(result)
    assert not data.exists()


def test_a_directory_that_cannot_be_written(verb: Run, alice: EnvStandIn, short_dir: Path) -> None:
    blocked = short_dir / "file"
    blocked.write_text("")
    result = verb("install", "alice", "--user", JUPYTER_DATA_DIR=str(blocked))
    assert result.returncode == 1
    assert one_line(result) == (
        f"{blocked}/kernels/nodemgr-alice cannot be written (File exists): name another with"
        " JUPYTER_DATA_DIR"
    )
    (short_dir / "all").write_text("")
    assert one_line(verb("install", "alice")).endswith("add --user, or run as root")


def test_an_empty_path_has_no_python(verb: Run, alice: EnvStandIn, short_dir: Path) -> None:
    result = verb("install", "alice", "--user", PATH=str(short_dir / "nowhere"))
    assert (result.returncode, one_line(result)) == (
        127, "no python3 is in PATH: name one with --python"
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write where another user's link leads")
def test_root_follows_no_link_of_a_user(
    verb: Run, alice: EnvStandIn, data: Path, python: Path, short_dir: Path
) -> None:
    """`sudo nodemgr kernel install --user` with the user's HOME."""
    (short_dir / "etc").mkdir()
    data.mkdir()
    (data / "kernels").symlink_to(short_dir / "etc")
    os.chown(data / "kernels", 65_534, 65_534, follow_symlinks=False)
    done = verb("install", "alice", "--user", "--python", python)
    assert done.returncode != 0
    assert f"root writes no kernel below {data / 'kernels'}" in done.stderr
    assert os.listdir(short_dir / "etc") == []
