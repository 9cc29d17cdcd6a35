"""`python -m deploy.debian [SUITE…]`: a .deb of this checkout for each suite of Debian.

The package has a virtual environment of its own with the wheels that requirements.txt pins, the
units, the settings and the shells' completions. It is put together in a fresh root of its suite,
by the Python of that suite. Needs root, mmdebstrap and dpkg-deb.

Knows: the files of a package. Must not know: what the project's build makes.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUITES = {"bookworm": ("12", "3.11"), "trixie": ("13", "3.13")}
"""Debian's number and the Python of each suite."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PLACE = "usr/lib/nodemgr"
SCRIPTS = ("postinst", "prerm", "postrm")
PLATFORMS = ("manylinux_2_28", "manylinux2014", "manylinux_2_17")


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def pip(*words: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--quiet", *words)


def wheel_of_checkout(directory: Path) -> Path:
    pip("wheel", "--no-deps", "--wheel-dir", directory, ROOT)
    (wheel,) = directory.glob("nodemgr-*.whl")
    return wheel


def installed(root: Path, wheel: Path, python: str) -> None:
    """The virtual environment below `root`, without pip."""
    wheels = root / "wheels"
    wheels.mkdir()
    platforms = [f"--platform={name}_{platform.machine()}" for name in PLATFORMS]
    choice = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", *platforms]
    pip("download", "--dest", wheels, *choice, "--requirement", HERE / "requirements.txt")
    shutil.copy(wheel, wheels)
    variables = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
    inside = ["chroot", root, *variables]
    program = f"/{PLACE}/bin/python3"
    run(*inside, "python3", "-m", "venv", f"/{PLACE}")
    offline = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    run(*inside, program, *offline, *(f"/wheels/{path.name}" for path in wheels.iterdir()))
    run(*inside, program, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    (root / "stage").mkdir()
    shutil.copy(HERE / "stage.py", root / "stage.py")
    run(*inside, program, "-I", "/stage.py", "/stage")


def control(stage: Path, version: str, python: str) -> str:
    """The package's own description."""
    size = subprocess.run(["du", "-sk", stage], check=True, capture_output=True, text=True)
    major, minor = python.split(".")
    fields = {
        "VERSION": version,
        "ARCHITECTURE": ARCHITECTURES[platform.machine()],
        "KIB": size.stdout.split()[0],
        "PYTHON": python,
        "NEXT": f"{major}.{int(minor) + 1}",
    }
    text = (HERE / "control").read_text()
    for name, value in fields.items():
        text = text.replace(f"@{name}@", value)
    return text


def package(suite: str, wheel: Path, revision: str, output: Path) -> Path:
    """Builds the .deb and returns its path."""
    number, python = SUITES[suite]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    version = f"{version}-{revision}+deb{number}"
    directory = tempfile.mkdtemp(prefix="root-", dir=output)
    try:
        root = Path(directory, "root")
        run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3-venv", suite, root)
        installed(root, wheel, python)
        stage = root / "stage"
        (stage / PLACE).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / PLACE, stage / PLACE)
        (stage / "usr/bin").mkdir()
        (stage / "usr/bin/nodemgr").symlink_to(f"../../{PLACE}/bin/nodemgr")
        (stage / "DEBIAN").mkdir()
        for name in SCRIPTS:
            shutil.copy(HERE / name, stage / "DEBIAN")
            (stage / "DEBIAN" / name).chmod(0o755)
        (stage / "DEBIAN/conffiles").write_text("/etc/nodemgr/config.toml\n")
        (stage / "DEBIAN/control").write_text(control(stage, version, python))
        stage.chmod(0o755)
        deb = output / f"nodemgr_{version}_{ARCHITECTURES[platform.machine()]}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", stage, deb)
    finally:
        # mmdebstrap may have left this machine's /proc mounted in it
        run("rm", "-rf", "--one-file-system", directory)
    return deb


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.debian", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="default: dist")
    parser.add_argument("--revision", default="1", help="of the package; default: 1")
    parser.add_argument("--wheel", type=Path, help="default: this checkout's, built first")
    said = parser.parse_args()
    if unknown := set(said.suites) - SUITES.keys():
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    if os.geteuid() != 0:
        parser.error("only root makes a root: run it as root")
    if missing := [name for name in ("mmdebstrap", "dpkg-deb") if shutil.which(name) is None]:
        parser.error(f"{', '.join(missing)} missing: apt-get install mmdebstrap dpkg")
    said.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        wheel = said.wheel or wheel_of_checkout(Path(directory))
        for suite in said.suites or SUITES:
            print(package(suite, wheel, said.revision, said.output.resolve()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
