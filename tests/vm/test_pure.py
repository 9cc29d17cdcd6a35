"""The parts of the laboratory that need no machine: commands, names, the table of cases."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm import images
from tests.vm.__main__ import parser
from tests.vm.cases import CASES
from tests.vm.cases.losing import SAVING
from tests.vm.images import digest
from tests.vm.machine import emulator

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_machine_has_two_disks_and_no_network() -> None:
    command = emulator(Path("/image"), Path("/tmp/vm"), "-loadvm", "ready")
    drives = [word for word in command if word.startswith("file=/tmp/vm/") and "if=virtio" in word]
    assert [drive.partition(",")[0] for drive in drives] == [
        "file=/tmp/vm/disk.qcow2",
        "file=/tmp/vm/files.raw",
    ]
    assert "readonly=on" in drives[1]
    assert shlex.join(command).startswith("nice ")
    assert command[command.index("-nic") + 1] == "none"
    assert command[-2:] == ["-loadvm", "ready"]


def test_an_image_is_named_by_all_that_it_is_made_of(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    wheel.write_bytes(b"one")
    before = digest("bookworm", wheel)
    assert digest("bookworm", b"one") == before
    wheel.write_bytes(b"two")
    assert before not in (
        digest("bookworm", wheel),
        digest("bookwormone"),
        digest("trixie", b"one"),
    )


def test_one_of_a_kind_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEMGR_VM_CACHE", str(tmp_path))
    made: list[Path] = []
    first = images.cached("kind", "1", made.append)
    assert images.cached("kind", "1", made.append) == first
    second = images.cached("kind", "2", made.append)
    assert (len(made), first.exists(), second.exists()) == (2, False, True)
    with pytest.raises(ZeroDivisionError):
        images.cached("other", "1", lambda _: 1 / 0)
    assert {path.name for path in tmp_path.iterdir()} == {"kind-2"}


def test_without_the_emulator_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.os, "geteuid", lambda: 0)
    monkeypatch.setattr(images.shutil, "which", lambda tool: None if "qemu" in tool else tool)
    why = images.lacking()
    assert why is not None
    assert "qemu-system-x86_64, qemu-img missing: apt-get install qemu-system-x86" in why
    monkeypatch.setattr(images.os, "geteuid", lambda: 1)
    assert images.lacking() == "only root makes an image"


def test_each_case_says_what_it_tries() -> None:
    assert all((case.__doc__ or "").endswith(".") for case in CASES.values())
    assert parser().parse_args(["boot", "--before", "HEAD~1"]).cases == ["boot"]


def test_an_unknown_case_is_named() -> None:
    command = [sys.executable, "-m", "tests.vm", "boots"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no case boots; there are: boot restart")


def test_a_lock_pins_each_package_with_its_hashes() -> None:
    lines = images.LOCK.read_text().replace("\\\n", " ").splitlines()
    pins = [line.split() for line in lines if not line.startswith("#")]
    assert all("==" in pin and hashes for pin, *hashes in pins)
    assert all(each.startswith("--hash=sha256:") for _, *hashes in pins for each in hashes)


def test_the_script_of_the_saving_job_is_one_of_sh() -> None:
    done = subprocess.run(["sh", "-n"], input=SAVING, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
