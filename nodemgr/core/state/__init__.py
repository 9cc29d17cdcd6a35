"""The state as tables, the draft of one step over it, and its sums and queues.

May import: nodemgr.core.model.
"""
