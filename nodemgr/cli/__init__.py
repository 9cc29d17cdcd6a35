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

VERBS = {
    **verbs.VERBS,
    "allocations": "Show each grant: its GPUs, its begin, and its end with the reason.",
    "events": "Show the node's past events, and with --follow new ones.",
    "doctor": "Check this installation, the manager and the environment.",
    "env": "Create, list, show and remove environments, and give them to containers.",
    "quota": "Set, show and remove what each environment may use.",
    "gpu": "Drain GPUs, resume them, and report failures and repairs.",
    "head": "Make, run and restore the head of a cluster.",
    "node": "The nodes of a cluster: list, drain, give up.",
    "web": "Make, list and revoke tokens of the manager's web page.",
    "serve": "Run the manager in the foreground, until SIGTERM or Ctrl-C.",
    "setup": "Make this machine a node: group, settings, service.",
    "demo": "Show on this machine how programs get GPUs, in a few seconds.",
    "placement": "Train and evaluate a learned placement of jobs on GPUs that fail.",
    "completion": "Print the shell's completion script.",
}
"""Verb -> its line in the help.

The first verbs are modules of client_plugin/verbs, the others of the room admins (`command`).
"""


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
