"""The run directory: one manager, names the kernel takes, files that are whole or not there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.cli.admins.checks import _is_locked
from nodemgr.core.model.entities import Gpu
from nodemgr.edge.gpu.gpu_inventory import GpuSource, NvmlUnavailable
from nodemgr.edge.host import rundir
from nodemgr.edge.host.rundir import EnvDirs, RunDirError
from nodemgr.edge.service import Service, ServiceFault
from nodemgr.edge.setup.settings import load
from tests.session import TMP


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        yield Path(directory)


@pytest.fixture
def dirs(short: Path) -> EnvDirs:
    rundir.prepare(short / "run", short / "state")
    return EnvDirs(short / "run", short / "state")


def test_a_second_manager_is_refused_naming_the_first(short: Path) -> None:
    rundir.prepare(short / "run", short / "state")
    descriptor = rundir.lock(short / "run")
    with pytest.raises(
        RunDirError, match=rf"another manager \(pid {os.getpid()}\) runs on {short}/run"
    ):
        rundir.lock(short / "run")
    os.close(descriptor)
    os.close(rundir.lock(short / "run"))


def test_no_other_user_can_lock_out_the_next_manager(short: Path) -> None:
    rundir.prepare(short / "run", short / "state")
    descriptors = [rundir.lock(short / "run"), rundir.lock_state(short / "state")]
    for path in (short / "run" / rundir.LOCK_FILE, short / "state" / rundir.LOCK_FILE):
        assert path.stat().st_mode & 0o777 == 0o600
    assert _is_locked(short / "run" / rundir.LOCK_FILE)
    for descriptor in descriptors:
        os.close(descriptor)
    assert not _is_locked(short / "run" / rundir.LOCK_FILE)


def test_two_run_directories_cannot_share_a_store(short: Path) -> None:
    rundir.prepare(short / "run", short / "state")
    descriptor = rundir.lock_state(short / "state")
    with pytest.raises(
        RunDirError, match=rf"another manager \(pid {os.getpid()}\) keeps its state in"
    ):
        rundir.lock_state(short / "state")
    os.close(descriptor)


def test_modes(short: Path) -> None:
    rundir.prepare(short / "run", short / "state")
    assert stat.S_IMODE((short / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((short / "state").stat().st_mode) == 0o700


def test_a_directory_that_another_makes_meanwhile_keeps_its_mode(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another user's link to a directory that is closed for a reason."""
    (short / "closed").mkdir(mode=0o700)
    (short / "laid").symlink_to("closed")
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "laid" and exists(path))
    rundir.make_open(short / "laid" / "mine")
    modes = [(short / "closed" / name).stat().st_mode & 0o777 for name in ("", "mine")]
    assert modes == [0o700, 0o755]
    (short / "file").touch()
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "file" and exists(path))
    with pytest.raises(FileExistsError):
        rundir.make_open(short / "file")


def test_a_path_too_long_for_a_socket_is_refused_before_anything_is_made(short: Path) -> None:
    deep = short / ("d" * 120)
    with pytest.raises(
        RunDirError, match="bytes, and the name of a UNIX socket at most 107: choose a shorter"
    ):
        rundir.prepare(deep, short / "state")
    assert not deep.exists()


def test_a_file_in_the_way_is_refused_in_one_line(short: Path) -> None:
    (short / "run").write_text("")
    with pytest.raises(RunDirError, match=r"run cannot be used \(File exists\): name another"):
        rundir.prepare(short / "run", short / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_anothers_directory_is_refused(short: Path) -> None:
    (short / "run").mkdir()
    os.chown(short / "run", 12_345, -1)
    with pytest.raises(RunDirError, match="belongs to user 12345"):
        rundir.prepare(short / "run", short / "state")


def test_what_a_client_finds(dirs: EnvDirs, short: Path) -> None:
    dirs.write("alice", {"gpus": 2, "memory_per_gpu": None})
    directory = short / "run" / "envs" / "alice"
    assert (directory / "client.conf").read_text() == "env=alice\naddress=unix:socket\ngpus=2\n"
    assert stat.S_IMODE((directory / "client.conf").stat().st_mode) == 0o644
    assert [path.name for path in directory.iterdir()] == ["client.conf"]


def test_an_unchanged_file_is_left_alone_and_a_changed_one_replaced(
    dirs: EnvDirs, short: Path
) -> None:
    path = short / "run" / "envs" / "alice" / "client.conf"
    dirs.write("alice", {"gpus": 2})
    first = path.stat().st_ino
    dirs.write("alice", {"gpus": 2})
    assert path.stat().st_ino == first
    dirs.write("alice", {"gpus": 3})
    assert path.stat().st_ino != first


def test_links_that_a_containers_root_may_lay_are_not_followed(dirs: EnvDirs, short: Path) -> None:
    """Where the directory was mounted without :ro."""
    victim, pipe = short / "victim", short / "pipe"
    victim.write_text("precious")
    os.mkfifo(pipe)
    dirs.write("alice", {"gpus": 2})
    directory = short / "run" / "envs" / "alice"
    conf = directory / "client.conf"
    for target in (victim, pipe):
        conf.unlink()
        conf.symlink_to(target)
        (directory / f".client.conf.{os.getpid()}").symlink_to(victim)
        dirs.write("alice", {"gpus": 2})
        assert not conf.is_symlink()
        assert "gpus=2\n" in conf.read_text()
    conf.unlink()
    os.mkfifo(conf)
    dirs.write("alice", {"gpus": 2})
    assert conf.is_file()
    assert victim.read_text() == "precious"


def test_a_key_is_made_once_and_is_secret(dirs: EnvDirs, short: Path) -> None:
    key = dirs.write_udp("alice", "127.0.0.1:7000", {"gpus": 1})
    assert len(key) == 32
    assert dirs.write_udp("alice", "127.0.0.1:7001", {"gpus": 1}) == key
    directory = short / "state" / "keys" / "alice"
    assert stat.S_IMODE((directory / "key").stat().st_mode) == 0o600
    assert "address=udp:127.0.0.1:7001\n" in (directory / "client.conf").read_text()
    (directory / "key").write_text("garbage")
    assert len(dirs.write_udp("alice", "127.0.0.1:7001", {})) == 32


def test_a_key_is_renewed_in_its_place(dirs: EnvDirs, short: Path) -> None:
    before = dirs.write_udp("alice", "127.0.0.1:7000", {})
    after = dirs.renew_key("alice")
    assert after != before
    assert dirs.write_udp("alice", "127.0.0.1:7000", {}) == after
    assert stat.S_IMODE((short / "state" / "keys" / "alice" / "key").stat().st_mode) == 0o600
    assert [
        path.name
        for path in (short / "state" / "keys" / "alice").iterdir()
        if path.name.startswith(".")
    ] == []


def test_what_is_gone_is_removed(dirs: EnvDirs, short: Path) -> None:
    for env in ("alice", "bob"):
        dirs.write(env, {})
        dirs.write_udp(env, "127.0.0.1:1", {})
    dirs.remove("alice")
    dirs.remove_others({"alice"})
    assert list((short / "run" / "envs").iterdir()) == []
    assert list((short / "state" / "keys").iterdir()) == []


def test_directories_of_any_depth_stop_no_manager(dirs: EnvDirs, short: Path) -> None:
    """Where the directory was mounted into a container without :ro."""
    for env in ("alice", "bob"):
        dirs.write(env, {})
        place = os.open(short / "run" / "containers" / env, os.O_RDONLY)
        for _ in range(sys.getrecursionlimit()):
            os.mkdir("d", dir_fd=place)
            inner = os.open("d", os.O_RDONLY, dir_fd=place)
            os.close(place)
            place = inner
        os.close(place)
    dirs.remove("alice")
    dirs.remove_others({})
    subprocess.run(["rm", "-rf", short / "run" / "containers"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_another_users_link_is_refused(short: Path) -> None:
    """That user could let it lead elsewhere."""
    (short / "mine").mkdir()
    (short / "run").symlink_to(short / "mine")
    os.chown(short / "run", 65_534, 65_534, follow_symlinks=False)
    with pytest.raises(RunDirError, match=f"{short}/run is a link, which uid 65534 can change"):
        rundir.prepare(short / "run", short / "state")
    os.chown(short / "run", 0, 0, follow_symlinks=False)
    rundir.prepare(short / "run", short / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("kind", ["owner", "link", "link behind a link", "open to all", "group"])
def test_a_directory_below_another_users_is_refused(short: Path, kind: str) -> None:
    """That user could put another one in its place."""
    parent, theirs = short / "theirs", short / "theirs"
    if "link" in kind:
        (short / "mine").mkdir()
        theirs.symlink_to(short / "mine")
        os.chown(theirs, 65_534, 65_534, follow_symlinks=False)
        if kind == "link behind a link":
            parent = short / "ours"
            parent.symlink_to("theirs/../theirs")
    else:
        parent.mkdir()
        os.chown(parent, 65_534 if kind == "owner" else 0, 65_534)
        parent.chmod({"owner": 0o755, "group": 0o775}.get(kind, 0o777))
    for run, state in ((parent / "run", short / "state"), (short / "run", parent / "state")):
        with pytest.raises(RunDirError, match=f"is below {theirs}, which uid [0-9]+ can") as fault:
            rundir.prepare(run, state)
        is_roots = kind in ("open to all", "group")
        assert (f"(chmod go-w {theirs}), or choose" in str(fault.value)) == is_roots
    theirs.unlink() if "link" in kind else parent.chmod(0o1777)


@pytest.mark.parametrize("name", ["a:b", "a;b", "a$LIB", "$ORIGIN"])
def test_a_run_directory_that_the_loader_misreads_is_refused_by_its_name(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(RunDirError, match="name another --run-dir"):
        rundir.prepare(tmp_path / name, tmp_path / "state")
    assert not (tmp_path / name).exists()


def test_a_state_of_a_later_format_is_refused_with_the_way_back(tmp_path: Path) -> None:
    rundir.check_formats(tmp_path)
    note = tmp_path / rundir.FORMATS_FILE
    assert note.read_text() == "jobs 1\nkeys 1\n"
    rundir.check_formats(tmp_path)
    for text in ("jobs 2\n", "jobs 1\nmore 1\n", "jobs x\n", "\xff"):
        note.write_bytes(text.encode("latin-1"))
        with pytest.raises(RunDirError, match="install that version again, or move") as refusal:
            rundir.check_formats(tmp_path)
        assert "\n" not in str(refusal.value)
        assert note.read_bytes() == text.encode("latin-1")
    note.write_text("keys 1\n")  # a version in between
    rundir.check_formats(tmp_path)
    assert note.read_text() == "jobs 1\nkeys 1\n"


def test_a_manager_that_does_not_start_leaves_what_was_there_before(short: Path) -> None:
    """With its lock file left, each verb took the directory for that of a manager."""

    def no_driver(_known: list[Gpu]) -> GpuSource:
        raise NvmlUnavailable(
            "NVML knows no GPU", "see nvidia-smi, or simulate a node with --simulate 4x80GiB"
        )

    for state, left in (("empty", set()), ("used", {"kept"})):
        (short / state).mkdir()
        for name in left:
            (short / state / name).touch()
        settings = load({"run_dir": short / "new" / "run", "state_dir": short / state}, None)
        with pytest.raises(ServiceFault, match="NVML knows no GPU"):
            Service(settings, gpus=no_driver).open()
        assert not (short / "new").exists()
        assert left <= set(os.listdir(short / state))
    assert os.listdir(short / "empty") == []
