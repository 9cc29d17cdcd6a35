"""nodemgr: GPUs on demand for development environments.

An installation is this one package: the client's two folders, `client_plugin` and `sitecustomize`,
lie in `_client` here. In a checkout they lie beside this package.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(_HERE, "_client")
CLIENT_DIR = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_HERE)
"""The folder that holds client_plugin/ and sitecustomize/."""

# `import client_plugin` finds the client from here on, in this process alone. The folder is not
# kept on sys.path: it also holds `sitecustomize`, and another package may be called client_plugin.
sys.path.insert(0, CLIENT_DIR)
try:
    import client_plugin
finally:
    sys.path.remove(CLIENT_DIR)
if os.path.dirname(os.path.dirname(os.path.abspath(client_plugin.__file__))) != CLIENT_DIR:
    raise ImportError(
        f"nodemgr needs its own client_plugin, and {client_plugin.__file__} is imported already;"
        " run nodemgr as a program of its own"
    )
