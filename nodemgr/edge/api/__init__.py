"""The verbs of administrators, jobs and clients, with their arguments and the views that they
return.

May import: nodemgr.core, and every other room of nodemgr.edge.
"""
