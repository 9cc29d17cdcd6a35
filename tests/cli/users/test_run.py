"""`nodemgr run`: the command's surroundings, refusals before its start, its process.

The verb's process becomes the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.commands import run as run_verb
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.surroundings import environment
from client_plugin.ways import locations
from client_plugin.ways.locations import client_library, preload_entry
from tests.cli.conftest import EnvStandIn, Run, clean_environment, one_line, quota, status
from tests.session import TMP

DIRECTORY = "/run/nodemgr/envs/alice"
SHELL = "/bin/sh"
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
needs_library = pytest.mark.skipif(
    not os.path.isfile(client_library()), reason="the client library is not built"
)


@pytest.fixture
def nodemgr(nodemgr_process: Run) -> Run:
    """The verb becomes the program that it runs."""
    return nodemgr_process


@pytest.fixture
def alice(env_stand_in: Callable[[str], EnvStandIn]) -> EnvStandIn:
    stand_in = env_stand_in("alice")
    stand_in.configure(node_gpus=4)
    stand_in.answers["status"] = status()
    return stand_in


def made(
    base: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    wish: dict[str, Any] | None = None,
    program: str = SHELL,
):
    return environment(base or {}, DIRECTORY, settings or {}, wish or {}, program)


# -- the command's environment


@needs_library
def test_the_shim_is_preloaded_and_the_directory_named() -> None:
    hook = os.path.join(locations.payload_dir(), "sitecustomize")
    assert made() == {
        "NODEMGR_ENV_DIR": DIRECTORY,
        "LD_PRELOAD": preload_entry(),
        "PYTHONPATH": hook,
    }


@needs_library
def test_what_the_user_preloads_stays_behind_ours() -> None:
    assert (
        made({"LD_PRELOAD": "libjemalloc.so.2 /x/y.so"})["LD_PRELOAD"]
        == f"{preload_entry()}:libjemalloc.so.2 /x/y.so"
    )


@needs_library
def test_a_run_within_a_run_preloads_once() -> None:
    once = made()
    assert made(once) == once


def test_the_wish() -> None:
    variables = made(wish={"gpus": 2, "memory_bytes": 2**30, "wait_ms": 1_500})
    assert (variables["NODEMGR_GPUS"], variables["NODEMGR_MEMORY"], variables["NODEMGR_WAIT"]) == (
        "2",
        str(2**30),
        "2",
    )
    assert made(wish={"gpus": 0, "wait_ms": 0})["NODEMGR_WAIT"] == "0"
    assert not {"NODEMGR_GPUS", "NODEMGR_MEMORY", "NODEMGR_WAIT"} & made().keys()


def test_the_class_and_the_share() -> None:
    wish = {"task_class": "best-effort", "compute_percent": 30, "deadline_ms": 1_500}
    variables = made(wish=wish)
    names = ("NODEMGR_CLASS", "NODEMGR_COMPUTE", "NODEMGR_DEADLINE")
    assert [variables[name] for name in names] == ["best-effort", "30%", "2"]
    assert not set(names) & made().keys()


def test_a_wish_that_stands_in_the_environment_holds() -> None:
    assert made({"NODEMGR_GPUS": "3"})["NODEMGR_GPUS"] == "3"
    assert made({"NODEMGR_GPUS": "3"}, wish={"gpus": 1})["NODEMGR_GPUS"] == "1"


@pytest.mark.parametrize(
    ("present", "made_of_it"),
    [
        (None, "/sim"),
        ("", "/sim"),
        ("/a:/b", "/sim:/a:/b"),
        (":/a", "/sim::/a"),
        ("/sim:/a", "/sim:/a"),
    ],
)
def test_the_simulator_s_libraries_come_first(present: str | None, made_of_it: str) -> None:
    base = {} if present is None else {"LD_LIBRARY_PATH": present}
    assert made(base, {"library_path": "/sim"})["LD_LIBRARY_PATH"] == made_of_it


def test_another_environment_s_task_is_left_behind() -> None:
    inherited = {
        "NODEMGR_ENV_DIR": "/other",
        "NODEMGR_TASK": "ab",
        "NODEMGR_VISIBLE": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert not {"NODEMGR_TASK", "NODEMGR_VISIBLE", "CUDA_VISIBLE_DEVICES"} & made(inherited).keys()


def test_a_user_s_own_choice_of_gpus_is_kept() -> None:
    inherited = {"NODEMGR_ENV_DIR": "/other", "NODEMGR_VISIBLE": "0,1", "CUDA_VISIBLE_DEVICES": "1"}
    assert made(inherited)["CUDA_VISIBLE_DEVICES"] == "1"
    same = {
        "NODEMGR_ENV_DIR": DIRECTORY,
        "NODEMGR_TASK": "ab",
        "NODEMGR_VISIBLE": "0",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert made(same).items() >= same.items()


# -- programs that cannot be preloaded


def test_without_the_library_the_command_runs_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(locations, "payload_dir", lambda: str(tmp_path))
    variables = made({"PYTHONPATH": "/mine"})
    assert variables["PYTHONPATH"] == f"{tmp_path}/sitecustomize:/mine"
    assert "LD_PRELOAD" not in variables
    assert "is missing, so nothing here gets a GPU" in capsys.readouterr().err


def test_a_path_that_ld_preload_cannot_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    payload = tmp_path / "a b"
    (payload / "client_plugin" / "_lib").mkdir(parents=True)
    (payload / "client_plugin" / "_lib" / "libnodemgr.so").touch()
    monkeypatch.setattr(locations, "payload_dir", lambda: str(payload))
    variables = made()
    assert variables["PYTHONPATH"] == f"{payload}/sitecustomize"
    assert "LD_PRELOAD" not in variables
    assert "only the Python hook is active" in capsys.readouterr().err


@needs_library
@pytest.mark.parametrize(
    ("flags", "interpreter", "note"),
    [
        (["-static"], None, "statically linked"),
        ([], b"/lib/ld-musl-x86_64.so.1", "runs on musl"),
    ],
)
def test_a_program_that_takes_no_shim(
    tmp_path: Path,
    capsys: Any,
    flags: list[str],
    interpreter: bytes | None,
    note: str,
) -> None:
    program = tmp_path / "program"
    (tmp_path / "p.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", *flags, str(tmp_path / "p.c"), "-o", str(program)], check=True)
    if interpreter:
        old = b"/lib64/ld-linux-x86-64.so.2"
        program.write_bytes(program.read_bytes().replace(old, interpreter.ljust(len(old), b"\0")))
    variables = made(program=str(program))
    assert note in capsys.readouterr().err
    assert variables["LD_PRELOAD"] == preload_entry(), "programs that it starts may take it"
    assert variables["PYTHONPATH"].endswith("/sitecustomize"), "and the hook alone, if need be"


@pytest.mark.parametrize(
    ("command", "joins"),
    [
        (["tmux", "new"], True),
        (["/usr/bin/tmux"], True),
        (["tmux", "-L", "gpu"], False),
        (["screen"], False),
        (["screen", "-dR", "work"], True),
        (["python", "-r"], False),
    ],
)
def test_a_server_that_runs_outside_is_noticed(
    monkeypatch: pytest.MonkeyPatch, short_directory: Path, command: list[str], joins: bool
) -> None:
    monkeypatch.setenv("TMUX_TMPDIR", str(short_directory))
    assert not programs.joins_server(["tmux"]), "none runs"
    (short_directory / f"tmux-{os.geteuid()}").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short_directory / f"tmux-{os.geteuid()}" / "default"))
        server.listen()
        assert programs.joins_server(command) is joins


@pytest.mark.timeout(60)
def test_a_server_that_accepts_nobody_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, short_directory: Path
) -> None:
    """In /tmp any user can make one in another user's name."""
    monkeypatch.setenv("TMUX_TMPDIR", str(short_directory))
    path = short_directory / f"tmux-{os.geteuid()}" / "default"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as waiting:
        server.bind(str(path))
        server.listen(0)
        before = 0
        while before == 0:
            client = waiting.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            before = client.connect_ex(str(path))
        assert not programs.joins_server(["tmux"])


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        (["apptainer", "exec", "--nv", "image.sif", "python"], True),
        (["/usr/bin/singularity", "run", "image.sif"], True),
        (["apptainer", "exec", "--bind", "/run/client:/opt/nodemgr", "image.sif", "sh"], False),
        (["python", "apptainer"], False),
    ],
)
def test_an_image_without_the_client_is_noticed(command: list[str], alone: bool) -> None:
    assert programs.brings_own_root(command) is alone


@pytest.fixture
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        yield Path(directory)


# -- the copy of the client


def test_the_manager_s_copy_takes_the_place_of_another(tmp_path: Path) -> None:
    for name in ("old", "new"):
        library = tmp_path / name / "client_plugin" / "_lib" / "libnodemgr.so"
        library.parent.mkdir(parents=True)
        library.touch()
    before = made(settings={"client": str(tmp_path / "old")})
    before["LD_PRELOAD"] += ":libjemalloc.so.2"
    before["PYTHONPATH"] += ":/mine/sitecustomize:"
    after = made(before, {"client": str(tmp_path / "new")})
    assert after["LD_PRELOAD"] == f"{preload_entry(str(tmp_path / 'new'))}:libjemalloc.so.2"
    assert after["PYTHONPATH"] == f"{tmp_path}/new/sitecustomize:/mine/sitecustomize:"
    gone = made(settings={"client": str(tmp_path / "gone")})
    assert gone["LD_PRELOAD"] == preload_entry()


def test_without_env_it_enters_the_only_one_as_submit_does(nodemgr: Run, alice: EnvStandIn) -> None:
    result = nodemgr("run", "printenv", "NODEMGR_ENV_DIR")
    assert (result.returncode, result.stdout) == (0, f"{alice.directory}\n"), result.stderr


# -- what is refused before


def test_an_unknown_environment(nodemgr: Run, alice: EnvStandIn) -> None:
    result = nodemgr("run", "--env", "bob", "--", "true")
    assert result.returncode == 77
    assert one_line(result).startswith("no environment 'bob'")


@pytest.mark.parametrize("is_there", [False, True])
def test_no_manager_at_all(nodemgr: Run, tmp_path: Path, is_there: bool) -> None:
    """Also where one has left its directory."""
    if is_there:
        (tmp_path / "nothing" / "envs").mkdir(parents=True)
    result = nodemgr("run", "--env", "bob", "true", run_dir=tmp_path / "nothing")
    assert result.returncode == 69
    assert one_line(result).startswith(f"no manager runs on {tmp_path}/nothing")
    assert "nodemgr serve" in one_line(result)


@pytest.mark.parametrize("name", ["../alice", "", "a/b", "Ä"])
def test_no_name_of_an_environment(nodemgr: Run, alice: EnvStandIn, name: str) -> None:
    result = nodemgr("run", "--env", name, "true")
    assert result.returncode == 2
    assert "is no name of an environment" in one_line(result)


def test_a_user_whom_the_quota_does_not_name(nodemgr: Run, alice: EnvStandIn) -> None:
    alice.answers["status"] = ("forbidden_user", "user eve may not enter alice: ask an admin")
    result = nodemgr("run", "--env", "alice", "true")
    assert (result.returncode, one_line(result)) == (
        77,
        "user eve may not enter alice: ask an admin",
    )


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (["--gpus", "3"], "more than the quota of alice, 2"),
        (["--gpus", "2", "--memory", "13GiB"], "more than alice may use on one GPU, 12 GiB"),
        (
            ["--class", "latency-sensitive"],
            (
                "--class latency-sensitive is above the highest class of alice, normal: ask for"
                " that one, or an admin for more (nodemgr quota set alice --class)"
            ),
        ),
        (
            ["--class", "best-effort", "--compute", "41%"],
            (
                "--compute 41% is more than alice may have of one GPU, 40%: ask for less, or an"
                " admin for more (nodemgr quota set alice --compute)"
            ),
        ),
        (
            ["--memory", "20GiB"],
            (
                "--memory 20 GiB is more than alice may use on one GPU, 12 GiB: ask for less, or an"
                " admin for more"
            ),
        ),
    ],
)
def test_what_the_quota_never_allows(
    nodemgr: Run, alice: EnvStandIn, wish: list[str], reason: str
) -> None:
    limits = {"name": "alice", "quota": quota(compute_percent=40), "gpus": []}
    alice.answers["status"] = status(envs=[{**limits, "memory_remaining_bytes": None}])
    result = nodemgr("run", "--env", "alice", *wish, "true")
    assert result.returncode == 77
    assert reason in one_line(result)


def test_memory_that_no_gpu_of_the_node_has(nodemgr: Run, alice: EnvStandIn) -> None:
    whole = quota(memory_bytes=None, memory_per_gpu_bytes=None)
    alice.answers["status"] = status(
        envs=[{"name": "alice", "quota": whole, "gpus": [], "memory_remaining_bytes": None}]
    )
    result = nodemgr("run", "--env", "alice", "--memory", "17GiB", "true")
    assert result.returncode == 77
    assert "more than alice may use on one GPU, 16 GiB" in one_line(result)


@pytest.mark.parametrize(
    "wish",
    [
        ["--memory", "12GiB"],
        ["--gpus", "0", "--memory", "20GiB"],
        ["--class", "normal", "--compute", "100%", "--deadline", "2h"],
        ["--class", "best-effort", "--compute", "1%"],
    ],
)
def test_a_wish_that_the_quota_allows_or_that_is_not_asked_for(
    nodemgr_process: Run, alice: EnvStandIn, wish: list[str]
) -> None:
    assert nodemgr_process("run", "--env", "alice", *wish, "true").returncode == 0


def test_more_than_the_node_has(nodemgr: Run, alice: EnvStandIn) -> None:
    alice.configure(node_gpus=4)
    alice.answers["status"] = status(
        envs=[{"name": "alice", "quota": quota(gpus=8), "gpus": [], "memory_remaining_bytes": None}]
    )
    result = nodemgr("run", "--env", "alice", "--gpus", "5", "true")
    assert result.returncode == 77
    assert "more than this node has, 4" in one_line(result)


def test_a_range_above_the_quota_is_refused_at_once(nodemgr: Run, alice: EnvStandIn) -> None:
    alice.answers["status"] = status(
        envs=[{"name": "alice", "quota": quota(gpus=2), "gpus": [], "memory_remaining_bytes": None}]
    )
    result = nodemgr("run", "--env", "alice", "--gpus", "1-3", "true")
    assert result.returncode == 77
    assert "3" in one_line(result)


def test_a_range_reaches_the_command(nodemgr_process: Run, alice: EnvStandIn) -> None:
    result = nodemgr_process("run", "--env", "alice", "--gpus", "1-2", "printenv", "NODEMGR_GPUS")
    assert result.stdout.strip() == "1-2"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("24GiB-8GiB", "it ends before it begins; write 8GiB-24GiB"),
        ("8GiB-", "is no range of memory: an end is missing"),
        ("24-8", "24"),
        ("0-", "is no range of memory: an end is missing"),
    ],
)
def test_a_bad_range_of_memory_is_said_at_once(nodemgr: Run, text: str, line: str) -> None:
    result = nodemgr("run", "--env", "alice", "--memory", text, "true")
    assert result.returncode == 2
    assert line in one_line(result)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("4-1", "'4-1' is no range of GPUs: it ends before it begins; write 1-4"),
        ("0-2", "'0' is no whole number from 1 to 1024"),
        ("2-", "'2-' is neither a number of GPUs nor a range"),
        ("1-4-6", "'1-4-6' is neither a number of GPUs nor a range"),
    ],
)
def test_a_bad_range_is_said_at_once(nodemgr: Run, text: str, line: str) -> None:
    result = nodemgr("run", "--env", "alice", "--gpus", text, "true")
    assert result.returncode == 2
    assert line in one_line(result)


@pytest.mark.parametrize(
    "wish",
    [
        ["--gpus", "-1"],
        ["--gpus", "x"],
        ["--memory", "8"],
        ["--memory", "-1GiB"],
        ["--memory", "0GiB"],
        ["--compute", "40"],
        ["--compute", "0%"],
        ["--compute", "101%"],
        ["--class", "batch"],
        ["--class", "Normal"],
        ["--deadline", "0"],
        ["--deadline", "2"],
        ["--deadline", "yesterday"],
        ["--wait", "5"],
        ["--wait", "x"],
    ],
)
def test_a_wish_that_is_no_wish(nodemgr: Run, alice: EnvStandIn, wish: list[str]) -> None:
    result = nodemgr("run", "--env", "alice", *wish, "--", "true")
    assert result.returncode == 2
    assert one_line(result).startswith("Invalid value for")


def test_without_a_command(nodemgr: Run, alice: EnvStandIn) -> None:
    result = nodemgr("run", "--env", "alice")
    assert result.returncode == 2
    assert "COMMAND" in one_line(result)


@pytest.mark.parametrize(
    "garbage",
    [
        [b"no packet"],
        [b"NODEMGR/1 PART\nrid=1\nindex=0\ncount=1\ndata={\n"],
        [b"NODEMGR/1 ACK\nrid=1\n"],
    ],
)
def test_a_manager_that_answers_nonsense_is_an_absent_one(
    nodemgr: Run, alice: EnvStandIn, garbage: list[bytes]
) -> None:
    """The answer is the command or one line of refusal, never a traceback."""
    alice.answers["status"] = garbage
    result = nodemgr("run", "--env", "alice", "echo", "ran")
    assert "Traceback" not in result.stderr
    assert (result.returncode, result.stdout) in ((0, "ran\n"), (1, ""))
    assert one_line(result)


@pytest.mark.parametrize(
    ("policy", "word"), [("wait", "will wait for it"), ("cpu", "only the CPU"), ("error", "fails")]
)
def test_an_absent_manager_stops_no_command(
    nodemgr: Run, short_dir: Path, policy: str, word: str
) -> None:
    directory = short_dir / "envs" / "alice"
    directory.mkdir(parents=True)
    (directory / "client.conf").write_text(f"env=alice\naddress=unix:socket\nno_manager={policy}\n")
    result = nodemgr("run", "--env", "alice", "echo", "ran")
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert word in one_line(result)


def test_with_no_wait_an_absent_manager_stops_the_command(nodemgr: Run, short_dir: Path) -> None:
    directory = short_dir / "envs" / "alice"
    directory.mkdir(parents=True)
    (directory / "client.conf").write_text("env=alice\naddress=unix:socket\nno_manager=wait\n")
    result = nodemgr("run", "--no-wait", "--env", "alice", "echo", "ran")
    assert (result.returncode, result.stdout) == (69, "")
    assert "no manager" in one_line(result)


# -- it is the command


def test_arguments_go_through_untouched(nodemgr: Run, alice: EnvStandIn) -> None:
    arguments = ["--env", "x", "-h", "--", "a b", "", "$HOME", "ü"]
    result = nodemgr(
        "run",
        "--env",
        "alice",
        sys.executable,
        "-c",
        "import json, sys; print(json.dumps(sys.argv[1:]))",
        *arguments,
    )
    assert json.loads(result.stdout) == arguments
    assert result.stderr == ""


def test_the_environment_arrives(nodemgr: Run, alice: EnvStandIn) -> None:
    alice.configure(library_path="/sim/lib")
    result = nodemgr("run", "--env", "alice", "--wait", "0", "--", sys.executable, "-I", "-c", SHOW)
    seen = json.loads(result.stdout)
    assert seen["NODEMGR_ENV_DIR"] == str(alice.directory)
    assert seen["LD_LIBRARY_PATH"].split(":")[0] == "/sim/lib"
    assert seen["NODEMGR_WAIT"] == "0"


@pytest.mark.parametrize("code", [0, 1, 3, 69, 75, 77, 255])
def test_the_exit_code_is_the_command_s(nodemgr: Run, alice: EnvStandIn, code: int) -> None:
    assert nodemgr("run", "--env", "alice", "sh", "-c", f"exit {code}").returncode == code


def test_a_signal_ends_the_command_as_it_would_without_us(nodemgr: Run, alice: EnvStandIn) -> None:
    assert nodemgr("run", "--env", "alice", "sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_the_pid_is_the_command_s(alice: EnvStandIn, short_dir: Path) -> None:
    command = [sys.executable, "-m", "nodemgr", "run", "--env", "alice", "sh", "-c", "echo $$"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(NODEMGR_RUN_DIR=str(short_dir)),
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid


def test_signals_have_their_defaults_again(nodemgr: Run, alice: EnvStandIn) -> None:
    """Python ignores SIGPIPE for itself; `yes | head` must still end."""
    show = "grep SigIgn /proc/self/status"
    bare = subprocess.run(["sh", "-c", show], capture_output=True, text=True, check=True).stdout
    assert nodemgr("run", "--env", "alice", "sh", "-c", show).stdout == bare


def test_a_c_locale_stays_one(nodemgr: Run, alice: EnvStandIn) -> None:
    locale: dict[str, str | None] = {"LC_ALL": None, "LC_CTYPE": None, "LANG": "C"}
    result = nodemgr("run", "--env", "alice", "env", environment=locale)
    assert not [line for line in result.stdout.splitlines() if line.startswith("LC_")]


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("no-such-program-here", 127, "not found in PATH"),
        ("./absent", 127, "not found"),
        ("/etc/passwd", 126, "not executable"),
        ("/tmp", 126, "not executable"),
    ],
)
def test_a_command_that_is_none(
    nodemgr: Run, alice: EnvStandIn, command: str, code: int, word: str
) -> None:
    result = nodemgr("run", "--env", "alice", command)
    assert result.returncode == code
    assert word in one_line(result)


def test_a_file_in_path_that_may_not_be_executed(
    nodemgr: Run, alice: EnvStandIn, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    result = nodemgr(
        "run", "--env", "alice", "tool", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    assert result.returncode == 126
    assert "not executable" in one_line(result)


def test_a_script_without_an_interpreter_line_is_the_shell_s(
    nodemgr: Run, alice: EnvStandIn, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1"\n')
    script.chmod(0o755)
    assert nodemgr("run", "--env", "alice", script, "a b").stdout == "a b\n"


def test_a_script_whose_interpreter_is_not_there(
    nodemgr: Run, alice: EnvStandIn, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    result = nodemgr("run", "--env", "alice", script)
    assert result.returncode == 127
    assert "interpreter is not found" in one_line(result)


def test_it_starts_without_the_heavy_libraries(alice: EnvStandIn, short_dir: Path) -> None:
    heavy = ("zmq", "psutil", "pynvml", "asyncio", "sqlite3")
    program = (
        "import os, sys\nos.execve = lambda *arguments: print(*(name for name in"
        " sys.argv[1].split(',') if name in sys.modules)) or sys.exit(5)\nfrom nodemgr.cli import"
        " main\nmain(['run', '--env', 'alice', 'true'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, ",".join(heavy)],
        env=clean_environment(NODEMGR_RUN_DIR=str(short_dir)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout.strip()) == (5, ""), result.stderr


def test_policies_of_an_absent_manager_are_those_of_the_quota() -> None:
    from nodemgr.cli.admins.quota import set_quota

    (option,) = (parameter for parameter in set_quota.params if parameter.name == "no_manager")
    assert set(run_verb.ABSENT) == set(option.type.choices)  # type: ignore[attr-defined]
