"""Images: other Pythons or none, any user; a musl image runs without the client.

One line on its stderr says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.containers.podman import Containers
from tests.session import TMP
from tests.support.manager import HOLD, Manager

HERE = Path(__file__).parent
GIB = 1 << 30
debian = pytest.mark.skipif(
    not sysconfig.get_config_var("MULTIARCH"), reason="made of files where Debian has them"
)
PYTHONS = sorted(
    str(path)
    for version in range(8, 14)
    for path in Path.home().glob(f".pyenv/versions/3.{version}.*/bin/python3")
)
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
    assert said.splitlines() == [
        line
        for version in versions
        for line in (f"{version} hook 0 0 1", f"{version} no hook 0 0 1")
    ]


@pytest.fixture
def bare_image() -> Iterator[Path]:
    """A root directory with glibc, a shell and one program, open to any user."""
    with tempfile.TemporaryDirectory(prefix="nmi", dir=TMP) as directory:
        yield fill(Path(directory))


def fill(root: Path) -> Path:
    root.chmod(0o755)
    machine = sysconfig.get_config_var("MULTIARCH")
    linker = linker_of(HOLD)
    for name in (
        "bin",
        "dev",
        "proc",
        "sys",
        "etc",
        "run",
        "tmp",
        f"lib/{machine}",
        str(linker.parent).lstrip("/"),
    ):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(linker.resolve(), root / str(linker).lstrip("/"))
    for name in ("libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1"):
        shutil.copy(Path("/lib", machine, name).resolve(), root / "lib" / machine / name)
    shutil.copy(Path("/bin/sh").resolve(), root / "bin" / "sh")
    shutil.copy(HOLD, root / "bin" / "hold")
    return root


def linker_of(program: Path) -> Path:
    """The dynamic linker that a program names (PT_INTERP).

    A machine may have several, e.g. that of libc6-i386.
    """
    with program.open("rb") as file:
        return Path(
            next(part.get_interp_name() for part in ELFFile(file).iter_segments("PT_INTERP"))
        )


@debian
def test_an_image_needs_neither_python_nor_our_users(
    node: Manager, containers: Containers, bare_image: Path
) -> None:
    """In a user namespace of its own, too: its root has no rights here."""
    node.quota("alice", 1, memory_bytes=4 * GIB)
    for path in (bare_image, *bare_image.rglob("*")):
        os.chown(path, 300_000, 300_000)
    mapped = ["--uidmap=0:300000:65536", "--gidmap=0:300000:65536"]
    code, out, said = containers.run(
        "alice", "/bin/hold", "-s", "0", "-b", str(GIB), options=mapped, rootfs=str(bare_image)
    )
    assert code == 0, said
    assert json.loads(out)["total_bytes"] == 4 * GIB
    code, _, said = containers.run(
        "alice", "/bin/hold", "-s", "0", "-b", str(5 * GIB), options=mapped, rootfs=str(bare_image)
    )
    assert code == 1
    assert "by quota" in said
    code, _, said = containers.run(
        "alice", "/bin/sh", "-c", "nodemgr status", rootfs=f"{bare_image}:O"
    )
    assert code == 69
    assert said.startswith("nodemgr: these verbs need Python 3.8 or newer")


@debian
def test_a_container_without_any_right_is_served(
    node: Manager, containers: Containers, bare_image: Path
) -> None:
    node.quota("alice", 1)
    options = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--user=5555"]
    code, _, said = containers.run(
        "alice", "/bin/hold", "-s", "0", options=options, rootfs=f"{bare_image}:O"
    )
    assert code == 0, said


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


@pytest.mark.parametrize(
    "options", [(), ("--user=4321",), ("--tty",)], ids=["root", "user", "terminal"]
)
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
