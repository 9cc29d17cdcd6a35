"""Progress of a program, for programs: `from nodemgr_progress import nodemgr_progress`.

Importable in every environment of nodemgr, by PYTHONPATH. Without an environment around it, the
function does nothing. Like `sitecustomize` it keeps to the grammar that all Pythons share.
"""

import sys


def nodemgr_progress(done=None, total=None):
    """The task has done `done` parts of its work, of `total`: steps, batches, files.

    Both are numbers, as often as the program likes: they are sent at most once a second. `total`
    alone: the adapters count the steps. A number that cannot be meant is reported once on stderr.
    Never raises.
    """
    try:
        for finder in sys.meta_path:
            if getattr(finder, "nodemgr", False):
                finder.package("progress").report(done, total)
                return
    except Exception as error:
        try:
            sys.stderr.write("nodemgr: the progress was not reported (%s)\n" % error)
        except Exception:  # no stderr: no place for a report
            pass
