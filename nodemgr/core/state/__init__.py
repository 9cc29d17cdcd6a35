"""The state as tables with an undo log of the open step, and its sums and queues.

May import: nodemgr.core.model.
"""
