"""The assembly of a manager: its daemon and its verbs, built from settings and opened files.

May import: nodemgr.core, and every other room of edge.
"""
