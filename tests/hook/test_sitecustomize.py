"""sitecustomize.py in child interpreters: the module that it shadows runs as if alone.

Without an environment nothing happens.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S

from .conftest import World, found, interpreters, make_payload

SHOW = """
import json, sys
print(json.dumps({
    "finders": [type(finder).__name__ for finder in sys.meta_path if getattr(finder, "nodemgr",
        False)],
    "file": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "ran": getattr(sys.modules.get("sitecustomize"), "RAN", None),
    "ours": sorted(name for name in sys.modules if "nodemgr" in name),
    "path": sys.path,
}))
"""


def shadowed(world: World, source: str, name: str = "theirs") -> Path:
    folder = world.directory / name
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source)
    world.path.append(str(folder))
    return folder


@pytest.mark.parametrize("python", interpreters())
def test_the_hook_stands_in_every_python_and_loads_nothing_before_a_framework(
    world: World, python: str
) -> None:
    child = world.run(SHOW, python=python)
    assert child.stderr == ""
    assert child.seen["finders"] == ["Finder"]
    assert child.seen["ours"] == []
    assert str(world.payload) not in child.seen["path"]


@pytest.mark.parametrize("python", interpreters())
def test_a_shadowed_sitecustomize_runs_and_is_the_module_that_others_see(
    world: World, python: str
) -> None:
    folder = shadowed(world, "RAN = 'yes'\n")
    child = world.run(SHOW, python=python)
    assert (child.seen["ran"], child.seen["file"]) == ("yes", str(folder / "sitecustomize.py"))
    assert child.seen["finders"] == ["Finder"]


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('theirs')",
        "raise ImportError('no such thing', name='sitecustomize')",
        "import a_module_that_is_not_there",
        "raise SystemExit(7)",
        "syntax error",
    ],
)
def test_a_shadowed_sitecustomize_that_raises_has_the_effect_it_has_alone(
    world: World, source: str
) -> None:
    folder = shadowed(world, source)
    with_us = world.run(SHOW)
    alone_environ = {**world.child_environ(), "PYTHONPATH": str(folder)}
    alone = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=alone_environ,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    if alone.returncode == 0:
        assert (with_us.returncode, with_us.stderr) == (0, alone.stderr)
        assert with_us.seen["finders"] == ["Finder"]
    else:  # the traceback of a fatal one names one more file
        assert (with_us.returncode, with_us.stderr.splitlines()[-1]) == (
            alone.returncode,
            alone.stderr.splitlines()[-1],
        )


def test_the_user_may_ask_for_the_traceback_of_his_own(world: World) -> None:
    shadowed(world, "def theirs():\n    raise ValueError('theirs')\ntheirs()\n")
    world.environ["PYTHONVERBOSE"] = "1"
    assert "in theirs" in world.run("pass").stderr


def test_a_directory_without_init_is_not_run(world: World) -> None:
    (world.directory / "data" / "sitecustomize").mkdir(parents=True)
    world.path.append(str(world.directory / "data"))
    shadowed(world, "RAN = 'the real one'\n")
    assert world.run(SHOW).seen["ran"] == "the real one"


def test_a_package_may_be_shadowed_too(world: World) -> None:
    (world.directory / "packaged" / "sitecustomize").mkdir(parents=True)
    (world.directory / "packaged" / "sitecustomize" / "__init__.py").write_text(
        "RAN = 'a package'\n"
    )
    world.path.append(str(world.directory / "packaged"))
    assert world.run(SHOW).seen["ran"] == "a package"


def test_two_installations_do_not_call_each_other_in_a_circle(world: World) -> None:
    make_payload(world.directory / "Y")
    world.path.append(str(world.directory / "Y" / "sitecustomize"))
    world.path.append(str(world.payload / "sitecustomize"))
    shadowed(world, "RAN = 'at the end of the chain'\n")
    child = world.run(SHOW)
    assert child.stderr == ""
    assert child.seen["ran"] == "at the end of the chain"
    assert child.seen["finders"] == ["Finder"]


@pytest.mark.parametrize("python", found("2.7", "3.5", "3.6", "3.7"))
def test_a_python_older_than_the_hook_runs_what_is_shadowed_and_no_more(
    world: World, python: str
) -> None:
    world.path.append(str(world.directory / "nothing here"))
    assert world.run("pass", python=python).stderr == ""
    shadowed(world, "RAN = 'in an old Python'\n")
    child = world.run(SHOW, python=python)
    assert child.stderr == ""
    assert (child.seen["ran"], child.seen["finders"]) == ("in an old Python", [])


def test_a_python_taken_for_too_old_runs_what_is_shadowed(world: World) -> None:
    """The same where no old Python is at hand."""
    shadowed(world, "RAN = 'in an old Python'\n")
    ours = world.payload / "sitecustomize" / "sitecustomize.py"
    ours.write_text(ours.read_text().replace("(3, 8)", "(9, 9)"))
    child = world.run(SHOW)
    assert child.stderr == ""
    assert (child.seen["ran"], child.seen["finders"]) == ("in an old Python", [])


@pytest.mark.parametrize(
    "change",
    [{"NODEMGR_OFF": "1"}, {"NODEMGR_ENV_DIR": "/nonexistent"}],
    ids=["opted out", "unmanaged"],
)
def test_nothing_happens_where_it_should_not(world: World, change: dict[str, str]) -> None:
    world.environ.update(change)
    shadowed(world, "RAN = 'yes'\n")
    child = world.run(SHOW)
    assert (child.seen["finders"], child.seen["ran"]) == ([], "yes")


def test_a_settings_file_that_may_not_be_read_means_unmanaged(world: World) -> None:
    (world.directory / "env" / "client.conf").unlink()
    (world.directory / "env" / "client.conf").symlink_to("/nonexistent")
    assert world.run(SHOW).seen["finders"] == []


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_isolated_python_never_hears_of_us(world: World, flag: str) -> None:
    assert world.run(SHOW, flag).seen["finders"] == []


def test_a_framework_that_was_imported_before_the_hook_is_served(world: World, package) -> None:
    package("cupy")
    shadowed(world, "import cupy\n")
    child = world.run("import os, json; print(json.dumps(len(os.environ['NODEMGR_TASK'])))")
    assert child.seen == 32


def test_a_hook_that_cannot_be_loaded_is_one_line_and_the_import_succeeds(
    world: World, package
) -> None:
    package("torch", "VALUE = 1")
    package("jax", "VALUE = 2")
    (world.payload / "client_plugin" / "loading.py").write_text("raise OSError('half a payload')\n")
    child = world.run("import torch, jax, json; print(json.dumps([torch.VALUE, jax.VALUE]))")
    assert child.seen == [1, 2]
    assert (
        child.stderr
        == "nodemgr: the import hook failed (OSError: half a payload); imports go on without it\n"
    )


def test_the_users_own_client_plugin_stays_his(world: World, package) -> None:
    package("client_plugin", "OWN = True")
    package("torch")
    child = world.run("import torch, client_plugin, json; print(json.dumps(client_plugin.OWN))")
    assert child.seen is True
    assert os.path.exists(world.payload / "client_plugin")


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
one = interpreters.create()
print(interpreters.run_string(one, "import torch; print(torch.__name__)"))
interpreters.destroy(one)
"""


@pytest.mark.parametrize("python", interpreters())
def test_a_subinterpreter_imports_a_framework_without_a_line(
    world: World, package: Callable[..., Path], python: str
) -> None:
    """From Python 3.12 on it cannot load _ctypes: the shim serves it alone."""
    package("torch", "")
    child = world.run(SUBINTERPRETER, python=python)
    assert (child.returncode, child.stderr) == (0, "")
    assert "torch" in child.stdout
