"""The GPUs of a notebook's kernel in JupyterLab: the extension of the Jupyter server.

Its handlers answer the lab extension (labextension/static). Must not know: the manager's protocol,
which client_plugin speaks.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "nodemgr_jupyter"}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "nodemgr-jupyter"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from nodemgr_jupyter import handlers

    handlers.install(server.web_app)
