"""The state file of a simulated node gets a mount of its own, once, in place of no other file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.edge.containers.simulator_mount import MOUNT_NAME, may_be_shared, mount_alone


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "sim" / "node.state"
    yield path
    subprocess.run(["umount", path.with_name(MOUNT_NAME)], check=False, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_it_lies_on_a_mount_from_which_nothing_runs(state: Path) -> None:
    assert not may_be_shared(state)
    mount_alone(state)
    if not os.path.ismount(state.with_name(MOUNT_NAME)):
        pytest.skip("this machine allows no mount")
    assert may_be_shared(state)
    state.write_bytes(Path("/bin/true").read_bytes())
    assert state.resolve() == state.with_name(MOUNT_NAME) / state.name
    state.chmod(0o4755)
    with pytest.raises(PermissionError):
        subprocess.run([state], check=False)
    mount_alone(state)
    assert state.stat().st_size > 0, "a second manager finds the first one's file"


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
@pytest.mark.parametrize("flag", ["nosuid", "nodev", "noexec"])
def test_a_mount_without_one_of_the_flags_is_not_shared(state: Path, flag: str) -> None:
    """An administrator may have mounted it anew."""
    mount_alone(state)
    if not os.path.ismount(state.with_name(MOUNT_NAME)):
        pytest.skip("this machine allows no mount")
    kept = ",".join(each for each in ("nosuid", "nodev", "noexec") if each != flag)
    place = state.with_name(MOUNT_NAME)
    subprocess.run(["umount", place], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", kept, "tmpfs", place], check=True)
    assert not may_be_shared(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's file is no way to root")
def test_an_earlier_node_s_file_stays_and_is_not_shared(state: Path) -> None:
    state.parent.mkdir()
    state.write_bytes(b"in use")
    mount_alone(state)
    assert (state.read_bytes(), may_be_shared(state)) == (b"in use", False)


def test_a_file_of_an_ordinary_user_is_shared(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert may_be_shared(state)
