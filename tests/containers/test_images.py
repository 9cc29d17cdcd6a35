"""Images: other Pythons are served, a musl image goes on without us and is told so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.containers.podman import Containers
from tests.support.manager import Manager

HERE = Path(__file__).parent
PYTHONS = sorted(str(path) for version in range(8, 14) for path in Path.home().glob(f".pyenv/versions/3.{version}.*/bin/python3"))
LOOK = """
import ctypes, sys
hooked = any(getattr(finder, "nodemgr", False) for finder in sys.meta_path)
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
found = driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))
print(sys.version.split()[0], "hook" if hooked else "no hook", *found, count.value)
"""


@pytest.mark.skipif(not PYTHONS, reason="no other Pythons here (~/.pyenv/versions)")
def test_every_python_from_3_8_on_is_served(node: Manager, containers: Containers) -> None:
    """With the hook, and with -I by the shim alone."""
    node.quota("alice", 1)
    box = containers.start("alice")
    script = "\n".join(f"{python} -c '{LOOK}'; {python} -I -c '{LOOK}'" for python in PYTHONS)
    code, said = containers.execute(box, "sh", "-c", script)
    assert code == 0, said
    versions = [Path(python).parents[1].name for python in PYTHONS]
    assert said.splitlines() == [line for version in versions for line in (f"{version} hook 0 0 1", f"{version} no hook 0 0 1")]


@pytest.fixture
def musl_image(tmp_path: Path) -> str:
    """A root directory with musl and one program."""
    compiler, linker = shutil.which("musl-gcc"), Path("/lib/ld-musl-x86_64.so.1")
    if compiler is None or not linker.exists():
        pytest.skip("musl-gcc is not installed (apt-get install musl-tools)")
    for name in ("bin", "lib", "dev", "proc", "sys", "etc", "run", "tmp"):
        (tmp_path / name).mkdir()
    shutil.copy(linker.resolve(), tmp_path / "lib" / linker.name)
    subprocess.run([compiler, "-o", tmp_path / "bin" / "echo", HERE / "echo.c"], check=True)
    return f"{tmp_path}:O"


@pytest.mark.parametrize("options", [(), ("--user=4321",), ("--tty",)], ids=["root", "user", "terminal"])
def test_a_musl_image_goes_on_without_us_and_is_told(
    node: Manager, containers: Containers, musl_image: str, options: tuple[str, ...]
) -> None:
    node.quota("alice", 1)
    program = containers.run_beside("alice", "/bin/echo", options=options, rootfs=musl_image)
    for text in ("nodemgr: this image has musl", "up, the driver does not load"):
        if not any(text in line for line in program.said):
            program.line_with(text)
    program.write("\x04" if "--tty" in options else "")
    assert program.end()[0] == 0
