"""The client for programs and notebooks: `import nodemgr_client`.

Importable in every environment of nodemgr, by PYTHONPATH, and from a wheel of its own elsewhere.
Importing it loads the standard library only; without an environment around it, it does nothing.
"""

from nodemgr_progress import nodemgr_progress as progress

__all__ = ["progress"]
