"""The module path of the manager's own processes. The processes: tests/hostile/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nodemgr.edge.host import module_path
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT


def test_packages_that_come_by_pythonpath_or_a_pth_file_are_found(tmp_path: Path) -> None:
    """The process that asks finds them so; the processes that it starts get the directories."""
    folder, paths, pth = (tmp_path / name for name in ("here", "by-path", "by-pth"))
    for each in (folder, paths, pth):
        each.mkdir()
    (paths / "click.py").write_text("HERE = 1")
    (folder / "psutil.py").write_text("")
    (pth / "zmq").mkdir()
    (pth / "zmq" / "__init__.py").write_text("HERE = 1")
    (tmp_path / "more.pth").write_text(f"{pth}\n")
    ask = (
        f"import site, sys; sys.path[:0] = [{str(ROOT)!r}]; site.addsitedir({str(tmp_path)!r})\n"
        "from nodemgr.edge.host import module_path; print(*module_path.module_path(), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", ask], cwd=folder, text=True, capture_output=True,
        env={"PYTHONPATH": str(paths)}, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert found[0] == str(ROOT)
    assert {str(paths), str(pth)} <= set(found)
    assert str(folder) not in found


def test_a_process_of_ours_gets_the_standard_library_and_the_named_directories_alone() -> None:
    command = module_path.command("no.module")
    command[4] = "import sys; print(*sys.path, sep='\\n'); print(*sys.argv[1:], sep='\\n')"
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert "site-packages" not in "".join(done.stdout.splitlines()[:-2])
    assert "" not in done.stdout.splitlines()
