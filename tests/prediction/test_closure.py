"""The modules that a program reports at its good end, and whether they are the same later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import closure
from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
sys.path.append({root!r})
from client_plugin.prediction import closure
import json, near.net, other
closure._report = lambda order: print(json.dumps(order))
closure.follow()
closure.follow()
{end}
"""


def run(directory: Path, end: str = "", **variables: str) -> str:
    """A script with modules beside it, below its working directory and in a virtual environment."""
    script, work = directory / "script", directory / "work"
    for path in ("near/net.py", ".venv/lib/python3/site-packages/other.py"):
        (script / path).parent.mkdir(parents=True, exist_ok=True)
        (script / path).write_text("import far" if path.startswith("near") else "")
    work.mkdir(exist_ok=True)
    (work / "far.py").touch()
    (script / "train.py").write_text(SCRIPT.format(root=str(ROOT), end=end))
    packages = script / ".venv/lib/python3/site-packages"
    given = {"NODEMGR_RUN_KEY": '["ab"]', "NODEMGR_JOB": "j5:1", **variables}
    return subprocess.run(
        [sys.executable, script / "train.py"], cwd=work, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{work}:{packages}", **given}, timeout=WAIT_LIMIT_S,
        check=False,
    ).stdout  # fmt: skip


def test_it_reports_what_it_loaded_of_the_user_s_files_once(tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(run(tmp_path))
    assert told["job"] == "j5"
    own = {row[0] for row in told["files"] if row[1] != closure.FOLDER}
    expected = {"script/train.py", "script/near/net.py", "work/far.py"}
    assert own == {str((tmp_path / path).resolve()) for path in expected}
    assert [row for row in told["files"] if row[1] == closure.FOLDER]
    assert closure.holds([row for row in told["files"] if row[1] != closure.FOLDER])


@pytest.mark.parametrize("end", ["raise ValueError", "import os; os._exit(0)"])
def test_an_end_by_an_exception_reports_nothing(tmp_path: Path, end: str) -> None:
    assert run(tmp_path, end) == ""


@pytest.mark.parametrize("name", ["NODEMGR_RUN_KEY", "NODEMGR_JOB"])
def test_a_program_that_is_no_recognised_job_reports_nothing(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, **{name: ""}) == ""


def test_packages_that_a_user_or_an_administrator_installs_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an interpreter that is in no virtual environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(closure, "SYSTEM", str(tmp_path / "usr"))
    monkeypatch.setattr(closure, "SYSTEM_LOCAL", str(tmp_path / "local"))
    folders = [
        tmp_path / place / "lib/python3.11/site-packages"
        for place in ("usr", "local", "home/.local")
    ]
    for folder in folders:
        folder.mkdir(parents=True)
    known = closure.package_folders(str(tmp_path / "usr"))
    assert [row[0] for row in known] == [str(folder) for folder in folders]
    assert closure.holds(known)
    (folders[2] / "torch").mkdir()
    os.utime(folders[2], ns=(1, 1))
    assert not closure.holds(known)
    (tmp_path / "usr" / "pyvenv.cfg").touch()
    assert len(closure.package_folders(str(tmp_path / "usr"))) == 1


def test_a_framework_is_loaded_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.append({str(ROOT)!r})
from client_plugin.prediction import closure
os.rmdir(os.getcwd())
closure.follow()
print("goes on")
"""
    (tmp_path / "gone").mkdir()
    given = {"NODEMGR_RUN_KEY": '["ab"]', "NODEMGR_JOB": "j5:1"}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "gone", env={**os.environ, **given},
        text=True, capture_output=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert (told.stdout, told.stderr) == ("goes on\n", "")


def test_a_lazy_module_is_not_loaded_by_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "strange", object())
    assert closure.loaded(str(tmp_path), None) is not None


def test_what_a_read_would_wait_for_does_not_hold(tmp_path: Path) -> None:
    """Another user of the environment may have named it."""
    os.mkfifo(tmp_path / "fifo")
    assert not closure.holds([[str(tmp_path / "fifo"), 0, 1, "x"]])
    with pytest.raises(ValueError):  # noqa: PT011
        closure.content(str(tmp_path / "fifo"), 5)


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_too_large_a_program_says_so(tmp_path: Path, limit: str) -> None:
    assert json.loads(run(tmp_path, f"closure.{limit} = 1"))["files"] is None


def test_a_file_is_compared_by_its_content_where_its_time_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("layers = 3\n")
    status = file.stat()
    row = [str(file), status.st_size, status.st_mtime_ns, closure.digest(file.read_bytes())]
    assert closure.holds([row])
    assert not closure.holds([[*row[:1], 5, *row[2:]]])
    os.utime(file, ns=(1, 1))
    assert closure.holds([row])
    file.write_text("layers = 4\n")
    os.utime(file, ns=(2, 2))
    assert not closure.holds([row])
    file.unlink()
    assert not closure.holds([row])
    assert not closure.holds([["strange"]])
    folder = [str(tmp_path), closure.FOLDER, tmp_path.stat().st_mtime_ns, ""]
    assert closure.holds([folder])
    os.utime(tmp_path, ns=(1, 1))
    assert not closure.holds([folder])
