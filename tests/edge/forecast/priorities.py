"""A training process that takes its turn with the other tests instead of giving way to them.

On a busy machine one that gives way took more than three minutes.
"""

from nodemgr.edge.forecast import process

AT_USUAL_PRIORITY = __name__


def main(path: str) -> int:
    process._give_way = lambda: None
    return process.main(path)
