"""Run by client_plugin/bin/nodemgr as `python -I DIRECTORY`: brings the package in by its path, for this process alone."""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from client_plugin.verbs import main  # noqa: E402 - not before there is a path to it

sys.exit(main(sys.argv[1:], inside=True))
