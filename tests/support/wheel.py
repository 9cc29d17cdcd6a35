"""The wheel of this checkout, and an installation of it: for tests of what users have.

Knows: pip, venv. Must not know: any one test.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "nodemgr",
    "client_plugin",
    "sitecustomize",
    "csrc",
    "examples",
    "MANIFEST.in",
    "pyproject.toml",
    "README.md",
)
LEFT_OUT = shutil.ignore_patterns(
    "*.so", "*.so.*", "_bin", "_sim", "_lib", "__pycache__", "messages.h"
)


def copy_source(source: Path) -> Path:
    """Without anything built."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=LEFT_OUT)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    return source


def _build(source: Path, output: Path) -> None:
    """In a checkout in which an earlier version was built, with a module that is no more."""
    kind = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    earlier = copy_source(source) / "build" / kind / "client_plugin"
    earlier.mkdir(parents=True)
    (earlier / "gone.py").touch()
    offline = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "-w", str(output), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the first worker of the session that needs it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    output = shared / "wheel"
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            part = tmp_path_factory.mktemp("part")
            _build(tmp_path_factory.mktemp("source"), part)
            part.rename(output)
    (built,) = output.iterdir()
    return built


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel and with a foreign client_plugin and sitecustomize."""

    directory: Path
    added: frozenset[str]
    """Names in site-packages that were not there before the wheel."""

    def run(
        self, program: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A program of its bin directory, outside the checkout."""
        kept = {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}
        return subprocess.run(
            [str(self.directory / "bin" / program), *arguments],
            env={
                "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
                "HOME": str(self.directory),
                **kept,
                **variables,
            },
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    directory = tmp_path_factory.mktemp("an installation")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    # The dependencies are this interpreter's; .pth files there do not count.
    paths = [path for path in sys.path if path.endswith("-packages")]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    (site / "client_plugin.py").write_text("OWNER = 'somebody else'\n")
    (site / "sitecustomize.py").write_text("OWNER = 'somebody else'\n")
    before = set(os.listdir(site))
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return Installation(directory, frozenset(os.listdir(site)) - before - {"__pycache__"})
