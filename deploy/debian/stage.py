"""Runs in the root of a package by its own interpreter: writes what systemd and shells read.

usage: stage.py STAGE, the directory that becomes the package.
"""

import subprocess
import sys
from pathlib import Path

from nodemgr.edge.setup import installation

PROGRAM = "/usr/bin/nodemgr"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/nodemgr",
    "zsh": "usr/share/zsh/vendor-completions/_nodemgr",
    "fish": "usr/share/fish/vendor_completions.d/nodemgr.fish",
}
GROUPS = (installation.GROUP, installation.PAGE_GROUP)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main(stage: Path) -> None:
    machine = installation.Machine(stage, (PROGRAM,))
    for unit in installation.UNIT_FILES:
        write(stage / "usr/lib/systemd/system" / unit.path.name, unit.content(machine))
    write(stage / "etc/nodemgr/config.toml", installation.config_template(machine))
    lines = "".join(f"g {group} -\n" for group in GROUPS)
    write(stage / "usr/lib/sysusers.d/nodemgr.conf", lines)
    for shell, place in COMPLETIONS.items():
        # not `nodemgr` itself, which looks for itself in /proc: this root has none
        program = Path(sys.executable).with_name("nodemgr-python")
        command = [sys.executable, "-I", "-S", str(program), "completion", shell]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        write(stage / place, made.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
