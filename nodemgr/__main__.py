"""`python -m nodemgr`: the command line of this very interpreter's installation."""

from __future__ import annotations

import sys

from nodemgr.cli import main

if __name__ == "__main__":
    sys.exit(main())
