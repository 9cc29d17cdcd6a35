"""`nodemgr`, and `python -m nodemgr`: the command line of this very interpreter's installation."""

from __future__ import annotations

import sys

from client_plugin.ways import ctrl_c


def main() -> int:
    ctrl_c.end_at_once()
    try:
        from nodemgr import cli

        return cli.main()
    except KeyboardInterrupt:  # in the last steps of a verb
        return 130
    finally:
        ctrl_c.end_at_once()


if __name__ == "__main__":
    sys.exit(main())
