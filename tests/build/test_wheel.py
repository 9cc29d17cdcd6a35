"""The wheel holds all that a user's machine needs, where each part looks for the others."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from csrc.build import SHIM_DIRS
from tests.support.wheel import Installation, copy_source, installation, wheel

ROOT = Path(__file__).resolve().parents[2]
__all__ = ["installation", "wheel"]
pytestmark = pytest.mark.slow  # all C is compiled anew
NEEDED = {
    "nodemgr/_native.abi3.so", "nodemgr/cli/__init__.py", "nodemgr/core/__init__.py",
    "nodemgr/edge/__init__.py",
    "nodemgr/_service/nodemgr.service", "nodemgr/_service/nodemgr-jobs.service",
    "nodemgr/_bin/nodemgr-supervisor",
    "nodemgr/_sim/libcuda.so.1", "nodemgr/_sim/libnvidia-ml.so.1", "nodemgr/_sim/hold",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "nodemgr").rglob("*.py")),
    "nodemgr/_client/sitecustomize/sitecustomize.py",
    *(f"nodemgr/_client/{path.relative_to(ROOT)}"
        for path in (ROOT / "client_plugin").rglob("*.py")),
    "nodemgr/_client/client_plugin/_lib/libnodemgr.so",
    *(f"nodemgr/_client/client_plugin/_lib/{directory}/libnodemgr.so" for directory in SHIM_DIRS),
    "nodemgr/_client/client_plugin/bin/nodemgr",
    "nodemgr/_client/client_plugin/_bin/nodemgr-runner",
    *(f"nodemgr-0.1.0.data/scripts/{name}" for name in ("nodemgr", "nodemgr-python")),
}  # fmt: skip


def test_a_source_distribution_has_all_that_is_built_and_nothing_that_was(tmp_path: Path) -> None:
    """`python -m build` makes its wheel of one."""
    source = copy_source(tmp_path / "source")
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    (source / "client_plugin" / "_lib").mkdir()
    (source / "client_plugin" / "_lib" / "libnodemgr.so").touch()
    program = "import sys; from csrc import backend; print(backend.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-B", "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    with tarfile.open(tmp_path / done.stdout.splitlines()[-1]) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in files if name.startswith("nodemgr.egg-info/")}
    assert files - made - {"PKG-INFO", "setup.cfg"} == wanted


def test_what_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= NEEDED
    assert {name.split("/")[0] for name in names} == {
        "nodemgr", "nodemgr-0.1.0.data", "nodemgr-0.1.0.dist-info"
    }  # fmt: skip
    assert "nodemgr/_client/sitecustomize/__init__.py" not in names
    assert not [name for name in names if name.endswith((".c", ".h", ".def"))]


def test_what_others_run_is_executable(wheel: Path) -> None:
    for name in (
        "nodemgr/_client/client_plugin/bin/nodemgr",
        "nodemgr/_client/client_plugin/_bin/nodemgr-runner",
        "nodemgr/_bin/nodemgr-supervisor",
        "nodemgr-0.1.0.data/scripts/nodemgr",
    ):
        assert zipfile.ZipFile(wheel).getinfo(name).external_attr >> 16 & 0o111


OLDEST_GLIBC = (2, 28)
"""Debian 10, RHEL 8."""


def versions_needed(data: bytes) -> set[tuple[int, int]]:
    """The versions of glibc whose symbols an ELF file has."""
    found = set()
    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                names = [version.name for version in versions]
                numbers = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
                found |= {(int(each[1]), int(each[2])) for each in numbers if each is not None}
    return found


def test_its_tag_names_the_oldest_glibc_that_loads_all_of_it(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    needed = {
        name: versions_needed(data)
        for name in archive.namelist()
        if (data := archive.read(name)).startswith(b"\x7fELF")
    }
    newest = {name: max(versions) for name, versions in needed.items() if versions}
    assert len(newest) >= len([name for name in NEEDED if re.search(r"\.so|_bin/", name)])
    assert {name: version for name, version in newest.items() if version > OLDEST_GLIBC} == {}
    major, minor = max(newest.values())
    tag = f"manylinux_{major}_{minor}_{platform.machine()}"
    assert wheel.name == f"nodemgr-0.1.0-cp311-abi3-{tag}.whl"
    assert f"Tag: cp311-abi3-{tag}" in archive.read("nodemgr-0.1.0.dist-info/WHEEL").decode()


def test_no_path_of_the_building_machine_is_in_it(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        assert str(ROOT).encode() not in archive.read(name), name


def test_unpacked_it_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys, nodemgr._native as n; print(n.__file__);"
        " print(n.lib.nm_wire_verb_direction(1))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [str(tmp_path / "nodemgr" / "_native.abi3.so"), "1"]


def test_an_installation_adds_one_package(installation: Installation) -> None:
    assert installation.added == {"nodemgr", "nodemgr-0.1.0.dist-info"}


def test_packages_of_the_clients_names_are_not_shadowed(installation: Installation) -> None:
    program = "import client_plugin, sitecustomize; print(client_plugin.OWNER, sitecustomize.OWNER)"
    result = installation.run("python", "-c", program)
    assert (result.stdout, result.stderr) == ("somebody else somebody else\n", "")


@pytest.mark.parametrize("variable", ["NOTHING", "PYTHONPATH"])
def test_the_command_line_takes_its_own_client(installation: Installation, variable: str) -> None:
    """Also where another package of that name comes first on the path."""
    other = installation.directory / "other"
    (other / "client_plugin").mkdir(parents=True, exist_ok=True)
    (other / "client_plugin" / "__init__.py").write_text("raise SystemExit('a stranger')\n")
    result = installation.run("nodemgr", "--version", **{variable: str(other)})
    assert (result.returncode, result.stderr) == (0, "")


POISON = ("struct", "signal", "json", "sitecustomize", "usercustomize", "nodemgr", "click", "zmq")


@pytest.fixture
def poisoned(tmp_path: Path) -> dict[str, str]:
    """Variables of a user, and a working directory, that no process of ours may take."""
    for name in POISON:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')\n")
    return {"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path), "PYTHONVERBOSE": "1"}


def test_the_command_needs_no_variable_of_the_user(
    installation: Installation, poisoned: dict[str, str]
) -> None:
    """Its packages come by a .pth file, in a directory with a blank in its name."""
    for words in (["--version"], ["run", "--help"], ["placement", "--help"]):
        result = installation.run("nodemgr", *words, **poisoned)
        assert (result.returncode, result.stderr) == (0, ""), result


def test_a_user_s_installation_finds_packages_that_come_by_pythonpath(
    wheel: Path, tmp_path: Path, poisoned: dict[str, str]
) -> None:
    base = tmp_path / "base"
    pip = [sys.executable, "-m", "pip", "--python", sys._base_executable, "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--user", "--break-system-packages", str(wheel)]
    variables = {**os.environ, "PYTHONUSERBASE": str(base)}
    installed = subprocess.run(pip, env=variables, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"no installation for a user here: {installed.stderr.splitlines()[-1]}")
    packages = [path for path in sys.path if path.endswith("-packages")]
    poisoned["PYTHONPATH"] = ":".join([poisoned["PYTHONPATH"], *packages])
    result = subprocess.run(
        [base / "bin" / "nodemgr", "run", "--help"], env={**variables, **poisoned}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, ""), result


def test_importing_it_leaves_the_path_as_it_was(installation: Installation) -> None:
    program = (
        "import sys; before = list(sys.path); import nodemgr, client_plugin.ways.locations as ways;"
        " print(sys.path == before, ways.payload_dir() == nodemgr.CLIENT_DIR)"
    )
    result = installation.run("python", "-c", program)
    assert (result.stdout, result.stderr) == ("True True\n", "")


def test_beside_another_client_plugin_in_one_process_it_says_so(installation: Installation) -> None:
    result = installation.run("python", "-c", "import client_plugin, nodemgr")
    assert re.fullmatch(
        r"ImportError: nodemgr needs its own client_plugin, and .*/client_plugin\.py is imported"
        r" already; run nodemgr as a program of its own",
        result.stderr.splitlines()[-1],
    )


def test_the_demo_runs_from_the_installation(installation: Installation) -> None:
    """Through its shim, its import hook, its simulator and its examples."""
    result = installation.run("nodemgr", "demo")
    assert (result.returncode, result.stderr) == (0, "")
    assert "route: LD_PRELOAD -> sitecustomize -> import hook" in result.stdout
    assert result.stdout.splitlines()[-1] == "All of it happened."


PLACE = """
import pathlib, sys
from nodemgr import paths
from nodemgr.edge.containers import payload
payload.place(paths.payload_dir(), pathlib.Path(sys.argv[1]))
"""


def test_containers_get_the_client_of_the_installation(
    installation: Installation, tmp_path: Path
) -> None:
    result = installation.run("python", "-c", PLACE, str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    client = tmp_path / "client" / "current"
    assert set(os.listdir(client)) == {"client_plugin", "sitecustomize"}
    assert (client / "client_plugin" / "_lib" / "libnodemgr.so").exists()
    result = installation.run(str(client / "client_plugin" / "bin" / "nodemgr"), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "queue" in result.stdout
