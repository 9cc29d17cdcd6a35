"""`import nodemgr_client`: in an environment, outside of one, and from its own wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S

from .conftest import ROOT, World, interpreters
from .test_progress import reports

USE = """
import sys
before = set(sys.modules)
import nodemgr_client
assert "client_plugin" not in sys.modules
nodemgr_client.progress(3, 10)
"""


@pytest.mark.parametrize("python", interpreters())
def test_progress_is_reported_in_an_environment(world: World, python: str) -> None:
    child = world.run(USE, python=python)
    assert (child.returncode, child.stderr) == (0, "")
    assert reports(child.log) == ["progress 3 10"]


@pytest.mark.parametrize("off", [{"NODEMGR_OFF": "1"}, {"NODEMGR_ENV_DIR": "/nonexistent"}])
def test_it_is_harmless_outside_of_one(world: World, off: dict[str, str]) -> None:
    world.environ |= off
    child = world.run(USE)
    assert (child.returncode, child.stderr, child.log) == (0, "", [])


def test_its_wheel_holds_the_module_and_nothing_that_runs_at_a_start(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "_lib", "_bin")
    for name in ("sitecustomize", "client_plugin", "wheels"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=left_out)
    offline = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    project = tmp_path / "source" / "wheels" / "nodemgr_client"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *offline, "-w", str(tmp_path), str(project)],
        check=True,
        timeout=WAIT_LIMIT_S,
    )
    [wheel] = tmp_path.glob("nodemgr_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "sitecustomize.py" not in archive.namelist()
        archive.extractall(tmp_path / "site")
    assert (tmp_path / "site" / "nodemgr_client" / "_client_plugin" / "prediction").is_dir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})"
         + USE + "nodemgr_client._module('prediction.watch')"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
