"""The verbs of administrators, jobs and clients: their arguments and the views they return.

May import: nodemgr.core, and every other room of nodemgr.edge.
"""
