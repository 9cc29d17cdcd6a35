"""Placement on GPUs that fail: the simulator of a failing cluster, training and evaluation.

May import: nodemgr.core, nodemgr.edge.placement, client_plugin.messages.
torch and matplotlib are imported by the functions that need them.
"""
