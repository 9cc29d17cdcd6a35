"""Formats of requests and answers: the wire's packets, the schema of verbs, shared buffers for long
ones.

May import: nodemgr.core.model, nodemgr.paths, and the room kernel.
"""
