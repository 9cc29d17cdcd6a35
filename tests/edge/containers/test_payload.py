"""The client in containers: an upgrade takes nothing away from a running container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nodemgr.edge.containers import payload
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT

pytestmark = pytest.mark.xdist_group("payload")  # a mount of a copy is known by what the copy holds


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An installation by an administrator with umask 077."""
    found = tmp_path / "installed"
    for part in payload.PARTS:
        (found / part / "bin").mkdir(parents=True, mode=0o700)
        (found / part / "code.py").write_text(part)
        (found / part / "code.py").chmod(0o600)
        (found / part / "bin" / "program").write_text("#!/bin/sh")
        (found / part / "bin" / "program").chmod(0o700)
    return found


def test_a_container_keeps_the_files_that_it_has_mounted(source: Path, tmp_path: Path) -> None:
    payload.place(source, tmp_path)
    mounted = payload.current(tmp_path).resolve()
    (source / "client_plugin" / "code.py").write_text("another")
    payload.place(source, tmp_path)
    assert (mounted / "client_plugin" / "code.py").read_text() == "client_plugin"
    assert (payload.current(tmp_path) / "client_plugin" / "code.py").read_text() == "another"


def test_what_did_not_change_is_not_copied_again(source: Path, tmp_path: Path) -> None:
    payload.place(source, tmp_path)
    before = sorted(
        (path.name, path.lstat().st_ino) for path in payload.current(tmp_path).parent.iterdir()
    )
    (source / "client_plugin" / "__pycache__").mkdir()
    (source / "client_plugin" / "__pycache__" / "code.pyc").write_bytes(b"compiled since")
    payload.place(source, tmp_path)
    assert (
        sorted(
            (path.name, path.lstat().st_ino) for path in payload.current(tmp_path).parent.iterdir()
        )
        == before
    )


def test_everybody_may_read_it_whatever_umask_it_was_installed_and_copied_with(
    source: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        payload.place(source, tmp_path)
    finally:
        os.umask(before)
    copy = payload.current(tmp_path)
    modes = {
        str(path.relative_to(copy)): path.stat().st_mode & 0o777
        for path in (copy / "client_plugin").rglob("*")
    }
    assert modes == {
        "client_plugin/code.py": 0o644,
        "client_plugin/bin": 0o755,
        "client_plugin/bin/program": 0o755,
    }
    assert copy.stat().st_mode & 0o777 == 0o755


def test_a_copy_that_was_broken_off_is_made_anew(source: Path, tmp_path: Path) -> None:
    payload.place(source, tmp_path)
    whole = payload.current(tmp_path).resolve()
    payload.current(tmp_path).unlink()
    whole.rename(whole.with_name(f".{whole.name}"))
    (whole.with_name(f".{whole.name}") / "client_plugin" / "code.py").unlink()
    payload.place(source, tmp_path)
    assert (payload.current(tmp_path) / "client_plugin" / "code.py").read_text() == "client_plugin"
    assert sorted(path.name for path in whole.parent.iterdir()) == sorted([whole.name, "current"])


def upgraded(source: Path, tmp_path: Path) -> Path:
    """The copy of a further version."""
    code = source / "client_plugin" / "code.py"
    code.write_text(code.read_text() + "+")
    payload.place(source, tmp_path)
    return payload.current(tmp_path).resolve()


def test_copies_that_nobody_has_mounted_go_but_for_the_one_before(
    source: Path, tmp_path: Path
) -> None:
    first, second, third = (upgraded(source, tmp_path) for _ in range(3))
    assert [first.exists(), second.exists(), third.exists()] == [False, True, True]
    stray = third.with_name("of an administrator")
    stray.mkdir()
    fourth = upgraded(source, tmp_path)
    assert sorted(path.name for path in third.parent.iterdir()) == sorted(
        [third.name, fourth.name, stray.name, "current"]
    )


def test_a_copy_stays_while_a_container_has_it_mounted(source: Path, tmp_path: Path) -> None:
    first = upgraded(source, tmp_path)
    mounting = (
        f"mount --bind {first}/client_plugin {tmp_path}/installed/sitecustomize && echo mounted &&"
        " read line"
    )
    container = subprocess.Popen(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", mounting],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert container.stdout is not None
        if container.stdout.readline() != "mounted\n":
            pytest.skip("nothing can be mounted here")
        upgraded(source, tmp_path)
        upgraded(source, tmp_path)
        assert (first / "client_plugin" / "code.py").read_text() == "client_plugin+"
    finally:
        container.communicate("ended\n")
    upgraded(source, tmp_path)
    assert not first.exists()


def test_where_mounts_cannot_be_known_every_copy_stays(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "proc" / "1"
    (secret / "ns" / "mnt").mkdir(parents=True)
    (secret / "mountinfo").mkdir()  # what cannot be read
    assert payload._all_mounts(tmp_path / "proc") == "", "it is in no container"
    (secret / "cgroup").write_text(f"0::/docker/{'3f' * 32}\n")
    assert payload._all_mounts(tmp_path / "proc") is None
    monkeypatch.setattr(payload, "_all_mounts", lambda: None)
    assert all(copy.exists() for copy in [upgraded(source, tmp_path) for _ in range(4)])


def test_a_copy_for_programs_stays_until_a_boot_in_which_it_is_not_current(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("1")
    monkeypatch.setattr(payload, "BOOT_ID", boot)
    first = payload.place_for_programs(source, tmp_path / "client")
    assert payload.place_for_programs(source, tmp_path / "client") == first
    (source / "client_plugin" / "code.py").write_text("another")
    second = payload.place_for_programs(source, tmp_path / "client")
    assert (first / "client_plugin" / "code.py").read_text() == "client_plugin"
    boot.write_text("2")
    assert payload.place_for_programs(source, tmp_path / "client") == second
    assert not first.exists()
    assert second.stat().st_mode & 0o777 == 0o755


def test_a_copy_of_a_manager_that_was_killed_goes_after_a_boot(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the copy and its boot file."""
    boot = tmp_path / "boot_id"
    boot.write_text("1")
    monkeypatch.setattr(payload, "BOOT_ID", boot)
    first = payload.place_for_programs(source, tmp_path / "client")
    payload._boot_of(first).unlink()
    (source / "client_plugin" / "code.py").write_text("another")
    payload.place_for_programs(source, tmp_path / "client")
    assert first.exists(), "a program may name it"
    boot.write_text("2")
    payload.place_for_programs(source, tmp_path / "client")
    assert not first.exists()
    assert not payload._boot_of(first).exists()


PLACES = """
import sys
from pathlib import Path
from nodemgr.edge.containers import payload
payload.BOOT_ID = Path(sys.argv[3])
for boot in sys.stdin:
    payload.BOOT_ID.write_text(boot)
    copy = payload.place_for_programs(Path(sys.argv[1]), Path(sys.argv[2]))
    print(len(payload._files(copy)), flush=True)
"""


def test_managers_that_start_at_once_leave_whole_copies(source: Path, tmp_path: Path) -> None:
    """In each boot, four managers of two versions begin at the same time."""
    programs = []
    for number in range(4):
        own = tmp_path / f"source{number % 2}"
        if not own.exists():
            shutil.copytree(source, own)
            (own / "client_plugin" / "code.py").write_text(str(number))
        command = [sys.executable, "-c", PLACES, own, tmp_path / "client", tmp_path / f"id{number}"]
        pipe = subprocess.PIPE
        programs.append(
            subprocess.Popen(list(map(str, command)), cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        )
    for boot in range(20):
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(f"{boot}\n")
            program.stdin.flush()
        files = [program.stdout and program.stdout.readline() for program in programs]
        assert files == ["4\n"] * 4
    for program in programs:
        program.communicate(timeout=WAIT_LIMIT_S)
    assert [program.returncode for program in programs] == [0] * 4


def test_a_directory_that_cannot_be_preloaded_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert payload.for_programs(tmp_path / "my state") is None
    assert "my state-client" in capsys.readouterr().err
    assert not (tmp_path / "my state-client").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_copy_in_another_users_directory_is_not_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder that all may write, that user can make it before the manager does."""
    theirs = tmp_path / "state-client"
    theirs.mkdir()
    os.chown(theirs, 65_534, 65_534)
    assert payload.for_programs(tmp_path / "state") is None
    assert "programs load the installed client" in capsys.readouterr().err
    assert list(theirs.iterdir()) == []


def test_a_job_that_waited_over_an_upgrade_loads_the_present_copy(tmp_path: Path) -> None:
    (tmp_path / "client_plugin" / "_lib").mkdir(parents=True)
    variables = {
        "LD_PRELOAD": "/gone/client_plugin/_lib/$LIB/libnodemgr.so:libjemalloc.so.2",
        "PYTHONPATH": "/mine",
    }
    payload.renew_client(variables, str(tmp_path))
    assert variables == {
        "LD_PRELOAD": f"{tmp_path}/client_plugin/_lib/$LIB/libnodemgr.so:libjemalloc.so.2",
        "PYTHONPATH": f"{tmp_path}/sitecustomize:/mine",
    }
    payload.renew_client(bare := {"PATH": "/bin"}, str(tmp_path))
    assert bare == {"PATH": "/bin"}
