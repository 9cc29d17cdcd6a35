"""The file that the first word of a command means, as a shell finds it.

Knows: PATH, the exit codes of a shell. Must not know: what the program is good for. (shutil has this too, and brings every archive
format along.)
"""

from __future__ import annotations

import os

from client_plugin.ways.faults import Exit, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def which(name: str, path: Optional[str] = None, mode: int = os.F_OK | os.X_OK) -> Optional[str]:
    """The first file of that name in `path` (not said: PATH) that allows `mode`."""
    for directory in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        found = os.path.join(directory, name)
        if os.access(found, mode) and not os.path.isdir(found):
            return found
    return None


def program_of(name: str) -> str:
    """Raises Fault."""
    if os.sep in name:
        if not os.path.exists(name):
            raise Fault(f"{name}: not found", Exit.NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise Fault(f"{name}: not executable", Exit.NOT_EXECUTABLE)
        return name
    found = which(name) if name else None
    if found:
        return found
    if name and which(name, mode=os.F_OK):
        raise Fault(f"{name}: not executable", Exit.NOT_EXECUTABLE)
    raise Fault(f"{name}: not found in PATH", Exit.NOT_FOUND)
