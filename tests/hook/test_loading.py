"""The hook leaves a framework's import to its own finder and loader, with all attributes."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import World, interpreters

Make = Callable[..., Path]


@pytest.mark.parametrize("python", interpreters())
def test_a_loaded_framework_carries_its_own_spec_and_loader(
    world: World, package: Make, python: str
) -> None:
    package("cupy", "LOADER = type(__loader__).__name__\nSPEC = type(__spec__.loader).__name__")
    child = world.run(
        """
        import cupy, json
        print(json.dumps([cupy.LOADER, cupy.SPEC, type(cupy.__loader__).__name__,
            cupy.__spec__.loader is cupy.__loader__]))
        """,
        python=python,
    )
    assert child.seen == ["SourceFileLoader", "SourceFileLoader", "SourceFileLoader", True]
    assert child.stderr == ""


@pytest.mark.parametrize("python", interpreters())
def test_finding_is_not_loading(world: World, package: Make, python: str) -> None:
    world.script["settings"]["acquire"] = "import"
    package("cupy", "raise SystemError('loaded')")
    child = world.run(
        """
        import importlib.util, pkgutil, os, sys, json
        spec = importlib.util.find_spec("cupy")
        found = [module.name for module in pkgutil.iter_modules() if module.name == "cupy"]
        print(json.dumps([spec.name, spec.origin[-16:], spec.loader.is_package("cupy"),
            spec.loader.get_filename("cupy")[-16:],
                          found, "cupy" in sys.modules, "NODEMGR_TASK" in os.environ]))
        """,
        python=python,
    )
    assert child.seen == [
        "cupy",
        "cupy/__init__.py",
        True,
        "cupy/__init__.py",
        ["cupy"],
        False,
        False,
    ]
    assert child.log == []


def test_a_spec_that_was_found_can_be_loaded_by_hand(world: World, package: Make) -> None:
    package("cupy", "VALUE = 3")
    child = world.run("""
        import importlib.util, json, os
        spec = importlib.util.find_spec("cupy")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(json.dumps([module.VALUE, type(module.__loader__).__name__,
            "NODEMGR_TASK" in os.environ]))
        """)
    assert child.seen == [3, "SourceFileLoader", True]


def test_a_lazy_loader_loads_lazily(world: World, package: Make) -> None:
    package("cupy", "VALUE = 4")
    child = world.run("""
        import importlib.util, json, os, sys
        spec = importlib.util.find_spec("cupy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules["cupy"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        before = "NODEMGR_TASK" in os.environ
        print(json.dumps([before, module.VALUE, "NODEMGR_TASK" in os.environ]))
        """)
    assert child.seen == [False, 4, True]


def test_a_submodule_first_loads_its_framework_and_is_itself_untouched(
    world: World, package: Make
) -> None:
    package("torch", "", version="LOADER = type(__spec__.loader).__name__\n__version__ = '9'")
    child = world.run(
        "import torch.version, json, os; print(json.dumps([torch.version.LOADER, 'NODEMGR_TASK' in"
        " os.environ]))"
    )
    assert child.seen == ["SourceFileLoader", True]


@pytest.mark.parametrize("python", interpreters())
def test_reload(world: World, package: Make, python: str) -> None:
    package("cupy", "import builtins\nbuiltins.LOADS = getattr(builtins, 'LOADS', 0) + 1")
    child = world.run(
        """
        import cupy, importlib, json, builtins
        again = importlib.reload(cupy)
        print(json.dumps([builtins.LOADS, again is cupy, type(cupy.__spec__.loader).__name__,
            type(cupy.__loader__).__name__]))
        """,
        python=python,
    )
    assert child.seen == [2, True, "SourceFileLoader", "SourceFileLoader"]


@pytest.mark.parametrize("python", interpreters())
def test_a_framework_in_a_zip(world: World, python: str) -> None:
    archive = world.directory / "frameworks.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("cupy/__init__.py", "VALUE = 5")
        file.writestr("paddle/__init__.py", "VALUE = 6")
    world.path.append(str(archive))
    child = world.run(
        "import cupy, paddle, json, os; print(json.dumps([cupy.VALUE, paddle.VALUE,"
        " type(cupy.__loader__).__name__, cupy.__spec__.loader is cupy.__loader__, 'NODEMGR_TASK'"
        " in os.environ]))",
        python=python,
    )
    assert child.seen == [5, 6, "zipimporter", True, True]


def test_a_loader_of_the_old_protocol_keeps_it(world: World) -> None:
    """Python 3.12 and later warn about such a loader, with and without us; it still works."""
    child = world.run("""
        import importlib.machinery, json, os, sys, types, warnings
        warnings.simplefilter("ignore")

        class Old:
            def load_module(self, name):
                module = sys.modules[name] = types.ModuleType(name)
                module.__path__, module.VALUE, module.__loader__ = [], 7, self
                return module

        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                return importlib.machinery.ModuleSpec(name, Old(),
                    is_package=True) if name == "mxnet" else None

        sys.meta_path.append(Finder)
        import mxnet
        loaders = [type(mxnet.__loader__).__name__, type(mxnet.__spec__.loader).__name__]
        print(json.dumps([mxnet.VALUE, *loaders, "NODEMGR_TASK" in os.environ]))
        """)
    assert child.seen == [7, "Old", "Old", True]


@pytest.mark.parametrize("first", [True, False], ids=["before ours", "behind ours"])
def test_another_hook_that_searches_through_everybody(
    world: World, package: Make, first: bool
) -> None:
    """Import hooks such as tracers' ask importlib for the spec, and wrap its loader."""
    package("cupy", "VALUE = 8")
    child = world.run(f"""
        import importlib.util, json, os, sys

        class Chained:
            def __init__(self, loader): self.loader = loader
            def create_module(self, spec): return self.loader.create_module(spec)
            def exec_module(self, module):
                module.TRACED = True
                self.loader.exec_module(module)

        class Tracer:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if self.busy: return None
                self.busy = True
                try: spec = importlib.util.find_spec(name)
                finally: self.busy = False
                if spec and spec.loader: spec.loader = Chained(spec.loader)
                return spec

        sys.meta_path.insert(0 if {first} else 1, Tracer())
        import cupy
        print(json.dumps([cupy.VALUE, cupy.TRACED, len(os.environ["NODEMGR_TASK"])]))
        """)
    assert child.seen == [8, True, 32]
    assert child.log == child.log[:1]


def test_a_finder_that_maps_names_as_editable_installs_do(world: World, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere"
    source.mkdir()
    (source / "__init__.py").write_text("VALUE = 9")
    child = world.run(f"""
        import importlib.util, json, os, sys

        class Editable:
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                if name == "jax":
                    return importlib.util.spec_from_file_location(name,
                        {str(source / "__init__.py")!r})

        sys.meta_path.append(Editable)
        import jax
        print(json.dumps([jax.VALUE, len(os.environ["NODEMGR_TASK"])]))
        """)
    assert child.seen == [9, 32]


def test_a_directory_of_that_name_is_no_framework(world: World) -> None:
    world.script["settings"]["acquire"] = "import"
    (world.directory / "mxnet" / "checkpoints").mkdir(parents=True)
    child = world.run(
        "import mxnet, json, os; print(json.dumps([list(mxnet.__path__) != [], 'NODEMGR_TASK' in"
        " os.environ]))"
    )
    assert child.seen == [True, False]
    assert child.log == []


def test_a_users_own_module_of_that_name_is_no_framework(world: World) -> None:
    world.script["settings"]["acquire"] = "import"
    (world.directory / "paddle.py").write_text("PLAYERS = 2\n")
    child = world.run(
        "import paddle, json, os; print(json.dumps([paddle.PLAYERS, 'NODEMGR_TASK' in os.environ]))"
    )
    assert child.seen == [2, False]


def test_a_framework_that_is_not_there_is_missed_as_ever(world: World) -> None:
    child = world.run("import mxnet")
    assert child.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'mxnet'"
    assert "nodemgr" not in child.stderr


def test_a_framework_that_fails_to_load_fails_as_ever_and_can_be_tried_again(
    world: World, package: Make
) -> None:
    package(
        "cupy",
        """
        import builtins
        builtins.TRIES = getattr(builtins, "TRIES", 0) + 1
        if builtins.TRIES == 1:
            raise OSError("libcublas.so.12: cannot open shared object file")
        """,
    )
    child = world.run("""
        import builtins, json, sys
        try:
            import cupy
        except OSError as error:
            first = str(error)
        assert "cupy" not in sys.modules
        import cupy
        print(json.dumps([first, builtins.TRIES]))
        """)
    assert child.seen == ["libcublas.so.12: cannot open shared object file", 2]
    assert "nodemgr" not in child.stderr


def test_threads_that_import_at_once_load_once(world: World, package: Make) -> None:
    for name in ("cupy", "mxnet", "paddle"):
        package(name, f"import builtins\nbuiltins.{name} = getattr(builtins, '{name}', 0) + 1")
    child = world.run("""
        import builtins, importlib, json, threading
        start = threading.Barrier(12)
        def load(name):
            start.wait()
            importlib.import_module(name)
        threads = [threading.Thread(target=load, args=(name,)) for name in ("cupy", "mxnet",
            "paddle") * 4]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(json.dumps([builtins.cupy, builtins.mxnet, builtins.paddle]))
        """)
    assert child.seen == [1, 1, 1]
    assert child.stderr == ""


def test_what_replaces_itself_in_sys_modules_stays_replaced(world: World, package: Make) -> None:
    package(
        "mxnet",
        """
        import sys, types
        class Other(types.ModuleType):
            VALUE = 10
        sys.modules[__name__] = Other(__name__)
        """,
    )
    child = world.run("import mxnet, json; print(json.dumps([mxnet.VALUE, type(mxnet).__name__]))")
    assert child.seen == [10, "Other"]
    assert child.stderr == ""
