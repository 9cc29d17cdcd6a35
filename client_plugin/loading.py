"""The import of a framework: its own finder finds it, its own loader loads it, and we stand beside.

Knows: importlib's protocol. Must not know: what is done before and after (hook), which frameworks
there are (sitecustomize). Finding acquires nothing. Once a framework is loading, its module and its
spec carry their own loader again.
"""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Sequence

from . import hook

_searching: set[tuple[int, str]] = set()


def find_spec(
    name: str, path: Sequence[str] | None, target: ModuleType | None, adapter: str
) -> ModuleSpec | None:
    """The spec of the other finders of sys.meta_path, with its loader wrapped.

    None while they search through this finder again.
    """
    search = (threading.get_ident(), name)
    if search in _searching:
        return None
    _searching.add(search)
    try:
        spec = _ask_others(name, path, target)
    finally:
        _searching.discard(search)
    # A framework is a package with code. A namespace directory (no loader) or a user's own
    # paddle.py is not. A module within a package is known by its name.
    if (
        spec is not None
        and spec.loader is not None
        and (spec.submodule_search_locations is not None or "." in name)
    ):
        _wrap(spec, adapter)
    return spec


def _wrap(spec: Any, adapter: str) -> None:
    kind = _Loader if hasattr(spec.loader, "exec_module") else _LegacyLoader
    spec.loader = kind(spec.loader, spec, adapter)


def adapt_loaded(module: ModuleType, adapter: str) -> None:
    """Serve a framework that was loaded before the finder stood on sys.meta_path."""
    hook.before_load(module.__name__, adapter)
    hook.after_load(module, adapter)


def _ask_others(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is not None and not getattr(finder, "nodemgr", False):
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
    return None


class _Wrapped:
    """Stands in for a loader until it loads; the loader itself answers every other attribute."""

    def __init__(self, loader: Any, spec: Any, adapter: str) -> None:
        self._loader, self._spec, self._adapter = loader, spec, adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def _step_aside(self, module: Any = None) -> None:
        for owner, name in (
            (self._spec, "loader"),
            (getattr(module, "__spec__", None), "loader"),
            (module, "__loader__"),
        ):
            if getattr(owner, name, None) is self:
                setattr(owner, name, self._loader)


class _Loader(_Wrapped):
    def exec_module(self, module: ModuleType) -> None:
        self._step_aside(module)
        hook.before_load(self._spec.name, self._adapter)
        self._loader.exec_module(module)
        hook.after_load(sys.modules.get(self._spec.name, module), self._adapter)


class _LegacyLoader(_Wrapped):
    """The wrapper of a loader of the old protocol.

    It has no exec_module either, so that importlib treats it like the real loader.
    """

    def load_module(self, name: str) -> ModuleType:
        self._step_aside()
        hook.before_load(name, self._adapter)
        module: ModuleType = self._loader.load_module(name)
        hook.after_load(sys.modules.get(name, module), self._adapter)
        return module
