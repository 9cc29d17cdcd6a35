"""The doctor's checks of the kernel, on machines as they may be found."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from nodemgr.cli.admins import node_checks
from nodemgr.cli.admins.checks import Subject


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (tmp_path / "run" / "containers").mkdir(parents=True)
    return Subject(tmp_path / "run", tmp_path / "state", None, inside=False)


def missing(*_arguments: object) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_this_kernel_will_do(subject: Subject) -> None:
    assert node_checks.kernel(subject).ok


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("pidfd_open", "pidfd_open: Function not implemented"),
        ("memfd_create", r"sealed memory \(.*\): Function not implemented"),
    ],
)
def test_a_kernel_that_lacks_a_call(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, call: str, line: str
) -> None:
    monkeypatch.setattr(os, call, missing)
    found = node_checks.kernel(subject)
    assert not found.ok
    assert re.fullmatch(line, found.detail)


def test_memory_that_cannot_be_sealed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.1."""
    monkeypatch.setattr(node_checks, "F_SEAL_FUTURE_WRITE", 0x4000)
    found = node_checks.kernel(subject)
    assert (found.ok, "Invalid argument" in found.detail) == (False, True)


def test_a_socket_that_names_no_pidfd_is_no_fault(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_checks, "SO_PEERPIDFD", 9_999)
    found = node_checks.kernel(subject)
    assert (found.ok, "does not name its peer" in found.detail) == (True, True)


@pytest.mark.parametrize(
    ("mounts", "ok", "words"),
    [
        ("1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", True, "version 2"),
        (
            (
                "1 0 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n2 0 0:2 / "
                "/sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
                ),
            True, "beside controllers of version 1",
        ),
        ("2 0 0:2 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n", True,
            "version 1 alone"),
        ("", False, "none is mounted"),
    ],
)  # fmt: skip
def test_control_groups(
    subject: Subject, tmp_path: Path, mounts: str, ok: bool, words: str
) -> None:
    (tmp_path / "mountinfo").write_text(mounts)
    found = node_checks.control_groups(subject, tmp_path / "mountinfo")
    assert (found.ok, words in found.detail) == (ok, True)


@pytest.mark.parametrize(
    ("enforce", "label", "ok", "words"),
    [
        (None, None, True, "not here"),
        ("0", None, True, "permissive"),
        ("1", None, False, "without a label"),
        ("1", b"system_u:object_r:var_run_t:s0\0", False, "is system_u:object_r:var_run_t:s0"),
        ("1", b"system_u:object_r:container_file_t:s0\0", True, "container_file_t"),
    ],
)
def test_selinux(
    subject: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enforce: str | None,
    label: bytes | None,
    ok: bool,
    words: str,
) -> None:
    def labelled(path: Path, _name: str) -> bytes:
        assert path == tmp_path / "run" / "containers"
        if label is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return label

    monkeypatch.setattr(os, "getxattr", labelled)
    if enforce is not None:
        (tmp_path / "enforce").write_text(enforce + "\n")
    found = node_checks.selinux(subject, tmp_path / "enforce")
    assert (found.ok, words in found.detail) == (ok, True)


def test_every_check_has_a_cure() -> None:
    assert all(check.cure for check in node_checks.NODE_CHECKS)
