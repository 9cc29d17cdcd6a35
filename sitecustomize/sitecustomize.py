"""Run by Python's `site` at startup in an environment.

It runs the sitecustomize that this file shadows, then installs the import hook.

Knows: its own location, how to recognise a managed process, and the one table of the frameworks
that are hooked. Must not: import a module that `site` has not imported already (it runs in every
interpreter), or need a certain Python: PYTHONPATH reaches all of them, so this file keeps to the
grammar that they share. The hook itself, `client_plugin` beside this directory, is loaded at the
first import of a framework, by its path and under a name of its own. Neither the directory above
(which may be another interpreter's site-packages) nor the name `client_plugin` (which the user may
have taken) becomes importable through it.
"""

import os
import sys

# Framework, or the module of it that CUDA comes with -> the adapter that serves it
# (client_plugin/adapters). IPython uses no CUDA; its shell gets the magic %gpu. The steps of keras
# are counted.
FRAMEWORKS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "mxnet": "generic",
    "caffe": "generic",
    "paddle": "generic",
    "cupy": "cupy",
    "numba.cuda": "numba",
    "pycuda.driver": "pycuda",
    "cuda.bindings": "bindings",
    "cuda.bindings.driver": "bindings",
    "IPython.core.interactiveshell": "ipython",
}
WATCHED = {
    "torch": "watched_torch",
    "tensorflow": "watched_tensorflow",
    "keras": "watched_keras",
}
"""The same for a process that `nodemgr predict` watches (client_plugin/prediction)."""
CALLERS = ("ctypes", "cffi") if hasattr(sys, "pypy_version_info") else ()
"""Modules with which PyPy calls the driver.

The library has no C interface of PyPy to wait with: the hook waits for it.
"""
PACKAGE = "_nodemgr_client_plugin"
HERE = os.path.dirname(os.path.abspath(__file__))


def managed():
    """Whether this process belongs to an environment and has not opted out."""
    directory = os.environ.get("NODEMGR_ENV_DIR") or "/run/nodemgr-env"
    return os.environ.get("NODEMGR_OFF") != "1" and os.access(
        os.path.join(directory, "client.conf"), os.R_OK
    )


def run_shadowed():
    """Run the sitecustomize that Python would have run without this one.

    Its exceptions go to `site`, as without this file. It stands in sys.modules instead of this
    module from then on. Only the entries of sys.path behind this one are searched, so that two
    files like this one cannot call each other in a circle.
    """
    paths = [os.path.abspath(entry) for entry in sys.path]
    behind = sys.path[paths.index(HERE) + 1 :] if HERE in paths else []
    if sys.version_info < (3, 8):
        # kept alive: its functions are running
        sys.modules["nodemgr_sitecustomize"] = sys.modules.pop(__name__)
        sys.path, saved = behind, sys.path
        try:
            import sitecustomize  # noqa: F401
        finally:
            sys.path = saved
        return
    import _frozen_importlib

    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", behind)
        if spec is not None and spec.loader is not None:  # a namespace directory has none
            _frozen_importlib._load(spec)
            return


def watched():
    """Whether `nodemgr predict` watches this process, which takes no lease then."""
    return bool(os.environ.get("NODEMGR_PREDICT"))


class Finder(object):
    """On sys.meta_path: hands a framework's import to the hook and says nothing about any other."""

    nodemgr = True
    hook = None
    serves = False
    heed = None
    frameworks = FRAMEWORKS

    @staticmethod
    def package(name):
        """A module of client_plugin, for nodemgr_progress."""
        return load_hook("prediction.planned" if watched() else name)

    def find_spec(self, name, path=None, target=None):
        if name in CALLERS and not self.serves:
            return found_behind(name, path, serve)
        if name == "_cffi_backend" and self.heed is not None:
            return found_behind(name, path, watch_cffi)
        if name not in self.frameworks or self.hook is False:
            return None
        try:
            if self.hook is None:
                Finder.hook = load_hook()
            return self.hook.find_spec(name, path, target, self.frameworks[name])
        except Exception as error:
            Finder.hook = False
            complain(error)
            return None


def found_behind(name, path, act):
    """The spec of a module, from the other finders; `act(module)` runs when it is loaded."""
    for finder in sys.meta_path:
        spec = None if isinstance(finder, Finder) else finder.find_spec(name, path)
        if spec is not None:
            break
    else:
        return None
    load = spec.loader.exec_module

    def load_and_act(module):
        load(module)
        try:
            act(module)
        except Exception as error:
            complain(error)

    spec.loader.exec_module = load_and_act
    return spec


def serve(_module):
    """Start the client, once."""
    if not Finder.serves:
        Finder.serves = True
        load_hook("lease").start()


def load_hook(name="loading"):
    """This module of client_plugin in the directory beside this one."""
    import importlib.util

    if PACKAGE not in sys.modules:
        folder = os.path.join(os.path.dirname(HERE), "client_plugin")
        spec = importlib.util.spec_from_file_location(
            PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        try:
            spec.loader.exec_module(package)
        except BaseException:
            del sys.modules[PACKAGE]
            raise
    return importlib.import_module(PACKAGE + "." + name)


def watch_callers():
    """Say it where a program calls the driver by ctypes or cffi, without the library preloaded.

    No adapter sees such a program. An audit hook costs at each event and stays, so only a process
    whose LD_PRELOAD was replaced has it.
    """
    if "libnodemgr" in os.environ.get("LD_PRELOAD", "") or os.path.exists("/etc/ld.so.preload"):
        return
    told = []

    def heed(library):
        if "libcuda.so" in str(library) and not told:
            told.append(library)
            try:
                load_hook("lease").say_alone()
            except Exception as error:
                complain(error)

    Finder.heed = staticmethod(heed)
    sys.addaudithook(lambda event, args: event == "ctypes.dlopen" and heed(args[0]))


def watch_cffi(backend):
    """The module that FFI.dlopen of cffi calls; it has no audit event."""
    load = backend.load_library

    def load_library(*args):
        Finder.heed(args[0] if args else None)
        return load(*args)

    backend.load_library = load_library


def install():
    """Put the finder in front, once; a framework that is loaded already is served now."""
    if any(getattr(finder, "nodemgr", False) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    if watched():
        Finder.frameworks = WATCHED
        return
    if not CALLERS:
        watch_callers()
    for name in FRAMEWORKS:
        if name in sys.modules:
            load_hook().adapt_loaded(sys.modules[name], FRAMEWORKS[name])


def complain(error):
    if "in subinterpreters" in str(error):  # ctypes, from Python 3.12 on: the shim serves it alone
        return
    try:
        sys.stderr.write(
            "nodemgr: the import hook failed (%s: %s); imports go on without it\n"
            % (type(error).__name__, error)
        )
    except Exception:  # no stderr: no place for a report
        pass


try:
    run_shadowed()
finally:
    try:
        if sys.version_info >= (3, 8) and (watched() or managed()):
            install()
    except Exception as error:
        complain(error)
