"""The client is loaded in users' processes under a name of its own: nothing there needs the other.

`client_plugin` cannot be imported there, or is a module of the user's.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[2] / "client_plugin"
OWN_PROCESSES = ("verbs", "ways", "elastic", "bin")
"""Rooms of processes of our own, which import `client_plugin` by its name."""
LOAD = """
import sys, importlib.util
sys.modules["client_plugin"] = None
spec = importlib.util.spec_from_file_location("sitecustomize_ours", sys.argv[1])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
for name in sys.argv[2:]:
    try:
        ours.load_hook(name)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] in ("client_plugin", ours.PACKAGE):
            raise
"""


def imports(module: Path) -> Iterator[str]:
    """The absolute names that a module imports anywhere, in a function too."""
    package = ["client_plugin", *module.relative_to(CLIENT).parts[:-1]]
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            base += [node.module] if node.module else []
            yield from (f".{'.'.join([*base, alias.name])}" for alias in node.names)
            yield f".{'.'.join(base)}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def modules_of_users_processes() -> set[Path]:
    """The rooms of users' processes, and all that a module of these imports relatively."""
    found: set[Path] = set()
    open_ones = [
        path
        for path in CLIENT.rglob("*.py")
        if path.relative_to(CLIENT).parts[0] not in OWN_PROCESSES
    ]
    while open_ones:
        module = open_ones.pop()
        if module in found:
            continue
        found.add(module)
        open_ones += [each / "__init__.py" for each in module.parents if CLIENT in each.parents]
        for name in imports(module):
            path = CLIENT.joinpath(*name.split(".")[2:]) if name.startswith(".") else None
            if path is not None:
                open_ones += [
                    each
                    for each in (path.with_suffix(".py"), path / "__init__.py")
                    if each.is_file()
                ]
    return found


def test_no_module_of_users_processes_imports_the_client_by_its_installed_name() -> None:
    modules = modules_of_users_processes()
    assert CLIENT / "units.py" in modules  # by a function of %gpu
    wrong = {
        str(module.relative_to(CLIENT)): name
        for module in modules
        for name in imports(module)
        if name.split(".")[0] == "client_plugin"
    }
    assert not wrong


def test_each_of_them_loads_under_its_name_in_users_processes() -> None:
    names = sorted(
        ".".join(module.relative_to(CLIENT).with_suffix("").parts)
        for module in modules_of_users_processes()
        if module.name not in ("__init__.py", "__main__.py")
    )
    sitecustomize = CLIENT.parent / "sitecustomize" / "sitecustomize.py"
    child = subprocess.run(
        [sys.executable, "-S", "-c", LOAD, str(sitecustomize), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
