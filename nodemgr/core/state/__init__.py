"""The state as tables, the draft of one step over it, and the sums and queues that are kept with
it.

May import: nodemgr.core.model.
"""
