"""`nodemgr setup`: it shows, asks, does; and says what it did where it could not go on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nodemgr.cli.admins.setup import _name_jobs
from tests.cli.conftest import RunningManager


def setup(
    *arguments: str | Path, user: int | None = None, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", "setup", *map(str, arguments)], capture_output=True,
        text=True, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, "PATH": path or os.environ["PATH"]},
    )  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without a user database; groupadd makes its own."""
    (tmp_path / "etc").mkdir()
    return tmp_path


def unaligned(text: str) -> str:
    """A node without systemd has other words in the first column, and so another width."""
    return re.sub(" +", " ", text)


def test_a_look_changes_nothing(root: Path) -> None:
    looked = setup("--root", root, "--dry-run")
    assert (looked.returncode, [path.name for path in root.rglob("*")]) == (0, ["etc"])
    assert f"write {root}/etc/nodemgr/config.toml: settings" in unaligned(looked.stdout)
    assert "make group nodemgr" in unaligned(looked.stdout)


def test_a_package_has_its_units(root: Path) -> None:
    packaged = root / "usr/lib/systemd/system"
    packaged.mkdir(parents=True)
    (packaged / "nodemgr.service").touch()
    said = unaligned(setup("--root", root, "--dry-run").stdout).splitlines()
    units = [line for line in said if ".service: " in line]
    assert f"ok {packaged}/nodemgr.service: is there, from a package" in units
    assert not [line for line in units if f"{root}/etc/systemd/system/nodemgr.service" in line]
    assert [line for line in units if f"{root}/etc/systemd/system/nodemgr-jobs.service" in line]


def test_nobody_to_ask_is_no_consent(root: Path) -> None:
    asked = setup("--root", root)
    assert (asked.returncode, [path.name for path in root.rglob("*")]) == (2, ["etc"])
    assert (
        asked.stderr.splitlines()[-1]
        == "nodemgr: no terminal to ask on: give --yes, or --dry-run to look"
    )


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("groupadd"), reason="needs root and groupadd"
)
def test_done_and_taken_back(root: Path) -> None:
    assert (
        setup("--root", root, "--yes")
        .stdout.splitlines()[-1]
        .startswith("done; next: nodemgr env create")
    )
    assert setup("--root", root, "--yes").stdout.splitlines()[-1] == "nothing to do"
    back = setup("--root", root, "--yes", "--uninstall")
    assert (back.returncode, back.stdout.splitlines()[-1]) == (0, "done")
    assert f"keep {root}/var/lib/nodemgr: quotas, leases, history and keys" in unaligned(
        back.stdout
    )
    again = setup("--root", root, "--yes", "--uninstall")
    assert (again.returncode, "no setup was made here" in again.stderr) == (1, True)


def test_where_it_cannot_go_on_it_says_what_is_done(root: Path) -> None:
    """No groupadd in PATH."""
    failed = setup("--root", root, "--yes", path="/nowhere")
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("nodemgr: could not make group nodemgr: groupadd: ")
    assert (
        f"(done before: make {root}/etc/nodemgr (0755)); mend that and run it again, or `nodemgr"
        " setup --uninstall" in last
    )


def test_what_cannot_be_looked_at_is_one_line(root: Path) -> None:
    (root / "etc/nodemgr/config.toml").mkdir(parents=True)
    failed = setup("--root", root, "--yes")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("nodemgr: cannot look at what is there (")
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_the_system_itself_is_roots_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from client_plugin.ways.faults import Exit, Fault
    from nodemgr.cli.admins import setup
    from nodemgr.cli.presentation.group import nodemgr

    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert setup.command is nodemgr.get_command(None, "setup")  # type: ignore[arg-type]
    with pytest.raises(Fault, match="run it as root") as refused:
        nodemgr.main(["setup", "--yes"], standalone_mode=False)
    assert refused.value.code is Exit.USAGE


def test_a_removal_names_the_jobs_that_outlive_it(
    manager: RunningManager, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": f"j{number}", "state": "running"} for number in range(1, 8)]
    rows.append({"id": "j8", "state": "queued"})
    manager.answers["queue"] = {"queue": rows, "after": None}
    _name_jobs(manager.run_dir)
    said = capsys.readouterr().err
    assert said.startswith("nodemgr: warning: j1, j2, j3, j4, j5 and 2 more run, and go on")
    _name_jobs(manager.run_dir / "no manager")
    assert capsys.readouterr().err == ""
