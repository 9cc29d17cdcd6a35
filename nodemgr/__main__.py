"""`python -m nodemgr`, and `nodemgr` behind its front: this interpreter's installation.

`python -m nodemgr` is for developers: it takes modules as any program of Python does, PYTHONPATH
and the working directory included. The front (csrc/front) takes neither.
"""

from __future__ import annotations

import sys

from client_plugin.ways import ctrl_c


def main(*words: str) -> int:
    """The verb in `words`, by default in the words of the command line."""
    ctrl_c.end_at_once()
    try:
        from nodemgr import cli

        return cli.main(words or None)
    except KeyboardInterrupt:  # in the last steps of a verb
        return 130
    finally:
        ctrl_c.end_at_once()


if __name__ == "__main__":
    sys.exit(main())
