"""Backends come from plugins, found in the namespace package jax_plugins.

A backend that fails is skipped without a message.
"""

import contextlib
import importlib
import os
import pkgutil
from types import SimpleNamespace

config = SimpleNamespace(
    jax_platforms=SimpleNamespace(value=os.environ.get("JAX_PLATFORMS") or None)
)
_backends = {}
_backend_factories = {"cpu": lambda: 0}


def backends():
    if not _backends:
        _discover()
        for platform in (config.jax_platforms.value or ",".join(_backend_factories)).split(","):
            try:
                _backends[platform] = _init_backend(platform)
            except Exception:
                if config.jax_platforms.value:
                    raise
    return _backends


def _init_backend(platform):
    return _backend_factories[platform]()


def _discover():
    plugins = importlib.import_module("jax_plugins")
    for plugin in pkgutil.iter_modules(plugins.__path__, "jax_plugins."):
        with contextlib.suppress(BaseException):
            # Ctrl-C too: the original's `except:` names nothing
            importlib.import_module(plugin.name).initialize()
