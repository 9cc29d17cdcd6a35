"""Run by client_plugin/bin/nodemgr as a file: imports the package by its path.

The import holds for this process alone. (`python -I DIRECTORY` would import runpy before it, and
put the directory on the path, where commands/queue.py stands before the standard library's.)
"""

from __future__ import annotations

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from client_plugin.ways import ctrl_c

ctrl_c.end_at_once()
try:
    from client_plugin.verbs import main

    code = main(sys.argv[1:], inside=True)
except KeyboardInterrupt:  # in the last steps of a verb
    code = 130
ctrl_c.end_at_once()
gc.freeze()  # Python's exit looks for garbage among all imported objects
sys.exit(code)
