"""The node's command line: it parses, asks the manager, prints. It decides nothing.

Users' verbs live in client_plugin/verbs, once for the node and its containers, and are called
before anything else is imported: a user waits for every import. The others (administrators', and
help for all) are click's (group).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from client_plugin import verbs


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code.

    A user's error is reported in one line, never as a traceback.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in verbs.VERBS and "_NODEMGR_COMPLETE" not in os.environ:
        code = verbs.main(words)
    else:
        from nodemgr.cli.presentation import group

        code = group.main(words)
    if arguments is None:
        # Python's exit looks for garbage among all imported objects: a fifth of a verb's time
        gc.freeze()
    return code
