"""The places of the directories, and the names that are safe in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodemgr import paths


@pytest.mark.parametrize("name", ["alice", "a", "team-1.gpu_x", "0", "a" * 63])
def test_names_of_environments(name: str) -> None:
    assert paths.is_env_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "-x", "a/b", "../x", "Alice", "a b", "a\n", "ü", "a" * 64, "a\0"]
)
def test_names_that_would_lead_elsewhere(name: str) -> None:
    assert not paths.is_env_name(name)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An ordinary user without any of the variables."""
    for name in ("NODEMGR_RUN_DIR", "NODEMGR_STATE_DIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_root_has_the_system_directories(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (paths.default_run_dir(), paths.default_state_dir()) == (
        Path("/run/nodemgr"),
        Path("/var/lib/nodemgr"),
    )


def test_others_have_their_own(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.default_run_dir() == Path("/tmp/nodemgr-4711")
    assert paths.default_state_dir() == nobody / ".local/state/nodemgr"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4711")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/x/state")
    assert paths.default_run_dir() == Path("/run/user/4711/nodemgr")
    assert paths.default_state_dir() == Path("/home/x/state/nodemgr")


def test_a_variable_beats_them_all(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEMGR_RUN_DIR", "/r")
    monkeypatch.setenv("NODEMGR_STATE_DIR", "/s")
    assert (paths.default_run_dir(), paths.find_run_dir(), paths.default_state_dir()) == (
        Path("/r"),
        Path("/r"),
        Path("/s"),
    )


def owned(path: Path, uid: int) -> None:
    """`path` is that user's, with all in it."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, -1, follow_symlinks=False)


by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@by_root
def test_a_user_means_the_node_s_manager_unless_he_has_one(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(nobody))
    assert paths.find_run_dir() == Path("/run/nodemgr")
    (nobody / "nodemgr").mkdir()
    (nobody / "nodemgr" / "manager.lock").touch()
    owned(nobody / "nodemgr", 4711)
    assert paths.find_run_dir() == nobody / "nodemgr"


@by_root
@pytest.mark.parametrize(("link_uid", "uid"), [(None, 4712), (4711, 4712), (4712, 4711)])
def test_a_directory_that_another_user_made_is_not_the_users(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, link_uid: int | None, uid: int
) -> None:
    """In /tmp: its client.conf would name libraries for the user's programs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(nobody))
    place = nobody / ("nodemgr" if link_uid is None else "elsewhere")
    place.mkdir()
    (place / "manager.lock").touch()
    owned(place, uid)
    if link_uid is not None:
        (nobody / "nodemgr").symlink_to(place)
        os.chown(nobody / "nodemgr", link_uid, -1, follow_symlinks=False)
    assert paths.find_run_dir() == Path("/run/nodemgr")
