"""A training process that takes its turn with the other tests instead of giving way to them.

On a busy machine one that gives way took more than three minutes.
"""

AT_USUAL_PRIORITY = (
    "import sys; sys.path.append(sys.argv[2]);"
    " from nodemgr.edge.forecast import process; process._give_way = lambda: None;"
    " sys.exit(process.main(sys.argv[1]))"
)
