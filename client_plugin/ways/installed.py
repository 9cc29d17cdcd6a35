"""The command that installs this nodemgr again, from the folder that it was installed from.

No package index has nodemgr, and anybody may register its name there.
"""

from __future__ import annotations

import json
import os
import shlex
import sys

from client_plugin.ways import locations


def command(extra: str = "") -> str:
    """`cd FOLDER && PYTHON -m pip install '.[extra]'`; without the folder where it is not known."""
    used_in_place = os.path.exists(os.path.join(locations.payload_dir(), "pyproject.toml"))
    folder = locations.payload_dir() if used_in_place else _noted_folder()
    what = f"'.[{extra}]'" if extra else "."
    pip = f"{shlex.quote(sys.executable)} -m pip install {'-e ' if used_in_place else ''}{what}"
    return f"cd {shlex.quote(folder)} && {pip}" if folder else f"{pip} in nodemgr's sources"


def _noted_folder() -> str:
    """As pip noted it (PEP 610); empty where it is gone."""
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        noted = json.loads(metadata.distribution("nodemgr").read_text("direct_url.json") or "{}")
        folder = unquote(urlsplit(noted["url"]).path) if "dir_info" in noted else ""
    except (ImportError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    return folder if os.path.isdir(folder) else ""
